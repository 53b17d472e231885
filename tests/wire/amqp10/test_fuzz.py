"""Garbage causes a failure and nothing else."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from leveret.wire.amqp10 import message
from leveret.wire.amqp10.composites import decode_composite, decode_value, encode_composite
from leveret.wire.amqp10.decode import decode_value as decode_plain
from leveret.wire.amqp10.decode import value_end
from leveret.wire.amqp10.encode import encode_value
from leveret.wire.amqp10.errors import DecodeError, EncodeError
from leveret.wire.amqp10.frames import Failure, FrameReader
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.sections import section_ranges, split
from leveret.wire.amqp10.specs import COMPOSITES
from leveret.wire.amqp10.transport import Transfer
from tests.support.examples import examples
from tests.wire.amqp10.strategies import any_composite, composites, plain, values
from tests.wire.amqp10.test_sections import NAMES, bodies, messages

# Bytes with a meaning more often than others.
CODES = [
    0x00,
    0x40,
    0x41,
    0x42,
    0x43,
    0x45,
    0x50,
    0x52,
    0x53,
    0x55,
    0x56,
    0x70,
    0x80,
    0x83,
    0x98,
    0xA0,
    0xA1,
    0xA3,
    0xB0,
    0xC0,
    0xC1,
    0xD0,
    0xD1,
    0xE0,
    0xF0,
    0x01,
    0x02,
    0x10,
    0x14,
    0x24,
    0x70,
    0x75,
    0xFF,
]
garbage = st.binary(max_size=80) | st.lists(st.sampled_from(CODES), max_size=60).map(bytes)
performatives = st.sampled_from([spec for spec in COMPOSITES.values() if "frame" in spec.provides]).flatmap(composites)


def mutated(octets: bytes, data: st.DataObject) -> bytes:
    """The bytes with a few changes."""
    result = bytearray(octets)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(result)))
        match data.draw(st.sampled_from(["set", "delete", "insert", "repeat", "cut"])):
            case "set" if at < len(result):
                result[at] = data.draw(st.sampled_from(CODES) | st.integers(0, 255))
            case "delete":
                del result[at : at + data.draw(st.integers(1, 20))]
            case "insert":
                result[at:at] = data.draw(garbage)
            case "repeat":
                result[at:at] = result[at : at + data.draw(st.integers(1, 40))]
            case _:
                del result[at:]
    return bytes(result)


def check_value(octets: bytes) -> None:
    """A decoder returns a value that can be encoded and decoded again, or raises DecodeError with a valid position."""
    for decode in (decode_plain, decode_value):
        try:
            value, end = decode(octets)
        except DecodeError as error:
            assert 0 <= error.position <= len(octets)
            continue
        assert end == value_end(octets, 0, len(octets)) <= len(octets)
        if decode is decode_plain:
            again = encode_value(value)
            assert plain(decode(again)[0]) == plain(value)
    try:
        assert 0 < value_end(octets, 0, len(octets)) <= len(octets)
    except DecodeError as error:
        assert 0 <= error.position <= len(octets)


def check_message(octets: bytes) -> None:
    for whole in (True, False):
        try:
            sections = split(octets, whole)
        except DecodeError as error:
            assert 0 <= error.position <= len(octets)
            continue
        assert 0 <= sections.rest <= sections.bare <= sections.end <= len(octets)
        for read in (
            message.header,
            message.properties,
            message.delivery_annotations,
            message.message_annotations,
            message.application_properties,
            message.body,
            message.footer,
        ):
            try:
                read(sections)
            except DecodeError as error:
                assert 0 <= error.position <= len(octets)
    try:
        ranges = section_ranges(octets)
    except DecodeError:
        return
    assert [start for _, start, _ in ranges[1:]] == [end for _, _, end in ranges[:-1]]


def check_reader(octets: bytes, header: bool) -> None:
    reader = FrameReader(4096, header=header)
    items: list[Any] = reader.receive(octets)
    for item in items[:-1]:
        assert not isinstance(item, Failure)
    assert reader.buffered <= len(octets)
    single = FrameReader(4096, header=header)
    pieces = [item for at in range(len(octets)) for item in single.receive(octets[at : at + 1])]
    assert [type(item) for item in pieces] == [type(item) for item in items]
    if items and isinstance(items[-1], Failure):
        assert items[-1].condition.startswith("amqp:")
        assert reader.receive(b"\0\0\0\x08\2\0\0\0") == []


@examples(500)
@given(garbage, st.booleans())
def test_random_bytes(octets: bytes, header: bool) -> None:
    check_value(octets)
    check_message(octets)
    check_reader(octets, header)
    check_reader((len(octets) + 8).to_bytes(4, "big") + b"\x02\x00\x00\x00" + octets, False)
    for kind in (0x10, 0x14, 0x28):
        try:
            decode_composite(bytes((0, 0x53, kind)) + octets)
        except DecodeError as error:
            assert 0 <= error.position <= len(octets) + 3


@examples(400)
@given(values, st.data())
def test_mutated_values(value: Any, data: st.DataObject) -> None:
    check_value(mutated(encode_value(value), data))


@examples(400)
@given(any_composite, st.data())
def test_mutated_composites(value: Any, data: st.DataObject) -> None:
    octets = mutated(encode_composite(value), data)
    try:
        decoded, end = decode_composite(octets)
    except DecodeError as error:
        assert 0 <= error.position <= len(octets)
        return
    assert end <= len(octets)
    assert plain(decode_composite(encode_composite(decoded))[0]) == plain(decoded)


@examples(300)
@given(messages, bodies, st.data())
def test_mutated_messages(parts: dict[str, bytes], body: list[bytes], data: st.DataObject) -> None:
    parts["body"] = b"".join(body)
    check_message(mutated(b"".join(parts.get(name, b"") for name in NAMES), data))


@examples(300, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(performatives, min_size=1, max_size=4), st.data())
def test_mutated_frames(sent: list[Any], data: st.DataObject) -> None:
    output = Output(4096)
    for performative in sent:
        if isinstance(performative, Transfer):
            performative.payload = data.draw(st.binary(max_size=40))
        try:
            output.send(performative)
        except EncodeError:
            assert len(encode_composite(performative)) > 4000
    octets = output.to_send()
    check_reader(octets, False)
    check_reader(mutated(octets, data), False)


def test_the_cost_of_hostile_input_is_proportional_to_its_size() -> None:
    """Each of these is megabytes of work, or almost none; none may take seconds."""
    size = 1_000_000
    deep = b"\x00" * size
    nested = b"\xc0\xff\x01" * (size // 3)
    wide = b"\xd0" + (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + b"\x40" * size
    arrays = b"\xe0\x03\xff\x40\x40" * (size // 5)
    listed = b"\xd0" + (len(arrays) + 4).to_bytes(4, "big") + (size // 5).to_bytes(4, "big") + arrays
    for octets in (deep, nested, wide, arrays, listed, b"\x00\x53\x70" + wide, b"\x00\x53\x75" * (size // 3)):
        for decode in (decode_plain, decode_value, split, section_ranges, decode_composite):
            try:
                decode(octets)
            except DecodeError:
                continue
        reader = FrameReader(4_000_000, 4_000_000, header=False)
        reader.receive((len(octets) + 8).to_bytes(4, "big") + b"\x02\x00\x00\x00" + octets)
