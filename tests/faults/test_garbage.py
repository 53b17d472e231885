"""Garbage at every stage of the handshake and after it: a protocol error for the sender, no effect on others."""

from __future__ import annotations

import random
import struct

import pytest
from pamqp import commands

from tests.faults.neighbour import Neighbour
from tests.support.broker import Broker, leveret_only
from tests.support.peers.framing import HEADER_AMQP091, encode, frame_bytes, header_frame
from tests.support.peers.rude import STAGES, RudePeer

pytestmark = pytest.mark.usefixtures("neighbour")

NOISE = random.Random(1).randbytes(5000)
GARBAGE = {
    "noise": NOISE,
    "zeros": bytes(2000),
    "ones": b"\xff" * 2000,
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + NOISE[:190],
    "header again": HEADER_AMQP091,
    "old frame type": frame_bytes(9, 0, b"\0\n\0\n"),
    "no frame end": frame_bytes(1, 0, b"\0\n\0\x1f", end=b"\0"),
    "huge frame": struct.pack(">BHI", 1, 0, 0xFFFFFFFF) + b"x" * 100,
    "empty method": frame_bytes(1, 0, b""),
    "half a method": frame_bytes(1, 0, b"\0\n"),
    "unknown class": frame_bytes(1, 1, struct.pack(">HH", 999, 10)),
    "unknown method": frame_bytes(1, 1, struct.pack(">HH", 60, 999)),
    "a server's method": encode(commands.Connection.Tune(1, 1, 1), 0),
    "a table with a wrong length": frame_bytes(1, 0, struct.pack(">HHI", 10, 11, 0x7FFFFFFF) + b"x" * 20),
    "unexpected body": frame_bytes(3, 1, b"body"),
    "heartbeat on a channel": frame_bytes(8, 1, b""),
    "heartbeat with a payload": frame_bytes(8, 0, b"boo"),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage(broker: Broker, stage: str, kind: str) -> None:
    """The connection ends: with a close that has a hard-error code, or at once if no close is required."""
    with RudePeer(broker) as peer:
        peer.reach(stage)
        peer.send_bytes(GARBAGE[kind])
        if stage == "connected" and kind == "header again":
            assert peer.expect_method("Connection.Start")
            return
        # If the input is the start of something valid, this ends it.
        peer.half_close()
        if stage == "connected":
            answer = peer.read_to_end()
            # A future version may answer HTTP.
            assert answer in (b"", HEADER_AMQP091), answer
        else:
            code = peer.outcome()
            assert code in (0, 501, 502, 503, 504, 505, 530, 540), code


@pytest.mark.parametrize("stage", STAGES)
def test_truncated(broker: Broker, stage: str) -> None:
    """Half a frame, then the end of the input."""
    with RudePeer(broker) as peer:
        peer.reach(stage)
        peer.send_bytes(encode(commands.Connection.Open("/"), 0)[:9])
        peer.half_close()
        if stage == "connected":
            assert peer.read_to_end() in (b"", HEADER_AMQP091)
        else:
            assert peer.outcome() in (0, 501)


@pytest.mark.parametrize("stage", STAGES)
def test_vanished(broker: Broker, stage: str) -> None:
    """A reset instead of an end."""
    with RudePeer(broker) as peer:
        peer.reach(stage)
        peer.socket.setsockopt(1, 13, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("stage", STAGES[1:])
def test_byte_by_byte(broker: Broker, stage: str) -> None:
    """The result does not depend on how the bytes are split."""
    with RudePeer(broker) as peer:
        for octet in HEADER_AMQP091:
            peer.send_bytes(bytes([octet]))
        peer.expect_method("Connection.Start")
        start_ok = encode(commands.Connection.StartOk({"product": "slow"}, "PLAIN", "\0guest\0guest", "en_US"), 0)
        for octet in start_ok:
            peer.send_bytes(bytes([octet]))
        peer.expect_method("Connection.Tune")
        for octet in encode(commands.Connection.TuneOk(0, 0, 0), 0) + encode(commands.Connection.Open("/"), 0):
            peer.send_bytes(bytes([octet]))
        peer.expect_method("Connection.OpenOk")


WRONG_HEADERS = [
    b"AMQP\x00\x00\x09\x02", b"AMQP\x01\x01\x08\x00", b"amqp\0\0\x09\x01", b"HTTP/1.1", bytes(8),
]  # fmt: skip
AMQP_1_0 = b"AMQP\x00\x01\x00\x00"
SASL_1_0 = b"AMQP\x03\x01\x00\x00"
BAD_TABLES = [b"F\0\0\0\x02ab", b"\x05shor", b"\x02hiQ\0", b"\x02hi" + b"A\xff\xff\xff\xff", b"\x02hiS\0\0\0\x10x"]


@pytest.mark.parametrize("header", WRONG_HEADERS, ids=repr)
def test_wrong_header(broker: Broker, header: bytes) -> None:
    """The broker answers with a supported protocol header, and closes."""
    with RudePeer(broker) as peer:
        peer.send_bytes(header)
        assert peer.read_to_end() == HEADER_AMQP091


@pytest.mark.parametrize(("header", "answer"), [
    (b"AMQP\x00\x01\x00\x01", AMQP_1_0), (b"AMQP\x00\x02\x00\x00", AMQP_1_0), (b"AMQP\x03\x01\x01\x00", SASL_1_0),
    (b"AMQP\x02\x01\x00\x00", SASL_1_0),
])  # fmt: skip
def test_wrong_versions_of_amqp_1_0(broker: Broker, header: bytes, answer: bytes) -> None:
    """The broker answers with the nearest supported header, and closes (AMQP 1.0 transport 2.2)."""
    leveret_only("RabbitMQ 3 has other answers")
    with RudePeer(broker) as peer:
        peer.send_bytes(header)
        assert peer.read_to_end() == answer


@pytest.mark.parametrize(
    "octets",
    [b"\xff" * 64, b"\0" * 64, bytes(range(256)), b"\0\0\0\x0c\x02\0\0\0\0\x53\x99\x45"],
    ids=["ff", "00", "all", "descriptor"],
)
@pytest.mark.parametrize("header", [AMQP_1_0, SASL_1_0])
def test_garbage_over_amqp_1_0(broker: Broker, header: bytes, octets: bytes) -> None:
    """The connection ends, after an open and a close if it had begun."""
    leveret_only("RabbitMQ 3 has other answers")
    with RudePeer(broker) as peer:
        peer.send_bytes(header + octets)
        answer = peer.read_to_end()
        assert answer.startswith(header)
        if header == AMQP_1_0:
            assert b"\x00\x53\x10" in answer
            assert b"\x00\x53\x18" in answer


def test_large_frame_before_login(broker: Broker) -> None:
    """Unauthenticated clients may only send small frames."""
    with RudePeer(broker) as peer:
        peer.reach("started")
        peer.send_bytes(frame_bytes(1, 0, b"\0\n\0\x0b" + bytes(100_000)))
        assert peer.outcome() in (0, 501)


@pytest.mark.parametrize("size", [131073, 1 << 20, 0xFFFFFFFF])
def test_oversized_frame(broker: Broker, size: int) -> None:
    """Refused by its header, before its payload arrives. Eight extra bytes are accepted: some clients exclude them."""
    with RudePeer(broker) as peer:
        peer.reach("body")
        peer.send_bytes(struct.pack(">BHI", 3, 1, size) + b"x" * 10)
        assert peer.outcome() == 501


@pytest.mark.parametrize("channel_max,frame_max", [(65535, 131072), (2047, 1 << 30), (2047, 1000), (2047, 4095)])
def test_tune_beyond_the_offer(broker: Broker, channel_max: int, frame_max: int) -> None:
    with RudePeer(broker) as peer:
        peer.reach("authenticated")
        peer.send_method(commands.Connection.TuneOk(channel_max, frame_max, 0))
        peer.send_method(commands.Connection.Open("/"))
        assert peer.outcome() in (0, 501, 502, 530)


def test_channel_beyond_the_limit(broker: Broker) -> None:
    with RudePeer(broker) as peer:
        peer.reach("opened", channel_max=10)
        for number in range(1, 11):
            peer.send_method(commands.Channel.Open(), number)
            peer.expect_method("Channel.OpenOk")
        peer.send_method(commands.Channel.Open(), 11)
        assert peer.outcome() in (504, 530)


@pytest.mark.parametrize("size", [1 << 31, (1 << 63) - 1, (1 << 64) - 1])
def test_body_beyond_the_limit(broker: Broker, neighbour: Neighbour, size: int) -> None:
    """The header alone closes the channel with 311; the connection continues and the body frames are skipped."""
    with RudePeer(broker) as peer:
        peer.reach("method")
        peer.send_bytes(header_frame(1, size))
        peer.send_bytes(frame_bytes(3, 1, bytes(100_000)) * 20)
        close = peer.expect_method("Channel.Close")
        assert close.reply_code in (311, 406)
        peer.send_bytes(frame_bytes(3, 1, bytes(100_000)) * 20)
        peer.send_method(commands.Channel.CloseOk(), 1)
        neighbour.check()
        peer.send_method(commands.Channel.Open(), 1)
        peer.expect_method("Channel.OpenOk")
        peer.send_method(commands.Queue.Declare(exclusive=True), 1)
        peer.expect_method("Queue.DeclareOk")


@pytest.mark.parametrize("what", ["method", "header", "heartbeat", "body too long", "other class", "weight"])
def test_content_out_of_order(broker: Broker, what: str) -> None:
    with RudePeer(broker) as peer:
        peer.reach("header" if what == "body too long" else "method")
        if what == "method":
            peer.send_method(commands.Queue.Declare(exclusive=True), 1)
        elif what == "header":
            peer.send_bytes(header_frame(1, 10) * 2)
        elif what == "heartbeat":
            # Not out of order: it belongs to no channel.
            peer.send_bytes(frame_bytes(8, 0, b"") + header_frame(1, 0))
            peer.send_method(commands.Queue.Declare(exclusive=True), 1)
            peer.expect_method("Queue.DeclareOk")
            return
        elif what == "body too long":
            peer.send_bytes(frame_bytes(3, 1, b"x" * 1001))
        elif what == "other class":
            peer.send_bytes(header_frame(1, 10, class_id=50))
        else:
            peer.send_bytes(header_frame(1, 10, weight=1))
        assert peer.outcome() in (501, 502, 505)


def test_content_on_a_closed_channel(broker: Broker) -> None:
    with RudePeer(broker) as peer:
        peer.reach("opened")
        peer.send_method(commands.Basic.Publish(routing_key="x"), 7)
        peer.send_bytes(header_frame(7, 1) + frame_bytes(3, 7, b"x"))
        assert peer.outcome() in (504, 505, 503)


def test_frames_after_a_channel_error_are_dropped(broker: Broker) -> None:
    """Until close-ok, everything on the channel is discarded; other channels continue."""
    with RudePeer(broker) as peer:
        peer.reach("channel")
        peer.send_method(commands.Channel.Open(), 2)
        peer.expect_method("Channel.OpenOk")
        peer.send_method(commands.Queue.Declare(queue="does-not-exist", passive=True), 1)
        for _ in range(50):
            peer.send_method(commands.Basic.Publish(routing_key="x"), 1)
            peer.send_bytes(header_frame(1, 3) + frame_bytes(3, 1, b"abc"))
        peer.send_method(commands.Queue.Declare(queue="also-missing", passive=True), 1)
        close = peer.expect_method("Channel.Close")
        assert close.reply_code == 404
        peer.send_method(commands.Queue.Declare(exclusive=True), 2)
        peer.expect_method("Queue.DeclareOk")
        peer.send_method(commands.Channel.CloseOk(), 1)
        peer.send_method(commands.Channel.Open(), 1)
        peer.expect_method("Channel.OpenOk")


def test_a_close_without_its_ok(broker: Broker) -> None:
    """A client that ignores a close is disconnected."""
    with RudePeer(broker) as peer:
        peer.reach("opened")
        peer.send_bytes(frame_bytes(3, 1, b"body"))
        assert peer.expect_method("Connection.Close").reply_code in (503, 504, 505)
        peer.read_to_end(timeout=60)


@pytest.mark.parametrize("body", BAD_TABLES, ids=repr)
def test_malformed_tables(broker: Broker, body: bytes) -> None:
    """In a method: a syntax error. In the headers of a publish: the publisher's error, too."""
    table = struct.pack(">I", len(body)) + body
    with RudePeer(broker) as peer:
        peer.reach("channel")
        peer.send_bytes(frame_bytes(1, 1, struct.pack(">HHH", 50, 10, 0) + b"\0\x02" + table))
        assert peer.outcome() in (501, 502)


def test_deep_table(broker: Broker) -> None:
    """Deeply nested tables are refused or accepted; never a crash."""
    table = b""
    for _ in range(20_000):
        table = b"\x01aF" + struct.pack(">I", len(table)) + table
        if len(table) > 120_000:
            break
    with RudePeer(broker) as peer:
        peer.reach("channel")
        peer.send_bytes(
            frame_bytes(1, 1, struct.pack(">HHH", 50, 10, 0) + b"\0\x02" + struct.pack(">I", len(table)) + table)
        )
        method = peer.next_method()
        assert method is not None
        assert method.name in ("Connection.Close", "Channel.Close", "Queue.DeclareOk")


def test_malformed_headers_of_a_message(broker: Broker) -> None:
    """Property flags that announce more than follows."""
    for rest, flags in ((b"\x05ab", 0x8000), (b"", 0xFFFC), (b"\xff\xff\xff\xff", 0x2000), (b"", 0x0001)):
        with RudePeer(broker) as peer:
            peer.reach("method")
            peer.send_bytes(header_frame(1, 1, flags=flags, rest=rest) + frame_bytes(3, 1, b"x"))
            peer.send_method(commands.Queue.Declare(exclusive=True), 1)
            method = peer.next_method()
            assert method.name in ("Connection.Close", "Channel.Close", "Queue.DeclareOk")
