"""Primitive types, described values and arrays (types 1.1 to 1.6)."""

from __future__ import annotations

import decimal
import struct
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.wire.amqp10.codes import TYPES, WIDTHS
from leveret.wire.amqp10.decode import MAX_DEPTH, MAX_EMPTY_ELEMENTS, decode_value, value_end
from leveret.wire.amqp10.encode import encode_value
from leveret.wire.amqp10.errors import DecodeError, EncodeError
from leveret.wire.amqp10.values import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Map,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from tests.support.examples import examples
from tests.wire.amqp10.strategies import plain, values

UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")

# In canonical encoding: these bytes are this value, and this value these bytes.
CANONICAL: list[tuple[str, Any]] = [
    ("40", None),
    ("41", True),
    ("42", False),
    ("5000", UByte(0)),
    ("50ff", UByte(255)),
    ("600000", UShort(0)),
    ("60ffff", UShort(65535)),
    ("43", UInt(0)),
    ("5201", UInt(1)),
    ("52ff", UInt(255)),
    ("7000000100", UInt(256)),
    ("70ffffffff", UInt(0xFFFFFFFF)),
    ("44", ULong(0)),
    ("53ff", ULong(255)),
    ("800000000000000100", ULong(256)),
    ("80" + "ff" * 8, ULong(2**64 - 1)),
    ("5180", Byte(-128)),
    ("617fff", Short(32767)),
    ("618000", Short(-32768)),
    ("5480", Int(-128)),
    ("547f", Int(127)),
    ("71ffffff7f", Int(-129)),
    ("7100000080", Int(128)),
    ("5500", 0),
    ("55ff", -1),
    ("817fffffffffffffff", 2**63 - 1),
    ("81ffffffffffffff7f", -129),
    ("723fc00000", Float(1.5)),
    ("823ff8000000000000", 1.5),
    ("82fff0000000000000", float("-inf")),
    ("7432800001", Decimal32.of(1)),
    ("8431c0000000000001", Decimal64.of(1)),
    ("94" + "3040" + "00" * 13 + "01", Decimal128.of(1)),
    ("7300000041", Char("A")),
    ("730001f407", Char("\U0001f407")),
    ("830000013167adb8a1", Timestamp(1311704463521)),
    ("83ffffffffffffffff", Timestamp(-1)),
    ("9800112233445566778899aabbccddeeff", UUID),
    ("a000", b""),
    ("a00201ff", b"\x01\xff"),
    ("b000000100" + "61" * 256, b"a" * 256),
    ("a100", ""),
    ("a103e282ac", "€"),
    ("b100000100" + "61" * 256, "a" * 256),
    ("a30161", Symbol("a")),
    ("b300000100" + "61" * 256, Symbol("a" * 256)),
    ("45", []),
    ("c0020140", [None]),
    ("c003024545", [[], []]),
    ("c0050255015502", [1, 2]),
    ("d00000010400000100" + "40" * 256, [None] * 256),
    ("c10100", {}),
    ("c10502a1016141", {"a": True}),
    ("e0020040", Array("null", [])),
    ("e00402520001", Array("uint", [UInt(0), UInt(1)])),
    ("e00a02700000000100000100", Array("uint", [UInt(1), UInt(256)])),
    ("e00402560100", Array("boolean", [True, False])),
    ("e00602a301610162", Array("symbol", [Symbol("a"), Symbol("b")])),
    ("e00702c00201400100", Array("list", [[None], []])),
    ("e007020053055401ff", Array("int", [Int(1), Int(-1)], (ULong(5),))),
    ("00a30161a10162", Described(Symbol("a"), "b")),
    ("00530100530240", Described(ULong(1), Described(ULong(2), None))),
    ("000053015302" + "40", Described(Described(ULong(1), ULong(2)), None)),
]

# Longer than needed, and the same value.
ALTERNATIVES: list[tuple[str, Any]] = [
    ("5601", True),
    ("5600", False),
    ("5200", UInt(0)),
    ("7000000000", UInt(0)),
    ("5300", ULong(0)),
    ("80" + "00" * 8, ULong(0)),
    ("7100000001", Int(1)),
    ("81" + "00" * 7 + "01", 1),
    ("b000000000", b""),
    ("b1000000" + "0161", "a"),
    ("b3000000" + "0161", Symbol("a")),
    ("c00100", []),
    ("d00000000400000000", []),
    ("d1000000" + "04" + "00000000", {}),
    ("f0000000" + "05" + "00000000" + "70", Array("uint", [])),
    ("e0020243", Array("uint", [UInt(0), UInt(0)])),
    ("e0020341", Array("boolean", [True, True, True])),
    ("e0020245", Array("list", [[], []])),
    ("00800000000000000001a10162", Described(ULong(1), "b")),
    ("f00000000e00000002b1000000016100000000", Array("string", ["a", ""])),
]


