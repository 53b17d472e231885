"""Rounds of work, a kill at a random moment, a restart and a check."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

from pamqp import commands

from tests.faults.crash.model import CERTAIN, Found, Group, Key, Model, read_body
from tests.faults.crash.workload import Workload
from tests.support.broker import Broker, LeveretProcess
from tests.support.peers.async_amqp091 import Channel, Connection, Delivery
from tests.support.polling import wait_until_async
from tests.support.rabbitmq import RabbitProcess

# Messages that a queue may keep for the next round; the check acknowledges the rest in a transaction.
KEEP = 1500
KEEP_LARGE = 3
READ_TIMEOUT = 120.0
MOVE_TIMEOUT = 120.0


class Violation(AssertionError):
    """The broker broke a guarantee; the text has the details."""


class Reader:
    """Reads one queue from front to back, without settling."""

    def __init__(self, channel: Channel, group: Group, queue: str) -> None:
        self.channel = channel
        self.group = group
        self.queue = queue
        self.found: list[Found] = []
        self.held: list[tuple[int, Key]] = []
        channel.on_delivery = self._on_delivery

    def _on_delivery(self, delivery: Delivery) -> None:
        key = read_body(delivery.body)
        self.found.append(Found(self.queue, key, delivery.method.redelivered))
        if key is not None:
            self.held.append((delivery.method.delivery_tag, key))

    async def read(self) -> None:
        """Read until the queue is empty, including messages that arrive meanwhile."""
        await self.channel.call(commands.Tx.Select())
        self.tag = await self.channel.consume(self.queue)

        async def ended() -> bool:
            before = len(self.found)
            await self.channel.count(self.queue)
            return not await self.channel.count(self.queue) and before == len(self.found)

        await wait_until_async(ended, f"the end of {self.queue}", READ_TIMEOUT)

    async def release(self, settle: list[tuple[int, Key]]) -> None:
        """Settle some messages for certain, and requeue the others."""
        await self.channel.call(commands.Basic.Cancel(self.tag))
        for tag, _ in settle:
            self.channel.ack(tag)
        await self.channel.call(commands.Tx.Commit())
        await self.channel.close()


async def read_queues(broker: Broker, model: Model) -> tuple[Connection, list[Reader]]:
    """Read all queues without settling anything. The readers keep the messages unacked."""
    connection = await Connection.open(broker)
    readers: list[Reader] = []
    for group in model.groups:
        for queue in group.queues:
            readers.append(Reader(await connection.channel(), group, queue))
            await readers[-1].read()
    # Messages that have expired meanwhile are moving from one queue to another.
    with contextlib.suppress(AssertionError):
        await wait_until_async(lambda: not _missing(model, readers), within=MOVE_TIMEOUT)
    return connection, readers


def _missing(model: Model, readers: list[Reader]) -> bool:
    """Whether a message that must be in one of two queues was found in neither."""
    return any(
        status.known == CERTAIN and not status.settling and key not in seen
        for group in model.groups
        if len(group.queues) > 1
        for seen in [{found.key for reader in readers if reader.group is group for found in reader.found}]
        for key, status in group.live.items()
    )


class CrashTest:
    """A broker that is killed again and again under a workload.

    broker  a stopped broker; anything with start, stop, kill and a port
    journal  file that gets the model's state when something is wrong, one JSON object a line
    """

    def __init__(self, broker: LeveretProcess | RabbitProcess, seed: int, journal: Path, redelivery: bool = True) -> None:
        self.broker = broker
        self.random = random.Random(seed)
        self.model = Model()
        self.workload = Workload(broker, self.model, seed)
        self.journal = journal
        self.redelivery = redelivery
        self.rounds = 0
        # End of the broker in this round: "stop", "kill", "kill while starting".
        self.ends: list[str] = []
        self.recovery_seconds: list[float] = []

    def run(
        self,
        rounds: int,
        seconds: tuple[float, float] = (0.1, 1.5),
        *,
        graceful: float = 0.1,
        again: float = 0.25,
        found: int = 0,
        progress: Callable[[CrashTest], None] | None = None,
    ) -> None:
        """Run this many rounds. Raises Violation at the first failure.

        seconds: working time of the clients before the kill. graceful: the share of rounds that end by SIGTERM instead.
        again: the share of kills that are followed by another one during recovery. found: the number of messages that must
        have been found again, for which a busy machine needs more rounds.
        """
        self.broker.start()
        asyncio.run(self.workload.declare())
        last = self.rounds + rounds
        while self.rounds < last or self.model.totals["found"] < found:
            self.rounds += 1
            self.ends = []
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
        self.ends.append("stop" if graceful else "kill")
        if graceful:
            await asyncio.to_thread(self.broker.stop)
        else:
            self.broker.kill()
        await work
        self._raise_if(self.workload.wrong)

    def _start_and_kill(self) -> None:
        """Kill the broker while it starts: recovery must be repeatable."""
        self.ends.append("kill while starting")
        try:
            self.broker.start(timeout=self.random.uniform(0.05, 0.6))
        except RuntimeError:
            pass
        self.broker.kill()

    async def _check(self) -> None:
        """Read every queue without settling, compare, settle the surplus, and requeue the rest."""
        connection, readers = await read_queues(self.broker, self.model)
        found = {reader.queue: reader.found for reader in readers}
        self._raise_if(self.model.check(found, self.redelivery))
        for reader in readers:
            keep = KEEP_LARGE if reader.group is self.workload.large else KEEP
            # Holes anywhere, so that the next recovery finds partly dead rows.
            surplus = self.random.sample(reader.held, max(0, len(reader.held) - keep))
            await reader.release(surplus)
            for _, key in surplus:
                self.model.settled(reader.group, key)
        await connection.close()

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
        how = ", ".join(self.ends)
        raise Violation(f"round {self.rounds} ({how}): {len(wrong)} broken guarantees, see {self.journal}:\n{listed}")

    def summary(self) -> str:
        """Return one line of totals."""
        totals = self.model.totals
        slowest = max(self.recovery_seconds, default=0.0)
        return (
            f"{self.rounds} rounds: {totals['published']} published, {totals['confirmed']} confirmed, "
            f"{totals['transactions']} transactions, {totals['certainly settled']} certainly settled, "
            f"{totals['found']} found again, {totals['transactions in doubt']} in doubt and whole, "
            f"slowest recovery {slowest:.2f} s"
        )
