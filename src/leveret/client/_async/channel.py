"""A channel, async API."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from leveret.client._async.amqp09 import Amqp09Calls
from leveret.client._async.consumer import Consumer
from leveret.client._async.opening import Opening
from leveret.client._async.publisher import Publisher
from leveret.client._async.queue import Exchange, Queue
from leveret.client._async.receiver import Receiver
from leveret.client._async.sender import Sender
from leveret.client.amqp10 import Filters
from leveret.client.engine.amqp10 import links
from leveret.client.engine.common.encoding import Body, encode_flags, name_of
from leveret.client.engine.common.frontend import Waiter
from leveret.client.engine.common.pending_confirms import Outgoing
from leveret.client.engine.common.publisher import PublisherCore
from leveret.client.engine.common.topology import DeclaredQueue
from leveret.client.engine.common.waiters import ErrorOnlyWaiter
from leveret.client.engine.protocols import AnyChannelCore
from leveret.client.errors import ChannelClosed, ConnectionClosed, Error, copy_error
from leveret.client.message import Message
from leveret.client.properties import Properties
from leveret.client.timeouts import DEFAULT, Deadlines, Limit

if TYPE_CHECKING:
    from leveret.client._async.connection import Connection

QueueName = str | Queue
ExchangeName = str | Exchange


class Channel(Amqp09Calls):
    """A channel of a connection.

    Calls on one channel are executed in order. An error closes only the channel: everything on it then raises the
    `ChannelClosed` with the cause. All timeouts are in seconds; the default is the connection's `timeout`.
    Tasks may share a channel.
    """

    def __init__(self, connection: Connection, core: AnyChannelCore) -> None:
        self.connection = connection
        self._core = core
        self._driver = connection.driver
        self._encoder = core.new_encoder()
        core.api_channel = self

    @property
    def core(self) -> AnyChannelCore:
        """The engine of the channel."""
        return self._core

    @property
    def number(self) -> int:
        """Channel number."""
        return self._core.number

    @property
    def is_open(self) -> bool:
        """Whether the channel is open. It is not while the connection is lost."""
        return self._core.opened

    async def close(self) -> None:
        """Close the channel. Unacked messages return to their queues."""
        try:
            await self._driver.run(self._core.close(), DEFAULT, "channel.close")
        except (ConnectionClosed, ChannelClosed):
            pass

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def _call(self, what: str, send: Callable[[], Waiter], timeout: Limit = DEFAULT) -> Any:
        """Send as soon as there is a connection, and wait for the reply."""
        driver = self._driver
        core = self._core
        while True:
            with driver.lock:
                if driver.core.opened:
                    waiter = driver.call(send)
                    break
                if core.error is not None:
                    raise copy_error(core.error)
            await driver.wait_open(timeout)
        return await driver.wait(waiter, timeout, what)

    # Queues and exchanges

    def queue(self, name: str) -> Queue:
        """Return a handle to a queue by name. Nothing is sent."""
        return Queue(self, self._core.connection.topology.queues.get(name) or DeclaredQueue(name, False, {}))

    def exchange(self, name: str = "") -> Exchange:
        """Return a handle to an exchange by name, without one to the default exchange. Nothing is sent."""
        return Exchange(self, name)

    async def declare_queue(self, name: str = "", *, durable: bool = False, exclusive: bool = False,
                            auto_delete: bool = False, passive: bool = False, arguments: dict[str, Any] | None = None,
                            timeout: Limit = DEFAULT) -> Queue:
        """Declare a queue (0-9-1 `queue.declare`): create it, or check that it has these options.

        Args:
            name: Name of the queue; "" lets the server choose one.
            durable: The queue survives a restart of the server.
            exclusive: Only this connection may use the queue, and the queue is deleted with it.
            auto_delete: The queue is deleted with its last consumer.
            passive: Only check that the queue exists; the other options are ignored.
            arguments: Additional arguments, such as `x-max-length`.
            timeout: Timeout of the call.
        """
        declared, messages, consumers = await self._call("queue.declare", lambda: self._core.operations.declare_queue(
            name_of(name), durable, exclusive, auto_delete, passive, arguments), timeout)
        return Queue(self, declared, messages, consumers)

    async def delete_queue(self, queue: QueueName, *, if_unused: bool = False, if_empty: bool = False,
                           timeout: Limit = DEFAULT) -> int:
        """Delete a queue and return the number of messages deleted with it (0-9-1 `queue.delete`).

        Args:
            queue: Queue to delete.
            if_unused: Fail if the queue has consumers.
            if_empty: Fail if the queue has messages.
            timeout: Timeout of the call.
        """
        count: int = await self._call("queue.delete", lambda: self._core.operations.delete_queue(
            name_of(queue), if_unused, if_empty), timeout)
        return count

    async def purge_queue(self, queue: QueueName, *, timeout: Limit = DEFAULT) -> int:
        """Remove the ready messages of a queue and return their number (0-9-1 `queue.purge`)."""
        count: int = await self._call("queue.purge", lambda: self._core.operations.purge_queue(name_of(queue)), timeout)
        return count

    async def bind_queue(self, queue: QueueName, exchange: ExchangeName, routing_key: str = "",
                         arguments: dict[str, Any] | None = None, *, timeout: Limit = DEFAULT) -> None:
        """Bind a queue to an exchange (0-9-1 `queue.bind`)."""
        await self._call("queue.bind", lambda: self._core.operations.bind(
            True, name_of(queue), name_of(exchange), routing_key, arguments), timeout)

    async def unbind_queue(self, queue: QueueName, exchange: ExchangeName, routing_key: str = "",
                           arguments: dict[str, Any] | None = None, *, timeout: Limit = DEFAULT) -> None:
        """Remove a binding made by `bind_queue` with the same arguments (0-9-1 `queue.unbind`)."""
        await self._call("queue.unbind", lambda: self._core.operations.unbind(
            True, name_of(queue), name_of(exchange), routing_key, arguments), timeout)

    async def declare_exchange(self, name: str, type: str = "direct", *, durable: bool = False,
                               auto_delete: bool = False, internal: bool = False, passive: bool = False,
                               arguments: dict[str, Any] | None = None, timeout: Limit = DEFAULT) -> Exchange:
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
        await self._call("exchange.declare", lambda: self._core.operations.declare_exchange(
            name_of(name), type, durable, auto_delete, internal, passive, arguments), timeout)
        return Exchange(self, name, type)

    async def delete_exchange(self, exchange: ExchangeName, *, if_unused: bool = False, timeout: Limit = DEFAULT) -> None:
        """Delete an exchange (0-9-1 `exchange.delete`); with `if_unused`, fail if it has bindings."""
        await self._call("exchange.delete", lambda: self._core.operations.delete_exchange(
            name_of(exchange), if_unused), timeout)

    async def bind_exchange(self, destination: ExchangeName, source: ExchangeName, routing_key: str = "",
                            arguments: dict[str, Any] | None = None, *, timeout: Limit = DEFAULT) -> None:
        """Bind the exchange `destination` to the exchange `source` (RabbitMQ's `exchange.bind`)."""
        await self._call("exchange.bind", lambda: self._core.operations.bind(
            False, name_of(destination), name_of(source), routing_key, arguments), timeout)

    async def unbind_exchange(self, destination: ExchangeName, source: ExchangeName, routing_key: str = "",
                              arguments: dict[str, Any] | None = None, *, timeout: Limit = DEFAULT) -> None:
        """Remove a binding made by `bind_exchange` with the same arguments (RabbitMQ's `exchange.unbind`)."""
        await self._call("exchange.unbind", lambda: self._core.operations.unbind(
            False, name_of(destination), name_of(source), routing_key, arguments), timeout)

    # Publishing

    async def publish(self, body: Body, routing_key: QueueName = "", exchange: ExchangeName = "", *,
                      mandatory: bool = False, immediate: bool = False, timeout: Limit = DEFAULT,
                      properties: Properties | None = None, **keywords: Any) -> None:
        """Publish a message and wait for its confirm; on a channel without confirms, wait until it is written.

        While the connection is lost, the call waits; see docs/client/reconnecting.md for what may be delivered twice.

        Args:
            body: Bytes, or text, which is encoded as UTF-8.
            routing_key: Routing key; for the default exchange, a queue.
            exchange: Exchange; "" for the default one.
            mandatory: Raise `Returned` if the message has no queue.
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
        outgoing = self._encoder.encode(body, name_of(exchange), name_of(routing_key), encode_flags(mandatory, immediate),
                                        self._encoder.merge(properties, keywords))
        await self.send(outgoing, timeout)

    async def send(self, outgoing: Outgoing, timeout: Limit) -> None:
        """Publish an encoded message."""
        core = self._core
        driver = self._driver
        waiter = None
        if core.confirms:
            waiter = outgoing.waiter = driver.new_waiter()
        while True:
            with driver.lock:
                if core.flowing:
                    driver.call(core.publish, outgoing)
                    break
            await self.wait_flowing(timeout)
        if waiter is not None:
            await driver.wait(waiter, timeout, "basic.publish")

    async def wait_flowing(self, timeout: Limit = DEFAULT) -> None:
        """Wait until publishes may be sent, at most `blocked_timeout` while the server blocks them. Raises `Timeout`."""
        core = self._core
        driver = self._driver
        parameters = self.connection.parameters
        deadlines = Deadlines(parameters.timeout, parameters.blocked_timeout, timeout)
        while not core.flowing:
            with driver.lock:
                if core.flowing:
                    return
                seconds, left = deadlines.remaining(core.connection.opened, time.monotonic())
                waiter, what = core.flow_waiter(), f"basic.publish while {core.blocked_reason()}"
            await driver.wait(waiter, seconds, what, left)

    def publisher(self, exchange: ExchangeName = "", routing_key: QueueName = "", *, window: int = 200,
                  mandatory: bool = False, properties: Properties | None = None, **keywords: Any) -> Publisher:
        """Return a publisher of many messages that does not wait for each confirm. `async with` waits for the pending ones.

        Args:
            exchange: Exchange; "" for the default one.
            routing_key: Routing key; for the default exchange, a queue.
            window: Maximum number of pending confirms.
            mandatory: Raise `Returned` if a message has no queue.
            properties: Properties of all messages.
            **keywords: Properties that replace those of `properties`.
        """
        return Publisher(self, PublisherCore(self._core, window), self._encoder, name_of(exchange), name_of(routing_key),
                         mandatory, properties, keywords)

    async def request(self, body: Body, routing_key: QueueName = "", exchange: ExchangeName = "", *,
                      timeout: Limit = DEFAULT, properties: Properties | None = None, **keywords: Any) -> Message:
        """Publish a request and wait for its reply, over direct reply-to.

        Raises:
            Returned: The request has no queue.
            Timeout: No reply arrived in time.
            ConnectionLost: The connection was lost before the reply arrived.
        """
        core = self._core
        driver = self._driver
        await self.wait_flowing(timeout)
        with driver.lock:
            correlation_id = core.connection.new_name()
            known = core.reply_to_waiter()
        while known is not None:
            await driver.wait(known, timeout, "a reply address")
            with driver.lock:
                known = core.reply_to_waiter()
        keywords = {**keywords, "correlation_id": correlation_id, "reply_to": core.reply_to}
        outgoing = self._encoder.encode(body, name_of(exchange), name_of(routing_key), encode_flags(True, False),
                                        self._encoder.merge(properties, keywords))
        outgoing.at_most_once = True
        while True:
            with driver.lock:
                if core.flowing:
                    waiter, forget = driver.call(self._send_request, outgoing, correlation_id)
                    break
            await self.wait_flowing(timeout)
        try:
            answer: Message = await driver.wait(waiter, timeout, "a reply")
            return answer
        finally:
            with driver.lock:
                forget(correlation_id)

    def _send_request(self, outgoing: Outgoing, correlation_id: str) -> tuple[Waiter, Callable[[str], None]]:
        """Publish a request, and return a waiter for its reply and a function that forgets the request."""
        replies = self._core.ensure_reply_consumer()
        waiter = replies.await_answer(correlation_id)
        outgoing.waiter = ErrorOnlyWaiter(waiter)
        try:
            self._core.publish(outgoing)
        except BaseException:
            replies.forget_request(correlation_id)
            raise
        return waiter, replies.forget_request

    # Consuming

    def consume(self, queue: QueueName, *, prefetch: int = 100, no_ack: bool = False, exclusive: bool = False,
                no_local: bool = False, consumer_tag: str = "", arguments: dict[str, Any] | None = None) -> Consumer:
        """Consume the messages of a queue, as in `async for message in channel.consume("work")`.

        Args:
            queue: Queue to consume from.
            prefetch: Maximum number of unacked messages; 0 is no limit.
            no_ack: Messages are settled when sent; those in transit are lost with the connection.
            exclusive: Request to be the only consumer of the queue.
            no_local: Do not receive messages published over this connection.
            consumer_tag: Consumer tag; "" for a generated one.
            arguments: Additional arguments, such as `x-priority`.
        """
        sent = {"no_ack": no_ack, "exclusive": exclusive, "no_local": no_local, "arguments": dict(arguments or {})}
        core = self._core.new_consumer(name_of(queue), prefetch, sent)
        core.tag = consumer_tag
        return Consumer(self, core, queue)

    def sender(self, address: str | None, *, name: str = "", window: int = 200, settled: bool = False,
               settle_second: bool = False, durable: bool = False, dynamic: bool = False,
               properties: Mapping[str, Any] | None = None, capabilities: tuple[str, ...] = ()) -> Opening[Sender]:
        """Attach an AMQP 1.0 link to a target. Await the result, or enter it with `async with`.

        Args:
            address: Address on the server; None for the anonymous terminus, where each message has its own `to`.
            name: Name of the link; "" for a generated one.
            window: Maximum number of messages of `Sender.publish` without an outcome.
            settled: Send all messages settled (sender settle mode settled): lost messages are not reported.
            settle_second: The server settles after the client (receiver settle mode second).
            durable: Resume unsettled messages after a lost connection. Requires `name`, implies `settle_second`.
            dynamic: The server creates a node that exists as long as the link. `address` must be None.
            properties: Properties of the link.
            capabilities: Capabilities of the target.

        Raises:
            NotSupported: The connection does not use AMQP 1.0.
        """

        async def open() -> Sender:
            driver = self._driver
            await driver.wait_open()
            with driver.lock:
                core = links.new_sender(self._core, address, name, settled, settle_second, durable, dynamic, properties,
                                        capabilities)
                waiter = core.attach_waiter()
            await driver.wait(waiter, DEFAULT, "attach")
            return Sender(self, core, window)

        return Opening(open)

    def receiver(self, address: str | None, *, name: str = "", prefetch: int = 100, filters: Filters | None = None,
                 browse: bool = False, durable: bool = False, settled: bool = False, settle_second: bool = False,
                 dynamic: bool = False, properties: Mapping[str, Any] | None = None,
                 capabilities: tuple[str, ...] = ()) -> Opening[Receiver]:
        """Attach an AMQP 1.0 link to a source. Await the result, or enter it with `async with`.

        Args:
            address: Address on the server.
            name: Name of the link; "" for a generated one.
            prefetch: Maximum number of unsettled deliveries (the link credit); 0 is no limit.
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

        Raises:
            NotSupported: The connection does not use AMQP 1.0.
        """

        async def open() -> Receiver:
            core = links.new_receiver(self._core, address, name, prefetch, filters, browse, durable, settled, settle_second,
                                      dynamic, properties, capabilities)
            receiver = Receiver(self, core)
            await receiver.start()
            return receiver

        return Opening(open)

    async def get(self, queue: QueueName, *, no_ack: bool = False, timeout: Limit = DEFAULT) -> Message | None:
        """Return the next message of a queue, None if it is empty (0-9-1 `basic.get`)."""
        waiters: list[Any] = []

        def send() -> Waiter:
            waiters.append(self._core.get(name_of(queue), no_ack))
            waiter: Waiter = waiters[0]
            return waiter

        try:
            message: Message | None = await self._call("basic.get", send, timeout)
        except BaseException:
            # The message may have arrived at the moment of the interruption; requeue it.
            with self._driver.lock:
                for waiter in waiters:
                    late = self._driver.result_of(waiter)
                    if late is not None and not late.settled and self._core.error is None:
                        late.nack(requeue=True)
            raise
        return message

    def ack(self, delivery_tag: int, multiple: bool = False) -> None:
        """Acknowledge by delivery tag. Prefer `Message.ack`, which is also safe after a lost connection."""
        with self._driver.lock:
            self._core.settle_tag("basic.ack", {"delivery_tag": delivery_tag, "multiple": multiple})

    def nack(self, delivery_tag: int, multiple: bool = False, requeue: bool = True) -> None:
        """Requeue or reject by delivery tag (RabbitMQ's `basic.nack`). Prefer `Message.nack`."""
        with self._driver.lock:
            self._core.settle_tag("basic.nack", {"delivery_tag": delivery_tag, "multiple": multiple, "requeue": requeue})

    def reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """Reject by delivery tag (0-9-1 `basic.reject`). Prefer `Message.reject`."""
        with self._driver.lock:
            self._core.settle_tag("basic.reject", {"delivery_tag": delivery_tag, "requeue": requeue})

    async def qos(self, prefetch_count: int = 0, prefetch_size: int = 0, global_: bool = False, *,
                  timeout: Limit = DEFAULT) -> None:
        """Set prefetch limits (0-9-1 `basic.qos`). With `global_` they apply to all consumers of the channel together."""
        await self._call("basic.qos", lambda: self._core.operations.qos(
            prefetch_count, prefetch_size, global_), timeout)

    async def recover(self, requeue: bool = True, *, timeout: Limit = DEFAULT) -> None:
        """Ask the server to redeliver all unacked messages (0-9-1 `basic.recover`).

        Settling a message that was received before has no effect.
        """
        await self._call("basic.recover", lambda: self._core.recover(requeue), timeout)

    async def flow(self, active: bool, *, timeout: Limit = DEFAULT) -> None:
        """Pause or resume deliveries (0-9-1 `channel.flow`, which RabbitMQ does not support)."""
        await self._call("channel.flow", lambda: self._core.set_active(active), timeout)

    # Transactions

    async def tx_commit(self, *, timeout: Limit = DEFAULT) -> None:
        """Commit the transaction. Raises `TransactionLost` if the connection was lost since the last commit."""
        await self._call("tx.commit", lambda: self._core.transaction("tx.commit"), timeout)

    async def tx_rollback(self, *, timeout: Limit = DEFAULT) -> None:
        """Roll back the transaction."""
        await self._call("tx.rollback", lambda: self._core.transaction("tx.rollback"), timeout)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Channel]:
        """Commit what is published and acknowledged in the block at its end, or roll it back if the block raises."""
        if not self._core.transactional:
            raise RuntimeError("the channel has no transactions; open it with channel(transactional=True)")
        try:
            yield self
        except BaseException:
            try:
                if self._core.opened:
                    await self.tx_rollback()
                else:
                    with self._driver.lock:
                        self._core.forget_transaction()
            except Error:
                # The channel or the connection has ended, and with it the transaction.
                pass
            raise
        await self.tx_commit()

    def __repr__(self) -> str:
        return f"<Channel {self.number}{'' if self.is_open else ', not open'}>"
