"""Contents: assembled from frames, completely or in parts, forwarded while they arrive (0-9-1 section 4.2.6)."""

from __future__ import annotations

import struct
import sys
import tracemalloc

import pytest

from leveret.wire.amqp0.commands import (
    Command,
    ContentMethod,
    ContentPart,
    ContentStart,
    Publish,
)
from leveret.wire.amqp0.dialects import QPID
from leveret.wire.amqp0.engine import Engine
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.specs import V0_9
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

MIB = 1 << 20


def only_publish(commands: list[Command]) -> Publish:
    assert names(commands) == ["Publish"]
    publish = commands[0]
    assert isinstance(publish, Publish)
    return publish


def test_fields_of_a_publish() -> None:
    octets = publish_frames(
        1,
        b"hello",
        routing_key="kä",
        flags=3,
        delivery_mode=2,
        priority=7,
        expiration="1000",
        user_id="u",
        headers={"a": 1},
        content_type="t",
    )
    publish = only_publish(open_server(1).receive(octets))
    header = encode_header(
        60,
        5,
        {"delivery_mode": 2, "priority": 7, "expiration": "1000", "user_id": "u", "headers": {"a": 1}, "content_type": "t"},
    )
    assert shape(publish) == (
        "Publish",
        {
            "kind": 1,
            "channel": 1,
            "address": b"\0\x03k\xc3\xa4",
            "flags": 3,
            "header": header,
            "size": 5,
            "body": b"hello",
            "delivery_mode": 2,
            "priority": 7,
            "expiration": b"1000",
            "user_id": b"u",
            "headers_at": 16,
            "spooled": False,
        },
    )


