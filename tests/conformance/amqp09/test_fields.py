"""Constants of 0-9, and constraints on its fields."""

from __future__ import annotations

import signal
import struct
from collections.abc import Callable
from typing import Final

import pytest

from tests.conformance.amqp09.conftest import Connect
from tests.support.broker import LeveretProcess
from tests.support.peers.amqp09 import Channel, Peer
from tests.support.peers.framing import frame_bytes, short_string

V: Final = "0-9"
LOG_IN: Final = {"mechanism": "PLAIN", "response": "\0guest\0guest", "locale": "en_US"}


@pytest.mark.rule(V, "frame-method.constant")
@pytest.mark.rule(V, "frame-header.constant")
@pytest.mark.rule(V, "frame-body.constant")
@pytest.mark.rule(V, "frame-heartbeat.constant")
@pytest.mark.rule(V, "frame-end.constant")
def test_frames_by_their_numbers(channel: Channel, name: str) -> None:
    channel.queue(name, exclusive=True)
    channel.peer.send_bytes(
        frame_bytes(1, 1, b"\x00\x3c\x00\x28\x00\x00" + short_string("") + short_string(name) + b"\x00", b"\xce")
        + frame_bytes(2, 1, struct.pack(">HHQH", 60, 0, 3, 0), b"\xce")
        + frame_bytes(8, 0, b"", b"\xce")
        + frame_bytes(3, 1, b"abc", b"\xce")
    )
    assert channel.drain(name) == [b"abc"]
    channel.peer.send_bytes(frame_bytes(8, 0, b"", b"\xcd"))
    channel.peer.read_end(501)


@pytest.mark.rule(V, "frame-oob-method.constant")
@pytest.mark.rule(V, "frame-oob-header.constant")
@pytest.mark.rule(V, "frame-oob-body.constant")
@pytest.mark.parametrize("number", [4, 5, 6])
def test_frames_out_of_band_need_a_channel_for_them(connect: Connect, number: int) -> None:
    peer = connect()
    peer.open()
    peer.send_bytes(frame_bytes(number, 1, b""))
    peer.expect_end(504)


@pytest.mark.rule(V, "frame-trace.constant")
def test_trace_frames_are_ignored_on_channel_0_and_errors_elsewhere(connect: Connect) -> None:
    peer = connect()
    channel = peer.open()
    peer.send_bytes(frame_bytes(7, 0, b"what happened"))
    channel.quiet()
    peer.send_bytes(frame_bytes(7, 1, b""))
    peer.expect_end(501)


@pytest.mark.rule(V, "reply-success.constant")
@pytest.mark.rule(V, "reply-code.assert.notnull")
@pytest.mark.rule(V, "reply-text.assert.notnull")
def test_a_close_has_a_code_and_a_text(connect: Connect) -> None:
    connect().close()  # with 200
    peer = connect()
    peer.open().send("channel.open")
    closed = peer.expect_end(504, "channel.open")
    assert closed.reply_text.startswith("CHANNEL_ERROR - ")


@pytest.mark.rule(V, "connection-forced.constant")
def test_an_operator_who_stops_the_broker_closes_connections(own_broker: LeveretProcess, raw: Callable[..., Peer]) -> None:
    peer = raw(own_broker)
    peer.connect()
    assert own_broker.process is not None
    own_broker.process.send_signal(signal.SIGTERM)
    peer.expect_end(320)
    own_broker.process.wait(60)


@pytest.mark.rule(V, "path.assert.notnull")
def test_an_empty_path_leads_to_the_default_vhost(raw: Callable[..., Peer]) -> None:
    peer = raw()
    peer.reach_open()
    peer.send_method(0, "connection.open", virtual_host="")
    peer.expect_method(0, "connection.open-ok")


@pytest.mark.rule(V, "path.assert.length")
@pytest.mark.rule(V, "path.assert.syntax")
@pytest.mark.rule(V, "connection.open.virtual-host.assert.regexp")
@pytest.mark.parametrize("path", ["v" * 128, "/with blank", "/%"])
def test_a_path_that_leads_nowhere_is_refused(raw: Callable[..., Peer], path: str) -> None:
    peer = raw()
    peer.reach_open()
    peer.send_method(0, "connection.open", virtual_host=path)
    peer.expect_end(402, "connection.open")


@pytest.mark.rule(V, "connection.open.virtual-host.assert.regexp")
def test_a_path_may_have_any_characters_that_a_vhost_has(connect: Connect) -> None:
    connect("vhöst/ü").open().quiet()


@pytest.mark.rule(V, "connection.start.mechanisms.assert.notnull")
@pytest.mark.rule(V, "connection.start.locales.assert.notnull")
def test_start_offers_mechanisms_and_locales(raw: Callable[..., Peer]) -> None:
    start = raw().begin()
    assert b"PLAIN" in start.mechanisms
    assert b"en_US" in start.locales


