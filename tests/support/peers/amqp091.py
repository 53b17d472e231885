"""A raw, blocking AMQP 0-9-1 peer: pamqp's codec, a socket, and a deadline on every read.

pamqp shares no code with the broker, so both would have to be wrong in the same way. It refuses to encode invalid values;
`method` disables that, and `framing` builds any bytes that a test needs.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from typing import Any, TypeVar

from pamqp import base, body, commands, frame, header, heartbeat

from tests.support.peers import connection
from tests.support.peers.connection import TIMEOUT
from tests.support.peers.framing import (
    FRAME_END,
    FRAME_TYPES,
    HEADER_AMQP091,
    OVERHEAD,
    body_frames,
    decode,
)

M = TypeVar("M", bound=base.Frame)

Connection = commands.Connection
ChannelClass = commands.Channel
Exchange = commands.Exchange
Queue = commands.Queue
Basic = commands.Basic
Tx = commands.Tx
Confirm = commands.Confirm


def method(kind: type[M], **fields: Any) -> M:
    """Return a method with these fields, whether or not pamqp considers them valid."""
    made = kind()
    for name, value in fields.items():
        assert name in kind.__slots__, f"{kind.name} has no field {name}"
        setattr(made, name, value)
    return made


def content_header(size: int, properties: dict[str, Any] | None = None) -> header.ContentHeader:
    return header.ContentHeader(0, size, Basic.Properties(**(properties or {})))


class Content:
    """A method with its content, as read."""

    def __init__(self, method: Any, properties: Any, body: bytes) -> None:
        self.method = method
        self.properties = properties
        self.body = body

    @property
    def tag(self) -> int:
        return int(self.method.delivery_tag)

    @property
    def redelivered(self) -> bool:
        return bool(self.method.redelivered)


class Peer(connection.Connection):
    """One connection. Frames for other channels than the one being read wait in their inboxes."""

    def adopt(self, opened: socket.socket, timeout: float = TIMEOUT) -> None:
        super().adopt(opened, timeout)
        self.local_port = int(opened.getsockname()[1])
        self.inboxes: dict[int, deque[Any]] = {}
        self.frame_max = 131072
        self.heartbeats = 0

    # Frames

    def send(self, channel: int, *values: frame.FrameTypes) -> None:
        """Send frames in one write."""
        self.send_bytes(b"".join(frame.marshal(value, channel) for value in values))

    def read(self, channel: int | None = None) -> Any:
        """Return the next frame on that channel (any channel for None). Heartbeats are counted and skipped."""
        deadline = time.monotonic() + self.timeout
        while True:
            for number, inbox in self.inboxes.items():
                if inbox and (channel is None or channel == number):
                    return inbox.popleft()
            number, value = self.read_frame(deadline)
            if isinstance(value, heartbeat.Heartbeat):
                self.heartbeats += 1
            elif channel is None or number == channel:
                return value
            elif number == 0:
                raise AssertionError(f"waiting on channel {channel}, got {describe(value)} on channel 0")
            else:
                self.inboxes.setdefault(number, deque()).append(value)

    def read_frame(self, deadline: float | None = None) -> tuple[int, Any]:
        kind, channel, payload = self.read_payload(deadline)
        return channel, decode(kind, channel, payload)

    def read_payload(self, deadline: float | None = None) -> tuple[int, int, bytes]:
        """Return type, channel and payload of the next frame."""
        start = self.read_bytes(7, deadline)
        kind, channel, size = struct.unpack(">BHI", start)
        rest = self.read_bytes(size + 1, deadline)
        assert rest.endswith(FRAME_END), f"no frame end: {(start + rest)[:100]!r}"
        assert kind in FRAME_TYPES, f"frame type {kind}"
        assert size + OVERHEAD <= self.frame_max, f"a frame of {size + OVERHEAD} bytes, {self.frame_max} were agreed"
        return kind, channel, rest[:-1]

    def expect(self, channel: int, kind: type[M]) -> M:
        """Return the next frame on the channel, which must be this method."""
        value = self.read(channel)
        if not isinstance(value, kind):
            raise AssertionError(f"expected {kind.name} on channel {channel}, got {describe(value)}")
        return value

    def expect_content(self, channel: int, kind: type[base.Frame]) -> Content:
        """Return the next method on the channel and its content."""
        return self.rest_of_content(channel, self.expect(channel, kind))

    def rest_of_content(self, channel: int, opening: base.Frame) -> Content:
        head = self.read(channel)
        assert isinstance(head, header.ContentHeader), f"expected a content header, got {describe(head)}"
        assert head.class_id == 60
        pieces = []
        missing = head.body_size
        while missing > 0:
            piece = self.read(channel)
            assert isinstance(piece, body.ContentBody), f"expected a content body, got {describe(piece)}"
            pieces.append(piece.value)
            missing -= len(piece.value)
        assert missing == 0, "more body than announced"
        return Content(opening, head.properties, b"".join(pieces))

    # The connection

    def start(self) -> Connection.Start:
        self.send_bytes(HEADER_AMQP091)
        return self.expect(0, Connection.Start)

    def start_ok(
        self,
        user: str = "guest",
        password: str = "guest",
        mechanism: str = "PLAIN",
        properties: dict[str, Any] | None = None,
        locale: str = "en_US",
    ) -> None:
        self.send(
            0,
            method(
                Connection.StartOk,
                client_properties=properties or {},
                mechanism=mechanism,
                response=f"\0{user}\0{password}",
                locale=locale,
            ),
        )

    def tune_ok(self, channel_max: int = 2047, frame_max: int = 131072, interval: int = 0) -> None:
        self.send(0, Connection.TuneOk(channel_max, frame_max, interval))
        self.frame_max = frame_max or 131072

    def handshake(
        self,
        vhost: str = "/",
        user: str = "guest",
        password: str = "guest",
        *,
        channel_max: int = 2047,
        frame_max: int = 131072,
        interval: int = 0,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Do everything up to connection.open-ok."""
        self.start()
        self.start_ok(user, password, properties=properties)
        self.expect(0, Connection.Tune)
        self.tune_ok(channel_max, frame_max, interval)
        self.send(0, method(Connection.Open, virtual_host=vhost))
        self.expect(0, Connection.OpenOk)

    def channel(self, number: int = 1) -> Channel:
        """Open a channel."""
        self.send(number, ChannelClass.Open())
        self.expect(number, ChannelClass.OpenOk)
        return Channel(self, number)

    def expect_connection_close(self, code: int, kind: type[base.Frame] | None = None) -> Connection.Close:
        """Expect connection.close with this code (naming this method), answer it, and expect the end of the socket."""
        closed = self.read_connection_close(code, kind)
        self.send(0, Connection.CloseOk())
        self.expect_eof()
        return closed

    def read_connection_close(self, code: int, kind: type[base.Frame] | None = None) -> Connection.Close:
        """Expect connection.close with this code (naming this method), without answering it."""
        closed = self.read_connection_close_of((code,))
        if kind is not None:
            assert (closed.class_id, closed.method_id) == (kind.index >> 16, kind.index & 0xFFFF), describe(closed)
        return closed

    def read_connection_close_of(self, codes: tuple[int, ...]) -> Connection.Close:
        """Expect connection.close with one of these codes, after any contents, without answering it."""
        self.inboxes.clear()
        while True:
            number, value = self.read_frame()
            if isinstance(value, ChannelClass.Close) or (number == 0 and not isinstance(value, heartbeat.Heartbeat)):
                break
        if not isinstance(value, Connection.Close):
            raise AssertionError(f"expected Connection.Close with {codes}, got {describe(value)}")
        assert value.reply_code in codes, f"expected {codes}, got {describe(value)}"
        assert value.reply_text
        return value

    def close(self) -> None:
        """Close with a close method, so that the broker logs no error."""
        self.send(0, method(Connection.Close, reply_code=200, reply_text="", class_id=0, method_id=0))
        while not isinstance(self.read(None), Connection.CloseOk):
            pass
        self.drop()


