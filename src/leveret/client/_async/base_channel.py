"""Base class of channels and sessions, async API."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from leveret.client._async.consumer import Consumer
from leveret.client._async.publisher import Publisher
from leveret.client._async.queue import Exchange, Queue
from leveret.client.engine.common.batches import BatchCore, Column, Messages, read_rows
from leveret.client.engine.common.channel import BaseChannelCore
from leveret.client.engine.common.encoding import Body, encode_flags, name_of
from leveret.client.engine.common.frontend import Waiter
from leveret.client.engine.common.outgoing import Outgoing
from leveret.client.engine.common.publisher import PublisherCore
from leveret.client.engine.common.results import Result
from leveret.client.engine.common.topology import DeclaredQueue
from leveret.client.engine.common.waiters import ErrorOnlyWaiter
from leveret.client.errors import ChannelClosed, ConnectionClosed, Error, copy_error
from leveret.client.message import Message
from leveret.client.properties import Properties, PropertyValue
from leveret.client.timeouts import DEFAULT, Deadlines, Limit
from leveret.client.tracing import traced
from leveret.wire.amqp0.values import FieldMapping

if TYPE_CHECKING:
    from leveret.client._async.base_connection import BaseConnection

QueueName = str | Queue
ExchangeName = str | Exchange
SomeChannel = TypeVar("SomeChannel", bound="BaseChannel")


class BaseChannel(ABC):
    """Operations on queues and exchanges by name, common to channels and 1.0 sessions.

    All timeouts are in seconds; the default is the connection's `timeout`. Tasks may share a channel.
    """

    _core: BaseChannelCore

    def __init__(self, connection: BaseConnection, core: BaseChannelCore) -> None:
        self._connection = connection
        self._core = core
        self._driver = connection.driver
        self._encoder = traced(core.new_encoder(), core.connection.tracing)
        core.api_channel = self

    @property
    def connection(self) -> BaseConnection:
        """Connection of the channel."""
        return self._connection

    @property
    def core(self) -> BaseChannelCore:
        """The engine of the channel."""
        return self._core

    @property
    def number(self) -> int:
        """Channel number."""
        return self._core.number

    @property
    def is_open(self) -> bool:
        """Whether the channel is open. False while the connection is lost."""
        return self._core.opened

    async def close(self) -> None:
        """Close the channel. The server requeues unacked messages."""
        try:
            await self._driver.run(self._core.close(), DEFAULT, "channel.close")
        except (ConnectionClosed, ChannelClosed):
            pass

    async def __aenter__(self: SomeChannel) -> SomeChannel:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def _call(self, what: str, send: Callable[[], Waiter], timeout: Limit = DEFAULT) -> Result:
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
        """Return a handle to an exchange by name, or to the default exchange. Nothing is sent."""
        return Exchange(self, name)

    async def declare_queue(
        self,
        name: str = "",
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        passive: bool = False,
        arguments: FieldMapping | None = None,
        timeout: Limit = DEFAULT,
    ) -> Queue:
        """Declare a queue: create it, or check that it has these options.

        Args:
            name: Name of the queue; "" lets the server choose one.
            durable: The queue survives a restart of the server.
            exclusive: Only this connection may use the queue, and the queue is deleted with it.
            auto_delete: The queue is deleted with its last consumer.
            passive: Only check that the queue exists; the other options are ignored.
            arguments: Additional arguments, such as `x-max-length`.
            timeout: Timeout of the call.
        """
        declared, messages, consumers = await self._call(
            "queue.declare",
            lambda: self._core.operations.declare_queue(name_of(name), durable, exclusive, auto_delete, passive, arguments),
            timeout,
        )
        return Queue(self, declared, messages, consumers)

    async def delete_queue(self, queue: QueueName, *, timeout: Limit = DEFAULT) -> int:
        """Delete a queue and return the number of messages deleted with it."""
        count: int = await self._call("queue.delete", lambda: self._core.operations.delete_queue(name_of(queue)), timeout)
        return count

    async def purge_queue(self, queue: QueueName, *, timeout: Limit = DEFAULT) -> int:
        """Remove the ready messages of a queue and return their number."""
        count: int = await self._call("queue.purge", lambda: self._core.operations.purge_queue(name_of(queue)), timeout)
        return count

    async def bind_queue(
        self,
        queue: QueueName,
        exchange: ExchangeName,
        routing_key: str = "",
        arguments: FieldMapping | None = None,
        *,
        timeout: Limit = DEFAULT,
    ) -> None:
        """Bind a queue to an exchange."""
        await self._call(
            "queue.bind",
            lambda: self._core.operations.bind(True, name_of(queue), name_of(exchange), routing_key, arguments),
            timeout,
        )

    async def unbind_queue(
        self,
        queue: QueueName,
        exchange: ExchangeName,
        routing_key: str = "",
        arguments: FieldMapping | None = None,
        *,
        timeout: Limit = DEFAULT,
    ) -> None:
        """Remove a binding made by `bind_queue` with the same arguments."""
        await self._call(
            "queue.unbind",
            lambda: self._core.operations.unbind(True, name_of(queue), name_of(exchange), routing_key, arguments),
            timeout,
        )

    async def declare_exchange(
        self,
        name: str,
        type: str = "direct",
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: FieldMapping | None = None,
        timeout: Limit = DEFAULT,
    ) -> Exchange:
        """Declare an exchange: create it, or check that it has these options.

        Args:
            name: Name of the exchange.
            type: Type of the exchange, such as "direct", "fanout", "topic" or "headers".
            durable: The exchange survives a restart of the server.
            auto_delete: The exchange is deleted with its last binding.
            internal: Only other exchanges can publish to the exchange.
            arguments: Additional arguments, such as `alternate-exchange`.
            timeout: Timeout of the call.
        """
        await self._call(
            "exchange.declare",
            lambda: self._core.operations.declare_exchange(name_of(name), type, durable, auto_delete, internal, arguments),
            timeout,
        )
        return Exchange(self, name, type)

    async def delete_exchange(self, exchange: ExchangeName, *, timeout: Limit = DEFAULT) -> None:
        """Delete an exchange."""
        await self._call("exchange.delete", lambda: self._core.operations.delete_exchange(name_of(exchange)), timeout)

    async def bind_exchange(
        self,
        destination: ExchangeName,
        source: ExchangeName,
        routing_key: str = "",
        arguments: FieldMapping | None = None,
        *,
        timeout: Limit = DEFAULT,
    ) -> None:
        """Bind the exchange `destination` to the exchange `source`."""
        await self._call(
            "exchange.bind",
            lambda: self._core.operations.bind(False, name_of(destination), name_of(source), routing_key, arguments),
            timeout,
        )

    async def unbind_exchange(
        self,
        destination: ExchangeName,
        source: ExchangeName,
        routing_key: str = "",
        arguments: FieldMapping | None = None,
        *,
        timeout: Limit = DEFAULT,
    ) -> None:
        """Remove a binding made by `bind_exchange` with the same arguments."""
        await self._call(
            "exchange.unbind",
            lambda: self._core.operations.unbind(False, name_of(destination), name_of(source), routing_key, arguments),
            timeout,
        )

    # Publishing

    async def publish(
        self,
        body: Body,
        routing_key: QueueName = "",
        exchange: ExchangeName = "",
        *,
        mandatory: bool = False,
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
            encode_flags(mandatory, False),
            self._encoder.merge(properties, keywords),
        )
        await self.send(outgoing, timeout)

    async def send(self, outgoing: Outgoing, timeout: Limit) -> None:
        """Publish an encoded message."""
        waiter = None
        if self._core.confirms:
            waiter = self._driver.new_waiter()
            outgoing.report_to(waiter)
        await self._publish(self._core.publish, outgoing, timeout)
        if waiter is not None:
            await self._driver.wait(waiter, timeout, "basic.publish")

    async def _publish(self, publish: Callable[[Outgoing], None], outgoing: Outgoing, timeout: Limit) -> None:
        """Call `publish` with an encoded message as soon as publishing is allowed."""
        driver = self._driver
        while True:
            with driver.lock:
                if self._core.flowing:
                    try:
                        publish(outgoing)
                    except BaseException as error:
                        driver.interrupted(error)
                        raise
                    return
            await self.wait_flowing(timeout)

    async def publish_batch(
        self,
        messages: Messages,
        routing_key: QueueName | Sequence[str] | Column = "",
        exchange: ExchangeName | Sequence[str] | Column = "",
        *,
        mandatory: bool = False,
        timeout: Limit = DEFAULT,
        properties: Properties | None = None,
        **keywords: PropertyValue,
    ) -> int:
        """Publish many messages, wait for their confirms, and return their number.

        Leveret gets them in record batches, which cost a fraction of single messages; other servers get them singly. While
        the connection is lost, the call waits; see docs/client/reconnecting.md for possible duplicates.

        Args:
            messages: An Arrow table or record batch with the columns `body`, `routing_key`, `exchange` and those named
                like properties, of which only `body` is required; a list or an Arrow column of bodies; or a list of
                `Unpublished`, such as `messages` of an error.
            routing_key: Routing key of all messages, or a list or an Arrow column with that of each.
            exchange: Exchange of all messages, or a list or an Arrow column with that of each; "" for the default one.
            mandatory: Raise `BatchFailed` if messages are unroutable.
            timeout: Timeout of each wait.
            properties: Properties of all messages that have none of their own.
            **keywords: Properties that replace those of `properties`.

        Raises:
            InvalidMessage: A message cannot be encoded; earlier ones may have been sent if it is too long.
            BatchFailed: Some messages are unroutable, or the server refused them. The others were published.
            ChannelClosed: The server refused a record batch, for example because an exchange does not exist.
            Timeout: The server did not confirm in time, or it blocks publishers.
        """
        rows = read_rows(self._encoder, messages, routing_key, exchange, properties, keywords)
        await self.wait_flowing(timeout)
        driver = self._driver
        batch = BatchCore(self._core, self._encoder, rows, encode_flags(mandatory, False))
        for outgoing in batch.outgoing():
            while batch.in_flight >= batch.window:
                with driver.lock:
                    waiter = batch.window_waiter() if batch.in_flight >= batch.window else None
                if waiter is not None:
                    await driver.wait(waiter, timeout, "confirms")
            await self._publish(batch.publish, outgoing, timeout)
        while batch.in_flight:
            with driver.lock:
                waiter = batch.idle_waiter() if batch.in_flight else None
            if waiter is not None:
                await driver.wait(waiter, timeout, "confirms")
        if batch.error is not None:
            raise batch.take_error()
        return len(rows)

    async def wait_flowing(self, timeout: Limit = DEFAULT) -> None:
        """Wait until publishing is allowed; at most `blocked_timeout` while the server blocks it. Raises `Timeout`."""
        core = self._core
        driver = self._driver
        parameters = self._connection.parameters
        deadlines = Deadlines(parameters.timeout, parameters.blocked_timeout, timeout)
        while not core.flowing:
            with driver.lock:
                if core.flowing:
                    return
                seconds, left = deadlines.remaining(core.connection.opened, time.monotonic())
                waiter, what = core.flow_waiter(), f"basic.publish while {core.blocked_reason()}"
            await driver.wait(waiter, seconds, what, left)

    def publisher(
        self,
        exchange: ExchangeName = "",
        routing_key: QueueName = "",
        *,
        window: int = 200,
        mandatory: bool = False,
        properties: Properties | None = None,
        **keywords: PropertyValue,
    ) -> Publisher:
        """Return a publisher that does not wait for each confirm. `async with` waits for the pending confirms.

        Args:
            exchange: Exchange; "" for the default one.
            routing_key: Routing key; for the default exchange, a queue.
            window: Maximum number of pending confirms.
            mandatory: Raise `Returned` if a message is unroutable.
            properties: Properties of all messages.
            **keywords: Properties that replace those of `properties`.
        """
        return Publisher(
            self,
            PublisherCore(self._core, window),
            self._encoder,
            name_of(exchange),
            name_of(routing_key),
            mandatory,
            properties,
            keywords,
        )

    @abstractmethod
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
        """Publish a request and wait for its reply.

        Raises:
            Returned: The request is unroutable.
            Timeout: No reply arrived in time.
            ConnectionLost: The connection was lost before the reply arrived.
        """

    async def _request(
        self,
        body: Body,
        routing_key: QueueName,
        exchange: ExchangeName,
        timeout: Limit,
        properties: Properties | None,
        keywords: dict[str, PropertyValue],
    ) -> Result:
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
        outgoing = self._encoder.encode(
            body,
            name_of(exchange),
            name_of(routing_key),
            encode_flags(True, False),
            self._encoder.merge(properties, keywords),
        )
        outgoing.at_most_once = True
        while True:
            with driver.lock:
                if core.flowing:
                    waiter, forget = driver.call(self._send_request, outgoing, correlation_id)
                    break
            await self.wait_flowing(timeout)
        try:
            return await driver.wait(waiter, timeout, "a reply")
        finally:
            with driver.lock:
                forget(correlation_id)

    def _send_request(self, outgoing: Outgoing, correlation_id: str) -> tuple[Waiter, Callable[[str], None]]:
        """Publish a request, and return a waiter for its reply and a function that forgets the request."""
        replies = self._core.ensure_reply_consumer()
        waiter = replies.await_answer(correlation_id)
        outgoing.report_to(ErrorOnlyWaiter(waiter))
        try:
            self._core.publish(outgoing)
        except BaseException:
            replies.forget_request(correlation_id)
            raise
        return waiter, replies.forget_request

    # Consuming

    @abstractmethod
    def consume(self, queue: QueueName, *, prefetch: int = 100, no_ack: bool = False, no_local: bool = False) -> Consumer:
        """Consume the messages of a queue, as in `async for message in channel.consume("work")`.

        Args:
            queue: Queue to consume from.
            prefetch: Maximum number of unacked messages; 0 is unlimited.
            no_ack: The server settles messages when it sends them. A lost connection loses those in transit.
            no_local: Do not receive messages published over this connection.
        """

    @abstractmethod
    async def get(self, queue: QueueName, *, no_ack: bool = False, timeout: Limit = DEFAULT) -> Message | None:
        """Return the next message of a queue, None if it is empty."""

    async def _get(self, queue: QueueName, no_ack: bool, timeout: Limit) -> Result:
        waiters: list[Result] = []

        def send() -> Waiter:
            waiter = self._core.get(name_of(queue), no_ack)
            waiters.append(waiter)
            return waiter

        try:
            return await self._call("basic.get", send, timeout)
        except BaseException:
            # The message may have arrived during the interruption; requeue it.
            with self._driver.lock:
                for waiter in waiters:
                    late = self._driver.result_of(waiter)
                    if late is not None and not late.settled and self._core.error is None:
                        late.nack(requeue=True)
            raise

    async def flow(self, active: bool, *, timeout: Limit = DEFAULT) -> None:
        """Pause or resume deliveries."""
        await self._call("channel.flow", lambda: self._core.set_active(active), timeout)

    # Transactions

    async def tx_commit(self, *, timeout: Limit = DEFAULT) -> None:
        """Commit the transaction. Raises `TransactionLost` if the connection was lost since the last commit."""
        await self._call("tx.commit", lambda: self._core.transaction("tx.commit"), timeout)

    async def tx_rollback(self, *, timeout: Limit = DEFAULT) -> None:
        """Roll back the transaction."""
        await self._call("tx.rollback", lambda: self._core.transaction("tx.rollback"), timeout)

    @asynccontextmanager
    async def transaction(self: SomeChannel) -> AsyncIterator[SomeChannel]:
        """Commit the publishes and acknowledgements of the block at its end, or roll them back if the block raises."""
        if not self._core.transactional:
            raise RuntimeError("the channel has no transactions; open it with transactional=True")
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
                # The transaction ended with its channel or connection.
                pass
            raise
        await self.tx_commit()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.number}{'' if self.is_open else ', not open'}>"