@pytest.mark.parametrize(("octets", "value"), CANONICAL, ids=lambda item: str(item)[:40])
def test_canonical_encodings(octets: str, value: Any) -> None:
    data = bytes.fromhex(octets)
    assert encode_value(value).hex() == octets
    assert value_end(data, 0, len(data)) == len(data)
    decoded, end = decode_value(data)
    assert (plain(decoded), end) == (plain(value), len(data))


@pytest.mark.parametrize(("octets", "value"), ALTERNATIVES, ids=lambda item: str(item)[:40])
def test_alternative_encodings(octets: str, value: Any) -> None:
    data = bytes.fromhex(octets)
    assert value_end(data, 0, len(data)) == len(data)
    assert plain(decode_value(data)[0]) == plain(value)


@examples(400)
@given(values)
def test_round_trip(value: Any) -> None:
    data = encode_value(value)
    assert value_end(b"xx" + data + b"xx", 2, len(data) + 4) == len(data) + 2
    decoded, end = decode_value(b"xx" + data + b"xx", 2)
    assert end == len(data) + 2
    assert plain(decoded) == plain(value)
    assert encode_value(decoded) == data


@given(values, st.data())
def test_truncated_values_are_errors(value: Any, data: st.DataObject) -> None:
    octets = encode_value(value)
    octets = octets[: data.draw(st.integers(0, len(octets) - 1))]
    with pytest.raises(DecodeError):
        decode_value(octets)
    with pytest.raises(DecodeError) as caught:
        value_end(octets, 0, len(octets))
    assert caught.value.short