def describe(value: Any) -> str:
    name = getattr(value, "name", type(value).__name__)
    if isinstance(value, body.ContentBody):
        return f"a body frame of {len(value.value or b'')} bytes"
    if isinstance(value, header.ContentHeader):
        return f"a content header for {value.body_size} bytes"
    return f"{name} {dict(value)}" if isinstance(value, base.Frame) else str(name)


class Channel:
    """An open channel with the calls that tests use most."""

    def __init__(self, peer: Peer, number: int) -> None:
        self.peer = peer
        self.number = number

    def send(self, kind: type[base.Frame], **fields: Any) -> None:
        self.peer.send(self.number, method(kind, **fields))

    def call(self, kind: type[base.Frame], reply: type[M], **fields: Any) -> M:
        self.send(kind, **fields)
        return self.expect(reply)

    def expect(self, kind: type[M]) -> M:
        return self.peer.expect(self.number, kind)

    def expect_content(self, kind: type[base.Frame]) -> Content:
        return self.peer.expect_content(self.number, kind)

    def expect_close(self, code: int, kind: type[base.Frame] | None = None) -> ChannelClass.Close:
        """Expect channel.close with this code (naming this method), and answer it. The channel may then be opened again."""
        closed = self.expect(ChannelClass.Close)
        assert closed.reply_code == code, f"expected {code}, got {describe(closed)}"
        assert closed.reply_text
        if kind is not None:
            assert (closed.class_id, closed.method_id) == (kind.index >> 16, kind.index & 0xFFFF), describe(closed)
        self.send(ChannelClass.CloseOk)
        return closed

    def close(self) -> None:
        self.call(ChannelClass.Close, ChannelClass.CloseOk, reply_code=200, reply_text="", class_id=0, method_id=0)

    def reopen(self) -> Channel:
        """Open the channel again after the broker closed it."""
        return self.peer.channel(self.number)

    # Exchanges and queues

    def exchange(self, name: str, kind: str = "direct", **fields: Any) -> str:
        self.call(Exchange.Declare, Exchange.DeclareOk, exchange=name, exchange_type=kind, **fields)
        return name

    def queue(self, name: str = "", *, exclusive: bool = True, **fields: Any) -> str:
        """Declare a queue, by default one that is deleted with the connection."""
        return str(self.call(Queue.Declare, Queue.DeclareOk, queue=name, exclusive=exclusive, **fields).queue)

    def bind(self, queue: str, exchange: str, routing_key: str = "", arguments: dict[str, Any] | None = None) -> None:
        self.call(
            Queue.Bind, Queue.BindOk, queue=queue, exchange=exchange, routing_key=routing_key, arguments=arguments or {}
        )

    def depth(self, queue: str) -> int:
        """Return the number of ready messages of the queue."""
        return self.call(Queue.Declare, Queue.DeclareOk, queue=queue, passive=True).message_count or 0

    def exists(self, queue: str) -> bool:
        """Whether the queue exists. The channel stays open."""
        self.send(Queue.Declare, queue=queue, passive=True)
        answer = self.peer.read(self.number)
        if isinstance(answer, Queue.DeclareOk):
            return True
        assert isinstance(answer, ChannelClass.Close), describe(answer)
        assert answer.reply_code == 404
        self.send(ChannelClass.CloseOk)
        self.reopen()
        return False

    # Messages

    def publish(
        self,
        body_bytes: bytes = b"",
        routing_key: str = "",
        exchange: str = "",
        *,
        mandatory: bool = False,
        immediate: bool = False,
        **properties: Any,
    ) -> None:
        """Publish a message, with its body in as many frames as necessary."""
        data = frame.marshal(
            method(Basic.Publish, exchange=exchange, routing_key=routing_key, mandatory=mandatory, immediate=immediate),
            self.number,
        )
        data += frame.marshal(content_header(len(body_bytes), properties), self.number)
        self.peer.send_bytes(data + body_frames(self.number, body_bytes, self.peer.frame_max))

    def confirm_select(self) -> None:
        self.call(Confirm.Select, Confirm.SelectOk)

    def get(self, queue: str, *, no_ack: bool = True) -> Content | None:
        """Call basic.get. Returns None for an empty queue."""
        self.send(Basic.Get, queue=queue, no_ack=no_ack)
        answer = self.peer.read(self.number)
        if isinstance(answer, Basic.GetEmpty):
            return None
        assert isinstance(answer, Basic.GetOk), f"expected an answer to Basic.Get, got {describe(answer)}"
        return self.peer.rest_of_content(self.number, answer)

    def drain(self, queue: str) -> list[bytes]:
        """Get all ready messages."""
        bodies = []
        while (content := self.get(queue)) is not None:
            bodies.append(content.body)
        return bodies

    def consume(self, queue: str, tag: str = "", **fields: Any) -> str:
        return str(self.call(Basic.Consume, Basic.ConsumeOk, queue=queue, consumer_tag=tag, **fields).consumer_tag)

    def qos(self, count: int = 0, size: int = 0, all_consumers: bool = False) -> None:
        self.call(Basic.Qos, Basic.QosOk, prefetch_count=count, prefetch_size=size, global_=all_consumers)

    def delivery(self) -> Content:
        return self.expect_content(Basic.Deliver)

    def deliveries(self, count: int) -> list[Content]:
        return [self.delivery() for _ in range(count)]

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self.send(Basic.Ack, delivery_tag=tag, multiple=multiple)

    def reject(self, tag: int, *, requeue: bool) -> None:
        self.send(Basic.Reject, delivery_tag=tag, requeue=requeue)

    def nack(self, tag: int, *, requeue: bool, multiple: bool = False) -> None:
        self.send(Basic.Nack, delivery_tag=tag, requeue=requeue, multiple=multiple)

    def quiet(self) -> None:
        """Check that nothing more arrives on this channel: two round trips through a queue return only their replies.

        Two, because the effects of the turn of the first one may follow its reply.
        """
        probe = self.call(Queue.Declare, Queue.DeclareOk, exclusive=True, auto_delete=False).queue
        for _ in range(2):
            self.call(Queue.Declare, Queue.DeclareOk, queue=probe, passive=True)
        self.call(Queue.Delete, Queue.DeleteOk, queue=probe)
