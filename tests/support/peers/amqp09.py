"""A raw, blocking AMQP 0-9 peer over `codec`: a socket, and a deadline on every read."""

from __future__ import annotations

from collections import deque
from typing import Any

from pamqp.heartbeat import Heartbeat

from tests.support.peers import amqp091 as base
from tests.support.peers import codec09 as codec
from tests.support.peers.codec09 import METHODS, Header, Method
from tests.support.peers.framing import BODY_FRAME, HEADER_FRAME, METHOD_FRAME, body_frames, frame_bytes

HEADER_AMQP09 = b"AMQP\x01\x01\x00\x09"


class Content(base.Content):
    """A method with its content, as read."""

    def __init__(self, method: Method, header: Header, body: bytes) -> None:
        super().__init__(method, header.properties, body)
        self.header = header


class Delivered:
    """A file that was staged and delivered."""

    def __init__(self, deliver: Method, content: Content) -> None:
        self.method = deliver
        self.properties = content.properties
        self.body = content.body
        self.tag = int(deliver.delivery_tag)
        self.redelivered = bool(deliver.redelivered)


def named(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields with the codec's names: `global_` is a name that Python allows."""
    return {name.rstrip("_"): value for name, value in fields.items()}


class Peer(base.Peer):
    """One connection, with the calls of `amqp091.Peer` over frames of 0-9."""

    inboxes: dict[int, deque[Any]]

    # Frames

    def send_method(self, number: int, name: str, **fields: Any) -> None:
        self.send_bytes(self.method_frame(number, name, **fields))

    def method_frame(self, number: int, name: str, **fields: Any) -> bytes:
        return frame_bytes(METHOD_FRAME, number, codec.encode_method(name, named(fields)))

    def content_frames(self, number: int, kind: str, body: bytes, properties: dict[str, Any], weight: int = 0) -> bytes:
        """Return the header and body of a content, in as many frames as necessary."""
        header = frame_bytes(HEADER_FRAME, number, codec.encode_header(kind, len(body), properties, weight))
        return header + body_frames(number, body, self.frame_max)

    def read_frame(self, deadline: float | None = None) -> tuple[int, Any]:
        kind, channel, payload = self.read_payload(deadline)
        if kind == METHOD_FRAME:
            return channel, codec.decode_method(payload)
        if kind == HEADER_FRAME:
            return channel, codec.decode_header(payload)
        return channel, payload if kind == BODY_FRAME else Heartbeat()

    def expect_method(self, channel: int, *names: str) -> Method:
        """Return the next frame on the channel, which must be one of these methods."""
        value = self.read(channel)
        if not isinstance(value, Method) or value.name not in names:
            raise AssertionError(f"expected {' or '.join(names)} on channel {channel}, got {str(value)[:300]}")
        return value

    def pick(self, channel: int, *names: str) -> Method:
        """Return the first of these methods on the channel. Frames before it can still be read."""
        passed: list[Any] = []
        while True:
            value = self.read(channel)
            if isinstance(value, Method) and value.name in names:
                break
            assert not (isinstance(value, Method) and value.name == "channel.close"), f"expected {names}, got {value}"
            passed.append(value)
        self.inboxes.setdefault(channel, deque()).extendleft(reversed(passed))
        return value

    def pick_content(self, channel: int, name: str) -> Content:
        """The same for a method with its content."""
        passed: list[Any] = []
        while not (isinstance(value := self.read(channel), Method) and value.name == name):
            passed.append(value)
        content = self.rest_of(channel, value)
        self.inboxes.setdefault(channel, deque()).extendleft(reversed(passed))
        return content

    def rest_of(self, channel: int, opening: Method) -> Content:
        head = self.read(channel)
        assert isinstance(head, Header), f"expected a content header, got {head}"
        assert head.kind == opening.name.split(".")[0]
        assert head.weight == 0
        pieces = []
        missing = head.size
        while missing > 0:
            piece = self.read(channel)
            assert isinstance(piece, bytes), f"expected a content body, got {piece}"
            pieces.append(piece)
            missing -= len(piece)
        assert missing == 0, "more body than announced"
        return Content(opening, head, b"".join(pieces))

    # The connection

    def begin(self) -> Method:
        """Send the protocol header and read connection.start."""
        self.send_bytes(HEADER_AMQP09)
        return self.expect_method(0, "connection.start")

    def log_in(
        self,
        user: str = "guest",
        password: str = "guest",
        mechanism: str = "PLAIN",
        properties: dict[str, Any] | None = None,
    ) -> None:
        self.send_method(
            0,
            "connection.start-ok",
            client_properties=properties or {},
            mechanism=mechanism,
            response=f"\0{user}\0{password}",
            locale="en_US",
        )

    def tune(self, channel_max: int = 2047, frame_max: int = 131072, interval: int = 0) -> None:
        self.send_method(0, "connection.tune-ok", channel_max=channel_max, frame_max=frame_max, heartbeat=interval)
        self.frame_max = frame_max or 131072

    def reach_open(
        self,
        user: str = "guest",
        password: str = "guest",
        *,
        channel_max: int = 2047,
        frame_max: int = 131072,
        interval: int = 0,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Do everything before connection.open."""
        self.begin()
        self.log_in(user, password, properties=properties)
        self.expect_method(0, "connection.tune")
        self.tune(channel_max, frame_max, interval)

    def connect(
        self, vhost: str = "/", user: str = "guest", password: str = "guest", *, insist: bool = False, **options: Any
    ) -> Method:
        """Do everything up to connection.open-ok, and return it."""
        self.reach_open(user, password, **options)
        self.send_method(0, "connection.open", virtual_host=vhost, insist=insist)
        return self.expect_method(0, "connection.open-ok")

    def open(self, number: int = 1) -> Channel:
        """Open a channel."""
        self.send_method(number, "channel.open")
        opened = self.expect_method(number, "channel.open-ok")
        return Channel(self, number, opened.channel_id)

    def expect_end(self, code: int, name: str = "") -> Method:
        """Expect connection.close with this code (naming this method), answer it, and expect the end of the socket.

        Contents before it are skipped.
        """
        closed = self.read_end(code, name)
        self.send_method(0, "connection.close-ok")
        self.expect_eof()
        return closed

    def read_end(self, code: int, name: str = "") -> Method:
        """The same without an answer."""
        self.inboxes.clear()
        while True:
            _, value = self.read_frame()
            if isinstance(value, Method) and value.name in ("connection.close", "channel.close"):
                break
        assert (value.name, value.reply_code) == ("connection.close", code), f"expected {code}, got {value}"
        check_close(value, name)
        return value

    def close(self) -> None:
        """Close with a close method."""
        self.send_method(0, "connection.close", reply_code=200)
        while not isinstance(value := self.read(None), Method) or value.name != "connection.close-ok":
            pass
        self.drop()


def check_close(closed: Method, name: str) -> None:
    """Check that a close has a text and names the method."""
    assert closed.reply_text
    if name:
        spec = METHODS[name]
        assert (closed.class_id, closed.method_id) == (spec.class_id, spec.method_id), closed


class Channel:
    """An open channel with the calls that tests use most."""

    def __init__(self, peer: Peer, number: int, id: bytes = b"") -> None:
        self.peer = peer
        self.number = number
        self.id = id

    def send(self, name: str, **fields: Any) -> None:
        self.peer.send_method(self.number, name, **fields)

    def call(self, name: str, answer: str = "", **fields: Any) -> Method:
        """Send a method and return its reply, by default the method of that name with -ok."""
        self.send(name, **fields)
        return self.expect(answer or f"{name}-ok")

    def expect(self, *names: str) -> Method:
        return self.peer.expect_method(self.number, *names)

    def content(self, name: str) -> Content:
        return self.peer.rest_of(self.number, self.expect(name))

    def refused(self, code: int, name: str = "") -> Channel:
        """Expect channel.close with this code (naming this method), answer it, and open the channel again."""
        closed = self.expect("channel.close")
        assert closed.reply_code == code, f"expected {code}, got {closed}"
        check_close(closed, name)
        self.send("channel.close-ok")
        return self.peer.open(self.number)

    def close(self) -> None:
        self.call("channel.close", reply_code=200)

    # Exchanges and queues

    def exchange(self, name: str, kind: str = "direct", **fields: Any) -> str:
        self.call("exchange.declare", exchange=name, type=kind, **fields)
        return name

    def queue(self, name: str = "", **fields: Any) -> str:
        """Declare a queue, which remains until it is deleted unless the fields say otherwise."""
        return str(self.call("queue.declare", queue=name, **fields).queue)

    def bind(self, queue: str, exchange: str, routing_key: str = "", arguments: dict[str, Any] | None = None) -> None:
        self.call("queue.bind", queue=queue, exchange=exchange, routing_key=routing_key, arguments=arguments or {})

    def depth(self, queue: str) -> int:
        """Return the number of ready messages of the queue."""
        return int(self.call("queue.declare", queue=queue, passive=True).message_count)

    def exists(self, queue: str) -> bool:
        """Whether the queue exists. The channel stays open."""
        return self._exists("queue.declare", queue=queue)

    def exchange_exists(self, exchange: str) -> bool:
        return self._exists("exchange.declare", exchange=exchange)

    def _exists(self, name: str, **fields: Any) -> bool:
        self.send(name, passive=True, **fields)
        answer = self.expect(f"{name}-ok", "channel.close")
        if answer.name != "channel.close":
            return True
        assert answer.reply_code == 404, answer
        self.send("channel.close-ok")
        self.peer.open(self.number)
        return False

    # Messages

    def publish(
        self,
        body: bytes = b"",
        routing_key: str = "",
        exchange: str = "",
        *,
        mandatory: bool = False,
        immediate: bool = False,
        ticket: int = 0,
        kind: str = "basic",
        weight: int = 0,
        **properties: Any,
    ) -> None:
        """Publish a message of class basic or stream, with its body in as many frames as necessary."""
        self.peer.send_bytes(
            self.peer.method_frame(
                self.number,
                f"{kind}.publish",
                exchange=exchange,
                routing_key=routing_key,
                mandatory=mandatory,
                immediate=immediate,
                ticket=ticket,
            )
            + self.peer.content_frames(self.number, kind, body, properties, weight)
        )

    def get(self, queue: str, *, no_ack: bool = True, ticket: int = 0) -> Content | None:
        """Call basic.get. Returns None for an empty queue."""
        self.send("basic.get", queue=queue, no_ack=no_ack, ticket=ticket)
        answer = self.expect("basic.get-ok", "basic.get-empty")
        return None if answer.name == "basic.get-empty" else self.peer.rest_of(self.number, answer)

    def drain(self, queue: str) -> list[bytes]:
        """Get all ready messages of class basic."""
        bodies = []
        while (content := self.get(queue)) is not None:
            bodies.append(content.body)
        return bodies

    def consume(self, queue: str, tag: str = "", *, kind: str = "basic", **fields: Any) -> str:
        return str(self.call(f"{kind}.consume", queue=queue, consumer_tag=tag, **fields).consumer_tag)

    def cancel(self, tag: str, kind: str = "basic") -> None:
        self.call(f"{kind}.cancel", consumer_tag=tag)

    def qos(self, count: int = 0, size: int = 0, *, everywhere: bool = False, kind: str = "basic") -> None:
        self.call(f"{kind}.qos", prefetch_count=count, prefetch_size=size, global_=everywhere)

    def delivery(self, kind: str = "basic") -> Content:
        return self.content(f"{kind}.deliver")

    def deliveries(self, count: int, kind: str = "basic") -> list[Content]:
        return [self.delivery(kind) for _ in range(count)]

    def ack(self, tag: int, *, multiple: bool = False, kind: str = "basic") -> None:
        self.send(f"{kind}.ack", delivery_tag=tag, multiple=multiple)

    def reject(self, tag: int, *, requeue: bool, kind: str = "basic") -> None:
        self.send(f"{kind}.reject", delivery_tag=tag, requeue=requeue)

    def quiet(self) -> None:
        """Check that nothing more arrives on this channel: two round trips through a queue return only their replies.

        Two, because the effects of the turn of the first one may follow its reply. Afterwards the channel's last queue is a
        deleted one.
        """
        probe = self.call("queue.declare").queue
        for _ in range(2):
            self.call("queue.declare", queue=probe, passive=True)
        self.call("queue.delete", queue=probe)

    # Files

    def stage(self, identifier: str, body: bytes, **properties: Any) -> None:
        """Stage a content, from the point where it was interrupted."""
        self.send("file.open", identifier=identifier, content_size=len(body))
        at = self.peer.pick(self.number, "file.open-ok").staged_size
        self.stage_bytes(body[at:], **properties)

    def stage_bytes(self, body: bytes, **properties: Any) -> None:
        """Send `file.stage`, which has no reply."""
        self.peer.send_bytes(
            self.peer.method_frame(self.number, "file.stage")
            + self.peer.content_frames(self.number, "file", body, properties)
        )

    def publish_file(
        self,
        body: bytes,
        routing_key: str = "",
        exchange: str = "",
        *,
        identifier: str = "f",
        mandatory: bool = False,
        immediate: bool = False,
        ticket: int = 0,
        **properties: Any,
    ) -> None:
        """Stage a content and publish it."""
        self.stage(identifier, body, **properties)
        self.send(
            "file.publish",
            exchange=exchange,
            routing_key=routing_key,
            identifier=identifier,
            mandatory=mandatory,
            immediate=immediate,
            ticket=ticket,
        )

    def file(self, staged: int = 0) -> Delivered:
        """Return the next delivery of class file: its open, answered with the staged size, its content, its deliver."""
        self.peer.pick(self.number, "file.open")
        self.send("file.open-ok", staged_size=staged)
        content = self.peer.pick_content(self.number, "file.stage")
        return Delivered(self.peer.pick(self.number, "file.deliver"), content)

    def files(self, count: int) -> list[Delivered]:
        return [self.file() for _ in range(count)]
