"""Frames (0-9-1 sections 2.3.5 and 4.2.3 to 4.2.7): every framing error, with its reply code."""

from __future__ import annotations

import struct

import pytest

from leveret.wire.amqp0.commands import CONNECTION_SCOPE, SOCKET_SCOPE, Ack, Method, Publish
from leveret.wire.amqp0.model import Version
from leveret.wire.amqp0.specs import V0_9, V0_9_1
from tests.wire.amqp0.peers import (
    content_header,
    frame,
    joined,
    method,
    names,
    only_error,
    open_pair,
    open_server,
    publish_frames,
    publish_method,
    shape,
)

CANCEL = method(1, 60, 30, b"\x01t\0")


@pytest.mark.parametrize("version", [V0_9_1, V0_9])
@pytest.mark.parametrize("data", [frame(1, 1, b"x", end=0xCD), frame(255, 1, b"x"), frame(255, 1, b"xyz")[:9]])
def test_a_strict_engine_closes_the_socket_for_invalid_frames(version: Version, data: bytes) -> None:
    engine = open_server(1, version=version, strict_framing=True)
    error = only_error(engine.receive(CANCEL + data + CANCEL)[1:])
    assert (error.channel, error.scope, error.code) == (0, SOCKET_SCOPE, 501)
    assert engine.send(0, "connection.close", {}) == 0
    assert engine.to_send() == b""
    assert engine.receive(CANCEL) == []


@pytest.mark.parametrize(
    ("data", "code", "class_id", "method_id"),
    [
        # General frame format
        (frame(1, 1, b"\0\x3c\0\x1e\x01t\0", end=0xCD), 501, 0, 0),
        (frame(8, 0, b"", end=0), 501, 0, 0),
        (frame(0, 1, b""), 501, 0, 0),
        (frame(4, 1, b"x"), 501, 0, 0),
        (frame(9, 1, b"x"), 501, 0, 0),
        (frame(255, 1, b"x"), 501, 0, 0),
        (frame(1, 1, b"x" * 131073), 501, 0, 0),
        (frame(3, 1, b"x" * 131073), 501, 0, 0),
        (struct.pack(">BHI", 3, 1, 0xFFFFFFFF) + b"x", 501, 0, 0),
        # Method frames
        (frame(1, 1, b""), 501, 0, 0),
        (frame(1, 1, b"\0\x3c\0"), 501, 0, 0),
        (method(1, 60, 77), 540, 60, 77),
        (method(1, 61, 10), 540, 61, 10),
        (method(1, 0, 0), 540, 0, 0),
        (method(1, 30, 10, b"\0"), 540, 30, 10),  # class access is of 0-9
        (method(1, 60, 30, b"\x09t\0"), 502, 60, 30),
        (method(1, 60, 30, b"\x01t"), 502, 60, 30),
        (method(1, 60, 30, b"\x01t\0\0"), 502, 60, 30),
        (method(1, 50, 10, b"\0\0\x01q\0\0\0\0\x05\x01a?\0\0"), 502, 50, 10),
        # Methods of the other side
        (method(1, 60, 60, b"\x01t" + b"\0" * 11), 503, 60, 60),
        (method(1, 60, 50, b"\0" * 5), 503, 60, 50),
        (method(1, 50, 11, b"\0" * 9), 503, 50, 11),
        (method(1, 20, 11, b"\0" * 4), 503, 20, 11),
        (method(0, 10, 60, b"\0"), 503, 10, 60),
        # The wrong channel
        (method(0, 60, 30, b"\x01t\0"), 503, 60, 30),
        (method(0, 20, 10, b"\0"), 503, 20, 10),
        (method(1, 10, 50, b"\0\xc8\0\0\0\0\0"), 503, 10, 50),
        (method(1, 10, 51), 503, 10, 51),
        (method(2, 60, 30, b"\x01t\0"), 504, 60, 30),
        (publish_method(2), 504, 60, 40),
        (method(2, 20, 40, b"\0\xc8\0\0\0\0\0"), 504, 20, 40),
        (method(2, 20, 41), 504, 20, 41),
        (method(1, 20, 10, b"\0"), 504, 20, 10),
        (method(2048, 60, 30, b"\x01t\0"), 504, 60, 30),
        (method(1, 20, 41), 503, 20, 41),
        # Content without a method, or on no channel
        (content_header(1, 5), 505, 0, 0),
        (frame(3, 1, b"x"), 505, 0, 0),
        (content_header(2, 5), 504, 0, 0),
        (frame(3, 2, b"x"), 504, 0, 0),
        (content_header(0, 5), 504, 0, 0),
        (frame(3, 0, b"x"), 504, 0, 0),
        # Hot methods that are malformed
        (method(1, 60, 40, b"\0\0\x01e\x01q"), 502, 60, 40),
        (method(1, 60, 40, b"\0\0\x01e\x09q\0"), 502, 60, 40),
        (method(1, 60, 40, b"\0\0\x09e\x01q\0"), 502, 60, 40),
        (method(1, 60, 40, b"\0\0\x01e\x01q\0\0"), 502, 60, 40),
        (method(1, 60, 40, b"\0\0\xff"), 502, 60, 40),
        (method(1, 60, 40, b"\0\0\0\0"), 502, 60, 40),
        (method(1, 60, 40), 502, 60, 40),
        (method(1, 60, 80, b"\0" * 8), 502, 60, 80),
        (method(1, 60, 80, b"\0" * 10), 502, 60, 80),
        (method(1, 60, 90, b"\0" * 3), 502, 60, 90),
        (method(1, 60, 120, b"\0" * 12), 502, 60, 120),
        # Heartbeats
        (frame(8, 1, b""), 501, 0, 0),
        (frame(8, 0, b"x"), 501, 0, 0),
        (frame(8, 9, b""), 501, 0, 0),
    ],
)
def test_the_reply_to_invalid_frames(data: bytes, code: int, class_id: int, method_id: int) -> None:
    engine = open_server(1)
    error = only_error(engine.receive(data + CANCEL))
    assert (error.scope, error.code, error.class_id, error.method_id) == (CONNECTION_SCOPE, code, class_id, method_id)
    assert error.channel == struct.unpack_from(">H", data, 1)[0]
    assert error.text
    assert engine.can_close
    # Further input is ignored, and does not cause another error.
    assert engine.receive(CANCEL + data) == []


