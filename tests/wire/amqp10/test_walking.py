"""Parsing the sections of a message that arrives in pieces gives the same result as parsing it at once."""

from __future__ import annotations

import random

import pytest

from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.encode import encode_pairs, encode_value
from leveret.wire.amqp10.errors import DecodeError
from leveret.wire.amqp10.messaging import Header, Properties
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.values import Described, Symbol, ULong
from leveret.wire.amqp10.walking import Walk

HEADER = encode_composite(Header(True, 3))
ANNOTATIONS = b"\x00\x53\x72" + encode_pairs([(Symbol("x-opt-a"), "a" * 300)])
PROPERTIES = encode_composite(Properties("id", b"user", "to", "subject"))
APPLICATION = b"\x00\x53\x74" + encode_pairs([("key", 1)])
FOOTER = b"\x00\x53\x78" + encode_pairs([(Symbol("x-opt-f"), 1)])
SHORT = b"\x00\x53\x75\xa0\x03abc"
LONG = b"\x00\x53\x75\xb0\x00\x00\x01\x2c" + bytes(300)
SEQUENCE = b"\x00\x53\x76" + encode_value([1, "two", [3]])
VALUE = b"\x00\x53\x77" + encode_value({"a": [1, 2, "x" * 500]})
DESCRIBED = b"\x00\x53\x77" + encode_value(Described(Symbol("example:type"), Described(ULong(5), "text")))
NAMED = b"\x00\xa3\x10amqp:data:binary\xa0\x02hi"

MESSAGES = {
    "everything": HEADER + ANNOTATIONS + PROPERTIES + APPLICATION + LONG + SHORT + FOOTER,
    "data": LONG + LONG + SHORT,
    "sequences": PROPERTIES + SEQUENCE + SEQUENCE,
    "value": HEADER + VALUE + FOOTER,
    "described": DESCRIBED,
    "named": HEADER + NAMED,
    "no body": HEADER + PROPERTIES,
    "null": b"\x00\x53\x77\x40",
    "empty": b"",
}
WRONG = {
    "out of order": PROPERTIES + HEADER + LONG,
    "twice": HEADER + HEADER + LONG,
    "mixed": LONG + SEQUENCE,
    "two values": VALUE + VALUE,
    "footer first": FOOTER + LONG,
    "no section": b"\x00\x53\x10\x45" + LONG,
    "text": b"text",
    "text as data": b"\x00\x53\x75\xa1\x01a",
    "map as sequence": b"\x00\x53\x76\xc1\x01\x00",
    "code": b"\x00\x53\x77\x3f",
    "cut in a section": HEADER + LONG[:-1],
    "cut in a size": LONG[:6],
    "cut in a descriptor": LONG[:1],
    "a long descriptor": b"\x00\xb3\x00\x01\x00\x00" + b"a" * 65536 + b"\x40",
}


def pieces_of(octets: bytes, seed: int) -> list[bytes]:
    choose = random.Random(seed)
    pieces = []
    at = 0
    while at < len(octets):
        size = choose.choice((1, 2, 7, 100, 1000))
        pieces.append(octets[at : at + size])
        at += size
    return pieces


def walk(pieces: list[bytes]) -> tuple[Walk, bytes]:
    walk = Walk()
    body = [part for piece in pieces for part in walk.feed(piece)]
    walk.finish()
    return walk, b"".join(body)


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("seed", range(8))
def test_sections_are_found(name: str, seed: int) -> None:
    octets = MESSAGES[name]
    walked, body = walk(pieces_of(octets, seed))
    sections = split(octets)
    begin = sections.body if sections.body >= 0 else sections.bare if name == "null" else len(octets)
    if sections.body < 0:
        begin = sections.footer if sections.footer >= 0 else len(octets)
    end = sections.body_end if sections.body >= 0 else begin
    assert bytes(walked.head) == octets[:begin]
    assert body == octets[begin:end]
    assert bytes(walked.tail) == octets[end:]


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("seed", range(4))
def test_invalid_messages(name: str, seed: int) -> None:
    with pytest.raises(DecodeError):
        split(WRONG[name])
    with pytest.raises(DecodeError):
        walk(pieces_of(WRONG[name], seed))


def test_the_size_of_the_first_section_is_known_at_once() -> None:
    walked = Walk()
    walked.feed(HEADER + LONG[:10])
    assert walked.body_size == len(LONG)
    assert walked.buffered() == len(HEADER)