@pytest.mark.rule(V, "connection.start-ok.mechanism.assert.notnull")
@pytest.mark.rule(V, "connection.start-ok.response.assert.notnull")
@pytest.mark.parametrize("fields", [{"mechanism": ""}, {"mechanism": "plain"}, {"response": ""}], ids=str)
@pytest.mark.rule("0-9", "connection.start-ok.mechanism.text.offered")
def test_a_login_needs_a_mechanism_and_a_response(raw: Callable[..., Peer], fields: dict[str, str]) -> None:
    peer = raw()
    peer.begin()
    peer.send_method(0, "connection.start-ok", **(LOG_IN | fields))
    peer.expect_eof()


@pytest.mark.rule(V, "connection.start-ok.locale.assert.notnull")
@pytest.mark.parametrize("locale", ["", "de_DE"])
@pytest.mark.rule("0-9", "connection.start-ok.locale.text.offered")
def test_a_locale_that_was_not_offered_changes_nothing(raw: Callable[..., Peer], locale: str) -> None:
    peer = raw()
    peer.begin()
    peer.send_method(0, "connection.start-ok", **(LOG_IN | {"locale": locale}))
    peer.expect_method(0, "connection.tune")


@pytest.mark.rule(V, "connection.secure-ok.response.assert.notnull")
def test_an_empty_answer_to_a_challenge_proves_nothing(raw: Callable[..., Peer]) -> None:
    peer = raw()
    peer.begin()
    peer.send_method(0, "connection.start-ok", mechanism="SCRAM-SHA-256", response="n,,n=guest,r=nonce", locale="en_US")
    peer.expect_method(0, "connection.secure")
    peer.send_method(0, "connection.secure-ok")
    peer.expect_eof()


@pytest.mark.rule(V, "connection.tune-ok.channel-max.assert.le")
def test_a_larger_channel_max_than_proposed_closes_without_negotiation(raw: Callable[..., Peer]) -> None:
    peer = raw()
    peer.begin()
    peer.log_in()
    proposed = peer.expect_method(0, "connection.tune").channel_max
    peer.tune(channel_max=proposed + 1)
    peer.expect_eof()


@pytest.mark.rule(V, "channel.open.out-of-band.assert.null")
def test_a_channel_without_out_of_band_transfers(connect: Connect) -> None:
    peer = connect()
    peer.send_method(1, "channel.open", out_of_band="ib")
    peer.expect_end(502, "channel.open")


@pytest.mark.rule(V, "access-ticket.assert.ne")
def test_a_ticket_is_not_zero(channel: Channel) -> None:
    assert channel.call("access.request", realm="/data", read=True).ticket != 0


@pytest.mark.rule(V, "exchange.delete.exchange.assert.notnull")
@pytest.mark.rule(V, "exchange.declare.exchange.assert.regexp")
@pytest.mark.parametrize("method", ["exchange.delete", "exchange.declare"])
def test_an_exchange_has_a_name(channel: Channel, method: str) -> None:
    channel.send(method, exchange="", **({"type": "direct"} if method == "exchange.declare" else {}))
    channel.refused(403, method)


@pytest.mark.rule(V, "exchange.declare.type.assert.regexp")
@pytest.mark.parametrize("type", ["", "no type", "#"])
def test_a_type_that_does_not_exist_is_no_command(channel: Channel, name: str, type: str) -> None:
    channel.send("exchange.declare", exchange=name, type=type)
    channel.peer.expect_end(503, "exchange.declare")


@pytest.mark.rule(V, "queue.declare-ok.queue.assert.notnull")
def test_a_queue_without_a_name_gets_one(channel: Channel) -> None:
    assert len({channel.call("queue.declare", exclusive=True).queue for _ in range(5)} - {""}) == 5


ILLEGAL: Final = ["with blank", "hash#", "a" * 128]


@pytest.mark.rule(V, "exchange-name.assert.length")
@pytest.mark.rule(V, "queue-name.assert.length")
@pytest.mark.rule(V, "exchange.declare.exchange.assert.regexp")
@pytest.mark.rule(V, "queue.declare.queue.assert.regexp")
@pytest.mark.parametrize("method", ["exchange.declare", "queue.declare"])
@pytest.mark.parametrize("illegal", ILLEGAL)
def test_names_are_any_by_default_and_restricted_in_strict_mode(
    moded: Callable[[], Channel], mode: str, method: str, illegal: str
) -> None:
    channel = moded()
    kind = method.partition(".")[0]
    fields = {"type": "direct", "auto_delete": True} if kind == "exchange" else {"exclusive": True}
    channel.send(method, **{kind: illegal}, **fields)
    if mode == "strict":
        channel.refused(406, method)
    else:
        channel.expect(f"{method}-ok")
        channel.call(f"{kind}.delete", **{kind: illegal})


@pytest.mark.rule(V, "dtx.start.dtx-identifier.assert.notnull")
def test_a_branch_has_an_identifier(channel: Channel) -> None:
    channel.call("dtx.select")
    channel.send("dtx.start", dtx_identifier="")
    channel.refused(406, "dtx.start")