CONTENT = publish_method(1)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (CONTENT + CANCEL, 505),
        (CONTENT + publish_method(1), 505),
        (CONTENT + method(1, 60, 80, b"\0" * 9), 505),
        (CONTENT + method(1, 20, 40, b"\0\xc8\0\0\0\0\0"), 505),
        (CONTENT + frame(3, 1, b"x"), 505),
        (CONTENT + content_header(1, 5, class_id=10), 505),
        (CONTENT + content_header(1, 5, class_id=90), 505),
        (CONTENT + content_header(1, 5, weight=1), 501),
        (CONTENT + frame(2, 1, b"\0\x3c\0\0"), 502),
        (CONTENT + frame(2, 1, b""), 502),
        (CONTENT + content_header(1, 5) + content_header(1, 5), 505),
        (CONTENT + content_header(1, 5) + CANCEL, 505),
        (CONTENT + content_header(1, 5) + publish_method(1), 505),
        (CONTENT + content_header(1, 5) + frame(3, 1, b"x" * 6), 505),
        (CONTENT + content_header(1, 5) + frame(3, 1, b"x" * 4) + frame(3, 1, b"xx"), 505),
        (CONTENT + content_header(1, 5) + frame(3, 1, b"x" * 4) + CANCEL, 505),
        (CONTENT + frame(2, 1, struct.pack(">HHQH", 60, 0, 5, 0x8000)) + frame(3, 1, b"hello"), 502),
        (CONTENT + frame(2, 1, struct.pack(">HHQH", 60, 0, 5, 0))[:-1] + b"\0", 501),
        (CONTENT + frame(2, 1, struct.pack(">HHQH", 60, 0, 5, 0) + b"\0") + frame(3, 1, b"hello"), 502),
        (CONTENT + content_header(1, 5) + frame(3, 1, b"hello", end=0), 501),
        (CONTENT + content_header(2, 5), 504),
        (CONTENT + content_header(1, 5) + frame(3, 2, b"hello"), 504),
    ],
)
def test_contents_out_of_order_or_malformed(data: bytes, code: int) -> None:
    for pieces in ([data], [data[index : index + 1] for index in range(len(data))]):
        engine = open_server(1)
        commands = [command for piece in pieces for command in engine.receive(piece)]
        error = only_error(commands)
        assert (error.scope, error.code) == (CONNECTION_SCOPE, code)


