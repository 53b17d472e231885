"""Values designed to be slow: decoding them takes time in proportion to their size."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from leveret.wire.amqp10 import message
from leveret.wire.amqp10.composites import read_composite
from leveret.wire.amqp10.decode import MAX_GUESSABLE_KEYS, Decoder, decode_value
from leveret.wire.amqp10.encode import encode_value
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.frames import FAILURE, Failure, FrameReader
from leveret.wire.amqp10.sections import section_ranges, split
from leveret.wire.amqp10.values import Described, Float, Map, Timestamp, ULong

# Integers are their own hashes modulo this.
MODULUS = (1 << 61) - 1
MANY = 2000


def colliding(kind: Callable[[int], Any]) -> list[tuple[Any, None]]:
    """Return keys that make a dict probe all earlier ones: each begins its search in one run of occupied slots."""
    return [(kind(number), None) for number in range(MANY)]


def pairs_of(value: Any) -> Iterator[dict[Any, Any]]:
    """Every dict within a value."""
    if isinstance(value, dict):
        yield value
        for key, item in value.items():
            yield from pairs_of(key)
            yield from pairs_of(item)
    elif isinstance(value, Map):
        for key, item in value.pairs:
            yield from pairs_of(key)
            yield from pairs_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from pairs_of(item)
    elif isinstance(value, Described):
        yield from pairs_of(value.value)


def guessable(value: Any) -> int:
    """Return the maximum number of keys with predictable hashes in one dict within a value."""
    return max((sum(not isinstance(key, (str, bytes)) for key in found) for found in pairs_of(value)), default=0)


@pytest.mark.parametrize(
    "key",
    [
        lambda number: UUID(int=number * MODULUS),
        lambda number: number << 40,
        lambda number: ULong(number << 44),
        lambda number: Timestamp(number << 45),
        lambda number: float(number << 50),
        lambda number: Float(number << 30),
        lambda number: Described(ULong(1), number << 40),
        lambda number: [number],
    ],
    ids=["uuid", "long", "ulong", "timestamp", "double", "float", "described", "list"],
)
def test_keys_whose_hashes_a_peer_can_choose_are_not_put_into_a_dict(key: Callable[[int], Any]) -> None:
    octets = encode_value(Map(colliding(key)))
    value = decode_value(octets)[0]
    assert type(value) is Map
    assert [item for item, _ in value.pairs] == [key(number) for number in range(MANY)]
    assert guessable(value) == 0
    assert encode_value(value) == octets
    assert guessable(decode_value(encode_value([Map(colliding(key))]))[0]) == 0


def test_comparisons_of_colliding_keys_grow_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UUID, "__hash__", lambda self: 1)
    compared: Counter[str] = Counter()
    original = UUID.__eq__

    def equal(self: UUID, other: object) -> bool:
        compared["keys"] += 1
        return original(self, other)

    monkeypatch.setattr(UUID, "__eq__", equal)
    decode_value(encode_value(Map([(UUID(int=number * MODULUS), None) for number in range(MANY)])))
    assert compared["keys"] <= MAX_GUESSABLE_KEYS**2


def test_small_maps_and_maps_of_texts_stay_dicts() -> None:
    small = {number: str(number) for number in range(MAX_GUESSABLE_KEYS)}
    assert decode_value(encode_value(small))[0] == small
    texts = {str(number): number for number in range(MANY)}
    assert decode_value(encode_value(texts))[0] == texts
    assert type(decode_value(encode_value(texts))[0]) is dict


def test_a_duplicate_key_is_refused_in_a_large_map() -> None:
    pairs = b"".join(encode_value(UUID(int=number)) + b"\x40" for number in [*range(MANY), 5])
    count = 2 * (MANY + 1)
    with pytest.raises(DecodeError, match="duplicate key"):
        decode_value(b"\xd1" + struct.pack(">II", len(pairs) + 4, count) + pairs)


# Maps with keys of one type


def attach(field: int, value: bytes) -> bytes:
    """Return the frame of an attach with one field, by its number."""
    fields = [encode_value("name"), b"\x43", b"\x41"] + [b"\x40"] * (field - 3) + [value]
    content = b"".join(fields)
    body = b"\x00\x53\x12\xd0" + struct.pack(">II", len(content) + 4, len(fields)) + content
    return struct.pack(">IBBH", len(body) + 8, 2, 0, 0) + body


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (7, "attach: unsettled: expected a delivery-tag as key, not uuid"),
        (13, "attach: properties: expected a symbol as key, not uuid"),
    ],
)
def test_key_types_are_checked_before_a_map_is_built(field: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[UUID] = []
    monkeypatch.setattr(UUID, "__hash__", lambda self: built.append(self) or 1)  # type: ignore[func-returns-value]
    reader = FrameReader(1 << 20, 1 << 20, False)
    octets = attach(field, encode_value(Map([(UUID(int=number), None) for number in range(MANY)])))
    items = reader.receive(octets)
    assert [item.kind for item in items] == [FAILURE]
    assert isinstance(items[0], Failure) and expected in items[0].text
    assert not built


def test_annotations_and_application_properties_check_their_keys_first() -> None:
    hostile = encode_value(Map(colliding(lambda number: UUID(int=number))))
    body = b"\x00\x53\x75\xa0\x01x"
    with pytest.raises(DecodeError, match="annotations: expected a symbol or ulong as key, not uuid"):
        message.message_annotations(split(b"\x00\x53\x72" + hostile + body))
    with pytest.raises(DecodeError, match="application-properties: expected a string as key, not uuid"):
        message.application_properties(split(b"\x00\x53\x74" + hostile + body))


# Descriptors


def test_the_descriptor_of_a_section_is_not_built_unless_it_is_plausible(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[UUID] = []
    monkeypatch.setattr(UUID, "__hash__", lambda self: built.append(self) or 1)  # type: ignore[func-returns-value]
    hostile = encode_value(Map([(UUID(int=number), None) for number in range(MANY)]))
    built.clear()
    for octets in (b"\x00" + hostile + b"\x45", b"\x00" + encode_value([hostile] * 10) + b"\x45"):
        with pytest.raises(DecodeError, match="expected a section, not a descriptor of the type"):
            split(octets)
        with pytest.raises(DecodeError, match="expected a section, not a descriptor of the type"):
            section_ranges(octets)
    assert not built


def test_a_long_descriptor_is_cut_in_the_error() -> None:
    name = b"x" * 100_000
    with pytest.raises(DecodeError) as raised:
        split(b"\x00\xb3" + struct.pack(">I", len(name)) + name + b"\x45")
    assert len(raised.value.text) < 200


def test_a_composite_field_that_is_not_a_map_is_refused() -> None:
    octets = attach(13, b"\x45")
    decoder = Decoder(octets, 8, len(octets))
    with pytest.raises(DecodeError, match="attach: properties: expected a map, not list"):
        read_composite(decoder)
