"""Typed values round-trip through JSON."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.segments import amqp10_records, typed_json
from leveret.segments.row_view import RowView
from leveret.selectors import PROPERTIES
from leveret.wire.amqp0.dialects import RABBITMQ
from leveret.wire.amqp0.fieldtable import encode_short_string, encode_table
from leveret.wire.amqp0.values import RawTimestamp
from leveret.wire.amqp10.encode import encode_value
from leveret.wire.amqp10.values import Array, Described, Map, Symbol, Timestamp, ULong
from tests.wire.amqp10.strategies import values as values1


def round_trip(table: bytes) -> bytes:
    """Convert a table to JSON text and back."""
    data = typed_json.dumps(typed_json.from_table(table, 4, len(table)))
    return typed_json.to_table(typed_json.parse(data))


FIELDS: dict[str, bytes] = {
    "true": b"t\x01",
    "false": b"t\x00",
    "byte": b"b\xfb",
    "ubyte": b"B\xfb",
    "short": b"s\xff\xfe",
    "ushort": b"u\xff\xfe",
    "int": b"I\xff\xff\xff\xfe",
    "uint": b"i\xff\xff\xff\xfe",
    "small long": b"l" + struct.pack(">q", 5),
    "long": b"l" + struct.pack(">q", -1 << 63),
    "float": b"f" + struct.pack(">f", 1.5),
    "float nan": b"f" + struct.pack(">f", float("nan")),
    "double": b"d" + struct.pack(">d", 0.1),
    "double inf": b"d" + struct.pack(">d", float("-inf")),
    "decimal": b"D\x02" + struct.pack(">i", -12345),
    "text": b"S\x00\x00\x00\x05na\xc3\xafv",
    "bytes as text": b"S\x00\x00\x00\x02\xff\xfe",
    "bytes": b"x\x00\x00\x00\x03\x00\xff\x10",
    "timestamp": b"T" + struct.pack(">Q", 1700000000),
    "far timestamp": b"T" + struct.pack(">Q", (1 << 64) - 1),
    "void": b"V",
    "empty list": b"A\x00\x00\x00\x00",
    "empty table": b"F\x00\x00\x00\x00",
    "list": b"A\x00\x00\x00\x04t\x01b\x05",
    "table": b"F\x00\x00\x00\x05\x02abt\x01",
    "table of one tag": b"F\x00\x00\x00\x08\x05$byteb\x05",
    "table within list": b"A\x00\x00\x00\x0aF\x00\x00\x00\x05\x02abt\x01",
}


@pytest.mark.parametrize("name", list(FIELDS))
def test_every_field_table_type_round_trips_byte_for_byte(name: str) -> None:
    field = encode_short_string("field") + FIELDS[name]
    table = struct.pack(">I", len(field)) + field
    assert round_trip(table) == table


def test_plain_values_are_plain_json() -> None:
    table = encode_table({"a": 5, "b": "x", "c": [True, None], "d": {"e": 1.5}}, RABBITMQ)
    assert typed_json.dumps(typed_json.from_table(table, 4, len(table))) == '{"a":5,"b":"x","c":[true,null],"d":{"e":1.5}}'


@given(values1)
def test_every_amqp_1_0_value_round_trips_byte_for_byte(value: Any) -> None:
    data = typed_json.dumps(typed_json.from_value(value))
    assert encode_value(typed_json.to_value("value", typed_json.parse(data))) == encode_value(value)


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text() | st.dictionaries(st.text(max_size=9), st.none())))
def test_any_json_is_a_table_or_a_value_error(data: dict[str, Any]) -> None:
    try:
        table = typed_json.to_table(data)
    except ValueError:
        return
    assert typed_json.to_table(typed_json.from_table(table, 4, len(table))) == table


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"$byte": 128}, "$byte: 128; expected an integer from -128 to 127"),
        ({"$binary": "?"}, "$binary: '?' is not base64"),
        ({"$timestamp": "yesterday"}, "$timestamp: 'yesterday'; expected ISO 8601"),
        ({"$decimal": "much"}, "$decimal: 'much' is not a number"),
        ({"$colour": 1}, "unknown AMQP type"),
        ({"$map": [{"a": 1}]}, "unknown AMQP type"),
        ({"$described": []}, "unknown AMQP type"),
    ],
)
def test_an_invalid_type_is_named(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match="field") as raised:
        typed_json.to_table({"field": value})
    assert words in str(raised.value)
    with pytest.raises(ValueError, match="field") as raised:
        typed_json.to_value("field", value)
    assert words in str(raised.value)


def test_values_of_amqp_1_0_fit_a_table_of_0_9_1() -> None:
    value = {
        "s": Symbol("x"),
        "u": ULong(7),
        "a": Array("uint", [1]),
        "m": Map([(ULong(1), "x")]),
        "d": Described(Symbol("t"), "inner"),
        "far": ULong(1 << 63),
    }
    table = typed_json.to_table({key: typed_json.from_value(item) for key, item in value.items()})
    assert typed_json.from_table(table, 4, len(table)) == {
        "s": "x",
        "u": {"$long": 7},
        "a": [1],
        "m": {"{'$ulong': 1}": "x"},
        "d": "inner",
        "far": "9223372036854775808",
    }


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ((1 << 63) - 1, (1 << 63) - 1),
        (1 << 63, (1 << 63) - 1),
        (((1 << 64) - 1) * 1000, (1 << 63) - 1),
        (-1 << 63, -1 << 63),
        (-1 << 64, -1 << 63),
    ],
)
def test_times_beyond_64_bits_are_clamped(shown: int, expected: int) -> None:
    value = typed_json.to_value("at", {"$timestamp": shown})
    assert value == Timestamp(expected)
    assert encode_value(value)[:1] == b"\x83"


def test_the_last_second_of_0_9_1_is_clamped_to_1_0() -> None:
    assert amqp10_records.overlay_to_json(RawTimestamp((1 << 64) - 1)) == {"$timestamp": ((1 << 63) - 1) // 1000 * 1000}


def test_selectors_over_rows_see_every_millisecond() -> None:
    view = RowView()
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    for time in range(1_700_000_000_000, 1_700_000_000_000 + 7000, 7):
        view.bind({"timestamp": epoch + timedelta(milliseconds=time), "amqp10": None})
        assert view.get(PROPERTIES, "creation-time") == time
