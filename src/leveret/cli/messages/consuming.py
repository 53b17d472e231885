"""What `leveret consume` and `leveret get` do."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from leveret.cli.client_command import open_connection, run
from leveret.cli.failed import NOT_ALL, PIPE_CLOSED, Failed
from leveret.cli.messages.outputs import Directory, Output, Stream
from leveret.cli.messages.progress import Progress

if TYPE_CHECKING:
    from leveret.client.aio.channel import Channel
    from leveret.client.aio.consumer import Consumer
    from leveret.client.message import Message

# What is written, and then settled, at a time; twice as much may be at hand.
MOST_MESSAGES: Final = 500
MOST_OCTETS: Final = 1 << 20

# What becomes of a message that is written.
ACK: Final = "ack"
REJECT: Final = "reject"
REQUEUE: Final = "requeue"
NO_ACK: Final = "no-ack"


@dataclass(kw_only=True)
class Order:
    """What to take, and where to write it.

    exchange, binding_keys   of a temporary queue, where `queue` is None
    count       None: without end
    idle        seconds without a message after which it ends, None for never
    timeout     seconds for the broker's answers, None as the URL has it
    settle      what becomes of a message that is written: ACK, REJECT, REQUEUE (all of them at the end) or NO_ACK
    """

    urls: tuple[str, ...]
    queue: str | None
    exchange: str = ""
    binding_keys: Sequence[str] = ()
    count: int | None = None
    idle: float | None = None
    timeout: float | None = None
    prefetch: int | None = None
    settle: str = ACK
    form: str = "lines"
    output_dir: Path | None = None
    quiet: bool = False


def consume(order: Order) -> None:
    """Write messages as they come."""
    _run(_Consuming, order)


def get(order: Order) -> None:
    """Write the messages that are there, `count` at most."""
    _run(_Getting, order)


def _run(kind: type[_Taking], order: Order) -> None:
    try:
        # Before there is a loop, whose descriptors could take the place of a closed standard output.
        taking = kind(order)
    except OSError as error:
        raise Failed(f"{error.filename or 'standard output'}: {error.strerror}", NOT_ALL) from None
    run(taking.run)


class _Taking:
    """What both have in common: writing and settling."""

    command = ""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._output: Output = Stream(order.form) if order.output_dir is None else Directory(order.output_dir)
        self._progress = Progress("taken", not order.quiet and not self._output.is_terminal, self._state)
        self._taken = 0
        self._closed = False

    def _state(self) -> tuple[int, float | None]:
        count = self._order.count
        return self._taken, self._taken / count if count else None

    async def run(self) -> int:
        order = self._order
        task = asyncio.current_task()
        assert task is not None

        def closed() -> None:
            self._closed = True
            task.cancel()

        try:
            with self._progress:
                async with (open_connection(order.urls, self.command, order.timeout, self._progress.on_event) as connection,
                            connection.channel(confirms=False) as channel):
                    self._output.on_closed(closed)
                    # The end of the channel gives back whatever is not settled.
                    await self._take(channel)
        except asyncio.CancelledError:
            if not self._closed:
                raise
            return PIPE_CLOSED
        finally:
            if self._taken and not order.quiet:
                self._progress.say(f"{self._taken:,} message{'' if self._taken == 1 else 's'} taken")
        return 0 if self._taken and (order.count is None or self._taken == order.count) else NOT_ALL

    async def _take(self, channel: Channel) -> None:
        raise NotImplementedError

    async def _write(self, messages: Sequence[Message]) -> None:
        """Write them, and settle those that are written, whatever happens."""
        try:
            await self._output.write(messages)
        finally:
            written = messages[: self._output.written]
            self._taken += len(written)
            if self._order.settle == ACK and written:
                written[-1].ack(multiple=True)
            elif self._order.settle == REJECT:
                for message in written:
                    message.reject()


class _Consuming(_Taking):
    command = "consume"

    def __init__(self, order: Order) -> None:
        super().__init__(order)
        self._waiting: deque[Message] = deque()
        self._octets = 0
        self._came = asyncio.Event()
        self._room = asyncio.Event()

    async def _take(self, channel: Channel) -> None:
        order = self._order
        queue = order.queue
        if queue is None:
            queue = (await channel.declare_queue(exclusive=True, auto_delete=True)).name
            for key in order.binding_keys:
                await channel.bind_queue(queue, order.exchange, key)
        consumer = channel.consume(queue, prefetch=self._prefetch(), no_ack=order.settle == NO_ACK)
        await consumer.start()
        receiving = asyncio.create_task(self._receive(consumer))
        receiving.add_done_callback(lambda _: self._came.set())
        try:
            while order.count is None or self._taken < order.count:
                if not await self._come():
                    break
                batch = self._batch()
                if batch:
                    await self._write(batch)
                elif receiving.done():
                    receiving.result()
                    break
        finally:
            receiving.cancel()

    def _prefetch(self) -> int:
        """No more than is asked for, so that nobody else's messages wait here."""
        order = self._order
        prefetch = order.prefetch
        if prefetch is None:
            # What is held till the end must not stop the rest from coming.
            prefetch = 0 if order.settle == REQUEUE else 100
        if order.count is None:
            return prefetch
        return min(prefetch or 0xFFFF, order.count, 0xFFFF) if order.count <= 0xFFFF or prefetch else 0

    async def _receive(self, consumer: Consumer) -> None:
        async for message in consumer:
            self._waiting.append(message)
            self._octets += message.size
            self._came.set()
            while len(self._waiting) >= MOST_MESSAGES or self._octets >= MOST_OCTETS:
                self._room.clear()
                await self._room.wait()

    async def _come(self) -> bool:
        """Until messages are there, or the consumer has ended; False when none came in time."""
        if self._waiting:
            return True
        self._came.clear()
        try:
            async with asyncio.timeout(self._order.idle):
                await self._came.wait()
        except TimeoutError:
            return False
        return True

    def _batch(self) -> list[Message]:
        most = MOST_MESSAGES
        if self._order.count is not None:
            most = min(most, self._order.count - self._taken)
        batch = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        self._octets -= sum(message.size for message in batch)
        self._room.set()
        return batch


class _Getting(_Taking):
    command = "get"

    async def _take(self, channel: Channel) -> None:
        order = self._order
        assert order.queue is not None and order.count is not None
        while self._taken < order.count:
            message = await channel.get(order.queue, no_ack=order.settle == NO_ACK)
            if message is None:
                return
            await self._write([message])
