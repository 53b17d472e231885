"""The ends of a shovel over AMQP 0-9-1."""

from __future__ import annotations

from typing import Final

from leveret.client._async.base_channel import BaseChannel
from leveret.client._async.channel import Channel
from leveret.client._async.connection import Connection
from leveret.client._async.consumer import Consumer
from leveret.client.engine.amqp091.encoding import Amqp091Encoder
from leveret.client.engine.amqp091.pending_confirms import Publish
from leveret.client.engine.common.encoding import encode_flags
from leveret.client.errors import InvalidMessage, NotFound
from leveret.client.message import Message
from leveret.client.properties import Properties, encode_properties, from_keywords
from leveret.shovel.additions import Amend
from leveret.shovel.definition import ON_CONFIRM, Definition, End
from leveret.shovel.ends import Destination, Source
from leveret.shovel.fitting import encode_fitting
from leveret.shovel.uris import AMQP091

# Headers with further routing keys, and bytes of encoded properties with one of them.
_COPIES: Final = ("CC", "BCC")
_MARK: Final = b"CC"


def without_copies(properties: Properties) -> Properties:
    """Return properties without headers by which a broker routes a message to further queues."""
    headers = properties.headers or {}
    if not any(name in headers for name in _COPIES):
        return properties
    kept = {name: value for name, value in headers.items() if name not in _COPIES}
    return from_keywords(properties, {"headers": kept})


async def declare_queue(connection: Connection, end: End) -> int:
    """Declare a durable queue unless it exists, and return its number of messages.

    Raises:
        NotFound: The queue does not exist, and the definition says that it must.
    """
    async with connection.channel() as channel:
        try:
            return (await channel.declare_queue(end.queue, passive=True)).message_count
        except NotFound:
            if end.predeclared:
                raise
    async with connection.channel() as channel:
        return (await channel.declare_queue(end.queue, durable=True, arguments=end.queue_arguments)).message_count


class Amqp091Source(Source):
    """A consumer of a queue, or of an exclusive queue that is bound to an exchange."""

    connection: Connection

    async def _attach(self) -> Consumer:
        definition, end = self.definition, self.definition.source
        queue = end.queue
        if queue:
            self.length = await declare_queue(self.connection, end)
        channel = await self.connection.channel()
        if not queue:
            declared = await channel.declare_queue(exclusive=True)
            await declared.bind(end.exchange or "", end.exchange_key or "")
            queue = declared.name
        return channel.consume(
            queue, prefetch=definition.prefetch, no_ack=self.is_settled, arguments=definition.consumer_arguments
        )


class Amqp091Destination(Destination):
    """A channel with confirms."""

    connection: Connection

    def __init__(self, definition: Definition, amend: Amend | None) -> None:
        super().__init__(definition)
        end = definition.destination
        self._amend = amend
        self._encoder = Amqp091Encoder()
        self._encode = self._received if amend is None and definition.source.protocol == AMQP091 else self._converted
        self._flags = encode_flags(bool(end.queue) and definition.ack_mode == ON_CONFIRM, False)
        self._is_queue = bool(end.queue)
        self._exchange = "" if end.queue else end.exchange
        self._routing_key = end.queue or end.exchange_key

    async def _attach(self) -> None:
        if self.definition.destination.queue:
            await declare_queue(self.connection, self.definition.destination)
        self._channel: Channel = await self.connection.channel(confirms=self.definition.ack_mode == ON_CONFIRM)

    @property
    def channel(self) -> BaseChannel:
        """The channel of the publishes."""
        return self._channel

    def encode(self, message: Message) -> Publish:
        """Return a publish of a message. Raises `InvalidMessage`."""
        exchange = message.exchange if self._exchange is None else self._exchange
        routing_key = message.routing_key if self._routing_key is None else self._routing_key
        if not exchange and not routing_key:
            # The default exchange would confirm and drop it.
            raise InvalidMessage(
                "the message has no exchange and no routing key; expected dest-queue, dest-exchange or dest-exchange-key"
            )
        return self._encode(message, exchange, routing_key)

    def publish(self, outgoing: Publish) -> None:
        """Publish an encoded message; the channel must be flowing. Raises `Error`."""
        self._channel.core.publish(outgoing)

    def _received(self, message: Message, exchange: str, routing_key: str) -> Publish:
        if self._is_queue and _MARK in message.header:
            return self._converted(message, exchange, routing_key)
        return self._encoder.encode_received(message.header, message.body, exchange, routing_key, self._flags)

    def _converted(self, message: Message, exchange: str, routing_key: str) -> Publish:
        properties = message.properties if self._amend is None else self._amend(message)
        if self._is_queue:
            properties = without_copies(properties)
        return self._encoder.encode(
            message.body, exchange, routing_key, self._flags, encode_fitting(properties, encode_properties)
        )
