"""A channel of AMQP 0-9: tickets, confirms by ping, and the content classes file, stream, message and tunnel."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from leveret.client.access import Access
from leveret.client.engine.amqp09.files import MAX_OPEN, FileConsumerCore, IncomingFiles
from leveret.client.engine.amqp09.messages import IncomingMessages, MessageConsumerCore
from leveret.client.engine.amqp09.operations import Amqp09Operations
from leveret.client.engine.amqp09.outgoing import Amqp09Encoder, Amqp09Publish, ContentPublish
from leveret.client.engine.amqp09.streams import StreamConsumerCore, stream_delivered
from leveret.client.engine.amqp091.calls import NULL_WAITER, Call, OnReply
from leveret.client.engine.amqp091.channel import ChannelCore
from leveret.client.engine.amqp091.consumer import ConsumerCore
from leveret.client.engine.amqp091.encoding import encode_address
from leveret.client.engine.amqp091.pending_confirms import Publish
from leveret.client.engine.common.frontend import Procedure, Waiter
from leveret.client.engine.common.results import Result
from leveret.client.engine.common.waiters import ErrorOnlyWaiter
from leveret.client.errors import Error, InvalidMessage, NotSupported, Returned, TransactionLost, protocol_error
from leveret.client.files import FileContent
from leveret.client.message import Message
from leveret.wire.amqp0.commands import IMMEDIATE, MANDATORY, TICKET_SHIFT, ContentMethod, Method
from leveret.wire.amqp0.constants import RESOURCE_ERROR
from leveret.wire.amqp0.table_amqp09 import V0_9
from leveret.wire.amqp0.values import Arguments, FieldMapping

if TYPE_CHECKING:
    from leveret.client.engine.amqp09.connection import Amqp09ConnectionCore
    from leveret.client.engine.amqp091.connection import ConnectionCore

# Directory for received files; None for temporary files.
Directory = str | os.PathLike[str] | None

_FLAGS: Final = MANDATORY | IMMEDIATE
_TICKET_METHODS: Final = frozenset(
    name for name, spec in V0_9.by_name.items() if any(field.name == "ticket" for field in spec.fields)
)
# Methods that recovery repeats with the ticket of the original call.
_DECLARES: Final = ("queue.declare", "exchange.declare", "queue.bind")


class _CallWithReplies(Call):
    """A call whose replies do not share its name."""

    __slots__ = ("answers",)

    def __init__(self, name: str, waiter: Waiter, on_reply: OnReply | None, answers: tuple[str, ...]) -> None:
        super().__init__(name, waiter, on_reply)
        self.answers = answers

    def is_answered_by(self, reply: Method) -> bool:
        return reply.name in self.answers


class Amqp09ChannelCore(ChannelCore):
    """A channel of AMQP 0-9.

    Attributes:
        id: The server's name for the channel (`channel.open-ok`).
        access: Access whose ticket the methods carry; None for ticket 0.
        granted: Tickets of this channel, by access.
        incoming: Files being received.
        messages: Contents of class message being received.
        rate: Arguments of the last `stream.qos`.
        internal: Opened by the client for one operation; it does not outlive its connection.
        distributed: The channel is in `dtx` mode.
        branch: Identifier of the distributed transaction that was started last; "" for none.
    """

    __slots__ = (
        "_pinged",
        "_pongs",
        "access",
        "branch",
        "distributed",
        "granted",
        "id",
        "incoming",
        "internal",
        "messages",
        "rate",
    )

    def __init__(self, connection: ConnectionCore, number: int, confirms: bool, transactional: bool) -> None:
        super().__init__(connection, number, confirms, transactional)
        self.id = ""
        self.access: Access | None = None
        self.granted: dict[Access, int] = {}
        self.incoming = IncomingFiles(self)
        self.messages = IncomingMessages(self)
        self.rate: Arguments | None = None
        self.internal = False
        self.distributed = False
        self.branch = ""
        # Tag of the last publish before the pending ping; 0 if none is pending.
        self._pinged = 0
        # Number of pongs that the server has not answered.
        self._pongs = 0

    @property
    def batches(self) -> bool:
        return False  # confirms by ping report no rows

    # Opening and closing

    def _opened(self, reply: Method, abandoned: bool) -> None:
        self.id = reply.arguments["channel_id"]

    def call(self, name: str, arguments: Arguments | None = None, on_reply: OnReply | None = None) -> Waiter:
        if name == "channel.open":
            self._pinged = self._pongs = 0
            on_reply = self._opened
        elif name.startswith("message."):
            return self._send_consume(name, arguments or {}, on_reply, None)
        return super().call(name, arguments, on_reply)

    def cast(self, name: str, arguments: Arguments | None = None, on_reply: OnReply | None = None) -> None:
        if name.startswith("message."):
            self._send_consume(name, arguments or {}, on_reply, NULL_WAITER)
        else:
            super().cast(name, arguments, on_reply)

    def _send_consume(self, name: str, arguments: Arguments, on_reply: OnReply | None, waiter: Waiter | None) -> Waiter:
        """Send `message.consume` or `message.cancel`, whose consumer tag is a destination that the reply omits."""
        sent = dict(arguments)
        tag = sent.pop("consumer_tag", None)
        if tag is not None:
            sent["destination"] = tag

        def answered(reply: Method, abandoned: bool) -> Result:
            reply.arguments["consumer_tag"] = tag
            return None if on_reply is None else on_reply(reply, abandoned)

        return self.ask(name, sent, ("message.ok",), answered, waiter)

    def _set_up(self) -> Procedure:
        for access in list(self.granted):
            yield self._request(access)
        if self.distributed:
            yield self.call("dtx.select")
        if self.transactional:
            yield self.call("tx.select")
        if self.qos is not None:
            self.qos = {**self.qos, "global": False}
            yield self.call("basic.qos", self.qos)
        if self.rate is not None:
            yield self.call("stream.qos", self.rate)

    def prepare(self, arguments: Arguments) -> Procedure:
        access = arguments.get("access")
        if access is not None and access not in self.granted:
            yield self._request(access)

    def resume(self, id: str) -> Waiter:
        """Resume the interrupted channel with that id (`channel.resume`)."""
        self.opened = True
        return self.ask("channel.resume", {"channel_id": id}, ("channel.ok",))

    def lost(self, error: Error, recoverable: bool) -> None:
        self.messages.lost(error)
        self.incoming.lost()
        if recoverable and self.id and self.error is None:
            cast("Amqp09ConnectionCore", self.connection).interrupted.append(self.id)
            self.id = ""
        if recoverable and self.internal:
            super().lost(error, False)
            self.connection.forget_channel(self)
            return
        super().lost(error, recoverable)
        if recoverable and self.branch and self.error is None:
            # Later work on the channel would not be part of the branch.
            self.ended(
                TransactionLost(
                    f"the connection was lost in branch '{self.branch}': the server rolls it back unless it was prepared"
                )
            )
            self.connection.forget_channel(self)

    def ended(self, error: Error, consumers_error: bool = True) -> None:
        self.messages.lost(error)
        self.incoming.lost()
        super().ended(error, consumers_error)

    # Calls

    def new_encoder(self) -> Amqp09Encoder:
        return Amqp09Encoder()

    @property
    def operations(self) -> Amqp09Operations:
        return Amqp09Operations(self)

    def send(self, name: str, arguments: Arguments | None = None) -> None:
        spec = V0_9.by_name.get(name)
        if spec is None:
            raise NotSupported(f"AMQP 0-9 has no {name}; expected a connection of another version (option protocol)")
        sent = {} if arguments is None else arguments
        if name in _TICKET_METHODS:
            if name in _DECLARES:
                sent.setdefault("access", self.access)
            sent = {**sent, "ticket": self._ticket(sent.get("access", self.access))}
            sent.pop("access", None)
        if name.endswith(".consume") and "arguments" in sent:
            sent["filter"] = sent.pop("arguments")
        try:
            self.connection.engine.send(self.number, name, sent)
        except (ValueError, TypeError, AttributeError, OverflowError, struct.error) as error:
            raise InvalidMessage(f"{name}: {error}") from error
        self.connection.frontend.flush_soon()

    def ask(
        self,
        name: str,
        arguments: Arguments | None,
        answers: tuple[str, ...],
        on_reply: OnReply | None = None,
        waiter: Waiter | None = None,
    ) -> Waiter:
        """Send a method that is answered by one of `answers`; otherwise as `call`."""
        self._check_open()
        self.send(name, arguments)
        return self.expect_answer(name, answers, on_reply, waiter)

    def expect_answer(
        self, name: str, answers: tuple[str, ...], on_reply: OnReply | None = None, waiter: Waiter | None = None
    ) -> Waiter:
        """Return a waiter for the reply to a sent method, after the pending replies."""
        if self.transactional and name == "message.transfer" and not self._transaction:
            self._transaction = "begun"
        if waiter is None:
            waiter = self.connection.frontend.new_waiter()
        self._calls.append(_CallWithReplies(name, waiter, on_reply, answers))
        self.connection.ensure_reading()
        return waiter

    def ping(self, on_reply: OnReply | None = None) -> Waiter:
        """Send `channel.ping`, which is answered when the server has processed everything sent before."""
        return self.ask("channel.ping", None, ("channel.ok",), on_reply)

    @property
    def in_transaction(self) -> bool:
        """Whether work on the channel takes effect only with a commit."""
        return self.transactional or bool(self.branch)

    # Access

    def request_access(self, access: Access) -> Waiter:
        """Send `access.request`; later methods use its ticket."""

        def granted(ticket: int) -> Access:
            self.access = access
            return access

        return self._request(access, granted)

    def _request(self, access: Access, then: Callable[[int], Result] | None = None) -> Waiter:
        def answered(reply: Method, abandoned: bool) -> Result:
            ticket: int = reply.arguments["ticket"]
            self.granted[access] = ticket
            return ticket if then is None else then(ticket)

        return self.call("access.request", {"realm": access.realm, **access.rights}, answered)

    def use_access(self, access: Access | None) -> None:
        """Send later methods under this access, or under none."""
        if access is not None:
            self._ticket(access)
        self.access = access

    def _ticket(self, access: Access | None) -> int:
        if access is None:
            return 0
        ticket = self.granted.get(access)
        if ticket is None:
            raise InvalidMessage(
                f"the channel has no ticket for realm '{access.realm}'; expected an access that it has"
                " requested (request_access)"
            )
        return ticket

    # Publishing. The reply to a ping confirms everything before it. At most one ping is pending, so that many publishes
    # share it.

    def publish(self, outgoing: Publish) -> None:
        connection = self.connection
        engine = connection.engine
        if len(outgoing.header) > engine.payload_max:
            raise InvalidMessage(
                f"the properties have {len(outgoing.header)} bytes; expected at most"
                f" {engine.payload_max} on this connection (option frame_max)"
            )
        assert isinstance(outgoing, Amqp09Publish)
        if not outgoing.sent:
            outgoing.access = self.access
            outgoing.sent = True
        ticket = self._ticket(outgoing.access)
        if isinstance(outgoing, ContentPublish):
            self._publish_content(outgoing, ticket)
        else:
            body = outgoing.body
            engine.send_publish(
                self.number, outgoing.address, outgoing.flags | ticket << TICKET_SHIFT, outgoing.header, body, len(body)
            )
        if self.confirms and not (isinstance(outgoing, ContentPublish) and not outgoing.awaited):
            self.pending_confirms.add(outgoing)
            if not self._pinged:
                self._ping_for_confirms()
            elif connection.paused:
                connection.ensure_reading()
        else:
            if self.transactional and not self._transaction:
                self._transaction = "begun"
            outgoing.settle(None)
        connection.frontend.flush_soon()

    def _publish_content(self, outgoing: ContentPublish, ticket: int) -> None:
        engine = self.connection.engine
        arguments = {**outgoing.arguments, "ticket": ticket}
        try:
            if outgoing.has_content:
                engine.send_content(self.number, outgoing.method, arguments, outgoing.header, outgoing.body)
            else:
                engine.send(self.number, outgoing.method, arguments)
        except (ValueError, TypeError, AttributeError, OverflowError, struct.error) as error:
            raise InvalidMessage(f"{outgoing.method}: {error}") from error

    def _ping_for_confirms(self) -> None:
        self._pinged = self.pending_confirms.last
        self.ask("channel.ping", None, ("channel.ok",), self._confirmed, NULL_WAITER)

    def _confirmed(self, reply: Method, abandoned: bool) -> None:
        pinged, self._pinged = self._pinged, 0
        self.pending_confirms.confirm(pinged, True, True)
        if len(self.pending_confirms) and self.opened and not self._pinged:
            self._ping_for_confirms()

    # Consuming

    def consume(self, consumer: ConsumerCore) -> Waiter:
        # A restarted consumer uses the same ticket.
        consumer.arguments.setdefault("access", self.access)
        return super().consume(consumer)

    def _limit(self, consumer: ConsumerCore) -> None:
        if self.qos is None and consumer.kind != "stream":
            # The channel has one window. Make it as large as the sum of its consumers' windows.
            others = [other for other in self.consumers.values() if other is not consumer and other.kind != "stream"]
            counts = [one.prefetch for one in (*others, consumer)]
            self.cast("basic.qos", {"prefetch_count": 0 if 0 in counts else min(sum(counts), 0xFFFF)})

    def new_file_consumer(
        self, queue: str, tag: str, prefetch: int, directory: Directory, arguments: FieldMapping | None, **options: bool
    ) -> FileConsumerCore:
        """Return a consumer of class file that has not started.

        All consumers of a channel use the same directory. `options` are fields of `file.consume`.
        """
        self._receive_in(directory)
        consumer = FileConsumerCore(
            self, queue, prefetch, {**options, "arguments": dict(arguments or {})}, self.connection.frontend.message_class
        )
        consumer.tag = tag
        return consumer

    def new_message_consumer(
        self, queue: str, tag: str, prefetch: int, directory: Directory, arguments: FieldMapping | None, **options: bool
    ) -> MessageConsumerCore:
        """Return a consumer of class message that has not started; otherwise as `new_file_consumer`."""
        if self.transactional:
            raise NotSupported(
                "messages of class message are acknowledged in order, which a rollback breaks; expected a"
                " channel without transactions to consume them"
            )
        self._receive_in(directory)
        sent = dict(arguments or {})
        if not options["no_ack"]:
            sent.setdefault("x-resume", True)
        consumer = MessageConsumerCore(
            self, queue, prefetch, {**options, "arguments": sent}, self.connection.frontend.message_class
        )
        consumer.tag = tag
        return consumer

    def _receive_in(self, directory: Directory) -> None:
        self.incoming.set_directory(None if directory is None else os.fspath(directory))

    def new_stream_consumer(
        self, queue: str, tag: str, arguments: FieldMapping | None, **options: bool
    ) -> StreamConsumerCore:
        """Return a consumer of class stream that has not started. `options` are fields of `stream.consume`."""
        consumer = StreamConsumerCore(
            self, queue, {**options, "arguments": dict(arguments or {})}, self.connection.frontend.message_class
        )
        consumer.tag = tag
        return consumer

    def stream_qos(self, consume_rate: int, prefetch_size: int, prefetch_count: int) -> Waiter:
        """Send `stream.qos`, which applies to all streams of the channel."""
        sent = {"consume_rate": consume_rate, "prefetch_size": prefetch_size, "prefetch_count": prefetch_count}

        def set_(reply: Method, abandoned: bool) -> None:
            self.rate = sent

        return self.call("stream.qos", sent, set_)

    def get_message(self, queue: str, no_ack: bool) -> Waiter:
        """Send `message.get`; the result is a message or None."""
        if self.transactional and not no_ack:
            raise NotSupported(
                "messages of class message are acknowledged in order, which a rollback breaks; expected a"
                " channel without transactions to get them"
            )
        waiter: Waiter = self.connection.frontend.new_waiter()
        destination = self.connection.new_name()

        def answered(reply: Method, abandoned: bool) -> None:
            if reply.name == "message.ok":
                self.messages.expect(destination, waiter, no_ack)
            elif not waiter.done():
                waiter.set_result(None)

        self.ask(
            "message.get",
            {"queue": queue, "destination": destination, "no_ack": no_ack},
            ("message.ok", "message.empty"),
            answered,
            ErrorOnlyWaiter(waiter),
        )
        return waiter

    def _requeue_untaken(self, consumer: ConsumerCore) -> None:
        if consumer.kind != "message":
            super()._requeue_untaken(consumer)
            return
        consumer.cancelling = True
        # A single message cannot be requeued. Once the consumer has ended, requeue all unanswered messages.
        if consumer.ended and [message for message in consumer.drop_messages() if not message.settled] and self.opened:
            self.ask("message.recover", {"requeue": True}, ("message.ok",), None, NULL_WAITER)
            self.messages.recovered()
            self.generation += 1

    def tunnel(self, arguments: Arguments, header: bytes, body: bytes) -> Waiter:
        """Send `tunnel.request`, followed by a ping whose reply confirms it."""
        self._check_open()
        self.connection.engine.send_content(self.number, "tunnel.request", arguments, header, body)
        return self.ping()

    def refuses(self, count: int, what: str) -> bool:
        """Close the connection if the server already has MAX_OPEN of something on the channel. Return whether it does."""
        if count >= MAX_OPEN:
            self.connection.fail(protocol_error(RESOURCE_ERROR, f"more than {MAX_OPEN} {what} on channel {self.number}"))
            return True
        return False

    def consumer_of(self, tag: bytes) -> ConsumerCore | None:
        """Return the consumer with that tag, including recently cancelled ones."""
        return self.consumers.get(tag) or self._recently_cancelled.get(tag)

    def stage(self, header: bytes, data: bytes) -> None:
        """Send `file.stage`."""
        self._check_open()
        self.connection.engine.send_content(self.number, "file.stage", {}, header, data)
        self.connection.frontend.flush_soon()

    def recover(self, requeue: bool) -> Waiter:
        """Send `basic.recover`, which has no reply in 0-9, followed by a ping whose reply confirms it."""
        self._check_open()
        self.send("basic.recover", {"requeue": requeue})

        def recovered(reply: Method, abandoned: bool) -> None:
            self.recovering -= 1

        waiter = self.ping(recovered)
        self.recovering += 1
        self.generation += 1
        for consumer in self.consumers.values():
            consumer.lost()
        return waiter

    # Settling

    def ack(self, message: Message, multiple: bool) -> None:
        if not isinstance(message, FileContent):
            super().ack(message, multiple)
        elif self._can_settle(message) and message.kind == "message":
            self.messages.settle(message.delivery_tag, True, multiple)
        elif self._can_settle(message):
            self.send("file.ack", {"delivery_tag": message.delivery_tag, "multiple": multiple})

    def nack(self, message: Message, multiple: bool, requeue: bool) -> None:
        if multiple:
            raise _no_nack()
        self.reject(message, requeue)

    def reject(self, message: Message, requeue: bool) -> None:
        if not isinstance(message, FileContent):
            super().reject(message, requeue)
        elif message.kind == "message":
            if requeue:
                raise NotSupported(
                    "a message of class message can be accepted or rejected, not requeued; expected"
                    " requeue=False, or close the channel to requeue it"
                )
            if self._can_settle(message):
                self.messages.settle(message.delivery_tag, False, False)
        elif self._can_settle(message):
            self.send("file.reject", {"delivery_tag": message.delivery_tag, "requeue": requeue})

    def settle_tag(self, name: str, arguments: Arguments) -> None:
        if name == "basic.nack":
            if arguments["multiple"]:
                raise _no_nack()
            name, arguments = "basic.reject", {key: arguments[key] for key in ("delivery_tag", "requeue")}
        super().settle_tag(name, arguments)

    # Distributed transactions

    def dtx_select(self) -> Waiter:
        """Send `dtx.select`."""

        def selected(reply: Method, abandoned: bool) -> None:
            self.distributed = True

        return self.call("dtx.select", None, selected)

    def dtx_start(self, identifier: str) -> Waiter:
        """Send `dtx.start`: later work belongs to that branch."""

        def started(reply: Method, abandoned: bool) -> None:
            self.branch = identifier

        return self.call("dtx.start", {"dtx_identifier": identifier}, started)

    # Received methods

    def method(self, command: Method) -> None:
        handler = _HANDLERS.get(command.name)
        if handler is None:
            super().method(command)
        else:
            handler(self, command)

    def content(self, command: ContentMethod) -> None:
        handler = _CONTENT_HANDLERS.get(command.name)
        if handler is None:
            super().content(command)
        else:
            handler(self, command)

    def _ping_received(self, command: Method) -> None:
        if self.refuses(self._pongs, "unanswered pongs"):
            return
        self._pongs += 1
        self.send("channel.ok")
        self.ask("channel.pong", None, ("channel.ok",), self._pong_answered, NULL_WAITER)

    def _pong_answered(self, reply: Method, abandoned: bool) -> None:
        self._pongs -= 1

    def _pong_received(self, command: Method) -> None:
        self.send("channel.ok")

    def _content_returned(self, command: ContentMethod) -> None:
        """Handle `file.return` and `stream.return`."""
        arguments = command.arguments
        exchange, routing_key = arguments["exchange"], arguments["routing_key"]
        error = Returned(
            f"{arguments['reply_text']}: exchange '{exchange}', routing key '{routing_key}'",
            messages=[(exchange, routing_key, None, b"")],
            reply_code=arguments["reply_code"],
            reply_text=arguments["reply_text"],
        )
        body = b""
        if command.name == "stream.return":
            body = command.body if isinstance(command.body, bytes) else b"".join(command.body)
        self.pending_confirms.returned(encode_address(exchange, routing_key), command.header, body, error)


def _no_nack() -> NotSupported:
    return NotSupported("AMQP 0-9 has no nack of several messages; expected multiple=False")


_HANDLERS: Final[dict[str, Callable[[Amqp09ChannelCore, Method], None]]] = {
    "channel.ok": Amqp09ChannelCore._reply,
    "channel.ping": Amqp09ChannelCore._ping_received,
    "channel.pong": Amqp09ChannelCore._pong_received,
    "file.open": lambda channel, command: channel.incoming.open(command),
    "message.ok": Amqp09ChannelCore._reply,
    "message.reject": Amqp09ChannelCore._reply,
    "message.empty": Amqp09ChannelCore._reply,
    "message.offset": Amqp09ChannelCore._reply,
    "message.transfer": lambda channel, command: channel.messages.transfer(command),
    "message.open": lambda channel, command: channel.messages.open(command),
    "message.resume": lambda channel, command: channel.messages.resume(command),
    "message.append": lambda channel, command: channel.messages.append(command),
    "message.checkpoint": lambda channel, command: channel.messages.checkpoint(command),
    "message.close": lambda channel, command: channel.messages.close(command),
    "file.deliver": lambda channel, command: channel.incoming.deliver(command),
}
_CONTENT_HANDLERS: Final[dict[str, Callable[[Amqp09ChannelCore, ContentMethod], None]]] = {
    "file.stage": lambda channel, command: channel.incoming.staged(command),
    "file.return": Amqp09ChannelCore._content_returned,
    "stream.return": Amqp09ChannelCore._content_returned,
    "stream.deliver": stream_delivered,
}
