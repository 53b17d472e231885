"""Field tables and arrays: tagged values by name (0-9-1 section 4.2.5.5).

In Python, str is a long string (UTF-8; bytes that are not UTF-8 survive as surrogates), bytes a byte array, int the smaller
of the two signed integers that it fits (`LongLong` is always the larger), float a double, `Decimal` a decimal, an aware
`datetime` a timestamp of whole seconds in UTC (`RawTimestamp` beyond the year 9999), list an array, dict a table and None
void.

If two fields have the same name, the last one wins, as in most clients; the specification does not define it. Tables may be
nested up to `MAX_DEPTH` levels.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Final

from leveret.wire.amqp0 import dialects
from leveret.wire.amqp0.constants import SYNTAX_ERROR
from leveret.wire.amqp0.dialects import Dialect
from leveret.wire.amqp0.errors import EncodeError, WireError
from leveret.wire.amqp0.values import FieldTable, FieldValue, LongLong, RawTimestamp

MAX_DEPTH: Final = 64
# Fields to search for a name.
MAX_SEARCHED: Final = 1000

# Scaling 32 bits by up to 255 digits is exact in this context. The thread's own context may round.
_EXACT: Final = Context(prec=20, Emin=-9_999, Emax=9_999)
# Builds a decimal from an integer and an exponent in one call: a frame may contain 21,000 decimals.
_SCALED: Final = _EXACT.scaleb
_U32: Final = struct.Struct(">I").unpack_from
_INT8: Final = struct.Struct(">b").unpack_from
_INT16: Final = struct.Struct(">h").unpack_from
_UINT16: Final = struct.Struct(">H").unpack_from
_INT32: Final = struct.Struct(">i").unpack_from
_INT64: Final = struct.Struct(">q").unpack_from
_UINT64: Final = struct.Struct(">Q").unpack_from
_FLOAT: Final = struct.Struct(">f").unpack_from
_DOUBLE: Final = struct.Struct(">d").unpack_from
_PACK_U32: Final = struct.Struct(">I").pack
_PACK_TAGGED_I32: Final = struct.Struct(">ci").pack
_PACK_TAGGED_I64: Final = struct.Struct(">cq").pack
_PACK_TAGGED_U64: Final = struct.Struct(">cQ").pack
_PACK_TAGGED_DOUBLE: Final = struct.Struct(">cd").pack
_PACK_DECIMAL: Final = struct.Struct(">cBi").pack
_PACK_UNSIGNED_DECIMAL: Final = struct.Struct(">cBI").pack

# Types that are also those of their decoded values.
_PLAIN_TYPES: Final = (dialects.LONG_STRING, dialects.BOOLEAN, dialects.DOUBLE, dialects.VOID)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# The first second of the year 10000.
_TIMESTAMP_END: Final = 253402300800


def check_table(data: bytes, pos: int, end: int, dialect: Dialect, depth: int = 0) -> bool:
    """Return whether the fields between `pos` and `end` can be decoded, without decoding them.

    Raises:
        IndexError: `data` is truncated.
    """
    while pos < end:
        pos += 1 + data[pos]
        if pos >= end:
            return False
        pos = _check_value(data, pos, end, dialect, depth)
    return pos == end


def _check_value(data: bytes, pos: int, end: int, dialect: Dialect, depth: int) -> int:
    """Return the end of the value whose tag is at `pos`; more than `end` if it cannot be decoded."""
    size = dialect.sizes[data[pos]]
    pos += 1
    if size >= 0:
        return pos + size
    if size == dialects.SHORT_LENGTH:
        return pos + 1 + data[pos]
    if size == dialects.NO_SUCH_TYPE:
        return end + 1
    stop = pos + 4 + (data[pos] << 24 | data[pos + 1] << 16 | data[pos + 2] << 8 | data[pos + 3])
    if size == dialects.LONG_LENGTH:
        return stop
    if depth >= MAX_DEPTH or stop > end:
        return end + 1
    pos += 4
    if size == dialects.NESTED_TABLE:
        return stop if check_table(data, pos, stop, dialect, depth + 1) else end + 1
    while pos < stop:
        pos = _check_value(data, pos, stop, dialect, depth + 1)
    return stop if pos == stop else end + 1


def decode_table(data: bytes, pos: int, end: int, dialect: Dialect, depth: int = 0) -> FieldTable:
    """Decode the fields of a table between `pos` and `end`, without its length.

    Raises:
        WireError: 502, the table is malformed.
    """
    table: FieldTable = {}
    while pos < end:
        start = pos + 1
        pos = start + data[pos]
        if pos >= end:
            raise WireError(SYNTAX_ERROR, "a field table ends within a field")
        name = data[start:pos].decode("utf-8", "surrogateescape")
        stop = value_end(data, pos, end, dialect)
        table[name] = _decode_value(data, pos, stop, dialect, depth)
        pos = stop
    return table


def find_text(data: bytes, pos: int, end: int, name: bytes, dialect: Dialect) -> str:
    """Return the long string with a name in the table between `pos` and `end`, without decoding other fields.

    Return "" if there is none among the first MAX_SEARCHED fields.

    Raises:
        WireError: 502, the table is malformed.
    """
    found = ""
    searched = 0
    while pos < end and searched < MAX_SEARCHED:
        start = pos + 1
        pos = start + data[pos]
        if pos >= end:
            raise WireError(SYNTAX_ERROR, "a field table ends within a field")
        stop = value_end(data, pos, end, dialect)
        if pos - start == len(name) and data.startswith(name, start):
            is_text = dialect.types[data[pos]] == dialects.LONG_STRING
            found = data[pos + 5 : stop].decode("utf-8", "surrogateescape") if is_text else ""
        pos = stop
        searched += 1
    return found


def loses_types(data: bytes, pos: int, end: int, dialect: Dialect) -> bool:
    """Return whether decoding the valid table between `pos` and `end` loses types.

    An integer may be of several types. Nested values are not examined: they count as lost.
    """
    while pos < end:
        pos += 1 + data[pos]
        if dialect.types[data[pos]] not in _PLAIN_TYPES:
            return True
        pos = value_end(data, pos, end, dialect)
    return False


def decode_array(data: bytes, pos: int, end: int, dialect: Dialect, depth: int = 0) -> list[FieldValue]:
    """Decode the values of an array between `pos` and `end`, without its length.

    Raises:
        WireError: 502, the array is malformed.
    """
    array: list[FieldValue] = []
    while pos < end:
        stop = value_end(data, pos, end, dialect)
        array.append(_decode_value(data, pos, stop, dialect, depth))
        pos = stop
    return array


def value_end(data: bytes, pos: int, end: int, dialect: Dialect) -> int:
    """Return the end of the value whose tag is at `pos`.

    Raises:
        WireError: 502, the type is unknown or the value exceeds `end`.
    """
    size = dialect.sizes[data[pos]]
    stop = pos + 1
    if size >= 0:
        stop += size
    elif size == dialects.NO_SUCH_TYPE:
        raise WireError(SYNTAX_ERROR, f"a field table has a value of the unknown type {data[pos : pos + 1]!r}")
    elif size == dialects.SHORT_LENGTH:
        if stop < end:
            stop += 1 + data[stop]
        else:
            stop = end + 1
    elif stop + 4 <= end:
        length: int = _U32(data, stop)[0]
        stop += 4 + length
    else:
        stop = end + 1
    if stop > end:
        raise WireError(SYNTAX_ERROR, "a field table ends within a value")
    return stop


def _decode_value(data: bytes, pos: int, stop: int, dialect: Dialect, depth: int) -> FieldValue:
    """Decode the value between its tag at `pos` and `stop`. The caller has checked its length."""
    value: FieldValue
    type = dialect.types[data[pos]]
    pos += 1
    if type == dialects.LONG_STRING:
        return data[pos + 4 : stop].decode("utf-8", "surrogateescape")
    if type == dialects.INT32:
        value = _INT32(data, pos)[0]
        return value
    if type == dialects.INT64:
        value = _INT64(data, pos)[0]
        return value
    if type == dialects.BOOLEAN:
        return data[pos] != 0
    if type == dialects.TABLE or type == dialects.ARRAY:
        if depth >= MAX_DEPTH:
            raise WireError(SYNTAX_ERROR, f"a field table is nested more than {MAX_DEPTH} deep")
        if type == dialects.TABLE:
            return decode_table(data, pos + 4, stop, dialect, depth + 1)
        return decode_array(data, pos + 4, stop, dialect, depth + 1)
    if type == dialects.BYTE_ARRAY:
        return data[pos + 4 : stop]
    if type == dialects.VOID:
        return None
    if type == dialects.TIMESTAMP:
        seconds: int = _UINT64(data, pos)[0]
        return _EPOCH + timedelta(seconds=seconds) if seconds < _TIMESTAMP_END else RawTimestamp(seconds)
    if type == dialects.DOUBLE:
        value = _DOUBLE(data, pos)[0]
        return value
    if type == dialects.FLOAT:
        value = _FLOAT(data, pos)[0]
        return value
    if type == dialects.INT8:
        value = _INT8(data, pos)[0]
        return value
    if type == dialects.UINT8:
        return data[pos]
    if type == dialects.INT16:
        value = _INT16(data, pos)[0]
        return value
    if type == dialects.UINT16:
        value = _UINT16(data, pos)[0]
        return value
    if type == dialects.UINT32:
        value = _U32(data, pos)[0]
        return value
    if type == dialects.UINT64:
        value = _UINT64(data, pos)[0]
        return value
    if type == dialects.DECIMAL or type == dialects.UNSIGNED_DECIMAL:
        unscaled: int = _INT32(data, pos + 1)[0] if type == dialects.DECIMAL else _U32(data, pos + 1)[0]
        return _SCALED(unscaled, -data[pos])
    if type == dialects.SHORT_STRING:
        return data[pos + 1 : stop].decode("utf-8", "surrogateescape")
    return data[pos:stop].decode("latin-1")  # CHARACTER: one byte


def encode_table(table: FieldTable, dialect: Dialect, depth: int = 0) -> bytes:
    """Encode a table with its length.

    Raises:
        EncodeError: the dialect does not support a value.
    """
    pieces: list[bytes] = []
    for name, value in table.items():
        pieces.append(encode_short_string(name))
        pieces.append(encode_value(value, dialect, depth))
    data = b"".join(pieces)
    return _PACK_U32(len(data)) + data


def encode_array(array: list[FieldValue] | tuple[FieldValue, ...], dialect: Dialect, depth: int = 0) -> bytes:
    """Encode an array with its length.

    Raises:
        EncodeError: the dialect does not support a value.
    """
    data = b"".join([encode_value(value, dialect, depth) for value in array])
    return _PACK_U32(len(data)) + data


def encode_short_string(value: str | bytes) -> bytes:
    """Encode a string with a length of one byte.

    Raises:
        EncodeError: it has more than 255 bytes.
    """
    data = _to_bytes(value)
    if len(data) > 255:
        raise EncodeError(f"a short string has {len(data)} bytes, expected at most 255")
    return bytes((len(data),)) + data


def encode_long_string(value: str | bytes) -> bytes:
    """Encode a string with its length."""
    data = _to_bytes(value)
    return _PACK_U32(len(data)) + data


def _to_bytes(value: str | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise EncodeError(f"not a string of Unicode characters: {error}") from error


def encode_value(value: FieldValue, dialect: Dialect, depth: int = 0) -> bytes:
    """Encode a value with its tag.

    Raises:
        EncodeError: the dialect does not support the value.
    """
    if isinstance(value, str):
        return b"S" + encode_long_string(value)
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, RawTimestamp):
        return _PACK_TAGGED_U64(b"T", value)
    if isinstance(value, int):
        if -0x80000000 <= value <= 0x7FFFFFFF and not isinstance(value, LongLong):
            return _PACK_TAGGED_I32(b"I", value)
        if -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
            return _PACK_TAGGED_I64(dialect.long_tag, value)
        raise EncodeError(f"{value} does not fit 64 bits")
    if value is None:
        return b"V"
    if isinstance(value, dict):
        if depth >= MAX_DEPTH:
            raise EncodeError(f"a field table is nested more than {MAX_DEPTH} deep")
        return b"F" + encode_table(value, dialect, depth + 1)
    if isinstance(value, (list, tuple)):
        if depth >= MAX_DEPTH:
            raise EncodeError(f"a field table is nested more than {MAX_DEPTH} deep")
        return b"A" + encode_array(value, dialect, depth + 1)
    if isinstance(value, float):
        return _PACK_TAGGED_DOUBLE(b"d", value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return dialect.bytes_tag + encode_long_string(bytes(value))
    if isinstance(value, datetime):
        return _PACK_TAGGED_U64(b"T", encode_timestamp(value))
    if isinstance(value, Decimal):
        return _encode_decimal(value, dialect)
    raise EncodeError(f"a field table cannot contain a {type(value).__name__}")


def encode_timestamp(value: datetime | int) -> int:
    """Return a timestamp in seconds since 1970; a naive `datetime` is in UTC.

    Raises:
        EncodeError: the time is before 1970 or does not fit 64 bits.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            value = value.replace(tzinfo=UTC)
        value = (value - _EPOCH) // timedelta(seconds=1)
    if not 0 <= value <= 0xFFFFFFFFFFFFFFFF:
        raise EncodeError(f"a timestamp of {value} seconds since 1970 does not fit 64 unsigned bits")
    return int(value)


def _encode_decimal(value: Decimal, dialect: Dialect) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise EncodeError(f"a field table cannot contain the decimal {value}")
    unscaled = int("".join([str(digit) for digit in digits]))
    if exponent > 0:
        if exponent > 10:
            unscaled = 1 << 64 if unscaled else 0
        else:
            unscaled *= 10**exponent
        exponent = 0
    if sign:
        unscaled = -unscaled
    low, high = (0, 0xFFFFFFFF) if dialect.unsigned_decimal else (-0x80000000, 0x7FFFFFFF)
    if not low <= unscaled <= high or exponent < -255:
        raise EncodeError(f"the decimal {value} does not fit 32 bits and a scale of 255")
    if dialect.unsigned_decimal:
        return _PACK_UNSIGNED_DECIMAL(b"D", -exponent, unscaled)
    return _PACK_DECIMAL(b"D", -exponent, unscaled)
