"""The opening and the closing of a connection (0-9-1 sections 2.2.4 and 4.2.2, class connection)."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from leveret.wire.amqp0 import states
from leveret.wire.amqp0.commands import CONNECTION_SCOPE, SOCKET_SCOPE, Error, Method
from leveret.wire.amqp0.dialects import QPID, RABBITMQ, SPECIFICATION
from leveret.wire.amqp0.engine import CLIENT, SERVER, Engine
from leveret.wire.amqp0.model import Version
from leveret.wire.amqp0.specs import V0_9, V0_9_1
from tests.wire.amqp0.peers import Pair, frame, method, names, only_error, open_pair, open_server, shape

START_OK = method(0, 10, 11, b"\0\0\0\0" + b"\x05PLAIN" + b"\0\0\0\x04\0u\0p" + b"\x05en_US")
OPEN = method(0, 10, 40, b"\x01/\0\0")
CHANNEL_OPEN = method(1, 20, 10, b"\0")


def tune_ok(channel_max: int = 0, frame_max: int = 0, heartbeat: int = 0) -> bytes:
    return method(0, 10, 31, struct.pack(">HIH", channel_max, frame_max, heartbeat))


def started() -> Engine:
    engine = Engine(SERVER, V0_9_1)
    engine.send(0, "connection.start", {"version_minor": 9})
    return engine


def tuning(**options: Any) -> Engine:
    engine = Engine(SERVER, V0_9_1, **options)
    engine.send(0, "connection.start")
    engine.receive(START_OK)
    engine.send(
        0,
        "connection.tune",
        {"channel_max": engine.channel_max, "frame_max": engine.frame_max, "heartbeat": engine.heartbeat},
    )
    return engine


@pytest.mark.parametrize("version", [V0_9_1, V0_9], ids=lambda version: version.name)
def test_a_connection_from_start_to_end(version: Version) -> None:
    pair = Pair(version)
    pair.open(frame_max=8192, channel_max=10, heartbeat=7)
    assert names(pair.server_got) == ["connection.start-ok", "connection.tune-ok", "connection.open"]
    assert names(pair.client_got) == ["connection.start", "connection.tune", "connection.open-ok"]
    start = pair.client_got[0]
    assert isinstance(start, Method)
    assert start.arguments == {
        "version_major": 0,
        "version_minor": 9,
        "server_properties": {},
        "mechanisms": "PLAIN",
        "locales": "en_US",
    }
    assert (start.channel, start.class_id, start.method_id) == (0, 10, 10)
    start_ok = pair.server_got[0]
    assert isinstance(start_ok, Method)
    assert start_ok.arguments["response"] == "\0u\0p"
    for engine in (pair.server, pair.client):
        assert (engine.frame_max, engine.channel_max, engine.heartbeat) == (8192, 10, 7)
        assert engine.state == states.OPENED
    pair.client.send(0, "connection.close", {"reply_code": 200, "reply_text": "bye"})
    pair.pump()
    assert names(pair.server_got[3:]) == ["connection.close"]
    pair.server.send(0, "connection.close-ok")
    pair.pump()
    assert names(pair.client_got[3:]) == ["connection.close-ok"]
    assert pair.server.state == pair.client.state == states.CLOSED
    assert pair.server.receive(OPEN) == []


def test_the_mechanism_sends_any_number_of_challenges() -> None:
    pair = Pair()
    pair.server.send(0, "connection.start")
    pair.pump()
    pair.client.send(0, "connection.start-ok")
    pair.pump()
    for _ in range(3):
        pair.server.send(0, "connection.secure", {"challenge": "c"})
        pair.pump()
        pair.client.send(0, "connection.secure-ok", {"response": b"\xff"})
        pair.pump()
    assert names(pair.client_got[1:]) == ["connection.secure"] * 3
    last = pair.server_got[-1]
    assert isinstance(last, Method)
    assert last.arguments["response"].encode("utf-8", "surrogateescape") == b"\xff"
    pair.server.send(0, "connection.tune")
    assert pair.server.state == states.TUNE_OK


@pytest.mark.parametrize(
    ("offered", "answer", "agreed"),
    [
        ((2047, 131072, 60), (0, 0, 0), (2047, 131072, 0)),
        ((2047, 131072, 60), (100, 4096, 30), (100, 4096, 30)),
        ((2047, 131072, 60), (2047, 131072, 600), (2047, 131072, 600)),
        ((0, 0, 60), (65535, 1 << 20, 60), (65535, 1 << 20, 60)),
        ((0, 0, 0), (0, 0, 5), (2047, 131072, 5)),
    ],
)
def test_negotiation(offered: tuple[int, int, int], answer: tuple[int, int, int], agreed: tuple[int, int, int]) -> None:
    pair = Pair()
    pair.server.send(0, "connection.start")
    pair.pump()
    pair.client.send(0, "connection.start-ok")
    pair.pump()
    fields = ("channel_max", "frame_max", "heartbeat")
    pair.server.send(0, "connection.tune", dict(zip(fields, offered, strict=True)))
    pair.pump()
    pair.client.send(0, "connection.tune-ok", dict(zip(fields, answer, strict=True)))
    pair.pump()
    for engine in (pair.server, pair.client):
        assert (engine.channel_max, engine.frame_max, engine.heartbeat) == agreed
        assert engine.payload_max == agreed[1] - 8


@pytest.mark.parametrize(
    "answer",
    [{"frame_max": 4095}, {"frame_max": 1}, {"frame_max": 131073}, {"channel_max": 2048}, {"frame_max": 2**32 - 1}],
)
def test_a_tune_ok_above_the_proposal_closes_the_socket(answer: dict[str, int]) -> None:
    engine = tuning()
    engine.to_send()
    error = only_error(engine.receive(tune_ok(**answer) + OPEN))
    assert (error.scope, error.code, error.class_id, error.method_id) == (SOCKET_SCOPE, 530, 10, 31)
    assert engine.state == states.CLOSED
    assert not engine.can_close
    engine.send(0, "connection.close")
    assert engine.to_send() == b""
    assert engine.receive(OPEN) == []


def test_a_client_may_pipeline_its_handshake() -> None:
    engine = tuning()
    commands = engine.receive(tune_ok() + OPEN + CHANNEL_OPEN + method(1, 85, 10, b"\0"))
    assert names(commands) == ["connection.tune-ok", "connection.open", "channel.open", "confirm.select"]
    assert engine.is_open(1)
    engine.send(0, "connection.open-ok")
    engine.send(1, "channel.open-ok")
    engine.send(1, "confirm.select-ok")
    assert engine.state == states.OPENED


@pytest.mark.parametrize(
    ("octets", "code", "class_id", "method_id"),
    [
        (OPEN, 503, 10, 40),
        (tune_ok(), 503, 10, 31),
        (CHANNEL_OPEN, 503, 20, 10),
        (method(0, 10, 10, b"\0\x09" + b"\0" * 12), 503, 10, 10),  # connection.start is the server's
        (method(0, 10, 99), 540, 10, 99),
        (method(0, 77, 10), 540, 77, 10),
        (START_OK[:-1] + b"\0", 501, 0, 0),
        (method(0, 10, 11, b"\0\0\0\x01"), 502, 10, 11),
        (frame(3, 1, b"x"), 504, 0, 0),
        (frame(7, 0, b"x"), 501, 0, 0),
        (frame(1, 0, b"\0\x0a\0"), 501, 0, 0),
    ],
)
def test_methods_other_than_start_ok(octets: bytes, code: int, class_id: int, method_id: int) -> None:
    engine = started()
    error = only_error(engine.receive(octets + START_OK))
    assert (error.scope, error.code, error.class_id, error.method_id) == (CONNECTION_SCOPE, code, class_id, method_id)
    assert engine.state == states.FAILED
    assert engine.can_close
    engine.send(0, "connection.close", {"reply_code": code})
    assert not engine.can_close
    assert engine.state == states.CLOSING


def test_a_method_out_of_order_is_command_invalid() -> None:
    engine = tuning()
    assert only_error(engine.receive(START_OK)).code == 503
    engine = open_server(1)
    assert only_error(engine.receive(OPEN)).code == 503
    engine = open_server(1)
    assert only_error(engine.receive(tune_ok())).code == 503


def start_ok_of(size: int) -> bytes:
    """Return a start-ok whose frame has this size in bytes."""
    rest = START_OK[15:-1]
    text = size - 8 - 4 - 4 - 7 - len(rest)
    table = b"\x01nS" + struct.pack(">I", text) + b"x" * text
    octets = method(0, 10, 11, struct.pack(">I", len(table)) + table + rest)
    assert len(octets) == size
    return octets


def test_frames_before_open_ok_are_small() -> None:
    assert names(started().receive(start_ok_of(8192))) == ["connection.start-ok"]
    engine = started()
    assert only_error(engine.receive(start_ok_of(8193))).code == 501
    assert engine.lost
    # The agreed frame-max applies from open-ok on, even if it is smaller.
    engine = tuning()
    engine.receive(tune_ok(0, 4096) + OPEN)
    assert engine.receive(frame(8, 0, b"")) == []
    engine.send(0, "connection.open-ok")
    assert only_error(engine.receive(frame(1, 0, b"x" * 4097))).code == 501


def test_an_oversized_frame_is_refused_by_its_header() -> None:
    engine = started()
    error = only_error(engine.receive(b"\x01\0\0\xff\xff\xff\xff\0"))
    assert error.code == 501
    assert engine.receive(START_OK) == []


def test_http_is_not_a_frame() -> None:
    assert only_error(started().receive(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).code == 501


@pytest.mark.parametrize("role", [SERVER, CLIENT])
def test_after_close_everything_is_discarded_until_close_ok(role: int) -> None:
    pair = open_pair(1)
    closer, other = (pair.server, pair.client) if role == SERVER else (pair.client, pair.server)
    got = pair.server_got if role == SERVER else pair.client_got
    closer.send(0, "connection.close", {"reply_code": 320, "reply_text": "stopping"})
    closer.send_heartbeat()
    other.send(1, "channel.close")
    other.send(2, "channel.flow")
    pending = other.to_send() + frame(3, 9, b"whatever") + frame(8, 0, b"") + method(0, 77, 77)
    assert closer.receive(pending) == []
    assert closer.state == states.CLOSING
    pair.pump()
    other.send(0, "connection.close-ok")
    pair.pump()
    assert names(got) == ["connection.close-ok"]
    assert closer.state == states.CLOSED
    assert not closer.can_close


def test_when_both_close_at_once_each_answers_and_waits() -> None:
    pair = open_pair(1)
    pair.server.send(0, "connection.close", {"reply_code": 320})
    pair.client.send(0, "connection.close", {"reply_code": 200})
    pair.pump()
    assert names(pair.server_got) == ["connection.close", "connection.close-ok"]
    assert names(pair.client_got) == ["connection.close", "connection.close-ok"]
    assert pair.server.state == pair.client.state == states.CLOSED


def test_close_is_sent_once() -> None:
    engine = open_server(1)
    engine.send(0, "connection.close", {"reply_code": 541})
    first = engine.to_send()
    assert first
    engine.send(0, "connection.close", {"reply_code": 320})
    engine.send(1, "basic.cancel", {"consumer_tag": "t"})
    engine.send(1, "channel.close")
    engine.send(0, "connection.blocked")
    assert engine.to_send() == b""
    assert not engine.is_open(1)


def test_after_the_peers_close_only_close_ok_is_received_or_sent() -> None:
    engine = open_server(1)
    commands = engine.receive(method(0, 10, 50, b"\0\xc8\0\0\0\0\0") + CHANNEL_OPEN + method(0, 77, 77))
    assert names(commands) == ["connection.close"]
    assert engine.state == states.CLOSE_RECEIVED
    engine.send(1, "channel.close")
    engine.send(0, "connection.close")
    assert engine.to_send() == b""
    engine.send(0, "connection.close-ok")
    assert engine.to_send() == method(0, 10, 51)
    assert engine.state == states.CLOSED


@pytest.mark.parametrize("when", ["start", "tune"])
def test_a_client_may_give_up_during_the_handshake(when: str) -> None:
    engine = started() if when == "start" else tuning()
    assert names(engine.receive(method(0, 10, 50, b"\0\xc8\0\0\0\0\0"))) == ["connection.close"]
    engine.send(0, "connection.close-ok")
    assert engine.state == states.CLOSED


def test_an_error_is_the_last_of_its_list_and_keeps_earlier_commands() -> None:
    engine = open_server(1)
    commands = engine.receive(method(1, 60, 110, b"\x01") + frame(9, 0, b"") + method(1, 60, 110, b"\x01"))
    assert [shape(command)[0] for command in commands] == ["Method", "Error"]


def test_frames_stay_in_step_after_an_error() -> None:
    engine = open_server(1)
    close_ok = method(0, 10, 51)
    # The frame of the error, a complete one after it, and one in two parts.
    body = frame(3, 1, b"x" * 100)
    commands = engine.receive(frame(9, 0, b"") + body + body[:50])
    assert isinstance(commands[0], Error)
    engine.send(0, "connection.close", {"reply_code": 501})
    assert engine.receive(body[50:]) == []
    assert names(engine.receive(close_ok)) == ["connection.close-ok"]


def test_a_garbled_frame_end_loses_the_boundaries() -> None:
    engine = open_server(1)
    error = only_error(engine.receive(frame(8, 0, b"", end=0)))
    assert (error.code, error.scope, engine.lost) == (501, CONNECTION_SCOPE, True)
    engine.send(0, "connection.close", {"reply_code": 501})
    assert engine.to_send().startswith(b"\x01")
    assert engine.receive(method(0, 10, 51)) == []


def test_rabbitmqs_connection_methods() -> None:
    pair = open_pair()
    pair.server.send(0, "connection.blocked", {"reason": "low on memory"})
    pair.server.send(0, "connection.unblocked")
    pair.client.send(0, "connection.update-secret", {"new_secret": "s", "reason": "r"})
    pair.pump()
    pair.server.send(0, "connection.update-secret-ok")
    pair.pump()
    assert names(pair.client_got) == ["connection.blocked", "connection.unblocked", "connection.update-secret-ok"]
    secret = pair.server_got[0]
    assert isinstance(secret, Method)
    assert secret.arguments == {"new_secret": "s", "reason": "r"}


def test_a_server_ignores_input_before_start() -> None:
    engine = Engine(SERVER, V0_9_1)
    assert only_error(engine.receive(START_OK)).code == 503
    assert not engine.can_close


@pytest.mark.parametrize(
    ("octets", "code"),
    [
        (method(0, 10, 11, START_OK[11:-1]), 503),  # start-ok is the client's
        (method(0, 10, 30, b"\0" * 8), 503),
    ],
)
def test_a_client_checks_its_server(octets: bytes, code: int) -> None:
    engine = Engine(CLIENT, V0_9_1)
    assert only_error(engine.receive(octets)).code == code


def test_redirection_of_0_9() -> None:
    pair = Pair(V0_9)
    pair.server.send(0, "connection.start")
    pair.pump()
    pair.client.send(0, "connection.start-ok")
    pair.pump()
    pair.server.send(0, "connection.tune")
    pair.pump()
    pair.client.send(0, "connection.tune-ok")
    pair.client.send(0, "connection.open", {"insist": True})
    pair.pump()
    pair.server.send(0, "connection.redirect", {"host": "elsewhere"})
    pair.pump()
    assert names(pair.client_got)[-1] == "connection.redirect"


def test_received_any() -> None:
    engine = started()
    engine.receive(b"")
    assert not engine.received_any
    engine.receive(b"\x01")
    assert engine.received_any
    engine.received_any = False
    engine.receive(b"\0")
    assert engine.received_any


def test_dialects() -> None:
    assert Engine(SERVER, V0_9_1).dialect is RABBITMQ
    assert Engine(SERVER, V0_9).dialect is QPID
    assert Engine(SERVER, V0_9_1, dialect=SPECIFICATION).dialect is SPECIFICATION


@pytest.mark.parametrize("options", [{"frame_max": 4095}, {"frame_max": 2**32}, {"channel_max": 0}, {"channel_max": 65536}])
def test_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be from"):
        Engine(SERVER, V0_9_1, **options)
    with pytest.raises(ValueError, match="role"):
        Engine(3, V0_9_1)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("connection.tune", {}),
        ("connection.start-ok", {}),
        ("no.such", {}),
        ("basic.return", {}),
        ("connection.close", {}),
        ("connection.blocked", {}),
    ],
)
def test_errors_of_the_caller_raise(name: str, arguments: dict[str, Any]) -> None:
    engine = Engine(SERVER, V0_9_1)
    with pytest.raises(ValueError, match=name.split(".")[0]):
        engine.send(0, name, arguments)
    assert engine.to_send() == b""
