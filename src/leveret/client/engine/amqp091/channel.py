"""A channel of AMQP 0-9-1: lifecycle, confirms, consumers and transactions (classes channel, basic, confirm, tx)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.client.engine.amqp091 import batches
from leveret.client.engine.amqp091.calls import GET_EMPTY, NULL_WAITER, Call, CallingChannel
from leveret.client.engine.amqp091.consumer import ConsumerCore
from leveret.client.engine.amqp091.encoding import Amqp091Encoder, encode_address
from leveret.client.engine.amqp091.operations import Amqp091Operations
from leveret.client.engine.amqp091.pending_confirms import PendingConfirms, Publish
from leveret.client.engine.amqp091.requests import REPLY_TO, Replies
from leveret.client.engine.common.frontend import Procedure, Waiter
from leveret.client.engine.common.waiters import Waiters
from leveret.client.errors import (
    ChannelClosed,
    ConsumerCancelled,
    Error,
    InvalidMessage,
    Returned,
    TransactionLost,
    closed_error,
    copy_error,
)
from leveret.client.message import Message
from leveret.client.properties import Properties, decode_properties
from leveret.wire import record_batches
from leveret.wire.amqp0.commands import ContentMethod, Deliver, Method
from leveret.wire.amqp0.commands import Error as WireError
from leveret.wire.amqp0.values import Arguments

if TYPE_CHECKING:
    from leveret.client.engine.amqp091.connection import ConnectionCore
    from leveret.client.engine.common.batches import Rows

# Maximum number of cancelled consumers to remember.
MAX_CANCELLED_CONSUMERS: Final = 64


class ChannelCore(CallingChannel):
    """One channel. It survives the loss of its connection under the same number.

    Attributes:
        api_channel: The application's channel object.
        flowing: Publishes may be sent now.
        generation: Counts the events that invalidate delivery tags: a lost connection, and `basic.recover`.
        recovering: Number of pending `basic.recover`; unacked messages that arrive meanwhile will be delivered again.
    """

    __slots__ = (
        "_cancel_when_started",
        "_flow",
        "_recently_cancelled",
        "_stopped",
        "_transaction",
        "consumers",
        "pending_confirms",
        "qos",
        "recovering",
        "replies",
    )

    consumers: dict[bytes, ConsumerCore]

    def __init__(self, connection: ConnectionCore, number: int, confirms: bool, transactional: bool) -> None:
        super().__init__(connection, number)
        self.confirms = confirms
        self.transactional = transactional
        self.api_channel = None
        self.flowing = False
        self.generation = 0
        self.consumers = {}
        # RabbitMQ delivers messages in transit even after cancel-ok.
        self._recently_cancelled: dict[bytes, ConsumerCore] = {}
        # Consumers to cancel as soon as they have started.
        self._cancel_when_started: list[ConsumerCore] = []
        self.pending_confirms = PendingConfirms()
        self.replies: Replies | None = None
        # The arguments of the last `basic.qos` that applies to the whole channel (`global` is true).
        self.qos: Arguments | None = None
        self._flow = Waiters(connection.frontend)
        self._stopped = False
        self.recovering = 0
        # "": nothing published or settled since the last commit; "begun"; or "lost" with the connection.
        self._transaction = ""

    def new_encoder(self) -> Amqp091Encoder:
        return Amqp091Encoder()

    @property
    def operations(self) -> Amqp091Operations:
        return Amqp091Operations(self)

    @property
    def expecting(self) -> bool:
        """Whether a caller waits for the server."""
        return bool(self._calls) or len(self.pending_confirms) > 0 or (self.replies is not None and self.replies.expecting)

    def open(self) -> Procedure:
        """Open the channel on the wire, for the first time or again (a procedure).

        Raises the error of a connection that was lost, which can happen between two steps of a procedure.
        """
        if self.connection.is_lost or self.connection.is_closed:
            raise copy_error(self.connection.last_error)
        self.opened = True
        self._deferred = None
        self.generation += 1
        self.recovering = 0
        self._stopped = False
        yield self.call("channel.open")
        yield from self._set_up()
        self.update_flow()

    def _set_up(self) -> Procedure:
        """Set the requested modes of the channel, or restore its previous ones (a procedure)."""
        if self.transactional:
            yield self.call("tx.select")
        elif self.confirms:
            yield self.call("confirm.select")
        if self.qos is not None:
            yield self.call("basic.qos", self.qos)

    def prepare(self, arguments: Arguments) -> Procedure:
        """Send the requests that must precede a repeated declaration (a procedure)."""
        yield from ()

    def close(self) -> Procedure:
        """Close the channel; pending calls fail (a procedure)."""
        if not self.opened:
            if self.error is None:
                self.ended(ChannelClosed("the channel was closed by the application"), consumers_error=False)
            if not self.connection.engine.is_closing(self.number):
                self.connection.forget_channel(self)
            return
        waiter = self.connection.frontend.new_waiter()
        self.send("channel.close", {"reply_code": 200, "reply_text": "closed by the application"})
        self.ended(ChannelClosed("the channel was closed by the application"), consumers_error=False)
        self._calls.append(Call("channel.close", waiter, None))
        self.connection.ensure_reading()
        yield waiter

    def abandon(self) -> None:
        """Close the channel without waiting for the reply; if it is not open, only free its number."""
        if not self.opened:
            if not self.connection.engine.is_closing(self.number):
                self.connection.forget_channel(self)
            return
        self.send("channel.close", {"reply_code": 200, "reply_text": "abandoned by the application"})
        self.ended(ChannelClosed("the channel was abandoned by the application"))
        self._calls.append(Call("channel.close", NULL_WAITER, None))

    def fail(self, error: WireError) -> None:
        """Close the channel because the server sent a message that is too large."""
        text = f"{error.text} (option max_message_size)"
        arguments = {"reply_code": error.code, "reply_text": error.text[:255]}
        self.send("channel.close", {**arguments, "class_id": error.class_id, "method_id": error.method_id})
        self.ended(
            ChannelClosed(
                f"the client closed the channel: {text}",
                reply_code=error.code,
                reply_text=text,
                class_id=error.class_id,
                method_id=error.method_id,
            )
        )
        self._calls.append(Call("channel.close", NULL_WAITER, None))

    # Received methods

    def method(self, command: Method) -> None:
        """Handle a method outside the hot path."""
        name = command.name
        if name == "channel.close-ok":
            self.connection.forget_channel(self)
            for call in self._calls:
                if not call.waiter.done():
                    call.waiter.set_result(None)
            self._calls.clear()
        elif name.endswith("-ok") or name == GET_EMPTY:
            self._reply(command)
        elif name == "channel.close":
            arguments = command.arguments
            if self.connection.engine.is_closing(self.number):
                # Both sides have closed it. The engine has sent close-ok; wait for the server's.
                self.connection.frontend.flush_soon()
                return
            self.send("channel.close-ok")
            self.connection.forget_channel(self)
            self.ended(
                closed_error(
                    arguments["reply_code"],
                    arguments["reply_text"],
                    arguments["class_id"],
                    arguments["method_id"],
                    channel=True,
                )
            )
        elif name == "channel.flow":
            self._stopped = not command.arguments["active"]
            self.send("channel.flow-ok", {"active": command.arguments["active"]})
            self.update_flow()
        elif name == "basic.cancel":
            self._cancelled(command.arguments)

    def content(self, command: ContentMethod) -> None:
        """Handle `basic.return` and `basic.get-ok`."""
        if command.name != "basic.return":
            self._reply(command)
            return
        arguments = command.arguments
        exchange, routing_key = arguments["exchange"], arguments["routing_key"]
        body = command.body if isinstance(command.body, bytes) else b"".join(command.body)
        if exchange == record_batches.EXCHANGE:
            self.pending_confirms.report(*batches.read_report(command.header, body, arguments["reply_text"]))
            return
        error = Returned(
            f"{arguments['reply_text']}: no queue is bound to exchange '{exchange}' for routing key '{routing_key}'"
            if arguments["reply_code"] == 312
            else f"{arguments['reply_text']}: exchange '{exchange}', routing key '{routing_key}'",
            messages=[(exchange, routing_key, _properties(command.header), body)],
            reply_code=arguments["reply_code"],
            reply_text=arguments["reply_text"],
        )
        found = self.pending_confirms.returned(encode_address(exchange, routing_key), command.header, body, error)
        if not found and self.replies is not None and error.message is not None and error.message.properties is not None:
            # A request on a channel without confirms.
            self.replies.refused(error.message.properties.correlation_id or "", error)

    def _cancelled(self, arguments: Arguments) -> None:
        tag = arguments["consumer_tag"]
        if not arguments["no_wait"]:
            self.send("basic.cancel-ok", {"consumer_tag": tag})
        consumer = self.consumers.pop(tag.encode("utf-8", "surrogateescape"), None)
        if consumer is not None:
            consumer.end(
                ConsumerCancelled(
                    f"the server cancelled consumer '{tag}' of queue '{consumer.queue}': the queue was deleted or is"
                    " unavailable",
                    consumer_tag=tag,
                )
            )
            self.connection.consumer_removed(consumer.queue)

    # Closing

    def lost(self, error: Error, recoverable: bool) -> None:
        """Handle the loss of the connection. Calls fail at once; publishes and consumers wait for the next one, if any."""
        self.opened = self.flowing = False
        self._fail_calls(error)
        if not recoverable:
            self.ended(error)
            return
        if self.error is not None:
            # It was being closed.
            self.connection.forget_channel(self)
            return
        self.pending_confirms.fail_at_most_once(error)
        if self.replies is not None:
            self.replies.fail(error)
        if self._transaction:
            self._transaction = "lost"
        self._end_unstarted()
        for tag, consumer in list(self.consumers.items()):
            consumer.lost()
            if consumer.cancelling:
                del self.consumers[tag]
                consumer.end(None)
                self.connection.consumer_removed(consumer.queue)
        # Waiting callers check again why publishes are blocked.
        self._flow.wake()

    def ended(self, error: Error, consumers_error: bool = True) -> None:
        """Close the channel for good.

        The server requeues unacked messages. Messages that need no acknowledgement can still be taken.
        """
        self.opened = self.flowing = False
        if self.error is None:
            self.error = copy_error(error)
        self._fail_calls(error)
        for outgoing in self.pending_confirms.take():
            outgoing.settle(error)
        self._flow.wake(error)
        self._deferred = None
        self._end_unstarted()
        consumers, self.consumers = self.consumers, {}
        for consumer in consumers.values():
            consumer.lost()
            consumer.end(copy_error(error) if consumers_error else None)
            self.connection.consumer_removed(consumer.queue)
        if self.replies is not None:
            self.replies.fail(error)

    def _end_unstarted(self) -> None:
        for consumer in self._cancel_when_started:
            consumer.end(None)
        self._cancel_when_started.clear()

    # Publishing

    def update_flow(self) -> None:
        """Update `flowing`, and wake the callers that wait for it."""
        self.flowing = self.opened and self.connection.flowing and not self._stopped
        if self.flowing:
            self._flow.wake()

    def flow_waiter(self) -> Waiter:
        """Return a waiter for permission to publish. Raises the error of a channel that is closed for good."""
        if self.error is not None:
            raise copy_error(self.error)
        return self._flow.new()

    def blocked_reason(self) -> str:
        """Return the reason why publishes wait, for timeout messages."""
        if not self.connection.opened:
            return "there is no connection"
        if self.connection.blocked:
            return f"the server blocks publishers: {self.connection.blocked}"
        return "the server paused the channel (channel.flow)" if self._stopped else "the socket's write buffer is full"

    def publish(self, outgoing: Publish) -> None:
        """Send a publish; `flowing` must be true. It is settled by its confirm, or now on a channel without confirms.

        Raises:
            InvalidMessage: The properties exceed the negotiated frame size.
        """
        body = outgoing.body
        connection = self.connection
        engine = connection.engine
        if len(outgoing.header) > engine.payload_max:
            raise InvalidMessage(
                f"the properties have {len(outgoing.header)} bytes; expected at most"
                f" {engine.payload_max} on this connection (option frame_max)"
            )
        if self._deferred is None:
            engine.send_publish(self.number, outgoing.address, outgoing.flags, outgoing.header, body, len(body))
        else:
            self._deferred.append(
                partial(
                    engine.send_publish, self.number, outgoing.address, outgoing.flags, outgoing.header, body, len(body)
                )
            )
        if self.confirms:
            self.pending_confirms.add(outgoing)
            if connection.paused:
                connection.ensure_reading()
        else:
            if self.transactional and not self._transaction:
                self._transaction = "begun"
            outgoing.settle(None)
        connection.frontend.flush_soon()

    @property
    def batches(self) -> bool:
        return self.connection.server_properties.get(record_batches.SERVER_PROPERTY) == record_batches.EXCHANGE

    def encode_batch(self, rows: Rows, first: int, stop: int, flags: int) -> Publish:
        return batches.encode_batch(rows, first, stop, flags, self.connection.new_name())

    def republish(self) -> int:
        """Publish the unconfirmed messages of the lost connection again, in order, and return their number."""
        waiting = self.pending_confirms.take()
        again = 0
        for outgoing in waiting:
            if outgoing.waiter is not None and outgoing.waiter.done():
                # The caller has already seen it fail.
                continue
            outgoing.returned = None
            try:
                self.publish(outgoing)
                again += 1
            except InvalidMessage as error:
                # This server accepts only smaller frames than the previous one.
                outgoing.settle(error)
        return again

    # Consuming

    def new_consumer(self, queue: str, prefetch: int, arguments: Arguments) -> ConsumerCore:
        """Return a consumer that has not started. `arguments` are those of `basic.consume`."""
        return ConsumerCore(self, queue, prefetch, arguments, self.connection.frontend.message_class)

    def set_active(self, active: bool) -> Waiter:
        """Pause or resume deliveries (`channel.flow`)."""
        return self.call("channel.flow", {"active": active})

    def consume(self, consumer: ConsumerCore) -> Waiter:
        """Send the `basic.qos` and `basic.consume` of a consumer; the result is None.

        A consumer without a tag is assigned one.
        """
        self._check_open()
        if not consumer.tag:
            consumer.tag = self.connection.new_name()
        self._limit(consumer)
        arguments = {**consumer.arguments, "queue": consumer.queue, "consumer_tag": consumer.tag}

        def started(reply: Method, abandoned: bool) -> None:
            consumer.tag = reply.arguments["consumer_tag"]
            self.consumers[consumer.key] = consumer
            consumer.active = True
            if abandoned or consumer.cancelling:
                consumer.cancelling = True
                self._cast_cancel(consumer)

        return self.call(f"{consumer.kind}.consume", arguments, started)

    def limit(self, prefetch: int) -> None:
        """Limit the unacked messages of all consumers together; 0 for a limit per consumer. Called before the open."""
        if prefetch:
            self.qos = {"prefetch_count": prefetch, "prefetch_size": 0, "global": True}

    def _limit(self, consumer: ConsumerCore) -> None:
        """Set the prefetch of a consumer that is about to start."""
        if self.qos is None and consumer.queue != "":
            # Without global, it applies to later consumers (RabbitMQ), so each consumer sets its own limit.
            self.cast("basic.qos", {"prefetch_count": consumer.prefetch})

    def reply_to_waiter(self) -> Waiter | None:
        """Return a waiter for `reply_to` to be known; None if it is."""
        return None

    @property
    def reply_to(self) -> str:
        """The address for replies."""
        return REPLY_TO

    def ensure_reply_consumer(self) -> Replies:
        """Return the consumer of replies. It starts before the next publish, so that no caller waits for it."""
        replies = self.replies
        if replies is None or replies.ended or not (replies.active or replies.generation == self.generation):
            replies = Replies(self, self.connection.frontend.message_class)
            replies.tag = self.connection.new_name()
            self.cast(
                "basic.consume",
                {**replies.arguments, "queue": replies.queue, "consumer_tag": replies.tag},
                partial(self._replies_started, replies),
            )
            self.replies = replies
        return replies

    def _replies_started(self, replies: Replies, reply: Method, abandoned: bool) -> None:
        self.consumers[replies.key] = replies
        replies.active = True

    def cancel(self, consumer: ConsumerCore) -> Waiter:
        """Send `basic.cancel`. Messages that the application has not taken are requeued, including later arrivals."""
        waiter = self.call(
            f"{consumer.kind}.cancel", {"consumer_tag": consumer.tag}, partial(self._cancel_completed, consumer)
        )
        self._requeue_untaken(consumer)
        return waiter

    def _cast_cancel(self, consumer: ConsumerCore) -> None:
        self.cast(f"{consumer.kind}.cancel", {"consumer_tag": consumer.tag}, partial(self._cancel_completed, consumer))

    def cancel_nowait(self, consumer: ConsumerCore) -> None:
        """Cancel a consumer without waiting, even if it has not started or its connection is lost."""
        if not self.opened:
            if self.consumers.get(consumer.key) is consumer:
                del self.consumers[consumer.key]
            consumer.drop_messages()
            consumer.end(None)
            self.connection.consumer_removed(consumer.queue)
        elif not consumer.cancelling and consumer.active:
            self._cast_cancel(consumer)
            self._requeue_untaken(consumer)
        elif not consumer.cancelling:
            # Cancel it once it has started, because RabbitMQ closes the connection on an earlier cancel.
            consumer.cancelling = True
            self._cancel_when_started.append(consumer)

    def _requeue_untaken(self, consumer: ConsumerCore) -> None:
        consumer.cancelling = True
        for message in consumer.drop_messages():
            if not message.settled:
                message.nack(requeue=True)

    def _cancel_completed(self, consumer: ConsumerCore, reply: Method, abandoned: bool) -> None:
        if consumer in self._cancel_when_started:
            self._cancel_when_started.remove(consumer)
        key = consumer.key
        if self.consumers.get(key) is consumer:
            del self.consumers[key]
        consumer.end(None)
        self.connection.consumer_removed(consumer.queue)
        self._requeue_untaken(consumer)
        self._recently_cancelled[key] = consumer
        if len(self._recently_cancelled) > MAX_CANCELLED_CONSUMERS:
            del self._recently_cancelled[next(iter(self._recently_cancelled))]

    def delivered(self, command: Deliver) -> None:
        """Pass a delivery to its consumer."""
        consumer = self.consumers.get(command.consumer_tag) or self._recently_cancelled.get(command.consumer_tag)
        if consumer is not None:
            consumer.delivered(command)

    def get(self, queue: str, no_ack: bool) -> Waiter:
        """Send `basic.get`; the result is a message or None."""
        generation = self.generation
        message_class = self.connection.frontend.message_class

        def answered(reply: Method, abandoned: bool) -> Message | None:
            if not isinstance(reply, ContentMethod):
                return None
            arguments = reply.arguments
            command = Deliver(
                self.number,
                b"",
                arguments["delivery_tag"],
                arguments["redelivered"],
                encode_address(arguments["exchange"], arguments["routing_key"]),
                reply.header,
                reply.size,
                reply.body,
            )
            message = message_class(self, command, no_ack)
            message.generation = generation
            message.message_count = arguments["message_count"]
            if abandoned and not no_ack:
                message.nack(requeue=True)
            return message

        return self.call("basic.get", {"queue": queue, "no_ack": no_ack}, answered)

    def recover(self, requeue: bool) -> Waiter:
        """Send `basic.recover`: the server redelivers all unacked messages under new tags.

        Messages delivered before can no longer be settled.
        """

        def recovered(reply: Method, abandoned: bool) -> None:
            self.recovering -= 1

        waiter = self.call("basic.recover", {"requeue": requeue}, recovered)
        self.recovering += 1
        self.generation += 1
        for consumer in self.consumers.values():
            consumer.lost()
        return waiter

    # Settling. Messages of a lost connection are delivered again, so settling them does nothing.

    def ack(self, message: Message, multiple: bool) -> None:
        """Send `basic.ack` for a message."""
        if self._can_settle(message):
            if self._deferred is not None:
                self._deferred.append(partial(self.ack, message, multiple))
                return
            self.connection.engine.send_ack(self.number, message.delivery_tag, multiple)
            self.connection.frontend.flush_soon()

    def nack(self, message: Message, multiple: bool, requeue: bool) -> None:
        """Send `basic.nack` for a message."""
        if self._can_settle(message):
            if self._deferred is not None:
                self._deferred.append(partial(self.nack, message, multiple, requeue))
                return
            self.connection.engine.send_nack(self.number, message.delivery_tag, multiple, requeue)
            self.connection.frontend.flush_soon()

    def reject(self, message: Message, requeue: bool) -> None:
        """Send `basic.reject` for a message."""
        if self._can_settle(message):
            if self._deferred is not None:
                self._deferred.append(partial(self.reject, message, requeue))
                return
            self.connection.engine.send_reject(self.number, message.delivery_tag, requeue)
            self.connection.frontend.flush_soon()

    def settle_tag(self, name: str, arguments: Arguments) -> None:
        """Send `basic.ack`, `basic.nack` or `basic.reject` for a delivery tag of this connection."""
        self._check_open()
        if self.transactional and not self._transaction:
            self._transaction = "begun"
        self.send(name, arguments)

    def _can_settle(self, message: Message) -> bool:
        if self.error is not None:
            raise copy_error(self.error)
        if self.transactional and not self._transaction:
            self._transaction = "begun"
        return self.opened and message.generation == self.generation

    # Transactions

    def transaction(self, name: str) -> Waiter:
        """Send `tx.commit` or `tx.rollback`.

        Raises:
            TransactionLost: A commit of work that was lost with its connection.
        """
        self._check_open()
        lost = self._transaction == "lost"
        self._transaction = ""
        if lost and name == "tx.commit":
            # Messages published since then, on the new connection, also belong to the transaction.
            self.cast("tx.rollback")
            raise TransactionLost("the connection was lost during the transaction: none of it took effect")
        if name != "tx.commit":
            return self.call(name)
        return self.call(name, None, self._committed)

    def _committed(self, reply: Method, abandoned: bool) -> None:
        deferred, self._deferred = self._deferred or [], None
        for number, send in enumerate(deferred, 1):
            send()
            if self._deferred is not None:
                # This was another commit.
                self._deferred.extend(deferred[number:])
                return

    def forget_transaction(self) -> None:
        """Accept that the transaction was rolled back with its connection."""
        self._transaction = ""


def _properties(header: bytes) -> Properties | None:
    try:
        return decode_properties(header)
    except InvalidMessage:
        return None
