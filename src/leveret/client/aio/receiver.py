"""A receiver of AMQP 1.0 for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.client.aio.consumer import Consumer
from leveret.client.core.amqp1.receiver import ReceiverCore
from leveret.client.delivery import Delivery

if TYPE_CHECKING:
    from leveret.client.aio.channel import Channel


class Receiver(Consumer):
    """A link from a source, which comes back when the connection was lost: an asynchronous iterator over deliveries. To be
    entered with `async with`, which closes it at the end."""

    _core: ReceiverCore

    def __init__(self, channel: Channel, core: ReceiverCore) -> None:
        super().__init__(channel, core, "")

    @property
    def name(self) -> str:
        """Of the link."""
        return self._core.name

    @property
    def address(self) -> str | None:
        """Where it receives from: of a dynamic source what the server has chosen."""
        return self._core.address

    @property
    def filters(self) -> dict[str, Any]:
        """Those that the server has in place, by their keys: a filter that it does not know is not among them."""
        return self._core.filters

    async def close(self) -> None:
        """End it. Messages that were not taken go back; those that were taken can still be settled. A durable source stays,
        for a receiver of the same name."""
        await self.cancel()

    async def unsubscribe(self) -> None:
        """End it, and with it a durable source."""
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
        """The next delivery. Raises `Timeout` when none comes within so many seconds, and StopAsyncIteration at the end."""
        found = await super().next(timeout)
        assert isinstance(found, Delivery)
        return found

    def __repr__(self) -> str:
        return f"<Receiver from {self._core.description}>"
