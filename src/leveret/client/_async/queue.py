"""Queues and exchanges, async API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.client._async.consumer import Consumer
from leveret.client._async.publisher import Publisher
from leveret.client.engine.common.encoding import Body
from leveret.client.engine.common.topology import DeclaredQueue
from leveret.client.message import Message
from leveret.client.options import Option
from leveret.wire.amqp0.values import FieldMapping

if TYPE_CHECKING:
    from leveret.client._async.base_channel import BaseChannel


class Queue:
    """A queue. A server-generated name changes after a reconnect.

    Attributes:
        message_count: Number of messages when it was declared.
        consumer_count: Number of consumers when it was declared.
    """

    __slots__ = ("_channel", "_declared", "consumer_count", "message_count")

    def __init__(
        self, channel: BaseChannel, declared: DeclaredQueue, message_count: int = 0, consumer_count: int = 0
    ) -> None:
        self._channel = channel
        self._declared = declared
        self.message_count = message_count
        self.consumer_count = consumer_count

    @property
    def name(self) -> str:
        """Current name of the queue."""
        return self._declared.name

    async def bind(self, exchange: str | Exchange, routing_key: str = "", arguments: FieldMapping | None = None) -> None:
        """Bind the queue to an exchange; see `Channel.bind_queue`."""
        await self._channel.bind_queue(self, exchange, routing_key, arguments)

    async def unbind(self, exchange: str | Exchange, routing_key: str = "", arguments: FieldMapping | None = None) -> None:
        """Remove a binding; see `Channel.unbind_queue`."""
        await self._channel.unbind_queue(self, exchange, routing_key, arguments)

    def consume(self, **options: Option) -> Consumer:
        """Consume the queue; see `Channel.consume`."""
        return self._channel.consume(self, **options)

    async def get(self, **options: Option) -> Message | None:
        """Return the next message; see `Channel.get`."""
        return await self._channel.get(self, **options)

    async def purge(self) -> int:
        """Remove the ready messages and return their number; see `Channel.purge_queue`."""
        return await self._channel.purge_queue(self)

    async def delete(self, **options: Option) -> int:
        """Delete the queue; see `Channel.delete_queue`."""
        return await self._channel.delete_queue(self, **options)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"


class Exchange:
    """An exchange. `type` is "" if it was not declared here."""

    __slots__ = ("_channel", "name", "type")

    def __init__(self, channel: BaseChannel, name: str, type: str = "") -> None:
        self._channel = channel
        self.name = name
        self.type = type

    async def publish(self, body: Body, routing_key: str = "", **options: Option) -> None:
        """Publish to the exchange; see `Channel.publish`."""
        await self._channel.publish(body, routing_key, self.name, **options)

    def publisher(self, routing_key: str = "", **options: Option) -> Publisher:
        """Return a publisher to the exchange; see `Channel.publisher`."""
        return self._channel.publisher(self.name, routing_key, **options)

    async def bind(self, source: str | Exchange, routing_key: str = "", arguments: FieldMapping | None = None) -> None:
        """Bind the exchange to another one; see `Channel.bind_exchange`."""
        await self._channel.bind_exchange(self, source, routing_key, arguments)

    async def unbind(self, source: str | Exchange, routing_key: str = "", arguments: FieldMapping | None = None) -> None:
        """Remove a binding; see `Channel.unbind_exchange`."""
        await self._channel.unbind_exchange(self, source, routing_key, arguments)

    async def delete(self, **options: Option) -> None:
        """Delete the exchange; see `Channel.delete_exchange`."""
        await self._channel.delete_exchange(self, **options)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<Exchange {self.name!r}>"
