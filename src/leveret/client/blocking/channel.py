"""A channel, blocking."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from leveret.client.blocking.consumer import Consumer
from leveret.client.blocking.message import BlockingMessage
from leveret.client.blocking.publisher import Publisher
from leveret.client.blocking.queue import Exchange, Queue
from leveret.client.blocking.waiter import BlockingWaiter
from leveret.client.core import operations
from leveret.client.core.channel import ChannelCore
from leveret.client.core.consumer import ConsumerCore
from leveret.client.core.encoding import Body, Encoder, encode_flags, merge, name_of
from leveret.client.core.host import Waiter
from leveret.client.core.publisher import PublisherCore
from leveret.client.core.requests import REPLY_TO, Asked
from leveret.client.core.topology import DeclaredQueue
from leveret.client.core.unconfirmed import Outgoing
from leveret.client.errors import ChannelClosed, ConnectionClosed, Error, anew
from leveret.client.limit import DEFAULT, Limit, Patience
from leveret.client.message import Message
from leveret.client.properties import Properties

if TYPE_CHECKING:
    from leveret.client.blocking.connection import Connection

QueueName = str | Queue
ExchangeName = str | Exchange


class Channel:
    """A channel of a connection. Calls on one channel are performed in their order; a mistake closes the channel, and only
    that: everything on it then raises the `ChannelClosed` that says why. Threads may share it.

    `timeout` is in seconds everywhere; left out it is the connection's.
    """

    def __init__(self, connection: Connection, core: ChannelCore) -> None:
        self.connection = connection
        self._core = core
        self._driver = connection.driver
        self.lock = connection.driver.lock
        self._encoder = Encoder()
        core.face = self

    @property
    def number(self) -> int:
        return self._core.number

    @property
    def is_open(self) -> bool:
        """It is open now; while the connection is lost it is not."""
        return self._core.opened

    def close(self) -> None:
        """Close it in order. Messages that its consumers hold go back to their queues."""
        try:
            self._driver.run(self._core.close(), DEFAULT, "channel.close")
        except (ConnectionClosed, ChannelClosed):
            pass

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _call(self, what: str, send: Callable[[], Waiter], timeout: Limit = DEFAULT) -> Any:
        """Send once there is a connection, and wait for the reply."""
        driver = self._driver
        core = self._core
        while True:
            with driver.lock:
                if driver.core.opened:
                    try:
                        waiter = send()
                    except BaseException as error:
                        driver.interrupted(error)
                        raise
                    break
                if core.error is not None:
                    raise anew(core.error)
            driver.until_open(timeout)
        return driver.wait(waiter, timeout, what)

    # Queues and exchanges

    def queue(self, name: str) -> Queue:
        """A queue that exists, or will; nothing is sent."""
        return Queue(self, self._core.connection.topology.queues.get(name) or DeclaredQueue(name, False, {}))

    def exchange(self, name: str = "") -> Exchange:
        """An exchange that exists, or will; without a name the default exchange. Nothing is sent."""
        return Exchange(self, name)

    def declare_queue(self, name: str = "", *, durable: bool = False, exclusive: bool = False,
                            auto_delete: bool = False, passive: bool = False, arguments: dict[str, Any] | None = None,
                            timeout: Limit = DEFAULT) -> Queue:
        """Make a queue, or see that it is as described (0-9-1 `queue.declare`). Without a name the server finds one.

        With `passive` it must exist, and the other options do not count.
        """
        declared, messages, consumers = self._call("queue.declare", lambda: operations.declare_queue(
            self._core, name_of(name), durable, exclusive, auto_delete, passive, arguments), timeout)
        return Queue(self, declared, messages, consumers)

    def delete_queue(self, queue: QueueName, *, if_unused: bool = False, if_empty: bool = False,
                           timeout: Limit = DEFAULT) -> int:
        """How many messages went with it."""
        count: int = self._call("queue.delete", lambda: operations.delete_queue(
            self._core, name_of(queue), if_unused, if_empty), timeout)
        return count

    def purge_queue(self, queue: QueueName, *, timeout: Limit = DEFAULT) -> int:
        """Remove what waits in it; how many messages these were."""
        count: int = self._call("queue.purge", lambda: operations.purge_queue(self._core, name_of(queue)), timeout)
        return count

    def bind_queue(self, queue: QueueName, exchange: ExchangeName, routing_key: str = "",
                         arguments: dict[str, Any] | None = None, *, timeout: Limit = DEFAULT) -> None:
        """Have the exchange route to the queue (0-9-1 `queue.bind`)."""
        self._call("queue.bind", lambda: operations.bind(
            self._core, True, name_of(queue), name_of(exchange), routing_key, arguments), timeout)

    def unbind_queue(self, queue: QueueName, exchange: ExchangeName, routing_key: str = "",
                           arguments: dict[str, Any] | None = None, *, timeout: Limit = DEFAULT) -> None:
        """Undo `bind_queue` with the same arguments."""
        self._call("queue.unbind", lambda: operations.unbind(
            self._core, True, name_of(queue), name_of(exchange), routing_key, arguments), timeout)

    def declare_exchange(self, name: str, type: str = "direct", *, durable: bool = False,
                               auto_delete: bool = False, internal: bool = False, passive: bool = False,
                               arguments: dict[str, Any] | None = None, timeout: Limit = DEFAULT) -> Exchange:
        """Make an exchange, or see that it is as described (0-9-1 `exchange.declare`)."""
        self._call("exchange.declare", lambda: operations.declare_exchange(
            self._core, name_of(name), type, durable, auto_delete, internal, passive, arguments), timeout)
        return Exchange(self, name, type)

    def delete_exchange(self, exchange: ExchangeName, *, if_unused: bool = False, timeout: Limit = DEFAULT) -> None:
        self._call("exchange.delete", lambda: operations.delete_exchange(
            self._core, name_of(exchange), if_unused), timeout)

    def bind_exchange(self, destination: ExchangeName, source: ExchangeName, routing_key: str = "",
                            arguments: dict[str, Any] | None = None, *, timeout: Limit = DEFAULT) -> None:
        """Have `source` route to `destination` (RabbitMQ's `exchange.bind`)."""
        self._call("exchange.bind", lambda: operations.bind(
            self._core, False, name_of(destination), name_of(source), routing_key, arguments), timeout)

    def unbind_exchange(self, destination: ExchangeName, source: ExchangeName, routing_key: str = "",
                              arguments: dict[str, Any] | None = None, *, timeout: Limit = DEFAULT) -> None:
        """Undo `bind_exchange` with the same arguments."""
        self._call("exchange.unbind", lambda: operations.unbind(
            self._core, False, name_of(destination), name_of(source), routing_key, arguments), timeout)

    # Publishing

    def publish(self, body: Body, routing_key: QueueName = "", exchange: ExchangeName = "", *,
                mandatory: bool = False, immediate: bool = False, timeout: Limit = DEFAULT,
                properties: Properties | None = None, **keywords: Any) -> None:
        """Publish, and wait until the server has confirmed it (on a channel with confirms; otherwise until it is written).

        routing_key  a queue, or its name, where the exchange is the default one
        keywords     properties of the message, such as `persistent=True` or `headers={...}`, over those of `properties`
        mandatory    raise `Returned` when no queue takes it

        Raises `InvalidMessage` before anything is sent, `Nacked` when the server refuses it, `Returned`, and `Timeout`.
        While the connection is lost it waits; see docs/client/reconnecting.md for what may be delivered twice.
        """
        outgoing = self._encoder.encode(body, name_of(exchange), name_of(routing_key), encode_flags(mandatory, immediate),
                                        merge(properties, keywords))
        self.send(outgoing, timeout)

    def send(self, outgoing: Outgoing, timeout: Limit) -> None:
        """Publish what is encoded already."""
        core = self._core
        driver = self._driver
        waiter: BlockingWaiter | None = None
        if core.confirms:
            waiter = outgoing.waiter = driver.new_waiter()
        while True:
            with driver.lock:
                if core.flowing:
                    try:
                        core.publish(outgoing)
                    except BaseException as error:
                        driver.interrupted(error)
                        raise
                    break
            self.until_flowing(timeout)
        if waiter is not None:
            driver.wait(waiter, timeout, "basic.publish")

    def until_flowing(self, timeout: Limit = DEFAULT) -> None:
        """Until publishes may be sent. Raises `Timeout`; `blocked_timeout` counts while the server takes no messages."""
        core = self._core
        driver = self._driver
        parameters = self.connection.parameters
        patience = Patience(parameters.timeout, parameters.blocked_timeout, timeout)
        while not core.flowing:
            with driver.lock:
                if core.flowing:
                    return
                seconds, left = patience.begin(core.connection.opened, time.monotonic())
                waiter, what = core.until_flowing(), f"basic.publish while {core.why_stopped()}"
            driver.wait(waiter, seconds, what, left)

    def publisher(self, exchange: ExchangeName = "", routing_key: QueueName = "", *, window: int = 200,
                  mandatory: bool = False, properties: Properties | None = None, **keywords: Any) -> Publisher:
        """Publishes many messages without waiting for each one's confirm; to be entered with `with`, which waits for all.

        window  how many may be unconfirmed
        """
        return Publisher(self, PublisherCore(self._core, window), self._encoder, name_of(exchange), name_of(routing_key),
                         mandatory, properties, keywords)

    def request(self, body: Body, routing_key: QueueName = "", exchange: ExchangeName = "", *,
                timeout: Limit = DEFAULT, properties: Properties | None = None, **keywords: Any) -> Message:
        """Publish a request and its answer, over direct reply-to.

        Raises `Returned` when no queue takes it, and `Timeout` when no answer comes. An answer is not waited for over a
        lost connection: `ConnectionLost`.
        """
        core = self._core
        driver = self._driver
        with driver.lock:
            correlation_id = core.connection.new_name()
        keywords = {**keywords, "correlation_id": correlation_id, "reply_to": REPLY_TO}
        outgoing = self._encoder.encode(body, name_of(exchange), name_of(routing_key), encode_flags(True, False),
                                        merge(properties, keywords))
        outgoing.once = True
        while True:
            with driver.lock:
                if core.flowing:
                    try:
                        replies = core.listen_for_replies(BlockingMessage)
                        waiter = replies.await_answer(correlation_id)
                        outgoing.waiter = Asked(waiter)
                        core.publish(outgoing)
                    except BaseException as error:
                        driver.interrupted(error)
                        raise
                    break
            self.until_flowing(timeout)
        try:
            answer: Message = driver.wait(waiter, timeout, "an answer")
            return answer
        finally:
            with driver.lock:
                replies.give_up(correlation_id)

    # Consuming

    def consume(self, queue: QueueName, *, prefetch: int = 100, no_ack: bool = False, exclusive: bool = False,
                no_local: bool = False, consumer_tag: str = "", arguments: dict[str, Any] | None = None) -> Consumer:
        """The messages of a queue, as they come: `for message in channel.consume("work"): ...`

        prefetch  how many it may hold that are not acknowledged; 0 is no limit
        no_ack    they are settled as they are sent: what is lost on the way is lost
        """
        sent = {"no_ack": no_ack, "exclusive": exclusive, "no_local": no_local, "arguments": dict(arguments or {})}
        core = ConsumerCore(self._core, name_of(queue), prefetch, sent, BlockingMessage)
        core.tag = consumer_tag
        return Consumer(self, core, queue)

    def get(self, queue: QueueName, *, no_ack: bool = False, timeout: Limit = DEFAULT) -> Message | None:
        """The next message of a queue, None when it is empty (0-9-1 `basic.get`)."""
        waiters: list[BlockingWaiter] = []

        def send() -> Waiter:
            waiters.append(self._core.get(name_of(queue), no_ack, BlockingMessage))  # type: ignore[arg-type]
            return waiters[0]

        try:
            message: Message | None = self._call("basic.get", send, timeout)
        except BaseException:
            # It may have come in the very moment of an interrupt: it goes back.
            with self._driver.lock:
                for waiter in waiters:
                    late = waiter.result
                    if late is not None and not late.settled and self._core.error is None:
                        late.nack(requeue=True)
            raise
        return message

    def ack(self, delivery_tag: int, multiple: bool = False) -> None:
        """Acknowledge by delivery tag; `Message.ack` is simpler, and safe over a lost connection."""
        with self._driver.lock:
            self._core.settle_tag("basic.ack", {"delivery_tag": delivery_tag, "multiple": multiple})

    def nack(self, delivery_tag: int, multiple: bool = False, requeue: bool = True) -> None:
        with self._driver.lock:
            self._core.settle_tag("basic.nack", {"delivery_tag": delivery_tag, "multiple": multiple, "requeue": requeue})

    def reject(self, delivery_tag: int, requeue: bool = False) -> None:
        with self._driver.lock:
            self._core.settle_tag("basic.reject", {"delivery_tag": delivery_tag, "requeue": requeue})

    def qos(self, prefetch_count: int = 0, prefetch_size: int = 0, global_: bool = False, *,
                  timeout: Limit = DEFAULT) -> None:
        """0-9-1 `basic.qos`. With `global_` it holds for the channel's consumers together (RabbitMQ's meaning)."""
        self._call("basic.qos", lambda: operations.qos(self._core, prefetch_count, prefetch_size, global_), timeout)

    def recover(self, requeue: bool = True, *, timeout: Limit = DEFAULT) -> None:
        """Have the server deliver everything again that is not settled (0-9-1 `basic.recover`). Settling a message that
        was received before does nothing."""
        self._call("basic.recover", lambda: self._core.recover(requeue), timeout)

    def flow(self, active: bool, *, timeout: Limit = DEFAULT) -> None:
        """Stop or start deliveries (0-9-1 `channel.flow`; RabbitMQ does not know it)."""
        self._call("channel.flow", lambda: self._core.call("channel.flow", {"active": active}), timeout)

    # Transactions

    def tx_commit(self, *, timeout: Limit = DEFAULT) -> None:
        """Raises `TransactionLost` when the connection was lost since the last commit."""
        self._call("tx.commit", lambda: self._core.transaction("tx.commit"), timeout)

    def tx_rollback(self, *, timeout: Limit = DEFAULT) -> None:
        self._call("tx.rollback", lambda: self._core.transaction("tx.rollback"), timeout)

    @contextmanager
    def transaction(self) -> Iterator[Channel]:
        """What is published and acknowledged in the block is committed at its end, and rolled back when it raises."""
        if not self._core.transactional:
            raise RuntimeError("the channel has no transactions; open it with channel(transactional=True)")
        try:
            yield self
        except BaseException:
            try:
                if self._core.opened:
                    self.tx_rollback()
                else:
                    with self._driver.lock:
                        self._core.forget_transaction()
            except Error:
                # The channel or the connection has ended, and the transaction with it.
                pass
            raise
        self.tx_commit()

    def __repr__(self) -> str:
        return f"<Channel {self.number}{'' if self.is_open else ', not open'}>"
