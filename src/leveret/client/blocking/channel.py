"""A channel, blocking."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from leveret.client.amqp1 import Filters
from leveret.client.blocking.amqp09 import Amqp09Calls
from leveret.client.blocking.consumer import Consumer
from leveret.client.blocking.publisher import Publisher
from leveret.client.blocking.queue import Exchange, Queue
from leveret.client.blocking.receiver import Receiver
from leveret.client.blocking.sender import Sender
from leveret.client.blocking.waiter import BlockingWaiter
from leveret.client.core.amqp1 import links
from leveret.client.core.encoding import Body, encode_flags, name_of
from leveret.client.core.frontend import Waiter
from leveret.client.core.pending_confirms import Outgoing
from leveret.client.core.protocols import AnyChannelCore
from leveret.client.core.publisher import PublisherCore
from leveret.client.core.topology import DeclaredQueue
from leveret.client.core.waiters import ErrorOnlyWaiter
from leveret.client.errors import ChannelClosed, ConnectionClosed, Error, copy_error
from leveret.client.message import Message
from leveret.client.properties import Properties
from leveret.client.timeouts import DEFAULT, Deadlines, Limit

if TYPE_CHECKING:
    from leveret.client.blocking.connection import Connection

QueueName = str | Queue
ExchangeName = str | Exchange


class Channel(Amqp09Calls):
    """A channel of a connection. Calls on one channel are performed in their order; a mistake closes the channel, and only
    that: everything on it then raises the `ChannelClosed` that says why. Threads may share it.

    `timeout` is in seconds everywhere; left out it is the connection's.
    """

    def __init__(self, connection: Connection, core: AnyChannelCore) -> None:
        self.connection = connection
        self._core = core
        self._driver = connection.driver
        self.lock = connection.driver.lock
        self._encoder = core.new_encoder()
        core.api_channel = self

    @property
    def core(self) -> AnyChannelCore:
        """Its engine."""
        return self._core

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
                    raise copy_error(core.error)
            driver.wait_open(timeout)
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
        declared, messages, consumers = self._call("queue.declare", lambda: self._core.operations.declare_queue(
            name_of(name), durable, exclusive, auto_delete, passive, arguments), timeout)
        return Queue(self, declared, messages, consumers)

    def delete_queue(self, queue: QueueName, *, if_unused: bool = False, if_empty: bool = False,
                           timeout: Limit = DEFAULT) -> int:
        """How many messages went with it."""
        count: int = self._call("queue.delete", lambda: self._core.operations.delete_queue(
            name_of(queue), if_unused, if_empty), timeout)
        return count

    def purge_queue(self, queue: QueueName, *, timeout: Limit = DEFAULT) -> int:
        """Remove what waits in it; how many messages these were."""
        count: int = self._call("queue.purge", lambda: self._core.operations.purge_queue(name_of(queue)), timeout)
        return count

    def bind_queue(self, queue: QueueName, exchange: ExchangeName, routing_key: str = "",
                         arguments: dict[str, Any] | None = None, *, timeout: Limit = DEFAULT) -> None:
        """Have the exchange route to the queue (0-9-1 `queue.bind`)."""
        self._call("queue.bind", lambda: self._core.operations.bind(
            True, name_of(queue), name_of(exchange), routing_key, arguments), timeout)

    def unbind_queue(self, queue: QueueName, exchange: ExchangeName, routing_key: str = "",
                           arguments: dict[str, Any] | None = None, *, timeout: Limit = DEFAULT) -> None:
        """Undo `bind_queue` with the same arguments."""
        self._call("queue.unbind", lambda: self._core.operations.unbind(
            True, name_of(queue), name_of(exchange), routing_key, arguments), timeout)

    def declare_exchange(self, name: str, type: str = "direct", *, durable: bool = False,
                               auto_delete: bool = False, internal: bool = False, passive: bool = False,
                               arguments: dict[str, Any] | None = None, timeout: Limit = DEFAULT) -> Exchange:
        """Make an exchange, or see that it is as described (0-9-1 `exchange.declare`)."""
        self._call("exchange.declare", lambda: self._core.operations.declare_exchange(
            name_of(name), type, durable, auto_delete, internal, passive, arguments), timeout)
        return Exchange(self, name, type)

    def delete_exchange(self, exchange: ExchangeName, *, if_unused: bool = False, timeout: Limit = DEFAULT) -> None:
        self._call("exchange.delete", lambda: self._core.operations.delete_exchange(
            name_of(exchange), if_unused), timeout)

    def bind_exchange(self, destination: ExchangeName, source: ExchangeName, routing_key: str = "",
                            arguments: dict[str, Any] | None = None, *, timeout: Limit = DEFAULT) -> None:
        """Have `source` route to `destination` (RabbitMQ's `exchange.bind`)."""
        self._call("exchange.bind", lambda: self._core.operations.bind(
            False, name_of(destination), name_of(source), routing_key, arguments), timeout)

    def unbind_exchange(self, destination: ExchangeName, source: ExchangeName, routing_key: str = "",
                              arguments: dict[str, Any] | None = None, *, timeout: Limit = DEFAULT) -> None:
        """Undo `bind_exchange` with the same arguments."""
        self._call("exchange.unbind", lambda: self._core.operations.unbind(
            False, name_of(destination), name_of(source), routing_key, arguments), timeout)

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
                                        self._encoder.merge(properties, keywords))
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
            self.wait_flowing(timeout)
        if waiter is not None:
            driver.wait(waiter, timeout, "basic.publish")

    def wait_flowing(self, timeout: Limit = DEFAULT) -> None:
        """Until publishes may be sent. Raises `Timeout`; `blocked_timeout` counts while the server takes no messages."""
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
        self.wait_flowing(timeout)
        with driver.lock:
            correlation_id = core.connection.new_name()
            known = core.reply_to_waiter()
        while known is not None:
            driver.wait(known, timeout, "an address for the answer")
            with driver.lock:
                known = core.reply_to_waiter()
        keywords = {**keywords, "correlation_id": correlation_id, "reply_to": core.reply_to}
        outgoing = self._encoder.encode(body, name_of(exchange), name_of(routing_key), encode_flags(True, False),
                                        self._encoder.merge(properties, keywords))
        outgoing.at_most_once = True
        while True:
            with driver.lock:
                if core.flowing:
                    try:
                        replies = core.ensure_reply_consumer()
                        waiter = replies.await_answer(correlation_id)
                        outgoing.waiter = ErrorOnlyWaiter(waiter)
                        core.publish(outgoing)
                    except BaseException as error:
                        driver.interrupted(error)
                        raise
                    break
            self.wait_flowing(timeout)
        try:
            answer: Message = driver.wait(waiter, timeout, "an answer")
            return answer
        finally:
            with driver.lock:
                replies.forget_request(correlation_id)

    # Consuming

    def consume(self, queue: QueueName, *, prefetch: int = 100, no_ack: bool = False, exclusive: bool = False,
                no_local: bool = False, consumer_tag: str = "", arguments: dict[str, Any] | None = None) -> Consumer:
        """The messages of a queue, as they come: `for message in channel.consume("work"): ...`

        prefetch  how many it may hold that are not acknowledged; 0 is no limit
        no_ack    they are settled as they are sent: what is lost on the way is lost
        """
        sent = {"no_ack": no_ack, "exclusive": exclusive, "no_local": no_local, "arguments": dict(arguments or {})}
        core = self._core.new_consumer(name_of(queue), prefetch, sent)
        core.tag = consumer_tag
        return Consumer(self, core, queue)

    def sender(self, address: str | None, *, name: str = "", window: int = 200, settled: bool = False,
               settle_second: bool = False, durable: bool = False, dynamic: bool = False,
               properties: Mapping[str, Any] | None = None, capabilities: tuple[str, ...] = ()) -> Sender:
        """A link of AMQP 1.0 to a target, to be entered. On other protocols it raises `NotSupported`.

        address       as the server knows it; None for the anonymous terminus, where each message says its `to`
        name          of the link; "" for one that we make up
        window        how many messages of `Sender.publish` may have no outcome
        settled       all is sent settled (sender settle mode settled): nobody hears of what is lost
        settle_second        the server settles after we have (receiver settle mode second)
        durable       what is unsettled is resumed when the connection was lost; needs a name, implies `settle_second`
        dynamic       the server makes a node that lives as long as the link; `address` must be None
        properties    of the link
        capabilities  of the target
        """

        driver = self._driver
        driver.wait_open(DEFAULT)
        with driver.lock:
            core = links.new_sender(self._core, address, name, settled, settle_second, durable, dynamic, properties,
                                    capabilities)
            waiter = core.attach_waiter()
        driver.wait(waiter, DEFAULT, "attach")
        return Sender(self, core, window)

    def receiver(self, address: str | None, *, name: str = "", prefetch: int = 100, filters: Filters | None = None,
                 browse: bool = False, durable: bool = False, settled: bool = False, settle_second: bool = False,
                 dynamic: bool = False, properties: Mapping[str, Any] | None = None,
                 capabilities: tuple[str, ...] = ()) -> Receiver:
        """A link of AMQP 1.0 from a source, to be entered. On other protocols it raises `NotSupported`.

        address       as the server knows it
        name          of the link; "" for one that we make up
        prefetch      how many deliveries it may hold that are not settled (its credit); 0 is no limit
        filters       of `leveret.client.amqp1`: one, several, or by name; `Receiver.filters` says which are in place
        browse        copies are delivered, and the messages stay where they are (distribution mode copy)
        durable       the source outlives the link and the connection: a subscription; needs a name
        settled       everything comes settled (sender settle mode settled): what is lost on the way is lost
        settle_second        the server settles after we have (receiver settle mode second)
        dynamic       the server makes a node that lives as long as the link; `address` must be None
        properties    of the link
        capabilities  of the source, such as "queue", "topic", "shared"
        """

        core = links.new_receiver(self._core, address, name, prefetch, filters, browse, durable, settled, settle_second,
                                  dynamic, properties, capabilities)
        receiver = Receiver(self, core)
        receiver.start()
        return receiver

    def get(self, queue: QueueName, *, no_ack: bool = False, timeout: Limit = DEFAULT) -> Message | None:
        """The next message of a queue, None when it is empty (0-9-1 `basic.get`)."""
        waiters: list[Any] = []

        def send() -> Waiter:
            waiters.append(self._core.get(name_of(queue), no_ack))
            waiter: Waiter = waiters[0]
            return waiter

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
        self._call("basic.qos", lambda: self._core.operations.qos(prefetch_count, prefetch_size, global_), timeout)

    def recover(self, requeue: bool = True, *, timeout: Limit = DEFAULT) -> None:
        """Have the server deliver everything again that is not settled (0-9-1 `basic.recover`). Settling a message that
        was received before does nothing."""
        self._call("basic.recover", lambda: self._core.recover(requeue), timeout)

    def flow(self, active: bool, *, timeout: Limit = DEFAULT) -> None:
        """Stop or start deliveries (0-9-1 `channel.flow`; RabbitMQ does not know it)."""
        self._call("channel.flow", lambda: self._core.set_active(active), timeout)

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
