"""A channel of AMQP 0-9-1, async API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.client._async.base_channel import BaseChannel, ExchangeName, QueueName
from leveret.client._async.consumer import Consumer
from leveret.client._async.queue import Exchange
from leveret.client.engine.amqp091.channel import ChannelCore
from leveret.client.engine.common.encoding import Body, encode_flags, name_of
from leveret.client.message import Message
from leveret.client.properties import Properties, PropertyValue
from leveret.client.timeouts import DEFAULT, Limit
from leveret.wire.amqp0.values import Arguments, FieldMapping

if TYPE_CHECKING:
    from leveret.client._async.connection import Connection


class Channel(BaseChannel):
    """A channel of a connection.

    Calls on one channel are executed in order. An error closes only the channel; later calls on it raise `ChannelClosed`
    with the cause. All timeouts are in seconds; the default is the connection's `timeout`.
    Tasks may share a channel.
    """

    _connection: Connection
    _core: ChannelCore

    def __init__(self, connection: Connection, core: ChannelCore) -> None:
        super().__init__(connection, core)

    @property
    def connection(self) -> Connection:
        """Connection of the channel."""
        return self._connection

    @property
    def core(self) -> ChannelCore:
        """The engine of the channel."""
        return self._core

    # Queues and exchanges

    async def delete_queue(
        self, queue: QueueName, *, if_unused: bool = False, if_empty: bool = False, timeout: Limit = DEFAULT
    ) -> int:
        """Delete a queue and return the number of messages deleted with it (0-9-1 `queue.delete`).

        Args:
            queue: Queue to delete.
            if_unused: Fail if the queue has consumers.
            if_empty: Fail if the queue has messages.
            timeout: Timeout of the call.
        """
        count: int = await self._call(
            "queue.delete", lambda: self._core.operations.delete_queue(name_of(queue), if_unused, if_empty), timeout
        )
        return count

    async def declare_exchange(
        self,
        name: str,
        type: str = "direct",
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        passive: bool = False,
        arguments: FieldMapping | None = None,
        timeout: Limit = DEFAULT,
    ) -> Exchange:
        """Declare an exchange (0-9-1 `exchange.declare`): create it, or check that it has these options.

        Args:
            name: Name of the exchange.
            type: Type of the exchange, such as "direct", "fanout", "topic" or "headers".
            durable: The exchange survives a restart of the server.
            auto_delete: The exchange is deleted with its last binding.
            internal: Only other exchanges can publish to the exchange.
            passive: Only check that the exchange exists; the other options are ignored.
            arguments: Additional arguments, such as `alternate-exchange`.
            timeout: Timeout of the call.
        """
        await self._call(
            "exchange.declare",
            lambda: self._core.operations.declare_exchange(
                name_of(name), type, durable, auto_delete, internal, arguments, passive
            ),
            timeout,
        )
        return Exchange(self, name, type)

    async def delete_exchange(self, exchange: ExchangeName, *, if_unused: bool = False, timeout: Limit = DEFAULT) -> None:
        """Delete an exchange (0-9-1 `exchange.delete`); with `if_unused`, fail if it has bindings."""
        await self._call(
            "exchange.delete", lambda: self._core.operations.delete_exchange(name_of(exchange), if_unused), timeout
        )

    # Publishing

    async def publish(
        self,
        body: Body,
        routing_key: QueueName = "",
        exchange: ExchangeName = "",
        *,
        mandatory: bool = False,
        immediate: bool = False,
        timeout: Limit = DEFAULT,
        properties: Properties | None = None,
        **keywords: PropertyValue,
    ) -> None:
        """Publish a message and wait for its confirm; on a channel without confirms, wait until it is written.

        While the connection is lost, the call waits; see docs/client/reconnecting.md for possible duplicates.

        Args:
            body: Bytes, or text, which is encoded as UTF-8.
            routing_key: Routing key; for the default exchange, a queue.
            exchange: Exchange; "" for the default one.
            mandatory: Raise `Returned` if the message is unroutable.
            immediate: Raise `Returned` if the message has no consumer.
            timeout: Timeout of the call.
            properties: Properties of the message.
            **keywords: Properties that replace those of `properties`, such as `persistent=True` or `headers={...}`.

        Raises:
            InvalidMessage: The message cannot be encoded; nothing was sent.
            Nacked: The server refused the message.
            Returned: The message was returned.
            Timeout: The server did not confirm in time, or it blocks publishers.
        """
        outgoing = self._encoder.encode(
            body,
            name_of(exchange),
            name_of(routing_key),
            encode_flags(mandatory, immediate),
            self._encoder.merge(properties, keywords),
        )
        await self.send(outgoing, timeout)

    async def request(
        self,
        body: Body,
        routing_key: QueueName = "",
        exchange: ExchangeName = "",
        *,
        timeout: Limit = DEFAULT,
        properties: Properties | None = None,
        **keywords: PropertyValue,
    ) -> Message:
        """Publish a request and wait for its reply, over direct reply-to.

        Raises:
            Returned: The request is unroutable.
            Timeout: No reply arrived in time.
            ConnectionLost: The connection was lost before the reply arrived.
        """
        answer: Message = await self._request(body, routing_key, exchange, timeout, properties, keywords)
        return answer

    # Consuming

    def consume(
        self,
        queue: QueueName,
        *,
        prefetch: int = 100,
        no_ack: bool = False,
        no_local: bool = False,
        exclusive: bool = False,
        consumer_tag: str = "",
        arguments: FieldMapping | None = None,
    ) -> Consumer:
        """Consume the messages of a queue, as in `async for message in channel.consume("work")`.

        Args:
            queue: Queue to consume from.
            prefetch: Maximum number of unacked messages; 0 is unlimited.
            no_ack: The server settles messages when it sends them. A lost connection loses those in transit.
            no_local: Do not receive messages published over this connection.
            exclusive: Request to be the only consumer of the queue.
            consumer_tag: Consumer tag; "" for a generated one.
            arguments: Additional arguments, such as `x-priority`.
        """
        sent: Arguments = {
            "no_ack": no_ack,
            "exclusive": exclusive,
            "no_local": no_local,
            "arguments": dict(arguments or {}),
        }
        core = self._core.new_consumer(name_of(queue), prefetch, sent)
        core.tag = consumer_tag
        return Consumer(self, core, queue)

    async def get(self, queue: QueueName, *, no_ack: bool = False, timeout: Limit = DEFAULT) -> Message | None:
        """Return the next message of a queue, None if it is empty (0-9-1 `basic.get`)."""
        message: Message | None = await self._get(queue, no_ack, timeout)
        return message

    def ack(self, delivery_tag: int, multiple: bool = False) -> None:
        """Acknowledge by delivery tag. Prefer `Message.ack`, which is safe even after a lost connection."""
        self._driver.call(self._core.settle_tag, "basic.ack", {"delivery_tag": delivery_tag, "multiple": multiple})

    def nack(self, delivery_tag: int, multiple: bool = False, requeue: bool = True) -> None:
        """Requeue or reject by delivery tag (RabbitMQ's `basic.nack`). Prefer `Message.nack`."""
        self._driver.call(
            self._core.settle_tag, "basic.nack", {"delivery_tag": delivery_tag, "multiple": multiple, "requeue": requeue}
        )

    def reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """Reject by delivery tag (0-9-1 `basic.reject`). Prefer `Message.reject`."""
        self._driver.call(self._core.settle_tag, "basic.reject", {"delivery_tag": delivery_tag, "requeue": requeue})

    async def qos(
        self, prefetch_count: int = 0, prefetch_size: int = 0, global_: bool = False, *, timeout: Limit = DEFAULT
    ) -> None:
        """Set prefetch limits (0-9-1 `basic.qos`). With `global_`, all consumers of the channel share them."""
        await self._call("basic.qos", lambda: self._core.operations.qos(prefetch_count, prefetch_size, global_), timeout)

    async def recover(self, requeue: bool = True, *, timeout: Limit = DEFAULT) -> None:
        """Ask the server to redeliver all unacked messages (0-9-1 `basic.recover`).

        Settling a message that was received before has no effect.
        """
        await self._call("basic.recover", lambda: self._core.recover(requeue), timeout)

    async def flow(self, active: bool, *, timeout: Limit = DEFAULT) -> None:
        """Pause or resume deliveries (0-9-1 `channel.flow`, which RabbitMQ does not support)."""
        await self._call("channel.flow", lambda: self._core.set_active(active), timeout)
