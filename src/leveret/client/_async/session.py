"""A session of AMQP 1.0, async API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from leveret.client._async.base_channel import BaseChannel, ExchangeName, QueueName
from leveret.client._async.opening import Opening
from leveret.client._async.receiver import Receiver
from leveret.client._async.sender import Sender
from leveret.client.amqp10 import Filters
from leveret.client.delivery import Delivery
from leveret.client.engine.amqp10.link import links
from leveret.client.engine.amqp10.session.session import SessionCore
from leveret.client.engine.common.encoding import Body, name_of
from leveret.client.properties import Properties, PropertyValue
from leveret.client.timeouts import DEFAULT, Limit
from leveret.wire.amqp10.values import Value as WireValue

if TYPE_CHECKING:
    from leveret.client._async.connection import Amqp10Connection


class Session(BaseChannel):
    """A session of a connection: senders and receivers by address, and operations on queues and exchanges by name.

    Operations by name use links to addresses in the server's format (option `addresses`), convert properties to message
    sections, and declare through the management node. An error closes only a link. All timeouts are in seconds; the
    default is the connection's `timeout`. Tasks may share a session.
    """

    _connection: Amqp10Connection
    _core: SessionCore

    def __init__(self, connection: Amqp10Connection, core: SessionCore) -> None:
        super().__init__(connection, core)

    @property
    def connection(self) -> Amqp10Connection:
        """Connection of the session."""
        return self._connection

    @property
    def core(self) -> SessionCore:
        """The engine of the session."""
        return self._core

    # Links

    def sender(
        self,
        address: str | None,
        *,
        name: str = "",
        window: int = 200,
        settled: bool = False,
        settle_second: bool = False,
        durable: bool = False,
        dynamic: bool = False,
        properties: Mapping[str, WireValue] | None = None,
        capabilities: tuple[str, ...] = (),
    ) -> Opening[Sender]:
        """Attach a link to a target. Await the result, or enter it with `async with`.

        Args:
            address: Address on the server; None for the anonymous terminus, to which each message has its own `to`.
            name: Name of the link; "" for a generated one.
            window: Maximum number of messages of `Sender.publish` without an outcome.
            settled: Send all messages settled (sender settle mode settled): lost messages are not reported.
            settle_second: The server settles after the client (receiver settle mode second).
            durable: Resume unsettled messages after a lost connection. Requires `name`, implies `settle_second`.
            dynamic: The server creates a node that exists as long as the link. `address` must be None.
            properties: Properties of the link.
            capabilities: Capabilities of the target.
        """

        async def open() -> Sender:
            driver = self._driver
            await driver.wait_open()
            with driver.lock:
                core = links.new_sender(
                    self._core, address, name, settled, settle_second, durable, dynamic, properties, capabilities
                )
                waiter = core.attach_waiter()
            await driver.wait(waiter, DEFAULT, "attach")
            return Sender(self, core, window)

        return Opening(open)

    def receiver(
        self,
        address: str | None,
        *,
        name: str = "",
        prefetch: int = 100,
        filters: Filters | None = None,
        browse: bool = False,
        durable: bool = False,
        settled: bool = False,
        settle_second: bool = False,
        dynamic: bool = False,
        properties: Mapping[str, WireValue] | None = None,
        capabilities: tuple[str, ...] = (),
    ) -> Opening[Receiver]:
        """Attach a link to a source. Await the result, or enter it with `async with`.

        Args:
            address: Address on the server.
            name: Name of the link; "" for a generated one.
            prefetch: Maximum number of unsettled deliveries (the link credit); 0 is unlimited.
            filters: Filters of `leveret.client.amqp10`: one, several, or by name. `Receiver.filters` returns those that the
                server applies.
            browse: Receive copies; the messages stay in the queue (distribution mode copy).
            durable: The source outlives the link and the connection, as a durable subscription. Requires `name`.
            settled: Receive all messages settled (sender settle mode settled); those in transit are lost with the
                connection.
            settle_second: The server settles after the client (receiver settle mode second).
            dynamic: The server creates a node that exists as long as the link. `address` must be None.
            properties: Properties of the link.
            capabilities: Capabilities of the source, such as "queue", "topic" or "shared".
        """

        async def open() -> Receiver:
            core = links.new_receiver(
                self._core,
                address,
                name,
                prefetch,
                filters,
                browse,
                durable,
                settled,
                settle_second,
                dynamic,
                properties,
                capabilities,
            )
            receiver = Receiver(self, core)
            await receiver.start()
            return receiver

        return Opening(open)

    # Queues by name

    async def request(
        self,
        body: Body,
        routing_key: QueueName = "",
        exchange: ExchangeName = "",
        *,
        timeout: Limit = DEFAULT,
        properties: Properties | None = None,
        **keywords: PropertyValue,
    ) -> Delivery:
        """Publish a request and wait for its reply, over a dynamic source.

        Raises:
            Returned: The request is unroutable.
            Timeout: No reply arrived in time.
            ConnectionLost: The connection was lost before the reply arrived.
        """
        answer: Delivery = await self._request(body, routing_key, exchange, timeout, properties, keywords)
        return answer

    def consume(
        self,
        queue: QueueName,
        *,
        prefetch: int = 100,
        no_ack: bool = False,
        no_local: bool = False,
        priority: int | None = None,
    ) -> Receiver:
        """Consume the messages of a queue, as in `async for message in session.consume("work")`.

        Args:
            queue: Queue to consume from.
            prefetch: Maximum number of unsettled messages (the link credit); 0 is unlimited.
            no_ack: The server settles messages when it sends them. A lost connection loses those in transit.
            no_local: Do not receive messages published over this connection.
            priority: Priority of the consumer. The server prefers consumers with higher priorities.
        """
        return Receiver(self, self._core.new_consumer(name_of(queue), prefetch, no_ack, no_local, priority), queue)

    async def get(self, queue: QueueName, *, no_ack: bool = False, timeout: Limit = DEFAULT) -> Delivery | None:
        """Return the next message of a queue, None if it is empty."""
        message: Delivery | None = await self._get(queue, no_ack, timeout)
        return message
