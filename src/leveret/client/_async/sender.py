"""A sender of AMQP 1.0, async API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.client.engine.amqp10 import links
from leveret.client.engine.amqp10.sender import SenderCore
from leveret.client.engine.common.publisher import PublisherCore
from leveret.client.errors import ConnectionClosed
from leveret.client.timeouts import DEFAULT, Limit

if TYPE_CHECKING:
    from leveret.client._async.channel import Channel
    from leveret.client._async.transaction import Transaction


class Sender:
    """A link to a target. `async with` waits for all outcomes at the end and closes it.

    It is attached again after a lost connection. A message is bytes, text (one data section, as UTF-8), or an
    `amqp10.Message`; keywords are fields of `amqp10.Message`.
    """

    def __init__(self, channel: Channel, core: SenderCore, window: int) -> None:
        self._channel = channel
        self._core = core
        self._window = PublisherCore(core.session, window)

    @property
    def name(self) -> str:
        """Name of the link."""
        return self._core.name

    @property
    def address(self) -> str | None:
        """Address of the target; for a dynamic target, the one that the server chose. None for the anonymous terminus."""
        return self._core.address

    @property
    def is_open(self) -> bool:
        """Whether the link is attached. It is not while the connection is lost."""
        return self._core.attached

    @property
    def unconfirmed(self) -> int:
        """Number of messages of `publish` without an outcome."""
        return self._window.in_flight

    async def send(self, body: Any = b"", *, transaction: Transaction | None = None, timeout: Limit = DEFAULT,
                   **fields: Any) -> None:
        """Send a message and wait for its outcome; a settled sender waits until it is written.

        Args:
            body: Body of the message, or an `amqp10.Message`.
            transaction: Transaction of the message, if any.
            timeout: Timeout of the call.
            **fields: Fields of the message.

        Raises:
            InvalidMessage: The message cannot be encoded; nothing was sent.
            Returned: The outcome is released.
            Nacked: The outcome is rejected or modified.
            LinkClosed: The sender is closed.
            Timeout: No outcome arrived in time.
        """
        core = self._core
        transfer = links.encode(core, body, fields, transaction.core if transaction is not None else None)
        channel = self._channel
        connection = channel.connection
        while not core.session.flowing and not core.finished:
            await channel.wait_flowing(timeout)
        if core.settled:
            core.session.publish(transfer)
            return
        waiter = transfer.waiter = connection.new_waiter()
        core.session.publish(transfer)
        await connection.wait(waiter, timeout, "an outcome")

    async def publish(self, body: Any = b"", *, transaction: Transaction | None = None, **fields: Any) -> None:
        """Send a message, waiting only while the window of messages without an outcome is full.

        Failed messages are reported later: the next `publish` or `flush` raises one exception with all of them in its
        `messages`.
        """
        core = self._core
        window = self._window
        if window.error is not None:
            raise window.take_error()
        transfer = links.encode(core, body, fields, transaction.core if transaction is not None else None)
        while not core.finished and (window.in_flight >= window.window or not core.session.flowing):
            if core.session.flowing:
                await self._channel.connection.wait(window.window_waiter(), DEFAULT, "the sender's window")
            else:
                await self._channel.wait_flowing()
        window.publish(transfer)

    async def flush(self, timeout: Limit = DEFAULT) -> None:
        """Wait for all outcomes. Raises `Nacked` or `Returned` with the messages that failed."""
        window = self._window
        while window.in_flight:
            await self._channel.connection.wait(window.idle_waiter(), timeout, "the sender's outcomes")
        if window.error is not None:
            raise window.take_error()

    async def close(self) -> None:
        """Close the link. Messages without an outcome fail."""
        await self._detach(True)

    async def detach(self) -> None:
        """Detach the link. A durable target remains, with its unsettled messages, for a sender of the same name."""
        await self._detach(False)

    async def _detach(self, closed: bool) -> None:
        core = self._core
        try:
            await self._channel.connection.wait(links.detach(core, closed), DEFAULT, "detach")
        except ConnectionClosed:
            pass

    async def __aenter__(self) -> Sender:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()

    def __repr__(self) -> str:
        return f"<Sender to {self._core.description}{'' if self.is_open else ', not open'}>"
