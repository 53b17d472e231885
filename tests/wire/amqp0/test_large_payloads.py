"""Large payloads are received and sent by themselves, with the same result as small ones."""

from __future__ import annotations

import random
import sys
import tracemalloc

import pytest

from leveret.wire.amqp0.commands import ContentPart, ContentStart, Deliver, Publish
from leveret.wire.amqp0.constants import FRAME_ERROR, UNEXPECTED_FRAME
from leveret.wire.amqp0.engine import FRAME_COST, Engine
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.output_buffer import LARGE_PAYLOAD
from tests.wire.amqp0.peers import (
    content_header,
    frame,
    joined,
    method,
    only_error,
    open_pair,
    open_server,
    publish_frames,
    publish_method,
    shape,
)

# Sizes around the limits: small, as large as a frame, and several frames.
SIZES = (0, 1, 300, LARGE_PAYLOAD - 1, LARGE_PAYLOAD, 16384, 131064, 131065, 300_000)


def receive(engine: Engine, data: bytes, read_size: int) -> list[object]:
    """Receive data from a read buffer that is overwritten afterwards. Return the commands in a comparable form."""
    room = bytearray(read_size)
    found: list[object] = []
    at = 0
    while at < len(data) or engine.more:
        piece = data[at : at + read_size]
        at += len(piece)
        room[: len(piece)] = piece
        commands = engine.receive(memoryview(room)[: len(piece)]) if piece else engine.receive(b"")
        room[:] = bytes(read_size)
        found += [shape(command) for command in commands]
    return found


def contents(seed: int) -> bytes:
    """Return publishes on two channels, some with the same header as the one before, among acknowledgements."""
    chance = random.Random(seed)
    client = open_pair(1, 2).client
    size = 0
    for _ in range(30):
        if chance.randrange(3) == 0:
            size = chance.choice(SIZES)
        number = chance.choice((1, 1, 1, 2))
        properties = {} if chance.randrange(3) else {"priority": chance.randrange(9)}
        body = chance.randbytes(size)
        client.send_publish(number, b"\x00\x01q", 0, encode_header(60, size, properties), body, size)
        if chance.randrange(4) == 0:
            client.send_ack(1, chance.randrange(1, 99), False)
    return client.to_send()


@pytest.mark.parametrize("seed", range(8))
def test_reads_of_any_size_give_the_same_commands(seed: int) -> None:
    data = contents(seed)
    expected = [shape(command) for command in open_server(1, 2).receive(data)]
    for read_size in (700, 10_000, 65_536, 262_144):
        server = open_server(1, 2)
        assert receive(server, data, read_size) == expected
        assert server.is_between_frames
        limited = open_server(1, 2)
        limited.max_cost = FRAME_COST
        assert receive(limited, data, read_size) == expected


def test_frames_of_two_channels_may_alternate() -> None:
    first, second = b"a" * 40_000, b"b" * 40_000
    data = b"".join(publish_method(number) + content_header(number, 80_000) for number in (1, 2))
    data += b"".join(frame(3, number, body) for _ in range(2) for number, body in ((1, first), (2, second)))
    server = open_server(1, 2)
    commands = []
    for at in range(0, len(data), 30_000):
        commands += server.receive(memoryview(data)[at : at + 30_000])
    assert [(item.channel, joined(item.body)) for item in commands if isinstance(item, Publish)] == [
        (1, first * 2),
        (2, second * 2),
    ]


def test_a_body_keeps_only_its_own_memory_alive() -> None:
    server = open_server(1)
    data = b"".join(publish_frames(1, bytes(size)) for size in (16384, 16384, 9000, 131064, 16384, 100))
    data += publish_method(1) + content_header(1, 200_000) + frame(3, 1, bytes(120_000)) + frame(3, 1, bytes(80_000))
    bodies = []
    for at in range(0, len(data), 65_536):
        bodies += [item.body for item in server.receive(memoryview(data)[at : at + 65_536]) if isinstance(item, Publish)]
    assert len(bodies) == 7
    for body in bodies:
        parts = [body] if isinstance(body, bytes) else list(body)
        assert all(type(part) is bytes for part in parts)
        assert sum(map(sys.getsizeof, parts)) <= 2 * len(joined(parts))


def test_a_body_of_one_frame_is_in_one_piece() -> None:
    server = open_server(1)
    data = publish_frames(1, b"x" * 16384)
    commands = server.receive(memoryview(data)[:9000]) + server.receive(memoryview(data)[9000:])
    (publish,) = commands
    assert isinstance(publish, Publish)
    assert publish.body == b"x" * 16384


def test_a_client_receives_large_deliveries_in_pieces() -> None:
    pair = open_pair(1)
    bodies = [b"a" * 20_000, b"b" * 20_000]
    for number, body in enumerate(bodies, 1):
        pair.server.send_deliver(1, b"t", number, False, b"\x00\x01q", encode_header(60, 20_000, {}), body, 20_000)
    data = pair.server.to_send()
    got = [command for at in range(0, len(data), 15_000) for command in pair.client.receive(data[at : at + 15_000])]
    assert [joined(item.body) for item in got if isinstance(item, Deliver)] == bodies