def test_the_rest_of_an_invalid_frame_is_not_awaited() -> None:
    engine = open_server(1)
    data = frame(22, 3, b"x" * 1000)  # such as a TLS record
    assert only_error(engine.receive(data[:8])).code == 501
    # The frame boundaries are not lost.
    engine.send(0, "connection.close", {"reply_code": 501})
    assert names(engine.receive(data[8:] + method(0, 10, 51))) == ["connection.close-ok"]


def test_no_body_frames_follow_an_empty_body() -> None:
    publish, error = open_server(1).receive(CONTENT + content_header(1, 0) + frame(3, 1, b""))
    assert isinstance(publish, Publish)
    assert only_error([error]).code == 505


@pytest.mark.parametrize(
    "data",
    [
        frame(3, 1, b"x"),
        publish_method(1) + method(1, 60, 30, b"\x01t\0"),
        publish_method(1) + content_header(1, 5) + frame(3, 1, b"x" * 6),
    ],
)
def test_0_9_has_no_code_for_frames_out_of_order_but_frame_error(data: bytes) -> None:
    assert only_error(open_server(1, version=V0_9).receive(data)).code == 501


def test_methods_of_rabbitmq_are_not_in_0_9() -> None:
    assert only_error(open_server(1, version=V0_9).receive(method(1, 60, 120, b"\0" * 9))).code == 540
    assert names(open_server(1, version=V0_9).receive(method(1, 60, 80, b"\0" * 9))) == ["Ack"]


def test_the_maximum_frame_size() -> None:
    # Some clients apply frame-max to the payload, so 8 more bytes are accepted.
    for size, taken in ((4096 - 8, True), (4096, True), (4097, False)):
        engine = open_server(1, frame_max=4096)
        data = publish_frames(1, b"x" * size)
        if taken:
            assert names(engine.receive(data)) == ["Publish"]
        else:
            assert only_error(engine.receive(data)).code == 501


def test_reserved_fields_and_unused_bits_may_have_any_value() -> None:
    engine = open_server(1)
    data = method(1, 60, 40, b"\xff\xff\0\x01q\xff") + content_header(1, 1) + frame(3, 1, b"x")
    data += method(1, 50, 10, b"\xff\xff\x01q\xe0\0\0\0\0") + method(1, 60, 80, b"\0" * 8 + b"\xfe")
    publish, declare, ack = engine.receive(data)
    assert isinstance(publish, Publish)
    assert publish.flags == 3
    assert isinstance(declare, Method)
    assert declare.arguments["durable"] is False
    assert shape(ack)[1]["multiple"] is False


def test_heartbeats_are_silent() -> None:
    engine = open_server(1)
    engine.received_any = False
    assert engine.receive(frame(8, 0, b"") * 3) == []
    assert engine.received_any


def test_heartbeats_and_other_channels_may_interleave_with_the_frames_of_a_content() -> None:
    engine = open_server(1, 2)
    data = (
        publish_method(1, routing_key="a")
        + frame(8, 0, b"")
        + publish_method(2, routing_key="b")
        + content_header(1, 2)
        + method(0, 10, 70, b"\0\0\0\0\0")
        + frame(3, 1, b"a")
        + content_header(2, 1)
        + frame(3, 2, b"b")
        + frame(8, 0, b"")
        + frame(3, 1, b"A")
    )
    commands = engine.receive(data)
    assert names(commands) == ["connection.update-secret", "Publish", "Publish"]
    first, second = commands[1:]
    assert isinstance(first, Publish)
    assert isinstance(second, Publish)
    assert (first.channel, first.address, joined(first.body)) == (2, b"\0\x01b", b"b")
    assert (second.channel, second.address, joined(second.body)) == (1, b"\0\x01a", b"aA")