@pytest.mark.parametrize(
    ("octets", "position", "text"),
    [
        ("", 0, "expected a value"),
        ("3f", 0, "expected a format code, not 0x3f"),
        ("4f00", 0, "expected a format code, not 0x4f"),
        ("5602", 1, "expected a boolean of 0 or 1"),
        ("a10361", 1, "expected 4 bytes of a string, not 2"),
        ("a102c328", 2, "expected UTF-8"),
        ("a301c3", 2, "expected ASCII"),
        ("7300110000", 1, "expected a Unicode character"),
        ("730000d800", 1, "expected a Unicode character"),
        ("c00101", 3, "expected a list of 1 values"),
        ("c0020155", 4, "expected 1 bytes of a long"),
        ("c003014040", 4, "expected the end of a list, not 1 more bytes"),
        ("c10301a001", 3, "expected an even number"),
        ("c1050440414041", 5, "a map has a duplicate key"),
        ("d000000003000000", 5, "expected the count"),
        ("e00101", 3, "expected the element constructor"),
        ("e0020100", 4, "expected a value"),
        ("e00301ff00", 3, "expected a format code, not 0xff"),
        ("e0030252ff", 4, "expected an array of 2 values"),
        ("00", 1, "expected a value"),
        ("005301", 3, "expected a value"),
    ],
)
def test_errors_have_position_and_reason(octets: str, position: int, text: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_value(bytes.fromhex(octets))
    assert text in caught.value.text
    assert caught.value.position == position
    assert caught.value.condition == "amqp:decode-error"


def test_maps_that_a_dict_cannot_hold() -> None:
    pairs: list[tuple[Any, Any]] = [
        (1, "long"),
        (UInt(1), "uint"),
        (True, "boolean"),
        (Symbol("a"), 1),
        ("a", 2),
        ([1], 3),
        (Described(Symbol("d"), 1), 4),
    ]
    decoded, _ = decode_value(encode_value(Map(pairs)))
    assert plain(decoded) == plain(Map(pairs))
    with pytest.raises(EncodeError):
        encode_value(Map([(1, 1), (1, 2)]))
    with pytest.raises(DecodeError, match="duplicate key"):
        decode_value(bytes.fromhex("c1050445404541"))


def test_nesting_is_limited() -> None:
    nested: Any = None
    for _ in range(MAX_DEPTH):
        nested = [nested]
    assert decode_value(encode_value(nested))[0] == nested
    with pytest.raises(EncodeError):
        encode_value([nested])
    octets = b"\x40"
    for _ in range(MAX_DEPTH + 1):
        octets = b"\xd0" + struct.pack(">II", len(octets) + 4, 1) + octets
    with pytest.raises(DecodeError, match="nested"):
        decode_value(octets)
    for prefix in (b"\x00", b"\x00\x40", b"\xe0\xff\x01\x00\x40" + b"\x00\x40"):
        hostile = prefix * 100_000
        with pytest.raises(DecodeError):
            decode_value(hostile)
    with pytest.raises(DecodeError):
        value_end(b"\x00" * 100_000, 0, 100_000)


def test_elements_without_bytes_are_limited() -> None:
    def array(count: int) -> bytes:
        return b"\xf0" + struct.pack(">II", 5, count) + b"\x40"

    decoded = decode_value(array(MAX_EMPTY_ELEMENTS))[0]
    assert isinstance(decoded, Array) and len(decoded.items) == MAX_EMPTY_ELEMENTS
    for octets in (array(MAX_EMPTY_ELEMENTS + 1), array(0xFFFFFFFF)):
        with pytest.raises(DecodeError, match="zero-width elements"):
            decode_value(octets)
    # The limit applies to the complete value, however many arrays are in it.
    several = array(MAX_EMPTY_ELEMENTS // 2) * 3
    with pytest.raises(DecodeError, match="zero-width elements"):
        decode_value(b"\xd0" + struct.pack(">II", len(several) + 4, 3) + several)
    for code in (0xD0, 0xD1, 0xF0):
        with pytest.raises(DecodeError):
            decode_value(bytes((code,)) + struct.pack(">II", 6, 0xFFFFFFFE) + b"\x52\x00")


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        UByte(256),
        UByte(-1),
        UShort(65536),
        UInt(2**32),
        UInt(-1),
        ULong(2**64),
        ULong(-1),
        Byte(128),
        Short(-32769),
        Int(2**31),
        Timestamp(2**63),
        Float(1e39),
        Symbol("é"),
        "\ud800",
        Char("ab"),
        Char("\ud800"),
        object(),
        {1, 2},
        Array("uint", [True]),
        Array("uint", ["a"]),
        Array("uint", [ULong(1)]),
        Array("long", [UInt(1)]),
        Array("string", [Symbol("a")]),
        Array("what", []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_cannot_be_encoded(value: Any) -> None:
    with pytest.raises(EncodeError):
        encode_value(value)


def test_plain_values_in_arrays() -> None:
    assert encode_value(Array("uint", [1])) == encode_value(Array("uint", [UInt(1)]))
    assert encode_value(Array("symbol", ["a"])) == encode_value(Array("symbol", [Symbol("a")]))
    assert encode_value((1, bytearray(b"a"), memoryview(b"b"))) == encode_value([1, b"a", b"b"])


@pytest.mark.parametrize("kind", [Decimal32, Decimal64, Decimal128])
@given(data=st.data())
def test_decimals(kind: Any, data: st.DataObject) -> None:
    coefficient = data.draw(st.integers(0, 10**kind.DIGITS - 1))
    exponent = data.draw(st.integers(-kind.BIAS, 3 * 2 ** (kind.EXPONENT_BITS - 2) - 1 - kind.BIAS))
    digits = tuple(map(int, str(coefficient)))
    number = decimal.Decimal((data.draw(st.integers(0, 1)), digits, exponent))
    assert kind.of(number).decimal().as_tuple() == number.as_tuple()


@pytest.mark.parametrize("kind", [Decimal32, Decimal64, Decimal128])
def test_decimals_that_are_no_numbers(kind: Any) -> None:
    for text in ("Infinity", "-Infinity", "NaN", "-NaN", "sNaN", "NaN123"):
        assert str(kind.of(text).decimal()) == text
    for text in ("1E+7000", "1." + "1" * 40, "1E-7000"):
        with pytest.raises(EncodeError):
            kind.of(text)
    # Too many digits for the format: not canonical, and 0 (IEEE 754-2008 3.5.2).
    octets = bytes([0x6C if kind is Decimal128 else 0x77]) + b"\xff" * (kind.WIDTH - 1)
    assert kind(octets).decimal() == 0
    assert str(Decimal32.of("10000000").decimal()) == "1.000000E+7"
    with pytest.raises(EncodeError):
        kind(b"")


def test_every_format_code_is_known_by_its_width() -> None:
    assert len(TYPES) == 39
    for code in range(256):
        assert (WIDTHS[code] == -3) == (code not in TYPES)


def test_the_shapes_of_the_examples_in_the_specification() -> None:
    # A described string with a string as descriptor, and a composite type with several authors (types 1.3, 1.4).
    url = bytes.fromhex("00a10355524c") + b"\xa1\x0ahttp://a.b"
    assert decode_value(url)[0] == Described("URL", "http://a.b")
    book = b"\x00\xa3\x11example:book:list\xc0\x1b\x03\xa1\x05Hares\xe0\x10\x02\xa1\x05Anton\x07Bertram\x40"
    value, end = decode_value(book)
    assert end == len(book)
    assert value == Described(Symbol("example:book:list"), ["Hares", Array("string", ["Anton", "Bertram"]), None])
    assert encode_value(value) == book


def test_descriptors_are_nested_as_deep_as_values() -> None:
    """Each zero begins a descriptor, which is described itself, down to a null."""
    assert value_end(b"\0" * MAX_DEPTH + b"\x40" * (MAX_DEPTH + 1), 0, 2 * MAX_DEPTH + 1) == 2 * MAX_DEPTH + 1
    with pytest.raises(DecodeError, match="nested more than 64 deep"):
        value_end(b"\0" * (MAX_DEPTH + 1) + b"\x40" * (MAX_DEPTH + 2), 0, 2 * MAX_DEPTH + 3)
