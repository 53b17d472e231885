"""A receiver of AMQP 1.0, async API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.client._async.consumer import Consumer
from leveret.client.delivery import Delivery
from leveret.client.engine.amqp10.link.receiver import ReceiverCore
from leveret.wire.amqp10.values import Checked

if TYPE_CHECKING:
    from leveret.client._async.queue import Queue
    from leveret.client._async.session import Session


class Receiver(Consumer):
    """A link from a source: an asynchronous iterator over deliveries. `async with` closes it at the end.

    It is attached again after a lost connection. Tasks may share it.
    """

    _core: ReceiverCore

    def __init__(self, session: Session, core: ReceiverCore, queue: str | Queue = "") -> None:
        super().__init__(session, core, queue)

    @property
    def name(self) -> str:
        """Name of the link."""
        return self._core.name

    @property
    def address(self) -> str | None:
        """Address of the source; for a dynamic source, the server-assigned one."""
        return self._core.address

    @property
    def filters(self) -> dict[str, Checked]:
        """The filters that the server applies, by key. Filters that it does not support are missing."""
        return self._core.filters

    async def close(self) -> None:
        """Close the receiver. Buffered messages are released; received ones can still be settled.

        A durable source remains for a receiver with the same name.
        """
        await self.cancel()

    async def unsubscribe(self) -> None:
        """Close the receiver and delete its durable source."""
        self._core.durable = False
        await self.cancel()

    async def __aenter__(self) -> Receiver:
        await self.start()
        return self

    def __aiter__(self) -> Receiver:
        return self

    async def __anext__(self) -> Delivery:
        found = await super().__anext__()
        assert isinstance(found, Delivery)
        return found

    async def next(self, timeout: float | None = None) -> Delivery:
        """Return the next delivery. Raises `Timeout` if none arrives in time, and StopAsyncIteration at the end."""
        found = await super().next(timeout)
        assert isinstance(found, Delivery)
        return found

    def __repr__(self) -> str:
        return f"<Receiver from {self._core.description}>"
