"""A sender of AMQP 1.0, async API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.client.amqp10 import AnyBody
from leveret.client.engine.amqp10.link import links
from leveret.client.engine.amqp10.link.sender import SenderCore
from leveret.client.engine.common.publisher import PublisherCore
from leveret.client.errors import ConnectionClosed
from leveret.client.properties import PropertyValue
from leveret.client.timeouts import DEFAULT, Limit

if TYPE_CHECKING:
    from leveret.client._async.session import Session
    from leveret.client._async.transaction import Transaction


class Sender:
    """A link to a target. `async with` waits for all outcomes at the end and closes it.

    It is attached again after a lost connection. A message is bytes, text (one data section, as UTF-8), or an
    `amqp10.Message`; keywords are fields of `amqp10.Message`. Tasks may share a sender.
    """

    def __init__(self, session: Session, core: SenderCore, window: int) -> None:
        self._session = session
        self._driver = session.connection.driver
        self._core = core
        self._window = PublisherCore(core.session, window)

    @property
    def core(self) -> SenderCore:
        """The engine of the sender."""
        return self._core

    @property
    def name(self) -> str:
        """Name of the link."""
        return self._core.name

    @property
    def address(self) -> str | None:
        """Address of the target; for a dynamic target, the server-assigned one. None for the anonymous terminus."""
        return self._core.address

    @property
    def is_open(self) -> bool:
        """Whether the link is attached. False while the connection is lost."""
        return self._core.attached

    @property
    def unconfirmed(self) -> int:
        """Number of messages of `publish` without an outcome."""
        return self._window.in_flight

    async def send(
        self,
        body: AnyBody = b"",
        *,
        transaction: Transaction | None = None,
        timeout: Limit = DEFAULT,
        **fields: PropertyValue,
    ) -> None:
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
        driver = self._driver
        waiter = None
        if not core.settled:
            waiter = transfer.waiter = driver.new_waiter()
        while True:
            with driver.lock:
                if core.session.flowing or core.finished:
                    driver.call(core.session.publish, transfer)
                    break
            await self._session.wait_flowing(timeout)
        if waiter is not None:
            await driver.wait(waiter, timeout, "an outcome")

    async def publish(
        self, body: AnyBody = b"", *, transaction: Transaction | None = None, **fields: PropertyValue
    ) -> None:
        """Send a message, waiting only while the window of messages without an outcome is full.

        Failed messages are reported later: the next `publish` or `flush` raises one exception with all of them in its
        `messages`.
        """
        core = self._core
        window = self._window
        driver = self._driver
        if window.error is not None:
            self._raise_error()
        transfer = links.encode(core, body, fields, transaction.core if transaction is not None else None)
        while True:
            with driver.lock:
                waiter = None
                if core.finished or core.session.flowing:
                    if core.finished or window.in_flight < window.window:
                        driver.call(window.publish, transfer)
                        return
                    waiter = window.window_waiter()
            if waiter is None:
                await self._session.wait_flowing()
            else:
                await driver.wait(waiter, DEFAULT, "the sender's window")

    async def flush(self, timeout: Limit = DEFAULT) -> None:
        """Wait for all outcomes. Raises `Nacked` or `Returned` with the messages that failed."""
        window = self._window
        while window.in_flight:
            with self._driver.lock:
                if not window.in_flight:
                    break
                waiter = window.idle_waiter()
            await self._driver.wait(waiter, timeout, "the sender's outcomes")
        if window.error is not None:
            self._raise_error()

    def _raise_error(self) -> None:
        with self._driver.lock:
            if self._window.error is not None:
                raise self._window.take_error()

    async def close(self) -> None:
        """Close the link. Messages without an outcome fail."""
        await self._detach(True)

    async def detach(self) -> None:
        """Detach the link. A durable target and its unsettled messages remain for a sender with the same name."""
        await self._detach(False)

    async def _detach(self, closed: bool) -> None:
        try:
            with self._driver.lock:
                waiter = links.detach(self._core, closed)
            await self._driver.wait(waiter, DEFAULT, "detach")
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
