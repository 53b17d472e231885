"""Class connection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.amqp09.conftest import CONFIG_AMQP09, Connect, Raw
from tests.support.broker import LeveretProcess
from tests.support.peers import codec09 as codec
from tests.support.peers.amqp09 import HEADER_AMQP09, Peer
from tests.support.peers.framing import METHOD_FRAME, frame_bytes

VERSIONS = [b"AMQP\x00\x00\x09\x01", b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00", HEADER_AMQP09]


@pytest.mark.rule("0-9", "connection.start.protocol-name")
@pytest.mark.parametrize(
    "sent", [b"AMPQ\x01\x01\x00\x09", b"\x00" * 8, b"amqp\x01\x01\x00\x09"], ids=["typo", "zero", "small"]
)
def test_a_wrong_protocol_name_is_answered_by_no_method_and_a_close(raw: Raw, sent: bytes) -> None:
    peer = raw()
    peer.send_bytes(sent)
    assert peer.read_bytes(8)[:4] == b"AMQP"  # a protocol header, which is no method
    peer.expect_eof()


@pytest.mark.rule("0-9", "connection.start.server-support")
@pytest.mark.parametrize("version", [(1, 1, 9, 0), (1, 1, 0, 10), (1, 1, 1, 0), (1, 9, 0, 9)], ids=str)
def test_a_higher_version_is_answered_with_a_current_one(raw: Raw, version: tuple[int, ...]) -> None:
    peer = raw()
    peer.send_bytes(b"AMQP" + bytes(version))
    assert peer.read_bytes(8) in VERSIONS
    peer.expect_eof()


@pytest.mark.rule("0-9", "connection.start.server-support")
def test_0_9_is_provided_where_it_is_requested(raw: Raw) -> None:
    start = raw().begin()
    assert (start.version_major, start.version_minor) == (0, 9)


@pytest.mark.rule("0-9", "connection.start.server-properties.required-fields")
def test_the_server_introduces_itself_in_texts(raw: Raw) -> None:
    properties = raw().begin().server_properties
    for field in ("host", "product", "version", "platform", "copyright", "information"):
        assert properties[field], field
    assert all(isinstance(value, str) for value in properties.values()), "the decoders of 2006 know texts"


@pytest.mark.rule("0-9", "connection.start.locales.required-support")
def test_en_us_is_a_locale(raw: Raw) -> None:
    assert b"en_US" in raw().begin().locales.split(b" ")


@pytest.mark.rule("0-9", "connection.start-ok.mechanism.validity")
def test_a_mechanism_that_was_not_offered_closes_the_socket(raw: Raw) -> None:
    peer = raw()
    assert b"SCRAM-MD4" not in peer.begin().mechanisms
    peer.log_in(mechanism="SCRAM-MD4")
    peer.expect_eof()


@pytest.mark.rule("0-9", "connection.tune.frame-max.minimum")
@pytest.mark.rule("0-9", "frame-min-size.constant")
def test_a_frame_of_the_minimum_size_is_accepted_before_tuning(raw: Raw) -> None:
    peer = raw()
    peer.begin()
    fields = {"mechanism": "PLAIN", "response": b"\0guest\0guest", "locale": "en_US"}
    room = 4096 - 8 - len(codec.encode_method("connection.start-ok", fields | {"client_properties": {"information": ""}}))
    payload = codec.encode_method("connection.start-ok", fields | {"client_properties": {"information": "i" * room}})
    assert len(payload) + 8 == 4096
    peer.send_bytes(frame_bytes(METHOD_FRAME, 0, payload))
    assert peer.expect_method(0, "connection.tune").frame_max >= 4096


@pytest.mark.rule("0-9", "connection.tune-ok.frame-max.minimum")
@pytest.mark.rule("0-9", "frame-error.constant")
@pytest.mark.rule("0-9", "connection.tune-ok.frame-max.text.both-directions")
def test_the_minimum_frame_size_can_be_agreed_and_holds_in_both_directions(connect: Connect, name: str) -> None:
    peer = connect(frame_max=4096)
    channel = peer.open()
    channel.queue(name)
    text = bytes(range(256)) * 40
    channel.publish(text, name)  # the peer splits it, and checks the size of received frames
    assert channel.drain(name) == [text]
    peer.send_bytes(frame_bytes(METHOD_FRAME, 1, b"\x00" * 4200))
    peer.read_end(501)


@pytest.mark.rule("0-9", "connection.tune-ok.frame-max.minimum")
@pytest.mark.parametrize("frame_max", [1, 4095])
def test_less_than_the_minimum_frame_size_is_refused(raw: Raw, frame_max: int) -> None:
    peer = raw()
    peer.begin()
    peer.log_in()
    peer.expect_method(0, "connection.tune")
    peer.tune(frame_max=frame_max)
    peer.expect_eof()


@pytest.mark.rule("0-9", "connection.tune-ok.frame-max.upper-limit")
def test_a_larger_frame_max_than_proposed_closes_without_negotiation(raw: Raw) -> None:
    peer = raw()
    peer.begin()
    peer.log_in()
    proposed = peer.expect_method(0, "connection.tune").frame_max
    peer.tune(frame_max=proposed + 1)
    peer.expect_eof()


@pytest.mark.rule("0-9", "connection.tune-ok.channel-max.upper-limit")
def test_a_larger_channel_max_than_proposed_closes_without_negotiation(raw: Raw) -> None:
    peer = raw()
    peer.begin()
    peer.log_in()
    proposed = peer.expect_method(0, "connection.tune").channel_max
    peer.tune(channel_max=proposed + 1)
    peer.expect_eof()


@pytest.mark.rule("0-9", "connection.tune-ok.channel-max.upper-limit")
def test_the_agreed_channel_max_is_enforced(connect: Connect) -> None:
    """The limit is on the number of channels, as this version specifies, whatever their ids."""
    peer = connect(channel_max=2)
    peer.open(65535)
    peer.open(3)
    peer.send_method(4, "channel.open")
    peer.expect_end(530, "channel.open")


OPENING: dict[str, dict[str, Any]] = {
    "secure-ok": {"response": b""},
    "tune-ok": {"channel_max": 2047, "frame_max": 131072, "heartbeat": 0},
    "open": {"virtual_host": "/"},
}


@pytest.mark.rule("0-9", "section.connection")
@pytest.mark.parametrize(
    ("early", "authenticated"),
    [
        ("secure-ok", False),
        ("tune-ok", False),
        ("open", False),
        ("channel.open", False),
        ("secure-ok", True),
        ("open", True),
        ("channel.open", True),
    ],
)
def test_no_step_of_the_handshake_is_left_out(raw: Raw, early: str, authenticated: bool) -> None:
    """In particular not the login."""
    peer = raw()
    peer.begin()
    if authenticated:
        peer.log_in()
        peer.expect_method(0, "connection.tune")
    if early == "channel.open":
        peer.send_method(1, early)
    else:
        peer.send_method(0, f"connection.{early}", **OPENING[early])
    peer.expect_end(503, early if "." in early else f"connection.{early}")


@pytest.mark.rule("0-9", "connection.open.virtual-host.separation")
def test_virtual_hosts_are_separate(connect: Connect, name: str) -> None:
    here, there = connect().open(), connect("/interop").open()
    here.queue(name)
    here.exchange(name, "fanout")
    here.bind(name, name)
    here.publish(b"here", name)
    assert not there.exists(name)
    assert not there.exchange_exists(name)
    there.publish(b"nowhere", name)
    there.queue(name)
    assert there.depth(name) == 0
    there.publish(b"there", name)
    assert here.drain(name) == [b"here"]
    there.call("queue.delete", queue=name)
    assert here.exists(name)


@pytest.mark.rule("0-9", "connection.open.virtual-host.security")
def test_a_user_without_permissions_may_not_open_the_virtual_host(raw: Raw) -> None:
    peer = raw()
    peer.reach_open("limited", "secret")
    peer.send_method(0, "connection.open", virtual_host="/")
    peer.expect_end(530, "connection.open")
    peer = raw()
    peer.connect("/interop", "limited", "secret")


@pytest.mark.rule("0-9", "connection.open.virtual-host.security")
@pytest.mark.rule("0-9", "invalid-path.constant")
def test_an_unknown_virtual_host_is_an_invalid_path(raw: Raw) -> None:
    peer = raw()
    peer.reach_open()
    peer.send_method(0, "connection.open", virtual_host="/no-such-host")
    peer.expect_end(402, "connection.open")


@pytest.mark.rule("0-9", "connection.open.insist.behaviour")
@pytest.mark.rule("0-9", "connection.open.response.redirect")
@pytest.mark.rule("0-9", "connection.redirect.host.assert.notnull")
def test_a_client_that_insists_is_not_redirected(tmp_path: Path, raw: Raw) -> None:
    config = CONFIG_AMQP09 + 'redirect = "elsewhere:5672"\nknown_hosts = ["elsewhere:5672", "third:5672"]\n'
    with LeveretProcess(tmp_path / "redirecting", config=config).start() as broker:
        peer = raw(broker)
        opened = peer.connect(insist=True)
        assert opened.known_hosts == "elsewhere:5672,third:5672"
        peer.open().quiet()
        peer.close()
        peer = raw(broker)
        peer.reach_open()
        peer.send_method(0, "connection.open", virtual_host="/")
        redirect = peer.expect_method(0, "connection.redirect")
        assert (redirect.host, redirect.known_hosts) == ("elsewhere:5672", "elsewhere:5672,third:5672")
        peer.drop()


@pytest.mark.rule("0-9", "connection.open.insist.behaviour")
def test_a_client_that_insists_without_permission_gets_a_close(tmp_path: Path, raw: Raw) -> None:
    config = CONFIG_AMQP09 + 'redirect = "elsewhere:5672"\n'
    with LeveretProcess(tmp_path / "redirecting", config=config).start() as broker:
        peer = raw(broker)
        peer.reach_open("limited", "secret")
        peer.send_method(0, "connection.open", virtual_host="/", insist=True)
        peer.expect_end(530, "connection.open")


@pytest.mark.rule("0-9", "connection.close.stability")
def test_after_its_close_the_server_accepts_only_close_and_close_ok(connect: Connect, name: str) -> None:
    peer = connect()
    channel = peer.open()
    channel.send("channel.open")  # an error of connection scope
    channel.send("queue.declare", queue=name)
    peer.read_end(504)
    channel.send("queue.declare", queue=name)
    channel.publish(b"lost", name)
    peer.send_method(2, "channel.open")
    peer.send_method(0, "connection.close", reply_code=200)
    peer.expect_method(0, "connection.close-ok")
    peer.send_method(0, "connection.close-ok")
    peer.expect_eof()
    assert not connect().open().exists(name)


@pytest.mark.rule("0-9", "connection.close.stability")
def test_after_the_clients_close_no_method_is_performed(connect: Connect, name: str) -> None:
    peer = connect()
    channel = peer.open()
    peer.send_bytes(
        peer.method_frame(0, "connection.close", reply_code=200) + peer.method_frame(1, "queue.declare", queue=name)
    )
    peer.expect_method(0, "connection.close-ok")
    peer.expect_eof()
    assert channel.number == 1
    assert not connect().open().exists(name)


@pytest.mark.rule("0-9", "connection.close-ok.reporting")
@pytest.mark.parametrize("asked", [False, True], ids=["without-a-word", "after-close"])
def test_a_socket_that_ends_without_close_ok_is_logged(broker: LeveretProcess, connect: Connect, asked: bool) -> None:
    peer = connect()
    channel = peer.open()
    if asked:
        channel.send("channel.open")
        peer.read_end(504)
        broker.wait_for_log(f":{peer.local_port}", 0)
    after = len(broker.log())
    peer.drop()
    assert "clos" in broker.wait_for_log(f":{peer.local_port}", after).lower()


@pytest.mark.rule("0-9", "section.connection.start")
def test_the_header_may_be_sent_byte_by_byte(raw: Raw) -> None:
    peer: Peer = raw()
    for byte in HEADER_AMQP09:
        peer.send_bytes(bytes((byte,)))
    assert peer.expect_method(0, "connection.start").version_minor == 9
