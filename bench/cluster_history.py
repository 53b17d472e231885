"""One history of all clients of a cluster, and what must hold for it.

Publishers with confirms, consumers and definers come back at once whenever a connection ends, through any node. The
invariants: a confirmed message is delivered; nothing is invented; what was acked before a confirmed publish of the same
channel does not return; the first deliveries of a publisher's messages are in order; a definition that was answered exists
at every node.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from pamqp import commands

from tests.faults.crash.model import make_body, read_body
from tests.faults.crash.workload import BROKEN
from tests.support.broker import LeveretProcess
from tests.support.peers.async_amqp091 import Channel, Closed, Connection, Delivery
from tests.support.peers.framing import content

PERSISTENT = commands.Basic.Properties(delivery_mode=2)
WORK, MARKS, WAITING = "work", "marks", "waiting"
# A node holds the open of a vhost whose shard moves for 2 seconds.
OPEN_TIMEOUT = 2.5
PREFETCH = 500
ACK_INTERVAL = 0.02
# Messages that wait: how many are written at a time, and the seconds for their confirms.
FILL_BATCH = 500
FILL_TIMEOUT = 600.0
# Seconds for a connection and for each answer at the end, when there may be thousands.
ANSWER_TIMEOUT = 30.0
# Intervals between two confirms that are kept.
MIN_GAP = 0.02


class Lane:
    """One vhost: the messages of its publishers, and what its consumer has seen of them."""

    def __init__(self, vhost: str, wrong: Callable[[str], None]) -> None:
        self.vhost = vhost
        self.wrong = wrong
        self.sent: defaultdict[int, int] = defaultdict(int)
        self.confirmed: set[tuple[int, int]] = set()
        self.seen: set[tuple[int, int]] = set()
        # In doubt: published over a connection that ended before their confirms. The network may still deliver them.
        self.doubtful: set[tuple[int, int]] = set()
        # Acked for certain.
        self.gone: set[tuple[int, int]] = set()
        self._last_first: defaultdict[int, int] = defaultdict(int)

    def deliver(self, delivery: Delivery) -> tuple[int, int] | None:
        """Note a delivery. Returns its key."""
        key = read_body(delivery.body)
        if key is None:
            self.wrong(f"damaged message in vhost {self.vhost}")
            return None
        publisher, number = key
        if number > self.sent[publisher]:
            self.wrong(f"invented: {key} in vhost {self.vhost}")
        elif key in self.gone:
            self.wrong(f"came back: {key} in vhost {self.vhost}")
        else:
            self.seen.add(key)
            # Messages of a connection that was cut off return later.
            if not delivery.method.redelivered and key not in self.doubtful:
                if number < self._last_first[publisher]:
                    self.wrong(f"out of order: {key} after {self._last_first[publisher]} in vhost {self.vhost}")
                self._last_first[publisher] = number
        return key

    def missing(self) -> set[tuple[int, int]]:
        """Return the confirmed messages that were not delivered yet."""
        return self.confirmed - self.seen


class Client:
    """A client that comes back at once.

    nodes    the nodes, of which it tries one after another
    avoid    nodes that it does not use
    """

    def __init__(self, vhost: str, nodes: Sequence[LeveretProcess], seed: int) -> None:
        self.vhost = vhost
        self.avoid: set[LeveretProcess] = set()
        self.node: LeveretProcess | None = None
        self.connection: Connection | None = None
        self.reconnects = -1
        self.ending = False
        self._random = random.Random(seed)
        self._nodes = list(nodes)
        self._random.shuffle(self._nodes)

    async def connect(self) -> tuple[Connection, Channel]:
        """Return a connection through the next node that serves the vhost."""
        while True:
            self._nodes.append(self._nodes.pop(0))
            node = self._nodes[0]
            if node in self.avoid:
                await asyncio.sleep(0)
                continue
            try:
                async with asyncio.timeout(OPEN_TIMEOUT):
                    connection = await Connection.open(node, vhost=self.vhost)
                    try:
                        channel = await connection.channel()
                        await channel.call(commands.Confirm.Select())
                    except BaseException:
                        connection.abort()
                        raise
            except (*BROKEN, TimeoutError):
                await asyncio.sleep(0.01)
                continue
            if node in self.avoid:
                connection.abort()
                continue
            self.node, self.connection = node, connection
            self.reconnects += 1
            return connection, channel

    async def keep(self, work: Callable[[Connection, Channel], Coroutine[Any, Any, None]]) -> None:
        """Work over one connection after another."""
        while not self.ending:
            connection, channel = await self.connect()
            try:
                await work(connection, channel)
            except BROKEN:
                pass
            finally:
                connection.abort()

    def leave(self, node: LeveretProcess) -> None:
        """Do not use a node, now and later."""
        self.avoid = {node}
        if self.node is node and self.connection is not None:
            self.connection.abort()
            self.connection._end(Closed("socket"))


class Publisher(Client):
    """Publishes to `work`, at most `window` messages before their confirms.

    pause    seconds between two bursts
    """

    def __init__(
        self, number: int, lane: Lane, nodes: Sequence[LeveretProcess], *, pause: float, window: int = 200
    ) -> None:
        super().__init__(lane.vhost, nodes, number)
        self.number = number
        self.lane = lane
        self.pause = pause
        self.window = window
        self.last = 0.0
        # The end and the length of intervals between two confirms.
        self.gaps: list[tuple[float, float]] = []
        # When the last confirmed message was sent.
        self.confirmed_sent = 0.0

    async def run(self) -> None:
        await self.keep(self._publish)

    async def _publish(self, connection: Connection, channel: Channel) -> None:
        waiting: deque[tuple[int, int, float]] = deque()
        moved = asyncio.Event()

        def on_confirm(tag: int, multiple: bool, ack: bool) -> None:
            now = time.monotonic()
            while waiting and waiting[0][0] <= tag:
                found, number, sent = waiting.popleft()
                if not multiple and found != tag:
                    self.lane.wrong(f"confirm {tag} before {found}")
                if not ack:
                    continue
                self.lane.confirmed.add((self.number, number))
                self.confirmed_sent = max(self.confirmed_sent, sent)
            if self.last and now - self.last >= MIN_GAP:
                self.gaps.append((now, now - self.last))
            self.last = now
            moved.set()

        channel.on_confirm = on_confirm
        try:
            await self._publish_until_closed(connection, channel, waiting, moved)
        finally:
            self.lane.doubtful.update((self.number, number) for _, number, _ in waiting)

    async def _publish_until_closed(
        self, connection: Connection, channel: Channel, waiting: deque[tuple[int, int, float]], moved: asyncio.Event
    ) -> None:
        while not self.ending or waiting:
            if connection.closed is not None:
                raise connection.closed
            burst = 0 if self.ending else min(5, self.window - len(waiting))
            for _ in range(burst):
                number = self.lane.sent[self.number] = self.lane.sent[self.number] + 1
                body = make_body((self.number, number), self._random.randint(0, 250))
                waiting.append((channel.publish("", WORK, body, PERSISTENT), number, time.monotonic()))
            await connection.drain()
            if burst and self.pause:
                await asyncio.sleep(self.pause)
            elif not burst:
                moved.clear()
                try:
                    await asyncio.wait_for(moved.wait(), 0.02)
                except TimeoutError:
                    continue
            else:
                await asyncio.sleep(0)

    def first_after(self, since: float) -> float:
        """Return the time of the first confirm after a moment."""
        return min((end for end, length in self.gaps if end >= since), default=since)

    def gap(self, since: float) -> float:
        """Return the longest time without a confirm that ended after a moment."""
        return max((length for end, length in self.gaps if end >= since), default=0.0)


class Consumer(Client):
    """Consumes `work`, and acks what it has got, followed by a message with a confirm."""

    def __init__(self, number: int, lane: Lane, nodes: Sequence[LeveretProcess]) -> None:
        super().__init__(lane.vhost, nodes, number)
        self.lane = lane

    async def run(self) -> None:
        await self.keep(self._consume)

    async def _consume(self, connection: Connection, channel: Channel) -> None:
        got: list[tuple[int, tuple[int, int] | None]] = []
        acked: dict[int, list[tuple[int, int]]] = {}

        def on_confirm(tag: int, multiple: bool, ack: bool) -> None:
            for marker in [marker for marker in acked if marker <= tag]:
                self.lane.gone.update(acked.pop(marker))

        channel.on_confirm = on_confirm
        channel.on_delivery = lambda delivery: got.append((delivery.method.delivery_tag, self._note(connection, delivery)))
        await channel.call(commands.Basic.Qos(prefetch_count=PREFETCH))
        await channel.consume(WORK)
        while not self.ending:
            if connection.closed is not None:
                raise connection.closed
            if got:
                channel.ack(got[-1][0], multiple=True)
                marker = channel.publish("", MARKS, b"", PERSISTENT)
                acked[marker] = [key for _, key in got if key is not None]
                got.clear()
            await asyncio.sleep(ACK_INTERVAL)

    def _note(self, connection: Connection, delivery: Delivery) -> tuple[int, int] | None:
        # Not after this client has given up the connection.
        return self.lane.deliver(delivery) if connection.closed is None else None


class Definer(Client):
    """Declares a queue after another."""

    def __init__(self, number: int, lane: Lane, nodes: Sequence[LeveretProcess]) -> None:
        super().__init__(lane.vhost, nodes, number)
        self.lane = lane
        self.asked = 0
        self.answered: list[str] = []

    async def run(self) -> None:
        await self.keep(self._define)

    async def _define(self, connection: Connection, channel: Channel) -> None:
        while not self.ending:
            self.asked += 1
            self.answered.append(await channel.declare(f"defined.{self.asked}", durable=True))
            await asyncio.sleep(0.2)


async def declare(node: LeveretProcess, vhost: str, waiting: int) -> None:
    """Declare the queues of a vhost, with messages that wait in one of them."""
    connection = await Connection.open(node, vhost=vhost)
    channel = await connection.channel()
    await channel.declare(WORK, durable=True)
    await channel.declare(MARKS, durable=True, arguments={"x-max-length": 1})
    await channel.declare(WAITING, durable=True)
    await channel.call(commands.Confirm.Select())
    last = asyncio.Event()
    channel.on_confirm = lambda tag, multiple, ack: last.set() if tag == waiting else None
    # Encoded once: a million messages take a while.
    publish = commands.Basic.Publish(exchange="", routing_key=WAITING)
    message = content(channel.number, publish, b"w" * 256, PERSISTENT, connection.frame_max)
    for first in range(0, waiting, FILL_BATCH):
        connection.write(message * min(FILL_BATCH, waiting - first))
        await connection.drain()
    if waiting:
        await asyncio.wait_for(last.wait(), FILL_TIMEOUT)
    await connection.close()


async def check_definitions(node: LeveretProcess, definer: Definer, waiting: int, wrong: Callable[[str], None]) -> None:
    """Check at a node that everything that was declared exists. Raises `TimeoutError` if it does not answer."""
    client = Client(definer.vhost, [node], 0)
    connection, channel = await asyncio.wait_for(client.connect(), ANSWER_TIMEOUT)
    if (found := await asyncio.wait_for(channel.count(WAITING), ANSWER_TIMEOUT)) != waiting:
        wrong(f"{found} messages wait in vhost {definer.vhost}, of {waiting}")
    for name in definer.answered:
        try:
            await asyncio.wait_for(channel.call(commands.Queue.Declare(queue=name, passive=True)), ANSWER_TIMEOUT)
        except Closed as error:
            wrong(f"{name} in vhost {definer.vhost} is unknown at {node.directory.name}: {error}")
            break
    await connection.close()
