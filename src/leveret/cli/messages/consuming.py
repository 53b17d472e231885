"""The implementation of `leveret consume` and `leveret get`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from leveret.cli.client_command import open_connection, run
from leveret.cli.failed import INCOMPLETE, PIPE_CLOSED, Failed
from leveret.cli.messages.outputs import Directory, Output, Stream
from leveret.cli.messages.progress import Progress

if TYPE_CHECKING:
    from leveret.client._async.base_channel import BaseChannel
    from leveret.client._async.consumer import Consumer
    from leveret.client.message import Message

# Limits on a batch that is written and then settled. Another batch may be buffered.
MAX_BATCH_MESSAGES: Final = 500
MAX_BATCH_BYTES: Final = 1 << 20

# Settlement of a written message.
ACK: Final = "ack"
REJECT: Final = "reject"
REQUEUE: Final = "requeue"
NO_ACK: Final = "no-ack"


@dataclass(kw_only=True)
class ConsumeOptions:
    """The options of `leveret consume` and `leveret get`.

    Attributes:
        urls: The brokers, tried in order.
        queue: The queue, or None for a temporary queue.
        exchange: The exchange to bind the temporary queue to.
        binding_keys: The binding keys of the temporary queue.
        count: The maximum number of messages; None is unlimited.
        idle: Seconds without a message after which to stop; None is unlimited.
        timeout: Seconds to wait for replies; None is the timeout of the URL.
        prefetch: The maximum number of unacked messages; None is the default.
        settle: The settlement of written messages: ACK, REJECT, REQUEUE (all at the end) or NO_ACK.
        form: The output format: lines, json or raw.
        output_dir: The directory to write bodies to; None is standard output.
        quiet: Whether to omit progress and summary.
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


def consume(options: ConsumeOptions) -> None:
    """Write messages as they arrive."""
    _run(_ConsumeCommand, options)


def get(options: ConsumeOptions) -> None:
    """Write at most `count` messages from the queue."""
    _run(_GetCommand, options)


def _run(kind: type[_Receiver], options: ConsumeOptions) -> None:
    try:
        # Check standard output before creating the event loop, whose file descriptors could replace a closed one.
        receiver = kind(options)
    except OSError as error:
        raise Failed(f"{error.filename or 'standard output'}: {error.strerror}", INCOMPLETE) from None
    run(receiver.run)


class _Receiver(ABC):
    """Base class of both commands, which writes and settles messages."""

    command = ""

    def __init__(self, options: ConsumeOptions) -> None:
        self._options = options
        self._output: Output = Stream(options.form) if options.output_dir is None else Directory(options.output_dir)
        self._progress = Progress("received", not options.quiet and not self._output.is_terminal, self._state)
        self._received = 0
        self._closed = False

    def _state(self) -> tuple[int, float | None]:
        count = self._options.count
        return self._received, self._received / count if count else None

    async def run(self) -> int:
        options = self._options
        task = asyncio.current_task()
        assert task is not None

        def closed() -> None:
            self._closed = True
            task.cancel()

        try:
            with self._progress:
                async with (
                    open_connection(options.urls, self.command, options.timeout, self._progress.on_event) as connection,
                    connection.open_channel(confirms=False) as channel,
                ):
                    self._output.on_closed(closed)
                    # Closing the channel requeues unacked messages.
                    await self._receive_all(channel)
        except asyncio.CancelledError:
            if not self._closed:
                raise
            return PIPE_CLOSED
        finally:
            if self._received and not options.quiet:
                self._progress.say(f"received {self._received:,} message{'' if self._received == 1 else 's'}")
        return 0 if self._received and (options.count is None or self._received == options.count) else INCOMPLETE

    @abstractmethod
    async def _receive_all(self, channel: BaseChannel) -> None:
        """Receive messages until the limit of the command."""

    async def _write(self, messages: Sequence[Message]) -> None:
        """Write messages and settle the written ones, including after an error or a cancellation."""
        try:
            await self._output.write(messages)
        finally:
            written = messages[: self._output.written]
            self._received += len(written)
            if self._options.settle == ACK and written:
                written[-1].ack(multiple=True)
            elif self._options.settle == REJECT:
                for message in written:
                    message.reject()


class _ConsumeCommand(_Receiver):
    command = "consume"

    def __init__(self, options: ConsumeOptions) -> None:
        super().__init__(options)
        self._waiting: deque[Message] = deque()
        self._waiting_bytes = 0
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()

    async def _receive_all(self, channel: BaseChannel) -> None:
        options = self._options
        queue = options.queue
        if queue is None:
            queue = (await channel.declare_queue(exclusive=True, auto_delete=True)).name
            for key in options.binding_keys:
                await channel.bind_queue(queue, options.exchange, key)
        consumer = channel.consume(queue, prefetch=self._prefetch(), no_ack=options.settle == NO_ACK)
        await consumer.start()
        receiving = asyncio.create_task(self._receive(consumer))
        receiving.add_done_callback(lambda _: self._arrived.set())
        try:
            while options.count is None or self._received < options.count:
                if not await self._wait_for_messages():
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
        """Return the prefetch: at most `count`, to leave the other messages to other consumers."""
        options = self._options
        prefetch = options.prefetch
        if prefetch is None:
            # With REQUEUE, messages stay unacked until the end, so that a limit would stop deliveries.
            prefetch = 0 if options.settle == REQUEUE else 100
        if options.count is None:
            return prefetch
        return min(prefetch or 0xFFFF, options.count, 0xFFFF) if options.count <= 0xFFFF or prefetch else 0

    async def _receive(self, consumer: Consumer) -> None:
        async for message in consumer:
            self._waiting.append(message)
            self._waiting_bytes += message.size
            self._arrived.set()
            while len(self._waiting) >= MAX_BATCH_MESSAGES or self._waiting_bytes >= MAX_BATCH_BYTES:
                self._room.clear()
                await self._room.wait()

    async def _wait_for_messages(self) -> bool:
        """Wait until messages arrive or the consumer ends. Returns False if none arrive in time."""
        if self._waiting:
            return True
        self._arrived.clear()
        try:
            async with asyncio.timeout(self._options.idle):
                await self._arrived.wait()
        except TimeoutError:
            return False
        return True

    def _batch(self) -> list[Message]:
        limit = MAX_BATCH_MESSAGES
        if self._options.count is not None:
            limit = min(limit, self._options.count - self._received)
        batch = [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
        self._waiting_bytes -= sum(message.size for message in batch)
        self._room.set()
        return batch


class _GetCommand(_Receiver):
    command = "get"

    async def _receive_all(self, channel: BaseChannel) -> None:
        options = self._options
        assert options.queue is not None and options.count is not None
        while self._received < options.count:
            message = await channel.get(options.queue, no_ack=options.settle == NO_ACK)
            if message is None:
                return
            await self._write([message])
