"""Frames that violate the wire format (0-9-1 section 4.2), and invalid field values."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.conftest import Connect
from tests.support.broker import LeveretProcess
from tests.support.peers.amqp091 import Basic, Channel, ChannelClass, Connection, Peer, Queue, content_header, method
from tests.support.peers.connection import Closed
from tests.support.peers.framing import BODY_FRAME, HEADER_FRAME, HEARTBEAT_FRAME, METHOD_FRAME, frame_bytes, short_string

DECLARE = b"\x00\x32\x00\x0a\x00\x00"  # queue.declare up to its reserved field
pytestmark = pytest.mark.ahead_of_rabbitmq("answers some of these otherwise")


@pytest.fixture
def witness(connect: Connect, name: str) -> Callable[[], None]:
    """Another connection, with a consumer; call it to see that it still works."""
    channel = connect().channel()
    channel.queue(name + ".witness")
    channel.consume(name + ".witness", "w", no_ack=True)

    def works() -> None:
        channel.publish(b"alive", name + ".witness")
        assert channel.delivery().body == b"alive"

    return works


def fatal(peer: Peer, code: int) -> None:
    """Expect the end of the connection, with or without a connection.close of this code."""
    try:
        value = peer.read(0)
    except Closed:
        return
    assert isinstance(value, Connection.Close)
    assert value.reply_code == code


@pytest.mark.rule("0-9-1", "framing.end")
@pytest.mark.rule("0-9-1", "frame-end.constant")
@pytest.mark.parametrize("end", [0x00, 0xCD, 0xFF])
def test_a_frame_without_its_end_byte(connect: Connect, witness: Callable[[], None], end: int) -> None:
    peer = connect()
    peer.send_bytes(frame_bytes(METHOD_FRAME, 1, b"\x00\x14\x00\x0a\x00", bytes((end,))))
    fatal(peer, 501)
    witness()


@pytest.mark.rule("0-9-1", "framing.end")
def test_the_socket_ends_when_frame_boundaries_are_lost(connect: Connect) -> None:
    peer = connect()
    peer.send_bytes(frame_bytes(METHOD_FRAME, 1, b"\x00\x14\x00\x0a\x00", b"?"))
    fatal(peer, 501)
    # The peer could not parse a reply either.
    peer.expect_eof()


@pytest.mark.rule("0-9-1", "framing.types")
@pytest.mark.parametrize("kind", [0, 4, 5, 7, 9, 255])
def test_a_frame_of_an_unknown_type(connect: Connect, witness: Callable[[], None], kind: int) -> None:
    peer = connect()
    peer.send_bytes(frame_bytes(kind, 0, b""))
    fatal(peer, 501)
    witness()


NO_FRAMES = [
    frame_bytes(METHOD_FRAME, 1, b"\x00\x14\x00\x0a\x00", b"\xcd"),
    frame_bytes(HEARTBEAT_FRAME, 0, b"", b"\x00"),
    frame_bytes(4, 0, b""),
    frame_bytes(255, 1, b"x"),
    frame_bytes(255, 1, b"begun")[:9],
]


@pytest.mark.rule("0-9-1", "framing.end-missing")
@pytest.mark.rule("0-9-1", "framing.unknown-type")
@pytest.mark.rule("0-9-1", "frame-error.constant")
@pytest.mark.mode("rabbitmq")
@pytest.mark.parametrize("sent", NO_FRAMES)
def test_the_peer_gets_the_reason_for_a_framing_error(connect: Connect, sent: bytes) -> None:
    peer = connect()
    peer.send_bytes(sent)
    assert "frame" in str(peer.read_connection_close(501).reply_text)


@pytest.mark.rule("0-9-1", "framing.end-missing")
@pytest.mark.rule("0-9-1", "framing.unknown-type")
@pytest.mark.mode("strict")
@pytest.mark.parametrize("sent", NO_FRAMES)
def test_nothing_is_sent_after_a_framing_error(
    raw: Callable[..., Peer], strict_broker: LeveretProcess, sent: bytes, name: str
) -> None:
    peer = raw(strict_broker)
    peer.handshake()
    channel = peer.channel()
    channel.queue(name)
    # Earlier methods are performed, but have no reply any more.
    frames = [frame_bytes(METHOD_FRAME, 1, b"\x00\x32\x00\x0a\x00\x00" + short_string(name + ".before") + b"\x00" * 5)]
    peer.send_bytes(b"".join([*frames, sent]))
    peer.expect_eof()
    other = raw(strict_broker)
    other.handshake()
    assert other.channel().exists(name + ".before")


@pytest.mark.rule("0-9-1", "framing.unknown-type")
@pytest.mark.mode("strict")
def test_nothing_is_sent_after_a_framing_error_before_the_connection_is_open(
    raw: Callable[..., Peer], strict_broker: LeveretProcess
) -> None:
    peer = raw(strict_broker)
    peer.start()
    peer.send_bytes(frame_bytes(7, 0, b""))
    peer.expect_eof()


@pytest.mark.rule("0-9-1", "framing.frame-max")
@pytest.mark.rule("0-9-1", "frame-error.constant")
@pytest.mark.parametrize("kind", [METHOD_FRAME, HEADER_FRAME, BODY_FRAME])
def test_a_frame_larger_than_agreed(connect: Connect, witness: Callable[[], None], kind: int) -> None:
    peer = connect(frame_max=8192)
    peer.channel()
    # The beginning is enough: the rest is never sent. (Eight more bytes are accepted: some clients count differently.)
    peer.send_bytes(struct.pack(">BHI", kind, 1, 8192 + 1) + b"x")
    fatal(peer, 501)
    peer = connect(frame_max=8192)
    channel = peer.channel()
    queue = channel.queue()
    channel.publish(b"x" * (8192 - 8), queue)
    assert channel.drain(queue) == [b"x" * (8192 - 8)]
    witness()


@pytest.mark.rule("0-9-1", "framing.frame-max")
def test_an_announced_body_of_four_gigabytes_reserves_no_memory(connect: Connect, witness: Callable[[], None]) -> None:
    peer = connect()
    peer.channel()
    peer.send_bytes(struct.pack(">BHI", METHOD_FRAME, 1, 0xFFFFFFFF) + b"x")
    fatal(peer, 501)
    witness()


@pytest.mark.rule("0-9-1", "framing.channel-zero")
def test_a_method_of_the_connection_on_another_channel(connect: Connect, witness: Callable[[], None]) -> None:
    peer = connect()
    peer.channel()
    peer.send(1, method(Connection.Close, reply_code=200, reply_text="", class_id=0, method_id=0))
    peer.expect_connection_close(503)
    witness()


@pytest.mark.rule("0-9-1", "framing.other-channels")
def test_a_method_of_a_channel_on_channel_zero(connect: Connect, witness: Callable[[], None]) -> None:
    for value in (ChannelClass.Open(), method(Queue.Declare, queue="")):
        peer = connect()
        peer.send(0, value)
        closed = peer.read_connection_close_of((503, 504))
        assert closed.reply_text
    witness()


@pytest.mark.rule("0-9-1", "content.channel-zero")
@pytest.mark.parametrize("kind", [HEADER_FRAME, BODY_FRAME])
def test_content_on_channel_zero(connect: Connect, witness: Callable[[], None], kind: int) -> None:
    peer = connect()
    peer.send_bytes(frame_bytes(kind, 0, b"\x00\x3c\x00\x00" + b"\x00" * 10))
    peer.read_connection_close_of((504, 505))
    witness()


@pytest.mark.rule("0-9-1", "heartbeats.invalid")
@pytest.mark.rule("0-9-1", "heartbeats.frame")
@pytest.mark.parametrize("frame", [frame_bytes(HEARTBEAT_FRAME, 1, b""), frame_bytes(HEARTBEAT_FRAME, 0, b"x")])
def test_an_invalid_heartbeat(connect: Connect, witness: Callable[[], None], frame: bytes) -> None:
    peer = connect()
    peer.channel()
    peer.send_bytes(frame)
    fatal(peer, 501)
    witness()


@pytest.mark.rule("0-9-1", "heartbeats.not-agreed")
def test_heartbeats_that_were_not_agreed_do_no_harm(connect: Connect) -> None:
    peer = connect(interval=0)
    channel = peer.channel()
    for _ in range(3):
        peer.send_bytes(frame_bytes(HEARTBEAT_FRAME, 0, b""))
        channel.quiet()


@pytest.mark.rule("0-9-1", "content.other-frames")
@pytest.mark.rule("0-9-1", "frame-heartbeat.constant")
def test_a_heartbeat_may_be_sent_in_the_middle_of_a_content(peer: Peer, name: str) -> None:
    channel = peer.channel()
    channel.queue(name)
    for data in (b"ab", b"cd"):
        if data == b"ab":
            peer.send(1, method(Basic.Publish, exchange="", routing_key=name), content_header(4))
        peer.send_bytes(frame_bytes(BODY_FRAME, 1, data) + frame_bytes(HEARTBEAT_FRAME, 0, b""))
    assert channel.drain(name) == [b"abcd"]


@pytest.mark.rule("0-9-1", "framing.pieces")
@pytest.mark.rule("0-9-1", "framing.types")
@pytest.mark.rule("0-9-1", "frame-method.constant")
@pytest.mark.rule("0-9-1", "frame-header.constant")
@pytest.mark.rule("0-9-1", "frame-body.constant")
def test_frames_may_be_sent_byte_by_byte(connect: Connect, name: str) -> None:
    peer = connect()
    channel = peer.channel()
    channel.queue(name)
    data = frame_bytes(METHOD_FRAME, 1, b"\x00\x3c\x00\x28\x00\x00" + short_string("") + short_string(name) + b"\x00")
    data += frame_bytes(HEADER_FRAME, 1, b"\x00\x3c\x00\x00" + b"\x00" * 7 + b"\x03" + b"\x00\x00")
    data += frame_bytes(BODY_FRAME, 1, b"abc")
    for byte in data:
        peer.send_bytes(bytes((byte,)))
    assert channel.drain(name) == [b"abc"]


TABLES = [
    b"\x00\x00\x00\xff",  # longer than the frame
    b"\x00\x00\x00\x03\x05ab",  # a name longer than the table
    b"\x00\x00\x00\x03\x01a?",  # an unknown type
    b"\x00\x00\x00\x04\x01aI\x00",  # a value longer than the table
    b"\x00\x00\x00\x07\x01aS\x00\x00\x00\x09",  # a string longer than the table
    b"\x00\x00\x00\x07\x01aF\x00\x00\x00\x09",  # a table longer than the table around it
    b"\x00\x00\x00\x07\x01aA\x00\x00\x00\x09",
    b"\x00",  # not even a length
]


@pytest.mark.rule("0-9-1", "types.table")
@pytest.mark.rule("0-9-1", "types.table-malformed")
@pytest.mark.parametrize("table", TABLES, ids=range(len(TABLES)))
def test_a_malformed_table_in_a_method(connect: Connect, witness: Callable[[], None], table: bytes) -> None:
    peer = connect()
    peer.channel()
    peer.send_bytes(frame_bytes(METHOD_FRAME, 1, DECLARE + short_string("q") + b"\x00" + table))
    peer.read_connection_close_of((501, 502))
    witness()


@pytest.mark.rule("0-9-1", "types.table-malformed")
@pytest.mark.parametrize("table", TABLES, ids=range(len(TABLES)))
def test_a_malformed_table_in_a_content_header_hurts_its_sender_only(
    connect: Connect, witness: Callable[[], None], name: str, table: bytes
) -> None:
    channel = connect().channel()
    channel.exchange(name, "headers", auto_delete=True)
    channel.queue(name)
    channel.bind(name, name, "", {"x-match": "any", "a": 1})
    peer = connect()
    peer.channel()
    peer.send(1, method(Basic.Publish, exchange=name, routing_key=""))
    peer.send_bytes(frame_bytes(HEADER_FRAME, 1, b"\x00\x3c\x00\x00" + b"\x00" * 8 + b"\x20\x00" + table))
    peer.read_connection_close_of((501, 502))
    assert channel.drain(name) == []
    witness()


@pytest.mark.rule("0-9-1", "types.table-malformed")
def test_a_table_nested_very_deeply(connect: Connect, witness: Callable[[], None]) -> None:
    peer = connect()
    peer.channel()
    table = b""
    while len(table) < 100_000:
        table = b"\x01aF" + struct.pack(">I", len(table)) + table
    arguments = struct.pack(">I", len(table)) + table
    peer.send_bytes(frame_bytes(METHOD_FRAME, 1, DECLARE + short_string("q") + b"\x00" + arguments))
    value = peer.read()
    assert isinstance(value, (Connection.Close, ChannelClass.Close, Queue.DeclareOk))
    witness()


@pytest.mark.rule("0-9-1", "types.short-string")
def test_names_that_are_no_utf8(connect: Connect, witness: Callable[[], None]) -> None:
    peer = connect()
    peer.channel()
    peer.send_bytes(frame_bytes(METHOD_FRAME, 1, DECLARE + short_string(b"\xff\xfe") + b"\x08" + b"\x00\x00\x00\x00"))
    value = peer.read()
    assert isinstance(value, (Connection.Close, ChannelClass.Close)), "a name is UTF-8"
    assert value.reply_code in (406, 501, 502)
    witness()


@pytest.mark.rule("0-9-1", "types.long-string")
def test_bytes_of_keys_and_headers_survive_whatever_they_are(peer: Peer, name: str) -> None:
    channel = peer.channel()
    channel.queue(name)
    key = bytes(range(128, 256))
    table = b"\x01kS\x00\x00\x00\x02\xff\xfe"
    bind = b"\x00\x32\x00\x14\x00\x00" + short_string(name) + short_string("amq.direct") + short_string(key) + b"\x00"
    peer.send_bytes(frame_bytes(METHOD_FRAME, 1, bind + b"\x00\x00\x00\x00"))
    channel.expect(Queue.BindOk)
    properties = b"\x20\x00" + struct.pack(">I", len(table)) + table
    peer.send_bytes(
        frame_bytes(METHOD_FRAME, 1, b"\x00\x3c\x00\x28\x00\x00" + short_string("amq.direct") + short_string(key) + b"\x00")
    )
    peer.send_bytes(frame_bytes(HEADER_FRAME, 1, b"\x00\x3c\x00\x00" + struct.pack(">Q", 1) + properties))
    peer.send_bytes(frame_bytes(BODY_FRAME, 1, b"x"))
    channel.send(Basic.Get, queue=name, no_ack=True)
    assert key in read_payload(peer, METHOD_FRAME)
    assert read_payload(peer, HEADER_FRAME).endswith(properties)
    assert read_payload(peer, BODY_FRAME) == b"x"


def read_payload(peer: Peer, wanted: int) -> bytes:
    """The payload of the next frame, undecoded."""
    kind, _, size = struct.unpack(">BHI", peer.read_bytes(7))
    assert kind == wanted
    return peer.read_bytes(size + 1)[:-1]


@pytest.mark.rule("0-9-1", "types.table-values")
@pytest.mark.rule("0-9-1", "types.table")
@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        0,
        -1,
        127,
        128,
        -129,
        32767,
        32768,
        65536,
        (1 << 31) - 1,
        1 << 31,
        -(1 << 63),
        (1 << 63) - 1,
        1.5,
        "",
        "text",
        "ü€😀",
        [],
        [1, "two", [3]],
        {},
        {"a": {"b": [None]}},
        None,
        bytearray(b"\x00\xff"),
    ],
    ids=repr,
)
def test_every_type_of_value_in_headers_and_bindings(channel: Channel, name: str, value: Any) -> None:
    channel.exchange(name, "headers", auto_delete=True)
    channel.queue(name)
    channel.bind(name, name, "", {"v": value})
    channel.publish(b"x", "", name, headers={"v": value})
    channel.publish(b"other", "", name, headers={"w": value})
    content = channel.get(name)
    assert content is not None
    assert content.properties.headers == {"v": value}
    assert channel.get(name) is None


@pytest.mark.rule("0-9-1", "errors.others-unharmed")
@pytest.mark.parametrize(
    "garbage",
    [b"\x00" * 100, b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n", bytes(range(256))],
    ids=["zeros", "ones", "HTTP", "all bytes"],
)
def test_garbage_after_the_handshake(connect: Connect, witness: Callable[[], None], garbage: bytes) -> None:
    peer = connect()
    peer.channel()
    peer.send_bytes(garbage)
    fatal(peer, 501)
    witness()