@pytest.mark.parametrize("split", ["whole", "frames", "octets"])
@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 5000, 20000])
def test_bodies_in_frames_of_the_negotiated_size(size: int, split: str) -> None:
    pair = open_pair(1, frame_max=4096)
    body = bytes(index % 251 for index in range(size))
    pair.client.send_publish(1, b"\0\x01q", 0, encode_header(60, size, {}), body, size)
    octets = pair.client.to_send()
    assert octets.count(b"\x03\0\x01") >= -(-size // 4088)
    pieces = {
        "whole": [octets],
        "octets": [octets[at : at + 1] for at in range(len(octets))],
        "frames": [octets[at : at + 4096] for at in range(0, len(octets), 4096)],
    }[split]
    publish = only_publish([command for piece in pieces for command in pair.server.receive(piece)])
    assert joined(publish.body) == body
    assert publish.size == size


def test_an_empty_body_has_no_frames() -> None:
    engine = open_server(1)
    commands = engine.receive(publish_frames(1, b"") + publish_frames(1, b"", delivery_mode=2) + publish_frames(1, b"x"))
    assert [joined(command.body) for command in commands if isinstance(command, Publish)] == [b"", b"", b"x"]
    engine.receive(publish_method(1))
    assert only_publish(engine.receive(content_header(1, 0))).body == b""


def test_empty_frames_within_a_body_are_ignored() -> None:
    engine = open_server(1)
    octets = publish_method(1) + content_header(1, 2) + frame(3, 1, b"") * 3 + frame(3, 1, b"a") + frame(3, 1, b"")
    assert engine.receive(octets) == []
    assert joined(only_publish(engine.receive(frame(3, 1, b"b"))).body) == b"ab"


def test_small_pieces_are_joined() -> None:
    engine = open_server(1)
    size = 20000
    octets = publish_method(1) + content_header(1, size) + frame(3, 1, b"ab") * (size // 2)
    publish = only_publish(engine.receive(octets))
    assert joined(publish.body) == b"ab" * (size // 2)
    assert isinstance(publish.body, list)
    assert len(publish.body) <= 5
    mixed = (
        publish_method(1) + content_header(1, 10003) + frame(3, 1, b"x") + frame(3, 1, b"y" * 10000) + frame(3, 1, b"z") * 2
    )
    assert joined(only_publish(engine.receive(mixed)).body) == b"x" + b"y" * 10000 + b"zz"


def test_repeated_publishes_share_address_and_header() -> None:
    engine = open_server(1)
    octets = b"".join(publish_frames(1, f"body {number:03}".encode(), delivery_mode=2) for number in range(100))
    publishes = [command for command in engine.receive(octets) if isinstance(command, Publish)]
    assert [joined(publish.body) for publish in publishes] == [f"body {number:03}".encode() for number in range(100)]
    assert len({id(publish.address) for publish in publishes[1:]}) == 1
    assert len({id(publish.header) for publish in publishes[1:]}) == 1
    assert {publish.delivery_mode for publish in publishes} == {2}


def test_publishes_that_differ_in_one_thing_only() -> None:
    """A publish that is recognized as a repetition must be equal in every respect."""
    variants = [
        publish_frames(1, b"hello"),
        publish_frames(2, b"hello"),
        publish_frames(1, b"hello", flags=1),
        publish_frames(1, b"hello", flags=2),
        publish_frames(1, b"hello", routing_key="r"),
        publish_frames(1, b"hello", routing_key="qq"),
        publish_frames(1, b"hell"),
        publish_frames(1, b""),
        publish_frames(1, b"hello", delivery_mode=2),
        publish_frames(1, b"hello", delivery_mode=1),
        publish_frames(1, b"hello", priority=2),
        publish_frames(1, b"hello", expiration="5"),
        publish_frames(1, b"hello", user_id="5"),
        publish_frames(1, b"hello", headers={"a": 1}),
        publish_frames(1, b"hello", headers={"a": 2}),
        publish_frames(1, b"hello", content_type="x"),
    ]
    alone = [shape(open_server(1, 2).receive(octets)[0]) for octets in variants]
    assert len({str(each) for each in alone}) == len(variants)
    engine = open_server(1, 2)
    for first in range(len(variants)):
        for second in range(len(variants)):
            order = [*[first] * 4, *[second] * 4, first, second, first]
            commands = engine.receive(b"".join(variants[index] for index in order))
            assert [shape(command) for command in commands] == [alone[index] for index in order]


def test_interleaved_equal_contents_of_two_channels() -> None:
    """A header frame of one channel right after the method of another does not belong to that method."""
    engine = open_server(1, 2)
    engine.receive(publish_frames(1, b"a") * 2 + publish_frames(2, b"b") * 2 + publish_frames(1, b"a"))
    method_1, method_2 = publish_method(1), publish_method(2)
    rest_1, rest_2 = content_header(1, 1) + frame(3, 1, b"A"), content_header(2, 1) + frame(3, 2, b"B")
    for octets, expected in (
        (method_1 + method_2 + rest_1 + rest_2, [(1, b"A"), (2, b"B")]),
        (method_1 + method_2 + rest_2 + rest_1, [(2, b"B"), (1, b"A")]),
        (method_2 + method_1 + rest_1 + rest_2, [(1, b"A"), (2, b"B")]),
    ):
        commands = engine.receive(octets)
        assert [(command.channel, joined(command.body)) for command in commands if isinstance(command, Publish)] == expected


@pytest.mark.parametrize("cut", range(1, len(publish_frames(1, b"hello", delivery_mode=2))))
def test_a_repeated_publish_cut_anywhere(cut: int) -> None:
    octets = publish_frames(1, b"hello", delivery_mode=2)
    engine = open_server(1)
    engine.receive(octets * 3)
    expected = shape(engine.receive(octets)[0])
    first, second = engine.receive(octets + octets[:cut]), engine.receive(octets[cut:] + octets)
    assert [shape(command) for command in first + second] == [expected] * 3


def test_a_repeated_publish_on_a_channel_that_waits_for_a_body() -> None:
    data = publish_frames(1, b"hello")
    engine = open_server(1)
    engine.receive(data * 4 + publish_method(1) + content_header(1, 9))
    error = only_error(engine.receive(data))
    assert (error.code, error.channel) == (505, 1)


def test_a_repeated_publish_on_a_closed_channel() -> None:
    data = publish_frames(1, b"hello")
    engine = open_server(1)
    expected = shape(engine.receive(data * 4)[3])
    engine.send(1, "channel.close", {"reply_code": 404, "reply_text": "", "class_id": 0, "method_id": 0})
    assert engine.receive(data * 4) == []
    assert names(engine.receive(method(1, 20, 41) + method(1, 20, 10, b"\0"))) == ["channel.close-ok", "channel.open"]
    assert [shape(command) for command in engine.receive(data * 4)] == [expected] * 4


def test_other_frames_between_repeated_publishes() -> None:
    data = publish_frames(1, b"hello")
    ack = method(1, 60, 80, struct.pack(">QB", 7, 0))
    heartbeat = frame(8, 0, b"")
    commands = open_server(1).receive((data * 4 + ack + heartbeat) * 3)
    assert names(commands) == ["Publish", "Publish", "Publish", "Publish", "Ack"] * 3


def test_a_repeated_publish_with_a_garbled_frame_end() -> None:
    octets = publish_frames(1, b"hello", delivery_mode=2)
    for at in [index for index in range(len(octets)) if octets[index] == 206]:
        engine = open_server(1)
        engine.receive(octets * 3)
        error = only_error(engine.receive(octets[:at] + b"\0" + octets[at + 1 :]))
        assert error.code == 501


def test_large_bodies_are_forwarded_as_they_arrive() -> None:
    engine = open_server(1, spool_threshold=100_000)
    body = bytes(index % 253 for index in range(300_000))
    octets = publish_method(1, flags=1) + content_header(1, len(body), delivery_mode=2)
    (start,) = engine.receive(octets)
    assert isinstance(start, ContentStart)
    assert start.publish is not None
    assert start.publish.delivery_mode == 2
    assert start.publish.size == len(body)
    assert start.publish.body == b""
    parts: list[bytes] = []
    publish = None
    for at in range(0, len(body), 50_000):
        for command in engine.receive(frame(3, 1, body[at : at + 50_000])):
            if isinstance(command, ContentPart):
                assert publish is None
                parts.append(command.data)
            else:
                publish = command
    assert isinstance(publish, Publish)
    assert publish is start.publish
    assert publish.spooled
    assert publish.body == b""
    assert b"".join(parts) == body
    assert len(parts) == 6
    # The next one is not spooled.
    assert not only_publish(engine.receive(publish_frames(1, b"hello"))).spooled


def test_a_body_of_exactly_the_threshold_is_not_spooled() -> None:
    engine = open_server(1, spool_threshold=1000, max_body_size=2000)
    assert not only_publish(engine.receive(publish_frames(1, b"x" * 1000))).spooled
    assert names(engine.receive(publish_frames(1, b"x" * 1001))) == ["ContentStart", "ContentPart", "Publish"]
    assert names(engine.receive(publish_frames(1, b"x" * 2000))) == ["ContentStart", "ContentPart", "Publish"]
    assert names(engine.receive(publish_frames(1, b"x" * 2001))) == ["Error"]


def test_small_parts_of_a_spooled_body_are_joined() -> None:
    engine = open_server(1, spool_threshold=1000)
    octets = publish_method(1) + content_header(1, 9000) + frame(3, 1, b"abc") * 3000
    commands = engine.receive(octets)
    parts = [command.data for command in commands if isinstance(command, ContentPart)]
    assert b"".join(parts) == b"abc" * 3000
    assert len(parts) <= 3
    assert names(commands)[0] == "ContentStart"
    assert names(commands)[-1] == "Publish"


def test_a_refused_body_costs_no_memory() -> None:
    engine = open_server(1, max_body_size=MIB)
    assert names(engine.receive(publish_method(1) + content_header(1, 64 * MIB))) == ["Error"]
    piece = frame(3, 1, b"x" * 131064)
    tracemalloc.start()
    for _ in range(128):
        assert engine.receive(piece) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MIB


def work_of(engine: Engine, pieces: list[bytes]) -> int:
    """Measure the bytes allocated while the engine processed the pieces: copying, independent of other load on the
    machine."""
    allocated = 0
    for piece in pieces:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        engine.receive(piece)
        allocated += tracemalloc.get_traced_memory()[1] - before
    return allocated


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="counts what CPython allocates")
@pytest.mark.parametrize("chunk", [1460, 65536])
def test_large_bodies_are_not_copied_over_and_over(chunk: int) -> None:
    tracemalloc.start()
    try:
        costs = []
        for size in (4 * MIB, 16 * MIB):
            engine = open_server(1, spool_threshold=64 * MIB)
            frames = b"".join(frame(3, 1, b"x" * 131064) for _ in range(size // 131064))
            engine.receive(publish_method(1) + content_header(1, size + 1))
            costs.append(work_of(engine, [frames[at : at + chunk] for at in range(0, len(frames), chunk)]) / size)
    finally:
        tracemalloc.stop()
    # A few copies of each byte, and not more of them for the larger body.
    assert costs[0] < 6
    assert costs[1] < 1.5 * costs[0] + 0.5


def test_one_large_frame_byte_by_byte() -> None:
    engine = open_server(1)
    octets = publish_frames(1, b"x" * 100_000)
    for at in range(len(octets) - 1):
        assert engine.receive(octets[at : at + 1]) == []
    assert only_publish(engine.receive(octets[-1:])).size == 100_000


def test_deliveries_to_a_client() -> None:
    pair = open_pair(1, frame_max=4096)
    for number, size in enumerate((0, 10, 10, 4088, 4089, 10000)):
        pair.server.send_deliver(
            1, b"tag", number, number % 2 == 1, b"\x01e\x02rk", encode_header(60, size, {}), b"x" * size, size
        )
    pair.pump()
    for number, (command, size) in enumerate(zip(pair.client_got, (0, 10, 10, 4088, 4089, 10000), strict=True)):
        assert shape(command) == (
            "Deliver",
            {
                "kind": 6,
                "channel": 1,
                "consumer_tag": b"tag",
                "delivery_tag": number,
                "redelivered": number % 2 == 1,
                "address": b"\x01e\x02rk",
                "header": encode_header(60, size, {}),
                "size": size,
                "body": b"x" * size,
            },
        )


def test_a_client_finds_errors_in_deliveries() -> None:
    deliver = frame(1, 1, struct.pack(">HH", 60, 60) + b"\x01t" + b"\0" * 8 + b"\0\0\x01q")
    broken = frame(2, 1, struct.pack(">HHQH", 60, 0, 5, 0x8000)) + frame(3, 1, b"hello")
    assert only_error(open_pair(1).client.receive(deliver + broken)).code == 502
    assert names(open_pair(1).client.receive(deliver + content_header(1, 1) + frame(3, 1, b"x"))) == ["Deliver"]
    for payload in (b"\xff" + b"t" * 20, b"\x01t" + b"\0" * 8 + b"\0", b"\x01t" + b"\0" * 8 + b"\0\0\x01q\0", b"\0" * 5):
        error = only_error(open_pair(1).client.receive(frame(1, 1, struct.pack(">HH", 60, 60) + payload)))
        assert (error.code, error.class_id, error.method_id) == (502, 60, 60)


@pytest.mark.parametrize("size", [0, 5, 10000])
def test_other_methods_with_content(size: int) -> None:
    pair = open_pair(1, frame_max=4096)
    body = b"x" * size
    header = encode_header(60, size, {"message_id": "m"})
    returned = {"reply_code": 312, "reply_text": "NO_ROUTE", "exchange": "e", "routing_key": "k"}
    got = {"delivery_tag": 3, "redelivered": True, "exchange": "e", "routing_key": "k", "message_count": 9}
    pair.server.send_content(1, "basic.return", returned, header, body)
    pair.server.send_content(1, "basic.get-ok", got, header, [body[:2], body[2:]])
    pair.pump()
    first, second = pair.client_got
    for command, name, arguments in ((first, "basic.return", returned), (second, "basic.get-ok", got)):
        assert isinstance(command, ContentMethod)
        assert (command.name, command.arguments, command.header, command.size) == (name, arguments, header, size)
        assert joined(command.body) == body


def test_contents_of_0_9s_classes() -> None:
    pair = open_pair(1, version=V0_9)
    header = encode_header(70, 3, {"filename": "f"}, version=V0_9)
    pair.client.send_content(1, "file.stage", {}, header, b"abc")
    header = encode_header(80, 3, {"priority": 1}, version=V0_9)
    pair.client.send_content(1, "stream.publish", {"exchange": "e"}, header, b"abc")
    header = encode_header(110, 0, {"proxy_name": "p"}, version=V0_9)
    pair.client.send_content(1, "tunnel.request", {"meta_data": {"a": 1}}, header, b"")
    pair.pump()
    assert names(pair.server_got) == ["ContentStart", "ContentPart", "file.stage", "stream.publish", "tunnel.request"]
    publish = pair.server_got[3]
    assert isinstance(publish, ContentMethod)
    assert (publish.class_id, publish.method_id, publish.body) == (80, 20 + 20, b"abc")
    # A header of another class than the method's.
    pair.client.send_content(1, "file.stage", {}, encode_header(80, 3, {}, version=V0_9), b"abc")
    assert only_error(pair.server.receive(pair.client.to_send())).code == 501


def test_methods_with_and_without_content_are_not_confused() -> None:
    engine = open_server(1)
    with pytest.raises(ValueError, match="has content"):
        engine.send(1, "basic.return")
    with pytest.raises(ValueError, match="has no content"):
        engine.send_content(1, "basic.qos-ok", {}, b"", b"")


@pytest.mark.parametrize("spools", [True, False])
def test_uploads_are_forwarded_as_they_arrive(spools: bool) -> None:
    pair = open_pair(1, version=V0_9, max_body_size=100)
    pair.server.max_upload_size = 20_000
    pair.server.spools_uploads = spools
    body = [b"x" * 5000, b"y" * 5000]
    pair.client.send_content(1, "file.stage", {}, encode_header(70, 10_000, {"filename": "f"}, QPID, V0_9), body)
    commands = pair.server.receive(pair.client.to_send())
    staged = commands[-1]
    assert isinstance(staged, ContentMethod) and staged.spooled == spools
    if spools:
        assert names(commands) == ["ContentStart", "ContentPart", "ContentPart", "file.stage"]
        start, *parts = commands[:-1]
        assert isinstance(start, ContentStart) and start.publish is None and start.method is not None
        assert (start.method.name, start.method.size, start.method.header) == ("file.stage", 10_000, staged.header)
        assert [part.data for part in parts if isinstance(part, ContentPart)] == body and staged.body == b""
    else:
        assert names(commands) == ["file.stage"] and staged.body == body
    pair.client.send_content(1, "file.stage", {}, encode_header(70, 20_001, {}, QPID, V0_9), [])
    assert only_error(pair.server.receive(pair.client.to_send())).code == 311
