"""Opening a connection: protocol header, start, tune, open (0-9-1 sections 2.2.4, 4.2.2 and class connection)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.conformance.conftest import Connect
from tests.support.broker import LeveretProcess
from tests.support.peers.amqp091 import ChannelClass, Connection, Peer, Queue, method
from tests.support.peers.connection import Closed
from tests.support.peers.framing import HEADER_AMQP091, METHOD_FRAME, frame_bytes, short_string

Raw = Callable[..., Peer]


@pytest.mark.rule("0-9-1", "connection.start.protocol-name")
@pytest.mark.rule("0-9-1", "negotiation.refused")
@pytest.mark.parametrize(
    "sent",
    [
        b"AMPQ\x00\x00\x09\x01",
        b"\x00" * 8,
        b"\xff" * 8,
        b"amqp\x00\x00\x09\x01",
        b"SSH-2.0-",
    ],
)
def test_a_wrong_protocol_name_is_answered_with_the_right_header_and_a_close(raw: Raw, sent: bytes) -> None:
    peer = raw()
    peer.send_bytes(sent)
    assert peer.read_bytes(8) == HEADER_AMQP091
    peer.expect_eof()


@pytest.mark.rule("0-9-1", "connection.start.server-support")
@pytest.mark.parametrize("version", [(0, 2, 0, 0), (1, 1, 2, 0), (0, 0, 9, 2), (0, 0, 10, 0), (0, 255, 255, 255)])
def test_a_higher_version_is_answered_with_a_version_not_above_it(raw: Raw, version: tuple[int, ...]) -> None:
    peer = raw()
    peer.send_bytes(b"AMQP" + bytes(version))
    answer = peer.read_bytes(8)
    assert answer[:4] == b"AMQP"
    assert tuple(answer[5:]) <= version[1:]
    peer.expect_eof()


@pytest.mark.rule("0-9-1", "connection.start.server-support")
@pytest.mark.ahead_of_rabbitmq("takes some of them for 0-9-1")
@pytest.mark.parametrize("version", [(1, 1, 0, 8), (1, 1, 8, 0), (0, 0, 9, 0), (0, 0, 8, 0)])
def test_another_version_is_answered_with_this_one(raw: Raw, version: tuple[int, ...]) -> None:
    peer = raw()
    peer.send_bytes(b"AMQP" + bytes(version))
    assert peer.read_bytes(8) == HEADER_AMQP091
    peer.expect_eof()


@pytest.mark.rule("0-9-1", "negotiation.header")
@pytest.mark.rule("0-9-1", "negotiation.accepted")
@pytest.mark.rule("0-9-1", "negotiation.pieces")
def test_the_header_may_be_sent_byte_by_byte(raw: Raw) -> None:
    peer = raw()
    for byte in HEADER_AMQP091:
        peer.send_bytes(bytes((byte,)))
    start = peer.expect(0, Connection.Start)
    assert (start.version_major, start.version_minor) == (0, 9)


@pytest.mark.rule("0-9-1", "connection.start.server-properties.required-fields")
@pytest.mark.ahead_of_rabbitmq("does not say its host")
def test_the_server_introduces_itself(raw: Raw) -> None:
    properties = raw().start().server_properties
    assert properties is not None
    for field in ("host", "product", "version", "platform", "copyright", "information"):
        assert isinstance(properties[field], str), field
        assert properties[field], field


@pytest.mark.rule("0-9-1", "connection.start.locales.required-support")
def test_en_us_is_a_locale(raw: Raw) -> None:
    locales = raw().start().locales
    assert "en_US" in (locales.decode() if isinstance(locales, bytes) else locales).split(" ")


@pytest.mark.rule("0-9-1", "connection.start-ok.client-properties.required-fields")
@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"product": "test", "version": "1", "platform": "Python", "copyright": "none", "information": "about"},
        {"capabilities": {"basic.nack": True, "unheard.of": [1, None, {"a": bytearray(b"\x00")}]}, "product": 7},
    ],
)
def test_a_client_may_introduce_itself_or_not(connect: Connect, properties: dict[str, object]) -> None:
    connect(properties=properties).channel().quiet()


@pytest.mark.rule("0-9-1", "connection.start-ok.mechanism.validity")
@pytest.mark.ahead_of_rabbitmq("negotiates a close first")
def test_a_mechanism_that_was_not_offered_closes_the_socket(raw: Raw) -> None:
    peer = raw()
    offered = peer.start().mechanisms
    assert "SCRAM-MD4" not in str(offered)
    peer.start_ok(mechanism="SCRAM-MD4")
    peer.expect_eof()


@pytest.mark.rule("0-9-1", "connection.tune.frame-max.minimum")
@pytest.mark.rule("0-9-1", "frame-min-size.constant")
def test_a_frame_of_the_minimum_size_is_accepted_before_tuning(raw: Raw) -> None:
    peer = raw()
    peer.start()
    for size in (2000, 4000):
        start_ok = method(
            Connection.StartOk,
            client_properties={"information": "i" * size},
            mechanism="PLAIN",
            response="\0guest\0guest",
            locale="en_US",
        )
        missing = 4096 - 8 - 4 - len(start_ok.marshal())
        if 0 <= missing < 1000:
            break
    start_ok = method(
        Connection.StartOk,
        client_properties={"information": "i" * (size + missing)},
        mechanism="PLAIN",
        response="\0guest\0guest",
        locale="en_US",
    )
    payload = b"\x00\x0a\x00\x0b" + start_ok.marshal()
    assert len(payload) + 8 == 4096
    peer.send_bytes(frame_bytes(METHOD_FRAME, 0, payload))
    tune = peer.expect(0, Connection.Tune)
    assert tune.frame_max == 0 or (tune.frame_max or 0) >= 4096


@pytest.mark.rule("0-9-1", "connection.tune-ok.frame-max.minimum")
@pytest.mark.rule("0-9-1", "connection.tune-ok.frame-max.text.both-directions")
@pytest.mark.rule("0-9-1", "framing.frame-max-sent")
@pytest.mark.rule("0-9-1", "frame-min-size.constant")
def test_the_minimum_frame_size_can_be_agreed_and_holds_in_both_directions(connect: Connect) -> None:
    peer = connect(frame_max=4096)
    channel = peer.channel()
    queue = channel.queue()
    text = bytes(range(256)) * 40
    channel.publish(text, queue)  # the peer splits it, and checks the size of received frames
    received = channel.get(queue)
    assert received is not None
    assert received.body == text
    peer.send_bytes(frame_bytes(METHOD_FRAME, 1, b"\x00" * 4200))
    peer.read_connection_close(501)


@pytest.mark.rule("0-9-1", "framing.frame-max-sent")
@pytest.mark.ahead_of_rabbitmq("sends header frames of any size")
@pytest.mark.parametrize("get", [True, False], ids=["get", "deliver"])
def test_a_header_frame_that_cannot_be_sent_is_not_sent(connect: Connect, get: bool) -> None:
    """Header frames cannot be split. The consumer gets the messages behind it."""
    sender = connect().channel()
    queue = sender.queue(exclusive=False)
    sender.publish(b"large", queue, headers={"long": "x" * 20_000})
    sender.publish(b"small", queue)
    small = connect(frame_max=4096).channel()  # the peer checks the size of received frames
    if get:
        received = small.get(queue)
    else:
        small.consume(queue)
        received = small.delivery()
    assert received is not None
    assert received.body == b"small"
    sender.call(Queue.Delete, Queue.DeleteOk, queue=queue)


@pytest.mark.rule("0-9-1", "connection.tune-ok.frame-max.minimum")
@pytest.mark.ahead_of_rabbitmq("negotiates a close")
@pytest.mark.parametrize("frame_max", [1, 4095])
def test_less_than_the_minimum_frame_size_is_refused(raw: Raw, frame_max: int) -> None:
    peer = raw()
    peer.start()
    peer.start_ok()
    peer.expect(0, Connection.Tune)
    peer.tune_ok(frame_max=frame_max)
    peer.expect_eof()


@pytest.mark.rule("0-9-1", "connection.tune-ok.frame-max.upper-limit")
@pytest.mark.ahead_of_rabbitmq("negotiates a close")
def test_a_larger_frame_max_than_offered_closes_without_negotiation(raw: Raw) -> None:
    peer = raw()
    peer.start()
    peer.start_ok()
    tune = peer.expect(0, Connection.Tune)
    assert tune.frame_max
    peer.tune_ok(frame_max=tune.frame_max + 1)
    peer.expect_eof()


@pytest.mark.rule("0-9-1", "connection.tune-ok.channel-max.upper-limit")
@pytest.mark.rule("0-9-1", "connection.tune-ok.channel-max.assert.le")
@pytest.mark.ahead_of_rabbitmq("negotiates a close")
def test_a_larger_channel_max_than_offered_closes_without_negotiation(raw: Raw) -> None:
    peer = raw()
    peer.start()
    peer.start_ok()
    tune = peer.expect(0, Connection.Tune)
    assert tune.channel_max
    peer.tune_ok(channel_max=tune.channel_max + 1)
    peer.expect_eof()


@pytest.mark.rule("0-9-1", "connection.tune-ok.channel-max.text.total")
@pytest.mark.rule("0-9-1", "not-allowed.constant")
@pytest.mark.mode("strict")
def test_the_agreed_channel_max_is_the_highest_channel_number(connect: Connect) -> None:
    peer = connect(channel_max=3)
    peer.channel(3)
    peer.send(4, ChannelClass.Open())
    peer.expect_connection_close(530, ChannelClass.Open)


@pytest.mark.rule("0-9-1", "connection.tune-ok.channel-max.text.total")
@pytest.mark.rule("0-9-1", "not-allowed.constant")
@pytest.mark.mode("rabbitmq")
def test_the_agreed_channel_max_is_the_number_of_open_channels(connect: Connect) -> None:
    peer = connect(channel_max=2)
    peer.channel(65535).quiet()
    peer.channel(3).close()
    peer.channel(4)
    peer.send(1, ChannelClass.Open())
    peer.expect_connection_close(530, ChannelClass.Open)


@pytest.mark.rule("0-9-1", "connection.tune-ok.frame-max.text.zero")
@pytest.mark.ahead_of_rabbitmq("wants a number of channels")
def test_zero_asks_for_no_limit_and_the_proposal_stays(connect: Connect, name: str) -> None:
    peer = connect(channel_max=0, frame_max=0)
    channel = peer.channel(2047)
    channel.queue(name)
    body = b"x" * 300_000
    channel.publish(body, name)
    assert channel.drain(name) == [body]


@pytest.mark.rule("0-9-1", "connection.open.virtual-host.separation")
def test_virtual_hosts_are_separate(raw: Raw, connect: Connect, name: str) -> None:
    here = connect().channel()
    there_peer = raw()
    there_peer.handshake("interop")
    there = there_peer.channel()
    here.queue(name)
    here.exchange(name, "fanout", auto_delete=True)
    here.bind(name, name)
    here.publish(b"here", name)
    assert not there.exists(name)
    there.publish(b"there", name)  # routed nowhere
    there.send(Queue.Declare, queue=name)
    there.expect(Queue.DeclareOk)
    there.quiet()
    assert there.depth(name) == 0
    assert here.drain(name) == [b"here"]
    there.call(Queue.Delete, Queue.DeleteOk, queue=name)
    assert here.exists(name)


@pytest.mark.rule("0-9-1", "connection.open.virtual-host.security")
def test_a_user_without_permissions_may_not_open_the_virtual_host(raw: Raw, vhost: str) -> None:
    peer = raw()
    peer.start()
    peer.start_ok("limited", "secret")
    peer.expect(0, Connection.Tune)
    peer.tune_ok()
    peer.send(0, method(Connection.Open, virtual_host=vhost))
    peer.expect_connection_close(530, Connection.Open)


@pytest.mark.rule("0-9-1", "invalid-path.constant")
@pytest.mark.mode("rabbitmq")
def test_an_unknown_virtual_host_is_refused(raw: Raw) -> None:
    peer = raw()
    peer.start()
    peer.start_ok()
    peer.expect(0, Connection.Tune)
    peer.tune_ok()
    peer.send(0, method(Connection.Open, virtual_host="no-such-host"))
    peer.expect_connection_close(530, Connection.Open)


@pytest.mark.rule("0-9-1", "invalid-path.constant")
@pytest.mark.mode("strict")
def test_an_unknown_virtual_host_is_an_invalid_path(raw: Raw, strict_broker: LeveretProcess) -> None:
    peer = raw(strict_broker)
    peer.start()
    peer.start_ok()
    peer.expect(0, Connection.Tune)
    peer.tune_ok()
    peer.send(0, method(Connection.Open, virtual_host="no-such-host"))
    peer.expect_connection_close(402, Connection.Open)


@pytest.mark.rule("0-9-1", "negotiation.login-fails")
def test_a_wrong_password_is_refused(raw: Raw) -> None:
    peer = raw()
    peer.start()
    peer.start_ok(password="wrong")
    peer.expect_eof()


@pytest.mark.rule("0-9-1", "negotiation.login-fails")
def test_a_wrong_password_gets_a_close_if_the_client_supports_it(raw: Raw) -> None:
    peer = raw()
    peer.start()
    peer.start_ok(password="wrong", properties={"capabilities": {"authentication_failure_close": True}})
    closed = peer.expect(0, Connection.Close)
    assert closed.reply_code == 403


@pytest.mark.rule("0-9-1", "negotiation.before-open")
@pytest.mark.ahead_of_rabbitmq("closes some of these without a word")
@pytest.mark.parametrize("early", ["tune-ok", "open", "channel.open"])
def test_methods_out_of_order_end_the_handshake(raw: Raw, early: str) -> None:
    peer = raw()
    peer.start()
    payload = {
        "tune-ok": b"\x00\x0a\x00\x1f" + b"\x00\x00" + b"\x00\x02\x00\x00" + b"\x00\x00",
        "open": b"\x00\x0a\x00\x28" + short_string("/") + b"\x00\x00",
        "channel.open": b"\x00\x14\x00\x0a\x00",
    }[early]
    peer.send_bytes(frame_bytes(METHOD_FRAME, 1 if early == "channel.open" else 0, payload))
    try:
        closed = peer.read()
    except Closed:
        return
    assert isinstance(closed, Connection.Close)
    assert closed.reply_code in (503, 504)


@pytest.mark.rule("0-9-1", "heartbeats.sent")
@pytest.mark.rule("0-9-1", "heartbeats.missed")
def test_heartbeats_are_sent_as_agreed_and_their_absence_ends_the_connection(connect: Connect) -> None:
    peer = connect(interval=1)
    began = time.monotonic()
    with pytest.raises(Closed):
        while time.monotonic() - began < 30:
            peer.read_frame()
            peer.heartbeats += 1
    assert peer.heartbeats >= 1


@pytest.mark.rule("0-9-1", "heartbeats.any-traffic")
def test_heartbeats_keep_a_connection(connect: Connect) -> None:
    peer = connect(interval=1)
    channel = peer.channel()
    began = time.monotonic()
    while time.monotonic() - began < 2.8:
        number, _ = peer.read_frame()
        assert number == 0
        peer.send_bytes(b"\x08\x00\x00\x00\x00\x00\x00\xce")
    channel.quiet()
