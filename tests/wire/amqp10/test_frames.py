"""Frames and protocol headers (transport 2.2, 2.3; security 5.3), received and sent."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire.amqp10 import frames
from leveret.wire.amqp10.composite import Performative
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.decode import NO_LIMIT
from leveret.wire.amqp10.descriptors import ACCEPTED
from leveret.wire.amqp10.errors import EncodeError
from leveret.wire.amqp10.frames import AMQP, SASL, TLS, Empty, Failure, FrameReader, Header
from leveret.wire.amqp10.messaging import Accepted, Modified, Rejected
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.security import SaslInit, SaslMechanisms, SaslOutcome
from leveret.wire.amqp10.transport import Begin, Close, Disposition, End, Error, Flow, Open, Transfer
from leveret.wire.output_buffer import LARGE_PAYLOAD
from tests.support.examples import examples
from tests.wire.amqp10.strategies import plain

FRAMING = "amqp:connection:framing-error"
DECODE = "amqp:decode-error"


def frame(body: bytes, channel: int = 0, type: int = 0, doff: int = 2, size: int | None = None) -> bytes:
    length = doff * 4 + len(body) if size is None else size
    return struct.pack(">IBBH", length, doff, type, channel) + bytes(doff * 4 - 8) + body


def reader(max_frame_size: int = 65536, header: bool = False) -> FrameReader:
    return FrameReader(max_frame_size, header=header)


def opened_reader(max_cost: int = NO_LIMIT) -> FrameReader:
    opened = FrameReader(65536, header=False, max_cost=max_cost)
    opened.receive(frame(encode_composite(Open("x"))))
    return opened


def shape(item: Performative) -> tuple[Any, ...]:
    match item:
        case Header():
            return "header", item.protocol, item.major, item.minor, item.revision
        case Failure():
            return "failure", item.condition, item.channel
        case Empty():
            return "empty", item.channel
        case Transfer():
            return plain(item), item.channel, item.payload
    return plain(item), item.channel


def failure(items: list[Performative]) -> Failure:
    assert isinstance(items[-1], Failure)
    return items[-1]


def test_protocol_headers() -> None:
    for protocol in (AMQP, TLS, SASL):
        output = Output()
        output.send_header(protocol)
        encoded = output.to_send()
        assert encoded == b"AMQP" + bytes((protocol, 1, 0, 0))
        [header] = reader(header=True).receive(encoded)
        assert isinstance(header, Header)
        assert (header.protocol, header.is_supported()) == (protocol, True)
    for encoded in (b"AMQP\x00\x01\x01\x00", b"AMQP\x00\x00\x09\x01", b"AMQP\x01\x01\x00\x09"):
        [header] = reader(header=True).receive(encoded)
        assert isinstance(header, Header)
        assert not header.is_supported()
    assert failure(reader(header=True).receive(b"GET / HTTP/1.1")).condition == FRAMING


def test_all_frames_in_one_read() -> None:
    output = Output(4096)
    output.send_header(SASL)
    output.send(SaslInit("PLAIN", b"\0guest\0guest", "host"))
    output.send_header(AMQP)
    output.send(Open("me"))
    output.send(Begin(0, 10, 10, channel=3))
    output.send_empty()
    pending = output.pending
    encoded = output.to_send()
    assert pending == len(encoded)
    assert output.pending == 0
    assert output.to_send() == b""
    items = reader(header=True).receive(encoded)
    assert [shape(item)[0] for item in items[:1]] == ["header"]
    assert [type(item).__name__ for item in items] == ["Header", "SaslInit", "Header", "Open", "Begin", "Empty"]
    assert [item.channel for item in items] == [0, 0, 0, 0, 3, 0]


def test_sasl_frames() -> None:
    output = Output()
    output.send(SaslMechanisms(("PLAIN", "ANONYMOUS")))
    encoded = output.to_send()
    assert encoded[4:8] == b"\x02\x01\x00\x00"
    sasl = reader(header=True)
    sasl.receive(b"AMQP\x03\x01\x00\x00")
    # Bytes 6 and 7 and the extended header are ignored.
    [item] = sasl.receive(frame(encoded[8:], channel=9, type=1, doff=4))
    assert isinstance(item, SaslMechanisms)
    assert (item.sasl_server_mechanisms, item.channel) == (("PLAIN", "ANONYMOUS"), 0)
    for bad, condition in (
        (frame(b"", type=1), FRAMING),
        (frame(encode_composite(Open("x"))), FRAMING),
        (frame(encode_composite(Open("x")), type=1), DECODE),
        (frame(encode_composite(SaslOutcome(0)) + b"x", type=1), DECODE),
    ):
        sasl = reader(header=True)
        sasl.receive(b"AMQP\x03\x01\x00\x00")
        assert failure(sasl.receive(bad)).condition == condition


@pytest.mark.parametrize(
    ("encoded", "condition"),
    [
        (frame(b"", size=7), FRAMING),
        (frame(b"", size=0), FRAMING),
        (struct.pack(">IBBH", 8, 1, 0, 0), FRAMING),
        (struct.pack(">IBBH", 11, 3, 0, 0) + b"xxx", FRAMING),
        (struct.pack(">IBBH", 8, 255, 0, 0), FRAMING),
        (frame(b"", size=8193), FRAMING),
        (struct.pack(">IBBH", 0xFFFFFFFF, 2, 0, 0), FRAMING),
        (frame(b"", type=1), FRAMING),
        (frame(b"", type=2), FRAMING),
        (frame(encode_composite(Accepted())), DECODE),
        (frame(encode_composite(SaslInit("x"))), DECODE),
        (frame(encode_composite(End()) + b"\x40"), DECODE),
        (frame(encode_composite(Flow(0, 0, 0)) + b"\x40"), DECODE),
        (frame(encode_composite(Disposition(True, 0)) + b"\x40"), DECODE),
        (frame(b"\x40"), DECODE),
        (frame(b"\x00\x53\x99\x45"), DECODE),
        (frame(b"\x00\x53\x14\x45"), DECODE),
        (frame(b"\x00\x53\x14\xc0\x02\x05\x43"), DECODE),
        (frame(b"\x00\x53\x14\xc0\x20\x01\x43"), DECODE),
        (frame(b"\x00\x53\x14\xd0\x00\x00"), DECODE),
    ],
    ids=lambda item: item.hex()[:40] if isinstance(item, bytes) else "",
)
def test_valid_items_precede_the_failure(encoded: bytes, condition: str) -> None:
    amqp = reader()
    items = amqp.receive(frame(encode_composite(Begin(0, 1, 1)), 1) + encoded + frame(encode_composite(End()), 1))
    assert [type(item).__name__ for item in items] == ["Begin", "Failure"]
    assert failure(items).condition == condition
    assert failure(items).text
    assert amqp.receive(frame(encode_composite(End()), 1)) == []


def test_errors_have_their_place_in_the_frame() -> None:
    items = reader().receive(frame(b"\x00\x53\x18\xc0\x03\x01\x52\x01", doff=3, channel=4))
    assert failure(items).channel == 4
    assert failure(items).text == "close: error: expected a error, not UInt (at byte 18 of a frame)"


def test_extended_headers_and_empty_frames() -> None:
    items = reader().receive(frame(encode_composite(End()), 1, doff=5) + frame(b"", 7, doff=3) + frame(b"", 8))
    assert [shape(item)[-1] for item in items] == [1, 7, 8]


def test_frame_sizes_before_and_after_open() -> None:
    amqp = FrameReader(20_000, 600)
    large = frame(encode_composite(Transfer(0, 1, b"t", 0)) + b"x" * 1000, 1)
    assert failure(FrameReader(20_000, 600, header=False).receive(large)).condition == FRAMING
    amqp = FrameReader(20_000, 600, header=False)
    opened = frame(encode_composite(Open("x")))
    [_, transfer] = amqp.receive(opened + large)
    assert isinstance(transfer, Transfer)
    assert transfer.payload == b"x" * 1000
    assert failure(amqp.receive(frame(b"", size=20_001))).condition == FRAMING
    # Never less than every peer may send (transport 2.3.1).
    assert FrameReader(1, 1).max_frame_size == 512


def test_a_frame_that_is_announced_is_not_buffered_in_vain() -> None:
    amqp = reader()
    for _ in range(10):
        assert amqp.receive(b"") == []
    encoded = frame(encode_composite(Transfer(0, 1, b"t", 0)) + b"x" * 5000, 1)
    items = [item for at in range(0, len(encoded), 7) for item in amqp.receive(encoded[at : at + 7])]
    assert len(items) == 1
    assert amqp.buffered == 0


@examples(150)
@given(
    st.lists(
        st.sampled_from(
            [
                Open("x"),
                Begin(0, 1, 1, channel=2),
                Flow(1, 2, 3, channel=1),
                End(channel=9),
                Close(),
                Disposition(True, 0, 9, True, Accepted(), channel=1),
                Disposition(True, 0, 9, True, Modified(True), channel=1),
                Transfer(1, 300, b"tag", 0, False, payload=b"abc" * 50, channel=1),
            ]
        ),
        max_size=6,
    ),
    st.data(),
)
def test_items_do_not_depend_on_how_the_input_is_split(sent: list[Performative], data: st.DataObject) -> None:
    output = Output(4096)
    for item in sent:
        output.send(item)
    encoded = b"AMQP\0\1\0\0" + output.to_send()
    whole = [shape(item) for item in reader(header=True).receive(encoded)]
    assert whole[1:] == [shape(item) for item in sent]
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=8))), len(encoded)]
    pieces = reader(header=True)
    items = [item for start, end in pairwise(cuts) for item in pieces.receive(encoded[start:end])]
    assert [shape(item) for item in items] == whole
    single = reader(header=True)
    assert [shape(item) for at in range(len(encoded)) for item in single.receive(encoded[at : at + 1])] == whole


LARGE = [
    Transfer(1, 300, b"tag", 0, False, payload=bytes(LARGE_PAYLOAD), channel=1),
    Transfer(1, 301, b"tag", 0, False, more=True, payload=b"abc" * 7000, channel=1),
    # Not in the short form.
    Transfer(1, 302, b"tag", 0, False, state=Rejected(Error("x")), payload=b"abc" * 7000, channel=1),
]
SMALL = [Transfer(1, 303, b"tag", 0, False, payload=b"abc", channel=1), Flow(1, 2, 3, channel=1)]


@examples(150)
@given(st.lists(st.sampled_from([*LARGE, LARGE[0], *SMALL]), max_size=9), st.data())
def test_large_transfers_are_read_from_a_buffer_that_is_used_again(sent: list[Performative], data: st.DataObject) -> None:
    output = Output(65536)
    for item in sent:
        output.send(item)
    encoded = output.to_send()
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=4))), len(encoded)]
    buffer = bytearray(len(encoded))
    pieces = opened_reader()
    items = []
    for start, end in pairwise(cuts):
        buffer[: end - start] = encoded[start:end]
        items += pieces.receive(memoryview(buffer)[: end - start])
        buffer[:] = b"\xff" * len(buffer)
    assert [shape(item) for item in items] == [shape(item) for item in sent]


def test_large_transfers_beyond_the_maximum_cost_are_left_to_the_next_call() -> None:
    pieces = opened_reader(max_cost=3)
    encoded = frame(encode_composite(Transfer(1, 300, b"tag", 0, False)) + bytes(9000)) * 10
    pieces.receive(encoded)
    while pieces.more:
        pieces.receive(b"")
    items = pieces.receive(memoryview(encoded))
    assert len(items) < 10
    while pieces.more:
        items += pieces.receive(b"")
    assert [len(item.payload) for item in items if isinstance(item, Transfer)] == [9000] * 10


def test_a_large_payload_is_sent_without_a_copy() -> None:
    body = bytes(LARGE_PAYLOAD)
    output = Output(65536)
    for number in (300, 301):
        output.send_transfer(0, 1, number, b"tag", False, (b"head", body, b""), len(body) + 4)
    pieces = output.take_pieces()
    assert sum(piece is body for piece in pieces) == 2
    assert [shape(item)[-1] for item in opened_reader().receive(b"".join(pieces))] == [b"head" + body] * 2


@examples(300)
@given(
    st.integers(512, 1200),
    st.lists(st.binary(max_size=900), max_size=5),
    st.integers(0, 70_000),
    st.binary(max_size=32),
    st.booleans(),
    st.integers(0, 300),
    st.sampled_from(["send_transfer", "send_message", "one piece"]),
)
def test_deliveries_are_split(
    limit: int, pieces: list[bytes], delivery_id: int, tag: bytes, settled: bool, handle: int, how: str
) -> None:
    output = Output(limit)
    payload = b"".join(pieces)
    if how == "send_transfer":
        output.send_transfer(5, handle, delivery_id, tag, settled, pieces, len(payload))
        # Cached data does not change the output.
        output.send_transfer(5, handle, delivery_id, tag, settled, pieces, len(payload))
    elif how == "send_message":
        for _ in range(2):
            output.send_message(Transfer(handle, delivery_id, tag, 0, settled, channel=5), pieces)
    else:
        for _ in range(2):
            output.send(Transfer(handle, delivery_id, tag, 0, settled, payload=payload, channel=5))
    pending = output.pending
    encoded = output.to_send()
    assert pending == len(encoded)
    items = reader().receive(encoded)
    assert len(items) % 2 == 0
    half = items[: len(items) // 2]
    assert [shape(item) for item in items[len(half) :]] == [shape(item) for item in half]
    transfers = [item for item in half if isinstance(item, Transfer)]
    assert b"".join(item.payload for item in transfers) == payload
    assert [item.more for item in transfers] == [True] * (len(half) - 1) + [False]
    assert plain(half[0]) == plain(Transfer(handle, delivery_id, tag, 0, settled, len(half) > 1))
    for item in transfers[1:]:
        assert plain(item) == plain(Transfer(handle, more=item.more))
    pos = 0
    while pos < len(encoded):
        size = int.from_bytes(encoded[pos : pos + 4], "big")
        assert size <= limit
        pos += size
    if len(half) > 1:
        assert int.from_bytes(encoded[:4], "big") == limit


def test_a_continued_delivery() -> None:
    output = Output(512)
    first = Transfer(0, 1, b"t", 0, more=True, state=Rejected(Error("c")), payload=b"a" * 1000, channel=1)
    output.send(first)
    output.send(Transfer(0, more=False, payload=b"b" * 10, channel=1))
    items = reader().receive(output.to_send())
    assert [item.more for item in items if isinstance(item, Transfer)] == [True, True, True, False]
    assert first.more
    assert plain(items[0]) == plain(Transfer(0, 1, b"t", 0, more=True, state=Rejected(Error("c"))))


def test_oversized_frames_are_not_sent() -> None:
    output = Output(512)
    for performative in (
        Open("x" * 600),
        Transfer(0, 1, b"t", 0, state=Rejected(Error("c", "d" * 600)), payload=b"x"),
        Begin(0, -1, 0),
    ):
        with pytest.raises(EncodeError):
            output.send(performative)
    with pytest.raises(EncodeError):
        output.send_transfer(0, -1, 1000, b"t", False, b"", 0)
    assert output.to_send() == b""
    assert output.pending == 0


def test_dispositions() -> None:
    output = Output()
    output.send_disposition(1, True, 5, 5, True, ACCEPTED)
    output.send_disposition(1, False, 5, 900, False, 0)
    items = reader().receive(output.to_send())
    assert [plain(item) for item in items] == [
        plain(Disposition(True, 5, None, True, Accepted())),
        plain(Disposition(False, 5, 900)),
    ]
    assert [item.kind for item in items] == [0x15, 0x15]
    assert frames.HEADER_SIZE == 8