@pytest.mark.parametrize("version", [V0_9_1, V0_9], ids=lambda version: version.name)
def test_every_method_for_the_server_is_understood(version: Version) -> None:
    """Each engine understands the other: all methods except those that open and close."""
    for spec in version.methods.values():
        if spec.class_id in (10, 20) or spec.content:
            continue
        pair = open_pair(1, version=version)
        for sender, receiver, allowed in (
            (pair.client, pair.server, spec.server_receives),
            (pair.server, pair.client, spec.client_receives),
        ):
            if not allowed:
                with pytest.raises(ValueError, match=spec.name):
                    sender.send(1, spec.name)
                continue
            sender.send(1, spec.name)
            commands = receiver.receive(sender.to_send())
            assert len(commands) == 1
            if spec.name in ("basic.ack", "basic.nack", "basic.reject"):
                assert names(commands)[0] in ("Ack", "Nack")
            else:
                assert names(commands) == [spec.name]


def ack(channel: int, tag: int, multiple: int = 0, end: int = 0xCE) -> bytes:
    return frame(1, channel, struct.pack(">HHQB", 60, 80, tag, multiple), end)


def test_a_series_of_acks_is_received_however_it_is_divided() -> None:
    data = ack(1, 1) + ack(1, 2, 1) + ack(1, 2**63) + ack(2, 1) + CANCEL + ack(1, 3) + ack(1, 4, 2)
    expected = [(1, 1, False), (1, 2, True), (1, 2**63, False), (2, 1, False), (1, 3, False), (1, 4, False)]
    for position in range(len(data)):
        engine = open_server(1, 2)
        commands = engine.receive(data[:position]) + engine.receive(data[position:])
        acks = [
            (command.channel, command.delivery_tag, command.multiple) for command in commands if isinstance(command, Ack)
        ]
        assert acks == expected
        assert names(commands)[4] == "basic.cancel"


@pytest.mark.parametrize(
    ("data", "code"), [(ack(1, 3, end=0xCD), 501), (ack(3, 3), 504), (frame(1, 1, b"\0\x3c\0\x50" + bytes(8)), 502)]
)
def test_an_error_after_acks_is_reported_after_them(data: bytes, code: int) -> None:
    commands = open_server(1, 2).receive(ack(1, 1) + ack(1, 2) + data)
    assert names(commands[:2]) == ["Ack", "Ack"]
    assert only_error(commands[2:]).code == code


@pytest.mark.parametrize("kind", [4, 5, 6])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_out_of_band_frames_are_for_channels_that_were_opened_so(kind: int, number: int) -> None:
    engine = open_server(1, version=V0_9)
    error = only_error(engine.receive(frame(kind, number, b"\0\x3c\0\x28")))
    assert (error.scope, error.code) == (CONNECTION_SCOPE, 504)
    assert f"channel {number}" in error.text


def test_an_out_of_band_frame_is_refused_before_it_is_complete() -> None:
    engine = open_server(1, version=V0_9)
    assert only_error(engine.receive(struct.pack(">BHI", 6, 1, 60000) + b"x" * 20)).code == 504


@pytest.mark.parametrize("payload", [b"", b"x" * 5000], ids=["empty", "long"])
def test_trace_frames_are_discarded(payload: bytes) -> None:
    engine = open_server(1, version=V0_9)
    data = frame(7, 0, payload) + CANCEL + frame(7, 0, payload)
    assert names(engine.receive(data[:12]) + engine.receive(data[12:])) == ["basic.cancel"]
    assert engine.receive(publish_method(1)) == []
    # Within a content, too: they are no part of any channel.
    assert engine.receive(frame(7, 0, payload)) == []
    assert names(engine.receive(content_header(1, 0))) == ["Publish"]


def test_a_trace_frame_is_on_channel_0() -> None:
    assert only_error(open_server(1, version=V0_9).receive(frame(7, 1, b"x"))).code == 501


def test_a_trace_frame_ends_as_frames_do() -> None:
    assert only_error(open_server(1, version=V0_9).receive(frame(7, 0, b"x", end=0))).code == 501


@pytest.mark.parametrize("kind", [4, 5, 6, 7])
def test_0_9_1_has_no_such_frames(kind: int) -> None:
    assert only_error(open_server(1).receive(frame(kind, 0, b""))).code == 501
