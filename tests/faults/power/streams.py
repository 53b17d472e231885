"""Streams that are sealed and merged: every confirmed message keeps its offset, through the log and through segments."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable

from pamqp import commands

from tests.faults.crash.workload import BROKEN
from tests.faults.power.workload import Event, Journal, Survivor, Workload
from tests.support.broker import LeveretProcess, basic_config
from tests.support.peers.async_amqp091 import Closed, Connection, Delivery

STREAM = {"x-queue-type": "stream"}
WINDOW = 40
LIMIT = 120.0


def body_of(stream: int, number: int) -> bytes:
    size = random.Random(stream << 32 | number).choice((0, 100, 1000, 4000))
    return b"%d:%d:" % (stream, number) + b"x" * size


class Streams(Workload):
    """Publishers with confirms to two streams, and to a new one in each phase.

    A reader remembers the message at each offset.
    """

    sealing = True
    config = (
        basic_config()
        + """
[streams]
segment_size = 40000
segment_age = "200ms"
merge_below = 30000
grace = 0
"""
    )

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.next = {0: 0, 1: 0}
        self.lock = threading.Lock()

    def run(self, process: LeveretProcess, journal: Journal, started: Callable[[], None]) -> list[str]:
        self.next[len(self.next)] = 0
        return asyncio.run(self._run(process, journal, started))

    async def _run(self, process: LeveretProcess, journal: Journal, started: Callable[[], None]) -> list[str]:
        wrong: list[str] = []
        connection = await Connection.open(process)
        channel = await connection.channel()
        for stream in self.next:
            journal("declaring", stream)
            await channel.declare(f"s{stream}", durable=True, arguments=STREAM)
            journal("declared", stream)
        await connection.close()
        started()

        async def guarded(stream: int, client: Callable[[LeveretProcess, Journal, int], object]) -> None:
            try:
                await client(process, journal, stream)  # type: ignore[misc]
            except BROKEN as error:
                if isinstance(error, Closed) and (error.scope == "fault" or error.code not in (0, 320)):
                    wrong.append(f"s{stream}: {error}")

        await asyncio.gather(*(guarded(stream, client) for stream in self.next for client in (self._publish, self._read)))
        return wrong

    async def _publish(self, process: LeveretProcess, journal: Journal, stream: int) -> None:
        connection = await Connection.open(process)
        channel = await connection.channel()
        await channel.call(commands.Confirm.Select())
        waiting: deque[tuple[int, int]] = deque()

        def on_confirm(tag: int, multiple: bool, ack: bool) -> None:
            assert ack
            if multiple:
                while waiting and waiting[0][0] <= tag:
                    journal("confirmed", stream, waiting.popleft()[1])
            else:
                [found] = [item for item in waiting if item[0] == tag]
                waiting.remove(found)
                journal("confirmed", stream, found[1])

        channel.on_confirm = on_confirm
        chance = random.Random(self.seed + stream)
        while connection.closed is None:
            for _ in range(chance.randint(1, 10)):
                if len(waiting) >= WINDOW:
                    break
                number = self.next[stream]
                self.next[stream] += 1
                journal("published", stream, number)
                waiting.append((channel.publish("", f"s{stream}", body_of(stream, number)), number))
            await connection.drain()
            await asyncio.sleep(chance.random() * 0.02)
        raise connection.closed

    async def _read(self, process: LeveretProcess, journal: Journal, stream: int) -> None:
        connection = await Connection.open(process)
        channel = await connection.channel()

        def on_delivery(delivery: Delivery) -> None:
            number = int(delivery.body.split(b":")[1])
            journal("seen", stream, delivery.properties.headers["x-stream-offset"], number)
            channel.ack(delivery.method.delivery_tag)

        channel.on_delivery = on_delivery
        await channel.call(commands.Basic.Qos(prefetch_count=100))
        await channel.consume(f"s{stream}", arguments={"x-stream-offset": "first"})
        while connection.closed is None:
            await asyncio.sleep(0.05)
        raise connection.closed

    def check(self, broker: Survivor, events: list[Event]) -> list[str]:
        streams: dict[int, Expected] = {}
        for name, stream, *values in events:
            expected = streams.setdefault(stream, Expected())
            match name:
                case "declared":
                    expected.declared = True
                case "published":
                    expected.published = max(expected.published, values[0])
                case "confirmed":
                    expected.confirmed.add(values[0])
                case "seen":
                    expected.seen[values[0]] = values[1]
        there = {queue["name"] for queue in broker.call("queues.list")}
        wrong = [
            f"s{stream} is lost" for stream, expected in streams.items() if expected.declared and f"s{stream}" not in there
        ]
        for stream, expected in streams.items():
            if f"s{stream}" in there:
                end = broker.call("streams.show", vhost="/", name=f"s{stream}")["next_offset"]
                wrong += expected.compared(stream, asyncio.run(_read_all(broker, f"s{stream}", end)), end)
        return wrong


class Expected:
    """The clients' knowledge of a stream."""

    def __init__(self) -> None:
        self.declared = False
        self.published = -1
        self.confirmed: set[int] = set()
        self.seen: dict[int, int] = {}

    def compared(self, stream: int, found: list[tuple[int, bytes]], end: int) -> list[str]:
        """Return what is wrong with the messages found, by offset."""
        wrong: list[str] = []
        if [offset for offset, _ in found] != list(range(end)):
            wrong.append(f"s{stream}: offsets are not 0 to {end - 1}: {[offset for offset, _ in found][:20]}")
        numbers = [int(body.split(b":")[1]) for _, body in found]
        if any(body != body_of(stream, number) for number, (_, body) in zip(numbers, found, strict=True)):
            wrong.append(f"s{stream}: a body is damaged")
        if numbers != sorted(set(numbers)):
            wrong.append(f"s{stream}: out of order, or twice")
        lost = self.confirmed - set(numbers)
        if lost:
            wrong.append(f"s{stream}: {len(lost)} lost, such as {min(lost)}; {len(numbers)} exist")
        if numbers and max(numbers) > self.published:
            wrong.append(f"s{stream}: {max(numbers)} was invented")
        at = {offset: number for number, (offset, _) in zip(numbers, found, strict=True)}
        moved = [offset for offset, number in self.seen.items() if at.get(offset, number) != number]
        if moved:
            wrong.append(f"s{stream}: other messages are at offsets where readers saw some before: {moved[:5]}")
        gone = [offset for offset in self.seen if offset >= end]
        if gone:
            wrong.append(f"s{stream}: {len(gone)} messages are lost that a reader saw")
        return wrong


async def _read_all(broker: Survivor, stream: str, end: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    if not end:
        return found
    connection = await Connection.open(broker)
    channel = await connection.channel()
    finished, cancelled = asyncio.Event(), asyncio.Event()

    def on_delivery(delivery: Delivery) -> None:
        offset = delivery.properties.headers["x-stream-offset"]
        found.append((offset, delivery.body))
        channel.ack(delivery.method.delivery_tag)
        if offset + 1 >= end:
            finished.set()

    def on_cancel(_: str) -> None:
        cancelled.set()
        finished.set()

    channel.on_delivery, channel.on_cancel = on_delivery, on_cancel
    await channel.call(commands.Basic.Qos(prefetch_count=1000))
    await channel.consume(stream, arguments={"x-stream-offset": "first"})
    try:
        await asyncio.wait_for(finished.wait(), LIMIT)
    except TimeoutError:
        pass
    if not cancelled.is_set():
        await connection.close()
    return found
