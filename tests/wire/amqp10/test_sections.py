"""The sections of messages (messaging 3.2)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire.amqp10 import message
from leveret.wire.amqp10.composites import encode_composite
from leveret.wire.amqp10.descriptors import AMQP_SEQUENCE, AMQP_VALUE, DATA
from leveret.wire.amqp10.encode import encode_value
from leveret.wire.amqp10.errors import DecodeError, EncodeError
from leveret.wire.amqp10.messaging import Header, Properties
from leveret.wire.amqp10.sections import ABSENT, section_ranges, split
from leveret.wire.amqp10.specs import TYPES
from leveret.wire.amqp10.transactions import Declare
from leveret.wire.amqp10.values import Described, Symbol, UInt, ULong
from tests.support.examples import examples
from tests.wire.amqp10.strategies import composites, plain, scalars, symbol_maps, text, values

NAMES = ("header", "delivery_annotations", "message_annotations", "properties", "application_properties", "body", "footer")

bodies: st.SearchStrategy[list[bytes]] = st.one_of(
    st.just([]),
    st.lists(st.binary(max_size=300), min_size=1, max_size=3).map(
        lambda items: [message.encode_data(item) for item in items]
    ),
    st.lists(st.lists(values, max_size=3), min_size=1, max_size=3).map(
        lambda items: [message.encode_sequence(item) for item in items]
    ),
    values.map(lambda value: [message.encode_body_value(value)]),
)
messages = st.fixed_dictionaries(
    {},
    optional={
        "header": composites(TYPES.composites["header"]).map(encode_composite),
        "delivery_annotations": symbol_maps.map(message.encode_delivery_annotations),
        "message_annotations": symbol_maps.map(message.encode_message_annotations),
        "properties": composites(TYPES.composites["properties"]).map(encode_composite),
        "application_properties": st.dictionaries(text, scalars, max_size=3).map(message.encode_application_properties),
        "footer": symbol_maps.map(message.encode_footer),
    },
)


def numeric(kind: int, value: Any) -> bytes:
    return encode_value(Described(ULong(kind), value))


@examples(300)
@given(messages, bodies)
def test_sections_are_found(parts: dict[str, bytes], body: list[bytes]) -> None:
    if body:
        parts["body"] = b"".join(body)
    data = b"".join(parts.get(name, b"") for name in NAMES)
    sections = split(data)
    for name in NAMES:
        start, end = getattr(sections, name), getattr(sections, f"{name}_end")
        assert data[start:end] == parts[name] if name in parts else (start, end) == (ABSENT, ABSENT)
    before = len(parts.get("header", b"")) + len(parts.get("delivery_annotations", b""))
    assert sections.rest == before
    assert sections.bare == before + len(parts.get("message_annotations", b""))
    assert sections.end == len(data)
    assert [data[start:end] for _, start, end in section_ranges(data)] == [
        part for name in NAMES for part in (body if name == "body" else [parts[name]] if name in parts else [])
    ]
    header = message.header(sections) or Header()
    assert sections.durable == bool(header.durable)
    assert sections.priority == (-1 if header.priority is None else header.priority)
    assert sections.ttl == (-1 if header.ttl is None else header.ttl)
    assert sections.first_acquirer == bool(header.first_acquirer)
    assert sections.delivery_count == (header.delivery_count or 0)
    properties = message.properties(sections) or Properties()
    assert sections.user_id == properties.user_id
    assert sections.to == (None if properties.to is None else properties.to.encode())
    assert sections.subject == (None if properties.subject is None else properties.subject.encode())
    assert sections.absolute_expiry_time == (
        -1 if properties.absolute_expiry_time is None else properties.absolute_expiry_time
    )


@given(messages, bodies, st.data())
def test_truncated_messages(parts: dict[str, bytes], body: list[bytes], data: st.DataObject) -> None:
    parts["body"] = b"".join(body)
    octets = b"".join(parts.get(name, b"") for name in NAMES)
    at = data.draw(st.integers(0, len(octets)))
    cut = split(octets[:at], whole=False)
    whole = split(octets)
    ends = [0, *[end for _, _, end in section_ranges(octets)]]
    assert cut.end == max(end for end in ends if end <= at)
    for name in NAMES:
        if getattr(whole, f"{name}_end") <= cut.end:
            assert getattr(cut, name) == getattr(whole, name)
    if at not in ends:
        with pytest.raises(DecodeError):
            split(octets[:at])
    # Every section that has begun is in the list, including the received part of the last one.
    expected = [(kind, start, min(end, at)) for kind, start, end in section_ranges(octets) if start < at]
    if expected and at - expected[-1][1] < 3:
        expected[-1] = (0, *expected[-1][1:])
    assert section_ranges(octets[:at]) == expected


def test_contents() -> None:
    data = (
        message.encode_header(True, 9, 1000, True, 3)
        + message.encode_delivery_annotations({"x-opt-a": 1})
        + message.encode_message_annotations({Symbol("x-opt-b"): [1]})
        + message.encode_properties(
            Properties(message_id=ULong(7), to="q", subject="s", user_id=b"u", absolute_expiry_time=99)
        )
        + message.encode_application_properties({"k": "v"})
        + message.encode_data(b"one")
        + message.encode_data(b"two")
        + message.encode_footer({"crc": UInt(5)})
    )
    sections = split(data)
    assert (sections.durable, sections.priority, sections.ttl, sections.first_acquirer, sections.delivery_count) == (
        True,
        9,
        1000,
        True,
        3,
    )
    assert (sections.to, sections.subject, sections.user_id, sections.absolute_expiry_time) == (b"q", b"s", b"u", 99)
    assert message.delivery_annotations(sections) == {"x-opt-a": 1}
    assert message.message_annotations(sections) == {"x-opt-b": [1]}
    assert message.application_properties(sections) == {"k": "v"}
    assert message.body(sections) == [b"one", b"two"]
    assert message.footer(sections) == {"crc": 5}
    assert sections.body_kind == DATA
    empty = split(b"")
    assert message.header(empty) is None
    assert message.properties(empty) is None
    assert message.application_properties(empty) is None
    assert message.footer(empty) is None
    assert message.body(empty) == []
    assert (empty.rest, empty.bare, empty.end) == (0, 0, 0)


def test_bodies() -> None:
    sequence = split(message.encode_sequence([1, "a"]) + message.encode_sequence([]))
    assert (sequence.body_kind, message.body(sequence)) == (AMQP_SEQUENCE, [[1, "a"], []])
    value = split(message.encode_body_value(Described(Symbol("x"), 5)))
    assert (value.body_kind, message.body(value)) == (AMQP_VALUE, [Described(Symbol("x"), 5)])
    [declare] = message.body(split(b"\x00\xa3\x11amqp:amqp-value:*" + encode_composite(Declare())))
    assert isinstance(declare, Declare)
    for size in (0, 255, 256):
        assert message.encode_data(b"x" * size) == message.encode_data_head(size) + b"x" * size


@given(st.booleans(), st.integers(-1, 255), st.integers(-1, 2**32 - 1), st.booleans(), st.integers(0, 2**32 - 1))
def test_headers_are_shortest(durable: bool, priority: int, ttl: int, first: bool, count: int) -> None:
    octets = message.encode_header(durable, priority, ttl, first, count)
    generic = Header(
        durable or None, None if priority < 0 else priority, None if ttl < 0 else ttl, first or None, count or None
    )
    assert octets == (b"" if octets == b"" else encode_composite(generic))
    assert (octets == b"") == (encode_composite(generic)[3:] == b"\x45")
    assert plain(message.header(split(octets)) or Header()) == plain(generic)


def test_headers_in_other_forms() -> None:
    long = numeric(0x70, [None] * 5).replace(b"\xc0\x06\x05", b"\xd0\x00\x00\x00\x09\x00\x00\x00\x05")
    assert split(long).priority == -1
    odd = split(b"\x00\x53\x70\xc0\x05\x02\x56\x01\x50\x07")
    assert (odd.durable, odd.priority) == (True, 7)
    assert split(b"\x00\xa3\x10amqp:header:list\x45").header == 0
    assert split(b"\x00\x53\x70\x45").durable is False


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x40", "expected a section"),
        (b"\x00\x53\x24\x45", "expected a section, not 0x24"),
        (b"\x00\xa3\x01x\x45", "expected a section, not 'x'"),
        (numeric(0x75, b"") + numeric(0x77, None), "amqp-value cannot follow data"),
        (numeric(0x77, 1) + numeric(0x77, 1), "amqp-value cannot follow amqp-value"),
        (numeric(0x76, []) + numeric(0x75, b""), "data cannot follow amqp-sequence"),
        (numeric(0x75, b"") + numeric(0x76, []), "amqp-sequence cannot follow data"),
        (numeric(0x73, []) + numeric(0x70, []), "header cannot follow properties"),
        (numeric(0x70, []) + numeric(0x70, []), "header cannot follow header"),
        (numeric(0x75, "text"), "data: expected a binary, not string"),
        (numeric(0x70, {}), "header: expected a list"),
        (numeric(0x74, []), "application-properties: expected a map"),
        (numeric(0x72, Described(ULong(1), {})), "message-annotations: expected a map, not a described value"),
        (numeric(0x70, [5]), "durable: expected a boolean"),
        (numeric(0x70, [None] * 6), "header: expected at most 5 fields"),
        (numeric(0x73, [None] * 14), "properties: expected at most 13 fields"),
        (numeric(0x73, [None, "user"]), "user-id: expected a binary"),
        (numeric(0x73, [None, None, b"to"]), "to: expected a string"),
        (numeric(0x73, [None, None, None, 5]), "subject: expected a string"),
        (numeric(0x73, [None] * 8 + [5]), "absolute-expiry-time: expected a timestamp"),
        (b"\x00\x53\x73\xc0\x04\x05\x40\x40\x40", "expected a list of 5 values"),
    ],
    ids=lambda item: item[:40] if isinstance(item, str) else "",
)
def test_refused_messages(data: bytes, text: str) -> None:
    with pytest.raises(DecodeError) as caught:
        split(data)
    assert text in caught.value.text


def test_keys() -> None:
    for kind, read in ((0x71, message.delivery_annotations), (0x72, message.message_annotations), (0x78, message.footer)):
        assert read(split(numeric(kind, {ULong(5): 1, Symbol("a"): 2}))) == {5: 1, "a": 2}
        with pytest.raises(DecodeError, match="expected a symbol or ulong as key"):
            read(split(numeric(kind, {"text": 1})))
    with pytest.raises(DecodeError, match="expected a string as key"):
        message.application_properties(split(numeric(0x74, {Symbol("a"): 1})))
    with pytest.raises(EncodeError):
        message.encode_message_annotations({5: 1})
    with pytest.raises(EncodeError):
        message.encode_application_properties({5: 1})
    with pytest.raises(EncodeError):
        message.encode_application_properties({"a": [1]})


def test_any_section_by_its_symbol() -> None:
    data = b"".join(
        b"\x00\xa3" + bytes((len(name),)) + name + value
        for name, value in (
            (b"amqp:header:list", b"\x45"),
            (b"amqp:delivery-annotations:map", b"\xc1\x01\x00"),
            (b"amqp:message-annotations:map", b"\xc1\x01\x00"),
            (b"amqp:properties:list", b"\x45"),
            (b"amqp:application-properties:map", b"\xc1\x01\x00"),
            (b"amqp:data:binary", b"\xa0\x00"),
            (b"amqp:footer:map", b"\xc1\x01\x00"),
        )
    )
    sections = split(data)
    assert ABSENT not in [getattr(sections, name) for name in NAMES]
    assert len(section_ranges(data)) == 7