def test_a_spooled_body_is_forwarded_in_parts() -> None:
    server = open_server(1, spool_threshold=50_000)
    body = random.Random(1).randbytes(100_000)
    data = publish_frames(1, body)
    commands = [item for at in range(0, len(data), 30_000) for item in server.receive(memoryview(data)[at : at + 30_000])]
    assert isinstance(commands[0], ContentStart)
    assert isinstance(commands[-1], Publish)
    assert b"".join(item.data for item in commands if isinstance(item, ContentPart)) == body


def test_a_wrong_frame_end_after_a_large_payload_is_an_error() -> None:
    server = open_server(1)
    data = publish_method(1) + content_header(1, 20_000) + frame(3, 1, bytes(20_000), end=0) + publish_frames(1, b"next")
    assert server.receive(memoryview(data)[:15_000]) == []
    error = only_error(server.receive(memoryview(data)[15_000:]))
    assert (error.code, server.lost) == (FRAME_ERROR, True)


def test_a_large_payload_beyond_the_announced_size_is_an_error() -> None:
    server = open_server(1)
    data = publish_method(1) + content_header(1, 10_000) + frame(3, 1, bytes(20_000))
    assert server.receive(memoryview(data)[:15_000]) == []
    assert only_error(server.receive(memoryview(data)[15_000:])).code == UNEXPECTED_FRAME


def test_a_large_payload_on_a_channel_that_was_closed_meanwhile_is_discarded() -> None:
    server = open_server(1, 2)
    data = publish_method(1) + content_header(1, 20_000) + frame(3, 1, bytes(20_000)) + publish_frames(2, b"next")
    assert server.receive(memoryview(data)[:15_000]) == []
    server.send(1, "channel.close", {"reply_code": 404, "reply_text": "NOT_FOUND"})
    (publish,) = server.receive(memoryview(data)[15_000:])
    assert isinstance(publish, Publish)
    assert (publish.channel, publish.body) == (2, b"next")
    assert server.is_between_frames


@pytest.mark.parametrize("size", SIZES)
def test_output_in_pieces_is_the_output_as_a_whole(size: int) -> None:
    body = random.Random(size).randbytes(size)
    outputs = []
    for in_pieces in (False, True):
        server = open_server(1)
        for number in (1, 2):
            server.send_deliver(1, b"t", number, False, b"\x00\x01q", encode_header(60, size, {}), body, size)
            server.send_ack(1, number, False)
        pending = server.pending
        pieces = server.take_pieces() if in_pieces else []
        assert bool(pieces) == (in_pieces and size >= LARGE_PAYLOAD)
        outputs.append(b"".join(pieces) or server.to_send())
        assert (len(outputs[-1]), server.pending, server.to_send()) == (pending, 0, b"")
    assert outputs[0] == outputs[1]


def test_deliveries_share_the_body() -> None:
    body = bytes(LARGE_PAYLOAD)
    server = open_server(1)
    for number in (1, 2):
        server.send_deliver(1, b"t", number, False, b"\x00\x01q", encode_header(60, len(body), {}), body, len(body))
    assert sum(piece is body for piece in server.take_pieces()) == 2


def test_the_remembered_frames_of_a_publish_are_only_its_own() -> None:
    server = open_server(1, 2)
    body = bytes(20_000)
    begin = publish_method(1) + content_header(1, len(body))
    ack = method(1, 60, 80, bytes(7) + b"\x01\x00")
    first = server.receive(memoryview(begin[:-20]))
    # The rest of a header, then a publish after an ack; the same bytes follow twice.
    data = begin[-20:] + frame(3, 1, body) + (ack + begin + frame(3, 1, body)) * 3
    commands = first + server.receive(memoryview(data))
    kinds = [type(command).__name__ for command in commands]
    assert kinds == ["Publish", "Ack", "Publish", "Ack", "Publish", "Ack", "Publish"]


def test_a_repeated_publish_of_another_header_is_parsed() -> None:
    server = open_server(1)
    body = bytes(20_000)
    data = b"".join(publish_frames(1, body, priority=number // 3 % 10) for number in range(60))
    commands = [item for at in range(0, len(data), 262_144) for item in server.receive(memoryview(data)[at : at + 262_144])]
    assert [item.priority for item in commands if isinstance(item, Publish)] == [n // 3 % 10 for n in range(60)]


def test_single_bytes_of_a_payload_need_no_more_memory_than_it() -> None:
    server = open_server(1)
    body = bytes(100_000)
    server.receive(publish_method(1) + content_header(1, len(body)) + frame(3, 1, body)[:7])
    tracemalloc.start()
    try:
        for _ in range(50_000):
            server.receive(b"\0")
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < len(body)
    (publish,) = server.receive(body[50_000:] + b"\xce")
    assert isinstance(publish, Publish)
    assert publish.body == body
