"""Rounds of work, a kill at a random moment, a restart and a check."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

from pamqp import commands

from tests.faults.crash.model import Found, Group, Key, Model, read_body
from tests.faults.crash.workload import Workload
from tests.support.amqp import Channel, Connection, Delivery
from tests.support.broker import LeveretProcess

# What a queue may keep from one round to the next; the rest is acknowledged in a transaction by the check.
KEEP = 1500
KEEP_LARGE = 3
READ_TIMEOUT = 60.0


class Violation(AssertionError):
    """The broker broke a promise; the text lists how."""


class CrashTest:
    """A broker that is killed again and again under a workload.

    broker  a stopped broker; anything with start, stop, kill and a port
    journal  file that gets the model's state when something is wrong, one JSON object a line
    """

    def __init__(self, broker: LeveretProcess, seed: int, journal: Path, redelivery: bool = True) -> None:
        self.broker = broker
        self.random = random.Random(seed)
        self.model = Model()
        self.workload = Workload(broker, self.model, seed)
        self.journal = journal
        self.redelivery = redelivery
        self.rounds = 0
        self.recovery_seconds: list[float] = []

    def run(
        self,
        rounds: int,
        seconds: tuple[float, float] = (0.1, 1.5),
        *,
        graceful: float = 0.1,
        again: float = 0.25,
        progress: Callable[[CrashTest], None] | None = None,
    ) -> None:
        """That many rounds. Raises Violation at the first that went wrong.

        seconds   how long the clients work before the kill
        graceful  share of rounds that end by SIGTERM instead
        again     share of kills that are followed by another one while the broker recovers
        """
        self.broker.start()
        asyncio.run(self.workload.declare())
        for _ in range(rounds):
            self.rounds += 1
            asyncio.run(self._work(self.random.uniform(*seconds), self.random.random() < graceful))
            while self.random.random() < again:
                self._start_and_kill()
            begun = time.monotonic()
            self.broker.start()
            self.recovery_seconds.append(time.monotonic() - begun)
            asyncio.run(self._check())
            if progress is not None:
                progress(self)
        self.broker.stop()

    async def _work(self, seconds: float, graceful: bool) -> None:
        work = asyncio.create_task(self.workload.run())
        await asyncio.wait([work], timeout=seconds)
        if graceful:
            await asyncio.to_thread(self.broker.stop)
        else:
            self.broker.kill()
        await work
        self._raise_if(self.workload.wrong)

    def _start_and_kill(self) -> None:
        """Kill it while it starts: recovery must be repeatable."""
        try:
            self.broker.start(timeout=self.random.uniform(0.05, 0.6))
        except RuntimeError:
            pass
        self.broker.kill()

    async def _check(self) -> None:
        """Read every queue without settling, compare, settle what is too much, give the rest back."""
        connection = await Connection.open(self.broker)
        found: dict[str, list[Found]] = {}
        readers: list[tuple[Group, Channel, list[tuple[int, Key | None]]]] = []
        for group in self.model.groups:
            for queue in group.queues:
                channel = await connection.channel()
                await channel.call(commands.Tx.Select())
                messages = await self._read(channel, queue)
                found[queue] = [Found(queue, key, redelivered) for _, key, redelivered in messages]
                readers.append((group, channel, [(tag, key) for tag, key, _ in messages]))
        self._raise_if(self.model.check(found, self.redelivery))
        for group, channel, held in readers:
            keep = KEEP_LARGE if group is self.workload.large else KEEP
            # Holes anywhere, so that the next recovery finds rows that are half dead.
            surplus = self.random.sample(held, max(0, len(held) - keep))
            for tag, _ in surplus:
                channel.ack(tag)
            await channel.call(commands.Tx.Commit())
            for _, key in surplus:
                assert key is not None
                self.model.settled(group, key)
            await channel.close()
        await connection.close()

    async def _read(self, channel: Channel, queue: str) -> list[tuple[int, Key | None, bool]]:
        """Everything that is in a queue, front to back, held: delivery tag, identity, redelivered."""
        messages: list[tuple[int, Key | None, bool]] = []

        def on_delivery(delivery: Delivery) -> None:
            method = delivery.method
            messages.append((method.delivery_tag, read_body(delivery.body), method.redelivered))

        channel.on_delivery = on_delivery
        tag = await channel.consume(queue)
        deadline = time.monotonic() + READ_TIMEOUT
        had = -1
        while had != len(messages) or await channel.count(queue):
            assert time.monotonic() < deadline, f"{queue} could not be read within {READ_TIMEOUT} s"
            had = len(messages)
            await asyncio.sleep(0.005)
            await channel.count(queue)
        await channel.call(commands.Basic.Cancel(tag))
        return messages

    def _raise_if(self, wrong: list[str]) -> None:
        if not wrong:
            return
        with open(self.journal, "w", encoding="utf-8") as file:
            for text in wrong:
                file.write(json.dumps({"wrong": text}) + "\n")
            for group in self.model.groups:
                for key, status in group.live.items():
                    file.write(
                        json.dumps(
                            {
                                "queues": group.queues,
                                "key": key,
                                "known": status.known,
                                "settling": status.settling,
                                "delivered": status.delivered,
                            }
                        )
                        + "\n"
                    )
        listed = "\n".join(wrong[:20])
        raise Violation(f"round {self.rounds}: {len(wrong)} broken promises, the state is in {self.journal}:\n{listed}")

    def summary(self) -> str:
        """One line of totals."""
        totals = self.model.totals
        slowest = max(self.recovery_seconds, default=0.0)
        return (
            f"{self.rounds} rounds: {totals['published']} published, {totals['confirmed']} confirmed, "
            f"{totals['transactions']} transactions, {totals['settled for sure']} surely settled, "
            f"{totals['found']} found again, {totals['transactions in doubt']} in doubt and whole, "
            f"slowest recovery {slowest:.2f} s"
        )
