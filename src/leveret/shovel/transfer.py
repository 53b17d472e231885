"""One run of a shovel, from connecting to the end or a failure of either end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final, TypeAlias

from leveret.client._async.base_connection import BaseConnection
from leveret.client._async.connection import open_connection
from leveret.client.engine.common.results import Result
from leveret.client.errors import Error
from leveret.client.message import Message
from leveret.client.parameters import Parameters
from leveret.client.properties import Headers
from leveret.shovel.additions import Amend, amendments
from leveret.shovel.amqp091 import Amqp091Destination, Amqp091Source
from leveret.shovel.amqp10 import Amqp10Destination, Amqp10Source
from leveret.shovel.definition import NEVER, NO_ACK, ON_CONFIRM, QUEUE_LENGTH, Definition, End
from leveret.shovel.ends import Destination, Source
from leveret.shovel.uris import AMQP091, AMQP10

# Bytes of unconfirmed messages above which no message is taken.
MAX_UNCONFIRMED: Final = 32 << 20
# Seconds for the destination to confirm published messages when a run is cancelled.
SETTLE_TIMEOUT: Final = 0.5
# Seconds of work in one turn of the event loop.
SLICE: Final = 0.002

Hosts: TypeAlias = Callable[[str, End], Awaitable[list[Parameters]]]

_SOURCES: Final[dict[str, Callable[[Definition], Source]]] = {AMQP091: Amqp091Source, AMQP10: Amqp10Source}
_DESTINATIONS: Final[dict[str, Callable[[Definition, Amend | None], Destination]]] = {
    AMQP091: Amqp091Destination,
    AMQP10: Amqp10Destination,
}


async def run(definition: Definition, hosts: Hosts, headers: Headers, running: Callable[[Transfer], None]) -> None:
    """Connect to both ends, and move messages until the limit is reached.

    Args:
        definition: The shovel.
        hosts: Returns the brokers of the end "src" or "dest", to try in order. Its errors are raised.
        headers: The forward headers.
        running: Called with the messages between them when both ends are open.

    Raises:
        Error: An end failed.
        OSError: No broker of an end could be reached.
    """
    source = _SOURCES[definition.source.protocol](definition)
    destination = _DESTINATIONS[definition.destination.protocol](definition, amendments(definition, headers))
    async with AsyncExitStack() as stack:
        await source.open(await _connect(await hosts("src", definition.source), stack))
        await destination.open(await _connect(await hosts("dest", definition.destination), stack))
        transfer = Transfer(definition, source, destination, _limit(definition, source))
        running(transfer)
        await transfer.run()


async def _connect(hosts: list[Parameters], stack: AsyncExitStack) -> BaseConnection:
    connection = await open_connection(hosts)
    stack.push_async_callback(connection.close)
    return connection


def _limit(definition: Definition, source: Source) -> int | None:
    """Return the number of messages to move; None if there is no limit."""
    limit = definition.delete_after
    if limit == NEVER:
        return None
    return source.length if limit == QUEUE_LENGTH else int(limit)


class Pending:
    """A message that waits for the confirm of its publish. Its result is that of `Outgoing.report_to`."""

    __slots__ = ("is_confirmed", "message", "size", "transfer")

    def __init__(self, transfer: Transfer, message: Message, size: int) -> None:
        self.transfer = transfer
        self.message = message
        self.size = size
        self.is_confirmed = False

    def done(self) -> bool:
        """Return whether the publish is confirmed."""
        return self.is_confirmed

    def set_result(self, result: Result, /) -> None:
        """Note the confirm."""
        self.is_confirmed = True
        self.transfer.note_confirm()

    def set_exception(self, exception: BaseException, /) -> None:
        """Note the failure of the publish."""
        self.transfer.fail(exception)


class Transfer:
    """The messages between two open ends.

    Messages are acknowledged in order: with `on-confirm`, those up to the first one that the destination has not confirmed.

    Attributes:
        published: Number of messages that were published to the destination.
        forwarded: Number of messages that were acknowledged to the source.
        remaining: Number of messages to publish before the run ends; None if there is no limit.
    """

    def __init__(self, definition: Definition, source: Source, destination: Destination, limit: int | None) -> None:
        self._source = source
        self._destination = destination
        self.remaining = limit
        self._confirms = definition.ack_mode == ON_CONFIRM
        self._acks_on_receipt = definition.ack_mode == NO_ACK
        self._pending: deque[Pending] = deque()
        self._bytes = 0
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._acknowledging = False
        self._last: Message | None = None
        self._progress = asyncio.Event()
        self.published = 0
        self.forwarded = 0

    @property
    def hosts(self) -> tuple[Parameters, Parameters]:
        """The connected brokers: of the source, and of the destination."""
        return self._source.connection.parameters, self._destination.connection.parameters

    @property
    def pending(self) -> int:
        """Number of messages that the destination has not confirmed."""
        return len(self._pending)

    @property
    def idle_time(self) -> float:
        """Seconds since the source sent data, if everything before is published and confirmed, otherwise 0."""
        is_busy = self._pending or self._acknowledging or self._source.consumer.core.messages
        if is_busy or not self._destination.channel.core.flowing:
            return 0.0
        return self._source.connection.driver.silence

    async def run(self) -> None:
        """Move messages until the limit is reached. Raises `Error` when either end fails."""
        moving = asyncio.create_task(self._move())
        ends = [asyncio.create_task(end.connection.driver.wait_closed(None)) for end in (self._source, self._destination)]
        try:
            waiting: list[asyncio.Future[Any]] = [moving, self._failed, *ends]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                moving.cancel()
                await self._settle()
                raise
            if self._failed.done():
                self._failed.result()
            if moving.done():
                moving.result()
                return
            for end in (self._source, self._destination):
                if end.connection.is_closed:
                    raise end.connection.driver.core.last_error
        finally:
            tasks = [moving, *ends]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # Unconfirmed publishes fail when their connection is closed after the run.
            if not self._failed.cancel():
                self._failed.exception()  # retrieved, if another failure was raised

    def fail(self, error: BaseException) -> None:
        """End the run with an error."""
        if not self._failed.done():
            self._failed.set_exception(error)
        self._progress.set()

    def note_confirm(self) -> None:
        """Handle the confirm of a message."""
        pending = self._pending
        while pending and pending[0].is_confirmed:
            first = pending.popleft()
            self._bytes -= first.size
            self._acknowledge(first.message)
        self._progress.set()

    async def _move(self) -> None:
        consumer, destination, loop = self._source.consumer, self._destination, self._loop
        channel = destination.channel
        began = loop.time()
        await consumer.start()
        while self.remaining is None or self.remaining > 0:
            message = await consumer.next()
            if self._acks_on_receipt:
                self._acknowledge(message)
            outgoing = destination.encode(message)
            while self._confirms and self._bytes > MAX_UNCONFIRMED:
                await self._wait()
            if not channel.core.flowing:
                await channel.wait_flowing(None)
            if self._confirms:
                pending = Pending(self, message, message.size)
                self._pending.append(pending)
                self._bytes += pending.size
                outgoing.report_to(pending)
            destination.publish(outgoing)
            self.published += 1
            if not self._confirms and not self._acks_on_receipt:
                self._acknowledge(message)
            if self.remaining is not None:
                self.remaining -= 1
            if loop.time() - began > SLICE:
                await asyncio.sleep(0)
                began = loop.time()
        while self._pending or self._acknowledging:
            await self._wait()

    async def _settle(self) -> None:
        """Wait a moment for the confirms of published messages, which would otherwise arrive twice."""
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT):
                while (self._pending or self._acknowledging) and not self._failed.done():
                    await self._wait()
        except TimeoutError:
            pass

    async def _wait(self) -> None:
        """Wait for the next confirm or acknowledgement."""
        self._progress.clear()
        await self._progress.wait()

    def _acknowledge(self, message: Message) -> None:
        """Acknowledge a message and all before it at the end of this turn."""
        self.forwarded += 1
        if message.settled:  # by the source: with ack-mode no-ack, or by its own decision over AMQP 1.0
            return
        self._last = message
        if not self._acknowledging:
            self._acknowledging = True
            self._loop.call_soon(self._send_ack)

    def _send_ack(self) -> None:
        last, self._last, self._acknowledging = self._last, None, False
        assert last is not None
        try:
            last.ack(multiple=True)
        except Error as error:
            self.fail(error)
        self._progress.set()
