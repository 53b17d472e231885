"""Methods in requests and responses, as in 0-9 peers of Qpid in 2007: byte by byte, and between two engines."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from leveret.wire.amqp0.commands import Ack, Command, Deliver, Error, Method, Nack, Publish
from leveret.wire.amqp0.engine import CLIENT, SERVER, Engine
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.specs import V0_9, V0_9_1
from tests.support.examples import examples
from tests.wire.amqp0.peers import BASIC, frame, joined, method, publish_frames, shape, short_string
from tests.wire.amqp0.test_fuzz import check, session

REQUEST = 9
RESPONSE = 10
OPEN = struct.pack(">HH", 10, 40) + short_string("/") + b"\0\0"
ADDRESS = short_string("x") + short_string("key")


def of(class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    return struct.pack(">HH", class_id, method_id) + arguments


PING = of(20, 60)


def request(channel: int, id: int, payload: bytes, *, mark: int = 0, reserved: int = 0) -> bytes:
    return frame(REQUEST, channel, struct.pack(">QQI", id, mark, reserved) + payload)


def response(channel: int, id: int, request_id: int, payload: bytes, *, offset: int = 0) -> bytes:
    return frame(RESPONSE, channel, struct.pack(">QQI", id, request_id, offset) + payload)


def server_at_open() -> Engine:
    """Return a server that expects connection.open."""
    engine = Engine(SERVER, V0_9)
    engine.send(0, "connection.start", {"mechanisms": "PLAIN", "locales": "en_US"})
    engine.receive(method(0, 10, 11, bytes(4) + short_string("PLAIN") + bytes(4) + short_string("en_US")))
    engine.send(0, "connection.tune", {"channel_max": 100, "frame_max": 131072})
    engine.receive(method(0, 10, 31, struct.pack(">HIH", 100, 131072, 0)))
    engine.to_send()
    return engine


def server(channels: int = 1) -> Engine:
    """Return a server with open channels from 1 on, whose client wraps methods in requests."""
    engine = server_at_open()
    engine.receive(request(0, 1, OPEN))
    engine.send(0, "connection.open-ok")
    for number in range(1, channels + 1):
        engine.receive(request(number, 1, of(20, 10, b"\0")))
        engine.send(number, "channel.open-ok", {"channel_id": "id"})
    engine.to_send()
    return engine


def frames(octets: bytes) -> list[tuple[Any, ...]]:
    """Return type and channel of each frame, with its three numbers and the method, or with its payload."""
    found: list[tuple[Any, ...]] = []
    while octets:
        type, channel, size = struct.unpack_from(">BHI", octets)
        payload = octets[7 : 7 + size]
        assert octets[7 + size] == 206
        if type in (REQUEST, RESPONSE):
            found.append(
                (
                    type,
                    channel,
                    *struct.unpack_from(">QQI", payload),
                    V0_9.methods[struct.unpack_from(">I", payload, 20)[0]].name,
                )
            )
        else:
            found.append((type, channel, payload))
        octets = octets[8 + size :]
    return found


def error_of(commands: list[Command]) -> Error:
    assert commands and isinstance(commands[-1], Error), commands
    return commands[-1]


def test_a_request_is_answered_by_a_response() -> None:
    engine = server_at_open()
    (opened,) = engine.receive(request(0, 1, OPEN))
    assert isinstance(opened, Method) and opened.name == "connection.open"
    assert engine.uses_requests
    engine.send(0, "connection.open-ok")
    engine.receive(request(1, 1, of(20, 10, b"\0")))
    engine.send(1, "channel.open-ok", {"channel_id": "id"})
    assert frames(engine.to_send()) == [
        (RESPONSE, 0, 1, 1, 0, "connection.open-ok"),
        (RESPONSE, 1, 1, 1, 0, "channel.open-ok"),
    ]


def test_each_channel_and_direction_numbers_separately() -> None:
    engine = server(2)
    engine.receive(request(1, 2, of(20, 20, b"\1"), mark=1) + request(2, 2, of(20, 60), mark=1))
    engine.send(2, "channel.ok")
    engine.send(2, "channel.pong")
    engine.send(1, "channel.flow-ok", {"active": True})
    engine.send(1, "channel.flow", {"active": False})
    (answer,) = engine.receive(response(1, 1, 1, of(20, 21, b"\0")))
    assert isinstance(answer, Method)
    assert (answer.name, answer.request, answer.replied_first, answer.replied_last) == ("channel.flow-ok", 0, 1, 1)
    engine.send(1, "channel.flow", {"active": True})
    assert frames(engine.to_send()) == [
        (RESPONSE, 2, 2, 2, 0, "channel.ok"),
        (REQUEST, 2, 1, 0, 0, "channel.pong"),
        (RESPONSE, 1, 2, 2, 0, "channel.flow-ok"),
        (REQUEST, 1, 1, 0, 0, "channel.flow"),
        (REQUEST, 1, 2, 1, 0, "channel.flow"),
    ]


def test_answers_find_their_requests_in_any_order() -> None:
    engine = server()
    bind = of(50, 20, bytes(2) + short_string("q") + short_string("x") + short_string("") + b"\0" + bytes(4))
    declare = of(50, 10, bytes(2) + short_string("q") + b"\0" + bytes(4))
    without_answer = of(50, 10, bytes(2) + short_string("r") + b"\x10" + bytes(4))
    commands = engine.receive(
        request(1, 2, without_answer) + request(1, 3, bind) + request(1, 4, declare) + request(1, 5, declare)
    )
    assert [command.request for command in commands if isinstance(command, Method)] == [2, 3, 4, 5]
    engine.send(1, "queue.declare-ok", {"queue": "q"}, 5)
    engine.send(1, "queue.declare-ok", {"queue": "q"})
    engine.send(1, "queue.bind-ok")
    assert [sent[2:4] for sent in frames(engine.to_send())] == [(2, 5), (3, 4), (4, 3)]
    with pytest.raises(ValueError, match=r"queue\.declare-ok on channel 1 answers no request"):
        engine.send(1, "queue.declare-ok", {"queue": "q"})


def test_the_bit_mandatory_of_a_transfer_is_read_and_written_there() -> None:
    arguments = {"destination": "d", "body": (0, b"octets")}
    plain = Engine(CLIENT, V0_9)
    assert "mandatory" not in {field.name for field in plain.version.by_name["message.transfer"].fields}
    client, other = pair()
    id = client.send(1, "message.transfer", {**arguments, "mandatory": True})
    (transfer,) = other.receive(client.to_send())
    assert isinstance(transfer, Method) and transfer.request == id == 2
    assert transfer.arguments["mandatory"] is True and transfer.arguments["body"] == (0, b"octets")
    other.send(1, "message.ok", {}, transfer.request)
    (ok,) = client.receive(other.to_send())
    assert isinstance(ok, Method) and (ok.name, ok.replied_first, ok.replied_last) == ("message.ok", 2, 2)
    assert other.send(1, "message.transfer", arguments) == 1
    assert other.to_send().endswith(b"octets\0\xce")


def test_a_response_may_answer_a_batch() -> None:
    client, other = pair()
    for _ in range(3):
        other.send(1, "message.transfer", {"destination": "d"})
    other.to_send()
    (ok,) = other.receive(response(1, 1, 1, of(120, 500), offset=2))
    assert isinstance(ok, Method) and (ok.replied_first, ok.replied_last) == (1, 3)
    assert client.uses_requests


def pair() -> tuple[Engine, Engine]:
    """A client and a server that use requests, with channel 1 open."""
    client = Engine(CLIENT, V0_9)
    other = Engine(SERVER, V0_9)

    other.send(0, "connection.start", {"mechanisms": "PLAIN", "locales": "en_US"})
    client.receive(other.to_send())
    client.send(0, "connection.start-ok", {"mechanism": "PLAIN", "locale": "en_US"})
    other.receive(client.to_send())
    other.send(0, "connection.tune", {"channel_max": 100, "frame_max": 131072})
    client.receive(other.to_send())
    client.send(0, "connection.tune-ok", {"channel_max": 100, "frame_max": 131072})
    client.use_requests()
    client.send(0, "connection.open", {"virtual_host": "/"})
    other.receive(client.to_send())
    other.send(0, "connection.open-ok")
    client.receive(other.to_send())
    client.send(1, "channel.open")
    other.receive(client.to_send())
    other.send(1, "channel.open-ok", {"channel_id": "id"})
    client.receive(other.to_send())
    return client, other


def test_contents_follow_unwrapped() -> None:
    client, other = pair()
    header = encode_header(BASIC, 5, {"message_id": "1"})
    client.send_publish(1, ADDRESS, 1 | 7 << 2, header, b"hello", 5)
    octets = client.to_send()
    assert [sent[0] for sent in frames(octets)] == [REQUEST, 2, 3]
    (publish,) = other.receive(octets)
    assert isinstance(publish, Publish)
    assert (publish.address, publish.flags, publish.header, joined(publish.body)) == (ADDRESS, 1 | 7 << 2, header, b"hello")
    other.send_deliver(1, b"tag", 9, True, ADDRESS, header, b"hello", 5)
    other.send_deliver(1, b"tag", 10, False, ADDRESS, header, b"hello", 5)
    octets = other.to_send()
    assert [sent[:4] for sent in frames(octets) if sent[0] == REQUEST] == [(REQUEST, 1, 1, 0), (REQUEST, 1, 2, 0)]
    # Byte by byte as all at once.
    commands = [command for octet in octets for command in client.receive(bytes((octet,)))]
    deliveries = [command for command in commands if isinstance(command, Deliver)]
    assert [(item.delivery_tag, item.redelivered) for item in deliveries] == [(9, True), (10, False)]
    assert {(item.consumer_tag, item.address, joined(item.body)) for item in deliveries} == {(b"tag", ADDRESS, b"hello")}
    client.send_ack(1, 10, True)
    client.send_reject(1, 9, True)
    ack, reject = other.receive(client.to_send())
    assert isinstance(ack, Ack) and (ack.delivery_tag, ack.multiple) == (10, True)
    assert isinstance(reject, Nack) and (reject.delivery_tag, reject.requeue, reject.is_reject) == (9, True, True)


@pytest.mark.parametrize("again", [1, 4], ids=["restart", "continue"])
def test_a_reopened_channel_restarts_or_continues_counting(again: int) -> None:
    engine = server()
    ping = of(20, 60)
    engine.receive(
        request(1, 2, ping)
        + request(1, 3, of(20, 40, bytes(7)))
        + request(1, again, of(20, 10, b"\0"))
        + request(1, again + 1, ping)
    )
    # All input was read before any reply, so the reply to the close belongs to the previous channel.
    engine.send(1, "channel.ok")
    engine.send(1, "channel.close-ok")
    engine.send(1, "channel.open-ok", {"channel_id": "id"})
    engine.send(1, "channel.ok")
    assert [sent[2:4] for sent in frames(engine.to_send())] == [(2, 2), (3, 3), (again, again), (again + 1, again + 1)]


def test_unanswered_requests_of_a_closed_channel_are_dropped() -> None:
    engine = server()
    engine.receive(request(1, 2, PING))
    engine.send(1, "channel.close", {"reply_code": 404})
    engine.receive(response(1, 1, 1, of(20, 41)) + request(1, 3, of(20, 10, b"\0")) + request(1, 4, PING))
    engine.to_send()
    engine.send(1, "channel.open-ok", {"channel_id": "id"})
    engine.send(1, "channel.ok")
    assert [sent[2:4] for sent in frames(engine.to_send())] == [(2, 3), (3, 4)]


def test_a_close_that_crosses_another_is_answered_by_number() -> None:
    engine = server()
    engine.send(1, "channel.close", {"reply_code": 404})
    assert frames(engine.to_send()) == [(REQUEST, 1, 1, 0, 0, "channel.close")]
    engine.receive(request(1, 2, of(20, 60), mark=1) + request(1, 3, of(20, 40, bytes(7)), mark=1))
    assert frames(engine.to_send()) == [(RESPONSE, 1, 2, 3, 0, "channel.close-ok")]
    engine.receive(response(1, 1, 1, of(20, 41)))
    assert not engine.is_open(1) and not engine.is_closing(1)
    engine.send(0, "connection.close", {"reply_code": 320})
    engine.receive(request(0, 2, of(10, 50, bytes(7)), mark=1) + response(0, 1, 1, of(10, 51)))
    assert [sent[-1] for sent in frames(engine.to_send())] == ["connection.close", "connection.close-ok"]


@pytest.mark.parametrize(
    ("octets", "code", "text"),
    [
        (request(1, 3, PING), 503, "request 3 on channel 1, expected 2"),
        (request(1, 1, PING), 503, "request 1 on channel 1, expected 2"),
        (request(1, 2, PING, mark=2), 503, "request 2 on channel 1 has response-mark 2, expected at most 1"),
        (response(1, 1, 2, of(20, 21, b"\0")), 503, "response to request 2 on channel 1; requests sent so far: 1"),
        (response(1, 1, 0, of(20, 21, b"\0")), 503, "response to request 0 on channel 1; requests sent so far: 1"),
        (
            response(1, 1, 1, of(120, 500), offset=1),
            503,
            "response to requests 1 to 2 on channel 1; requests sent so far: 1",
        ),
        (response(1, 2, 1, of(20, 21, b"\0")), 503, "response 2 on channel 1, expected 1"),
        (response(1, 1, 1, PING), 503, "channel.ping in a response"),
        (request(1, 2, of(20, 21, b"\0")), 503, "channel.flow-ok in a request"),
        (frame(REQUEST, 1, bytes(23)), 501, "a request of 23 bytes is too short for its numbers and its method"),
        (frame(RESPONSE, 1, b""), 501, "a response of 0 bytes is too short for its numbers and its method"),
        (request(1, 2, of(50, 10, bytes(2))), 502, "queue.declare ends within queue"),
        (request(1, 2, of(60, 40, bytes(3))), 502, "basic.publish ends within routing-key"),
        (request(1, 2, of(60, 80, bytes(8))), 502, "basic.ack ends within multiple"),
        (request(1, 2, of(60, 250)), 540, "method 60.250 does not exist"),
        (request(5, 1, PING), 504, "channel.ping on channel 5, which is not open"),
        (
            method(1, 20, 60),
            501,
            "a frame of type 1: since connection.open, methods of this connection use frame types 9 and 10",
        ),
        (
            publish_frames(1, b"m"),
            501,
            "a frame of type 1: since connection.open, methods of this connection use frame types 9 and 10",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_malformed_requests(octets: bytes, code: int, text: str) -> None:
    engine = server()
    engine.send(1, "channel.flow", {"active": False})
    engine.to_send()
    error = error_of(engine.receive(octets))
    assert (error.code, error.text) == (code, text)
    engine.send(0, "connection.close", {"reply_code": code})
    assert frames(engine.to_send()) == [(REQUEST, 0, 1, 0, 0, "connection.close")]


def test_a_plain_publish_is_refused_in_the_same_data_as_the_open() -> None:
    engine = server_at_open()
    commands = engine.receive(request(0, 1, OPEN) + request(1, 1, of(20, 10, b"\0")) + publish_frames(1, b"m"))
    assert not any(isinstance(command, Publish) for command in commands)
    assert error_of(commands).code == 501


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        (
            request(1, 2, PING),
            "a frame of type 9: since connection.open, methods of this connection use frame type 1",
        ),
        (
            response(1, 1, 1, PING),
            "a frame of type 10: since connection.open, methods of this connection use frame type 1",
        ),
    ],
    ids=["request", "response"],
)
def test_requests_on_a_connection_that_was_opened_without(octets: bytes, text: str) -> None:
    engine = server_at_open()
    engine.receive(frame(1, 0, OPEN))
    engine.send(0, "connection.open-ok")
    engine.receive(method(1, 20, 10, b"\0"))
    assert not engine.uses_requests
    assert error_of(engine.receive(octets)).text == text


def test_requests_do_not_begin_before_connection_open() -> None:
    engine = Engine(SERVER, V0_9)
    engine.send(0, "connection.start", {"mechanisms": "PLAIN", "locales": "en_US"})
    assert error_of(engine.receive(request(0, 1, OPEN))).code == 501
    newer = Engine(SERVER, V0_9_1)
    newer.send(0, "connection.start", {"mechanisms": "PLAIN", "locales": "en_US"})
    assert error_of(newer.receive(request(0, 1, OPEN))).text == "frame type 9 does not exist"
    with pytest.raises(ValueError, match="requests and responses begin"):
        newer.use_requests()


def opened(requests: bool) -> Engine:
    """Return a server with channels 1 and 2, which has sent one request on each."""
    engine = server_at_open()
    for number, opens in ((0, OPEN), (1, of(20, 10, b"\0")), (2, of(20, 10, b"\0"))):
        engine.receive(request(number, 1, opens) if requests else frame(1, number, opens))
        if number == 0:
            engine.send(0, "connection.open-ok")
    for number in (1, 2):
        engine.send(number, "channel.flow", {"active": True})
    return engine


def in_requests(octets: bytes) -> bytes:
    """Return the same frames with each method in a request, or in a response to the first request."""
    out = b""
    requests = {1: 1, 2: 1}
    responses = {1: 0, 2: 0}
    while octets:
        type, channel, size = struct.unpack_from(">BHI", octets)
        payload = octets[7 : 7 + size]
        if type != 1:
            out += octets[: 8 + size]
        elif (spec := V0_9.methods[struct.unpack_from(">I", payload)[0]]).name in V0_9.responses:
            responses[channel] += 1
            out += response(channel, responses[channel], 1, payload)
        else:
            requests[channel] += 1
            out += request(channel, requests[channel], payload + (b"\0" if spec.name == "message.transfer" else b""))
        octets = octets[8 + size :]
    return out


def shapes(commands: list[Command]) -> list[Any]:
    """Return a command without its request numbers."""
    found = []
    for command in commands:
        name, values = shape(command)
        for number in ("request", "replied_first", "replied_last"):
            values.pop(number, None)
        arguments = values.get("arguments")
        if isinstance(arguments, dict):
            values["arguments"] = {
                key: value for key, value in arguments.items() if (values["name"], key) != ("message.transfer", "mandatory")
            }
        found.append((name, values))
    return found


@examples(150, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_in_requests_the_commands_are_the_same(data: st.DataObject) -> None:
    octets = b"".join(session(data.draw, V0_9))
    plain = opened(False).receive(octets)
    wrapped = in_requests(octets)
    assert shapes(opened(True).receive(wrapped)) == shapes(plain)
    engine = opened(True)
    edges = [0, *sorted(data.draw(st.lists(st.integers(0, len(wrapped)), max_size=12))), len(wrapped)]
    pieces = [command for start, end in pairwise(edges) for command in engine.receive(wrapped[start:end])]
    assert shapes(pieces) == shapes(plain)


@examples(150, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_mutated_requests(data: st.DataObject) -> None:
    octets = bytearray(in_requests(b"".join(session(data.draw, V0_9))))
    for _ in range(data.draw(st.integers(1, 4))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    engine = opened(True)
    check(engine.receive(bytes(octets)), engine)


@examples(150, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 9, 9, 9, 10, 10, 2, 3]),
            st.sampled_from([0, 1, 2, 3]),
            st.integers(0, 3),
            st.integers(0, 3),
            st.integers(0, 2),
            st.sampled_from([10, 20, 50, 60, 120, 7]),
            st.integers(0, 125),
            st.binary(max_size=30),
        )
    )
)
def test_random_requests(drawn: list[tuple[int, int, int, int, int, int, int, bytes]]) -> None:
    engine = opened(True)
    for type, channel, first, second, third, class_id, method_id, rest in drawn:
        check(
            engine.receive(frame(type, channel, struct.pack(">QQIHH", first, second, third, class_id, method_id) + rest)),
            engine,
        )
