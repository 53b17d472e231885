"""Field tables (0-9-1 section 4.2.5.5) in every dialect, compared with fixed bytes and with pamqp."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pamqp.decode
import pamqp.encode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire.amqp0.dialects import DIALECTS, QPID, RABBITMQ, SPECIFICATION, Dialect
from leveret.wire.amqp0.errors import EncodeError, WireError
from leveret.wire.amqp0.fieldtable import (
    MAX_DEPTH,
    MAX_SEARCHED,
    check_table,
    decode_table,
    encode_short_string,
    encode_table,
    encode_value,
    find_text,
)
from leveret.wire.amqp0.values import LongLong, RawTimestamp
from tests.wire.amqp0.strategies import tables

MOMENT = datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC)
SECONDS = int(MOMENT.timestamp())


def decode(data: bytes, dialect: Dialect = RABBITMQ) -> dict[str, Any]:
    return decode_table(data, 0, len(data), dialect)


def field(tag: str, value: bytes) -> bytes:
    return b"\x01n" + tag.encode() + value


COMMON = [
    ("t", b"\0", False),
    ("t", b"\x01", True),
    ("t", b"\x07", True),
    ("b", b"\xff", -1),
    ("B", b"\xff", 255),
    ("u", b"\xff\xfe", 65534),
    ("I", b"\xff\xff\xff\xfe", -2),
    ("i", b"\xff\xff\xff\xfe", 4294967294),
    ("f", struct.pack(">f", 0.5), 0.5),
    ("d", struct.pack(">d", 0.1), 0.1),
    ("S", b"\0\0\0\x03\xc3\xa4x", "äx"),
    ("S", b"\0\0\0\0", ""),
    ("S", b"\0\0\0\x01\xff", "\udcff"),
    ("T", struct.pack(">Q", SECONDS), MOMENT),
    ("T", b"\0" * 8, datetime(1970, 1, 1, tzinfo=UTC)),
    ("T", b"\xff" * 8, RawTimestamp(2**64 - 1)),
    ("V", b"", None),
    ("A", b"\0\0\0\0", []),
    ("A", b"\0\0\0\x03t\x01V", [True, None]),
    ("A", b"\0\0\0\x05A\0\0\0\0", [[]]),
    ("F", b"\0\0\0\0", {}),
    ("F", b"\0\0\0\x04\x01at\x01", {"a": True}),
]
OWN = [
    ("rabbitmq", "s", b"\xff\xfe", -2),
    ("rabbitmq", "U", b"\xff\xfe", -2),
    ("rabbitmq", "l", b"\xff" * 8, -1),
    ("rabbitmq", "L", b"\xff" * 8, -1),
    ("rabbitmq", "x", b"\0\0\0\x02\0\xff", b"\0\xff"),
    ("rabbitmq", "D", b"\x02\xff\xff\xff\xff", Decimal("-0.01")),
    ("qpid", "s", b"\xff\xfe", -2),
    ("qpid", "l", b"\xff" * 8, -1),
    ("qpid", "x", b"\0\0\0\x02\0\xff", b"\0\xff"),
    ("qpid", "c", b"\0\0\0\x01a", "a"),
    ("qpid", "C", b"\0\0\0\x01a", "a"),
    ("qpid", "k", b"\xe4", "ä"),
    ("qpid", "D", b"\x00\x00\x00\x00\x05", Decimal(5)),
    ("specification", "s", b"\x03abc", "abc"),
    ("specification", "U", b"\xff\xfe", -2),
    ("specification", "l", b"\xff" * 8, 2**64 - 1),
    ("specification", "L", b"\xff" * 8, -1),
    ("specification", "D", b"\x02\xff\xff\xff\xff", Decimal("42949672.95")),
]


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize(("tag", "octets", "value"), COMMON)
def test_types_that_all_dialects_share(dialect: Dialect, tag: str, octets: bytes, value: object) -> None:
    decoded = decode(field(tag, octets), dialect)["n"]
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize(("name", "tag", "octets", "value"), OWN)
def test_types_of_one_dialect(name: str, tag: str, octets: bytes, value: object) -> None:
    decoded = decode(field(tag, octets), DIALECTS[name])["n"]
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize(
    ("name", "tags"),
    [("rabbitmq", "tbBsuUIilLfdDSAxTFV"), ("qpid", "tbBsuIilfdDSAxTFVcCk"), ("specification", "tbBUuIiLlfdDsSATFV")],
)
def test_all_other_tags_are_unknown(name: str, tags: str) -> None:
    dialect = DIALECTS[name]
    for tag in range(256):
        data = b"\x01n" + bytes((tag,)) + b"\0" * 9
        known = dialect.types[tag] != 0
        assert known == (chr(tag) in tags)
        if not known:
            assert not check_table(data, 0, len(data), dialect)
            with pytest.raises(WireError, match="unknown type") as caught:
                decode(data, dialect)
            assert caught.value.code == 502


@pytest.mark.parametrize(
    ("value", "octets"),
    [
        ("ä", b"S\0\0\0\x02\xc3\xa4"),
        (b"\0\xff", b"x\0\0\0\x02\0\xff"),
        (bytearray(b"a"), b"x\0\0\0\x01a"),
        (True, b"t\x01"),
        (False, b"t\0"),
        (0, b"I\0\0\0\0"),
        (-1, b"I\xff\xff\xff\xff"),
        (2**31 - 1, b"I\x7f\xff\xff\xff"),
        (2**31, b"l\0\0\0\0\x80\0\0\0"),
        (-(2**31) - 1, b"l\xff\xff\xff\xff\x7f\xff\xff\xff"),
        (LongLong(1), b"l\0\0\0\0\0\0\0\x01"),
        (0.5, b"d?\xe0\0\0\0\0\0\0"),
        (Decimal("1.25"), b"D\x02\0\0\0\x7d"),
        (Decimal("-1.25"), b"D\x02\xff\xff\xff\x83"),
        (Decimal("12e2"), b"D\0\0\0\x04\xb0"),
        (Decimal("0e99"), b"D\0\0\0\0\0"),
        (MOMENT, b"T" + struct.pack(">Q", SECONDS)),
        (MOMENT.astimezone(timezone(timedelta(hours=5))), b"T" + struct.pack(">Q", SECONDS)),
        (MOMENT.replace(tzinfo=None), b"T" + struct.pack(">Q", SECONDS)),
        (RawTimestamp(2**64 - 1), b"T" + b"\xff" * 8),
        ([1, "a"], b"A\0\0\0\x0bI\0\0\0\x01S\0\0\0\x01a"),
        ((), b"A\0\0\0\0"),
        ({"a": None}, b"F\0\0\0\x03\x01aV"),
        (None, b"V"),
    ],
)
def test_types_of_python_values(value: Any, octets: bytes) -> None:
    assert encode_value(value, RABBITMQ) == octets


def test_other_dialects_send_other_tags() -> None:
    assert encode_value(2**40, SPECIFICATION)[:1] == b"L"
    assert encode_value(b"a", SPECIFICATION) == b"S\0\0\0\x01a"
    assert encode_value(Decimal(2**32 - 1), SPECIFICATION) == b"D\0\xff\xff\xff\xff"
    assert encode_value(2**40, QPID)[:1] == b"l"
    with pytest.raises(EncodeError):
        encode_value(Decimal(-1), SPECIFICATION)


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        Decimal("NaN"),
        Decimal("Infinity"),
        Decimal(2**31),
        Decimal("1e-256"),
        Decimal("1e11"),
        Decimal("1e999999"),
        NotImplemented,
        {1, 2},
        datetime(1969, 12, 31, tzinfo=UTC),
        {"n" * 256: 1},
        "\ud800",
        {"\ud800": 1},
    ],
    ids=repr,
)
def test_values_that_cannot_be_encoded(value: Any) -> None:
    with pytest.raises(EncodeError):
        encode_value(value, RABBITMQ)


def test_a_short_string_has_at_most_255_bytes() -> None:
    assert len(encode_short_string("ä" * 127)) == 255
    with pytest.raises(EncodeError, match="256"):
        encode_short_string("ä" * 128)


def nest(depth: int, tag: bytes) -> bytes:
    data = b""
    for _ in range(depth):
        data = (b"\x01n" if tag == b"F" else b"") + tag + struct.pack(">I", len(data)) + data
    return data if tag == b"F" else b"\x01n" + data


@pytest.mark.parametrize("tag", [b"F", b"A"])
def test_nesting_is_limited(tag: bytes) -> None:
    deepest = nest(MAX_DEPTH, tag)
    assert check_table(deepest, 0, len(deepest), RABBITMQ)
    value = decode(deepest)
    encoded = encode_table(value, RABBITMQ)
    assert encoded[4:] == deepest
    for depth in (MAX_DEPTH + 1, 10_000):
        data = nest(depth, tag)
        assert not check_table(data, 0, len(data), RABBITMQ)
        with pytest.raises(WireError, match="nested"):
            decode(data)
    with pytest.raises(EncodeError, match="nested"):
        encode_value([value], RABBITMQ)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(EncodeError, match="nested"):
        encode_value(endless, RABBITMQ)


def test_the_last_of_two_fields_with_one_name_wins() -> None:
    assert decode(field("t", b"\x01") + field("V", b"")) == {"n": None}


@pytest.mark.parametrize(
    "data",
    [
        b"\x05n",
        b"\x01n",
        b"\x01nI\0\0\0",
        b"\x01nS\0\0\0",
        b"\x01nS\0\0\0\x02a",
        b"\x01nS\xff\xff\xff\xffa",
        b"\x01nF\0\0\0\x02\x01n",
        b"\x01nF\0\0\0\x09t\x01",
        b"\x01nA\0\0\0\x01I",
        b"\x01nA\0\0\0\x04S\0\0\0",
        b"\x01nx\0",
        b"\x01nA\0\0\0\x05S\0\0\0\x01" + b"t\x01",
    ],
    ids=repr,
)
def test_truncated_fields(data: bytes) -> None:
    with pytest.raises(WireError) as caught:
        decode(data)
    assert caught.value.code == 502
    # First with nothing after the table, then in the middle of other bytes.
    assert not well_formed(data, len(data), RABBITMQ)
    assert not well_formed(data + b"\0" * 20, len(data), RABBITMQ)
    assert not well_formed(data + b"t\x01\x01at\x01", len(data), RABBITMQ)


def well_formed(data: bytes, end: int, dialect: Dialect) -> bool:
    try:
        return check_table(data, 0, end, dialect)
    except IndexError:
        return False


@given(
    st.one_of(st.binary(max_size=60), tables.map(lambda table: encode_table(table, RABBITMQ)[4:])),
    st.sampled_from(list(DIALECTS.values())),
    st.binary(max_size=10),
    st.data(),
)
def test_check_and_decoder_agree_on_any_bytes(data: bytes, dialect: Dialect, behind: bytes, draw: st.DataObject) -> None:
    if data and draw.draw(st.booleans()):
        at = draw.draw(st.integers(0, len(data) - 1))
        data = data[:at] + bytes((draw.draw(st.integers(0, 255)),)) + data[at + 1 :]
    try:
        decode(data, dialect)
        decodes = True
    except WireError:
        decodes = False
    assert well_formed(data + behind, len(data), dialect) == decodes


@given(tables)
def test_tables_survive_a_round_trip(table: dict[str, Any]) -> None:
    for dialect in (RABBITMQ, QPID):
        data = encode_table(table, dialect)
        assert data[:4] == struct.pack(">I", len(data) - 4)
        assert decode(data[4:], dialect) == table
        assert check_table(data, 4, len(data), dialect)
        # The bytes are the same again, so nothing was decoded to a value that merely compares equal.
        assert encode_table(decode(data[4:], dialect), dialect) == data


shared_values = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(2**31), 2**31 - 1),
        st.integers(2**32, 2**63 - 1),
        st.floats(width=32, allow_nan=False),
        st.text(max_size=20),
        st.none(),
        st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)).map(
            lambda moment: moment.replace(microsecond=0)
        ),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=20), shared_values, max_size=6))
def test_round_trips_with_pamqp(table: dict[str, Any]) -> None:
    theirs = pamqp.encode.field_table(table)
    assert decode(theirs[4:]) == table
    _used, decoded = pamqp.decode.field_table(encode_table(table, RABBITMQ))
    assert decoded == table


def test_pamqp_reads_byte_arrays_decimals_and_doubles() -> None:
    table: dict[str, Any] = {"x": bytearray(b"\0\xff"), "D": Decimal("-12.34"), "d": 0.1, "l": LongLong(7)}
    _used, decoded = pamqp.decode.field_table(encode_table(table, RABBITMQ))
    assert decoded["x"] == table["x"]
    assert decoded["D"] == table["D"]
    assert decoded["d"] == 0.1
    assert decoded["l"] == 7


class TestFindText:
    def find(self, table: dict[str, Any], name: bytes = b"name", dialect: Dialect = RABBITMQ) -> str:
        data = encode_table(table, dialect)
        return find_text(data, 4, len(data), name, dialect)

    @given(tables)
    def test_finds_what_decoding_finds(self, table: dict[str, Any]) -> None:
        for name, value in table.items():
            expected = value if isinstance(value, str) else ""
            assert self.find(table, name.encode("utf-8", "surrogateescape")) == expected

    def test_other_names_and_types(self) -> None:
        assert self.find({"n": "x", "name2": "x", "na": "x", "nested": {"name": "x"}, "list": ["name"]}) == ""
        assert self.find({"name": 7}) == self.find({"name": b"bytes"}) == self.find({}) == ""

    def test_the_last_of_several_fields(self) -> None:
        data = b"".join(b"\x04nameS\0\0\0\x01" + text for text in (b"a", b"b"))
        assert find_text(data, 0, len(data), b"name", RABBITMQ) == "b"

    def test_a_limited_search(self) -> None:
        others = {str(number): 1 for number in range(MAX_SEARCHED - 1)}
        assert self.find({**others, "name": "x"}) == "x"
        assert self.find({**others, "one more": 1, "name": "x"}) == ""

    @pytest.mark.parametrize("data", [b"\x04nam", b"\x04name", b"\x04nameS\0\0\0\x09x", b"\x04name?"])
    def test_a_malformed_table(self, data: bytes) -> None:
        with pytest.raises(WireError):
            find_text(data, 0, len(data), b"name", RABBITMQ)
