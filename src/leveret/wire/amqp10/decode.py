"""Decoding of values (types 1.1 to 1.6). `values` defines the Python types.

The cost of hostile input is proportional to its size: values are nested at most `MAX_DEPTH` deep; sizes and counts are
checked against the available bytes before anything is allocated; one decoding creates at most `MAX_EMPTY_ELEMENTS`
zero-width array elements; a decimal counts as `DECIMAL_VALUES` values; and a map becomes a dict only if a peer cannot make
the hashes of its keys collide.
"""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID as Uuid

from leveret.wire.amqp10 import codes
from leveret.wire.amqp10.codes import TYPES, WIDTHS
from leveret.wire.amqp10.constants import DECODE_ERROR, RESOURCE_LIMIT_EXCEEDED
from leveret.wire.amqp10.encode import encode_value
from leveret.wire.amqp10.errors import DecodeError
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
    Pairs,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Value,
)

MAX_DEPTH: Final = 64
MAX_EMPTY_ELEMENTS: Final = 4096
NO_LIMIT: Final = 1 << 62
# A decimal counts as this many values, because converting it to a number takes that much longer.
DECIMAL_VALUES: Final = 4
# Maximum number of keys of a dict whose hashes a peer can compute: all except strings, symbols and binaries, which Python
# hashes with a secret. A map with more of them becomes a `Map`.
MAX_GUESSABLE_KEYS: Final = 32

_U16: Final = struct.Struct(">H").unpack_from
_U32: Final = struct.Struct(">I").unpack_from
_U64: Final = struct.Struct(">Q").unpack_from
_I8: Final = struct.Struct(">b").unpack_from
_I16: Final = struct.Struct(">h").unpack_from
_I32: Final = struct.Struct(">i").unpack_from
_I64: Final = struct.Struct(">q").unpack_from
_FLOAT: Final = struct.Struct(">f").unpack_from
_DOUBLE: Final = struct.Struct(">d").unpack_from

_SCALAR: Final = 0
_LIST: Final = 1
_MAP: Final = 2
_ARRAY: Final = 3
_SHAPES: Final[list[int]] = [
    {"list": _LIST, "map": _MAP, "array": _ARRAY}.get(TYPES.get(code, ""), _SCALAR) for code in range(256)
]


def value_end(data: bytes, pos: int, end: int) -> int:
    """Return the end of the value at `pos`, according to its size.

    The contents of lists, maps and arrays are not checked. Raises DecodeError if the format code is unknown or the
    value extends beyond `end`.
    """
    if pos < end and data[pos] == codes.DESCRIBED:
        pos = constructor(data, pos, end, 0)
    if pos >= end:
        raise DecodeError(pos, "expected a value", DECODE_ERROR, True)
    return content_end(data, data[pos], pos + 1, end)


def constructor(data: bytes, pos: int, end: int, depth: int) -> int:
    """Return the position of the format code after the descriptors at `pos`."""
    while pos < end and data[pos] == codes.DESCRIBED:
        depth += 1
        if depth > MAX_DEPTH:
            raise DecodeError(pos, f"values are nested more than {MAX_DEPTH} deep")
        pos = constructor(data, pos + 1, end, depth)
        if pos >= end:
            break
        pos = content_end(data, data[pos], pos + 1, end)
    if pos >= end:
        raise DecodeError(pos, "expected a format code", DECODE_ERROR, True)
    return pos


def content_end(data: bytes, code: int, pos: int, end: int) -> int:
    """Return the end of the bytes that follow the format code `code` at `pos`. Raises DecodeError as `value_end` does."""
    width = WIDTHS[code]
    stop = pos
    if width >= 0:
        stop += width
    elif width == codes.ONE_BYTE_SIZE:
        if pos >= end:
            raise DecodeError(pos, f"expected the size of a {TYPES[code]}", DECODE_ERROR, True)
        stop += 1 + data[pos]
    elif width == codes.FOUR_BYTE_SIZE:
        if pos + 4 > end:
            raise DecodeError(pos, f"expected the size of a {TYPES[code]}", DECODE_ERROR, True)
        stop += 4 + (data[pos] << 24 | data[pos + 1] << 16 | data[pos + 2] << 8 | data[pos + 3])
    else:
        raise DecodeError(pos - 1, f"expected a format code, not 0x{code:02x}")
    if stop > end:
        raise DecodeError(pos, f"expected {stop - pos} bytes of a {TYPES[code]}, not {end - pos}", DECODE_ERROR, True)
    return stop


def check_keys(data: bytes, pos: int, end: int, allowed: bytes) -> int:
    """Return the format code of the first key of the map at `pos` that is not in `allowed`.

    Return -1 if all keys are allowed or the value is not a map. Nothing is decoded. Raises DecodeError if the map is
    truncated.
    """
    if pos >= end or _SHAPES[data[pos]] != _MAP:
        return -1
    code = data[pos]
    end = content_end(data, code, pos + 1, end)
    pos += 3 if WIDTHS[code] == codes.ONE_BYTE_SIZE else 9
    while pos < end:
        code = data[pos]
        if code not in allowed:
            return code
        pos = value_end(data, value_end(data, pos, end), end)
    return -1


def count_values(data: bytes, pos: int, end: int, max_values: int) -> int:
    """Return the number of values in the data, including those in lists, maps and arrays.

    A result above `max_values` means that there may be more. Nothing is decoded. Raises DecodeError if the data is
    truncated.
    """
    count = 0
    while pos < end and count <= max_values:
        code = data[pos]
        count += 1
        shape = _SHAPES[code]
        if code == codes.DESCRIBED:
            pos += 1
        elif shape == _ARRAY:
            # Elements share a format code. In elements of a compound type, each byte may be a value.
            stop = content_end(data, code, pos + 1, end)
            wide = WIDTHS[code] == codes.FOUR_BYTE_SIZE
            begin = pos + (9 if wide else 3)
            if begin > stop:
                raise DecodeError(pos, "expected the count of an array")
            elements = _U32(data, pos + 5)[0] if wide else data[pos + 2]
            nested = begin >= stop or data[begin] == codes.DESCRIBED or _SHAPES[data[begin]] != _SCALAR
            count += stop - begin if nested else elements
            pos = stop
        elif shape == _SCALAR or code == codes.LIST_0:
            pos = content_end(data, code, pos + 1, end)
        else:
            pos += 9 if WIDTHS[code] == codes.FOUR_BYTE_SIZE else 3
    return count


def decode_value(data: bytes, pos: int = 0, end: int = -1, max_values: int = NO_LIMIT) -> tuple[Value, int]:
    """Return the value at `pos`, and its end.

    Raises DecodeError if it is malformed or consists of more than `max_values` values.
    """
    decoder = Decoder(data, pos, len(data) if end < 0 else end, max_values)
    value = decoder.value(0)
    return value, decoder.pos


def section_pairs(data: bytes, begin: int, end: int, max_values: int = NO_LIMIT) -> Pairs:
    """Return the pairs of the map section at `begin`; empty if the section is not a map. Raises DecodeError."""
    value = decode_value(data, begin, end, max_values)[0]
    content = value.value if isinstance(value, Described) else value
    if isinstance(content, Map):
        return list(content.pairs)
    return list(content.items()) if isinstance(content, dict) else []


class Decoder:
    """A decoder of the values between `pos` and `end`. `pos` advances; up to `left` further values are allowed."""

    __slots__ = ("_spare", "data", "end", "left", "max_values", "pos")

    def __init__(self, data: bytes, pos: int, end: int, max_values: int = NO_LIMIT) -> None:
        """Decode at most `max_values` values."""
        self.max_values = max_values
        self.left = max_values
        self.data = data
        self.pos = pos
        self.end = end
        self._spare = MAX_EMPTY_ELEMENTS

    def value(self, depth: int) -> Value:
        """Return the next value, nested in `depth` others."""
        pos = self.pos
        if pos >= self.end:
            raise DecodeError(pos, "expected a value")
        self.left -= 1
        if self.left < 0:
            raise self._too_many()
        code = self.data[pos]
        self.pos = pos + 1
        if code == codes.DESCRIBED:
            if depth >= MAX_DEPTH:
                raise DecodeError(pos, f"values are nested more than {MAX_DEPTH} deep")
            descriptor = self.value(depth + 1)
            return Described(descriptor, self.value(depth + 1))
        return self._content(code, depth)

    def _too_many(self) -> DecodeError:
        return DecodeError(self.pos, f"more than {self.max_values} values, the maximum", RESOURCE_LIMIT_EXCEEDED)

    def enter_list(self) -> int:
        """Enter the list that is the next value, and return its count.

        Sets `end` to the end of the list; the caller restores it.
        """
        pos = self.pos
        if pos >= self.end:
            raise DecodeError(pos, "expected a list")
        code = self.data[pos]
        if _SHAPES[code] != _LIST:
            raise DecodeError(pos, f"expected a list, not {TYPES.get(code, 'a described value')}")
        stop = content_end(self.data, code, pos + 1, self.end)
        self.pos = pos + 1
        count = 0 if code == codes.LIST_0 else self._enter(code, stop)
        if count > stop - self.pos:
            raise DecodeError(self.pos, f"expected a list of {count} values, not {stop - self.pos} bytes")
        self.end = stop
        return count

    def _content(self, code: int, depth: int) -> Value:
        """Return the value whose format code `code` has been read."""
        start = self.pos
        stop = content_end(self.data, code, start, self.end)
        shape = _SHAPES[code]
        if shape == _SCALAR or code == codes.LIST_0:
            self.pos = stop
            if code == codes.DECIMAL_32 or code == codes.DECIMAL_64 or code == codes.DECIMAL_128:
                self.left -= DECIMAL_VALUES - 1
                if self.left < 0:
                    raise self._too_many()
            return _scalar(self.data, code, start, stop)
        if depth >= MAX_DEPTH:
            raise DecodeError(start, f"values are nested more than {MAX_DEPTH} deep")
        count = self._enter(code, stop)
        end = self.end
        self.end = stop
        value: Value
        if shape == _LIST:
            value = self._list(count, depth + 1)
        elif shape == _MAP:
            value = self._map(count, depth + 1)
        else:
            value = self._array(count, depth + 1)
        if self.pos != stop:
            raise DecodeError(self.pos, f"expected the end of a {TYPES[code]}, not {stop - self.pos} more bytes")
        self.end = end
        return value

    def _enter(self, code: int, stop: int) -> int:
        """Return the count of a list, map or array that ends at `stop`, and advance `pos` past it."""
        pos = self.pos
        if WIDTHS[code] == codes.ONE_BYTE_SIZE:
            if pos + 2 > stop:
                raise DecodeError(pos + 1, f"expected the count of a {TYPES[code]}")
            self.pos = pos + 2
            return self.data[pos + 1]
        if pos + 8 > stop:
            raise DecodeError(pos + 4, f"expected the count of a {TYPES[code]}")
        self.pos = pos + 8
        count: int = _U32(self.data, pos + 4)[0]
        return count

    def _list(self, count: int, depth: int) -> list[Value]:
        if count > self.end - self.pos:
            raise DecodeError(self.pos, f"expected a list of {count} values, not {self.end - self.pos} bytes")
        return [self.value(depth) for _ in range(count)]

    def _map(self, count: int, depth: int) -> Value:
        start = self.pos
        if count & 1:
            raise DecodeError(start, f"expected an even number of values in a map, not {count}")
        if count > self.end - start:
            raise DecodeError(start, f"expected a map of {count} values, not {self.end - start} bytes")
        pairs: dict[Value, Value] = {}
        plain = True
        guessable = 0
        for _ in range(count >> 1):
            at = self.pos
            key = self.value(depth)
            if not isinstance(key, (str, bytes)):
                guessable += 1
            try:
                if guessable > MAX_GUESSABLE_KEYS or key in pairs:
                    plain = False
            except TypeError:
                plain = False
            if not plain:
                self.pos = at
                break
            pairs[key] = self.value(depth)
        if plain:
            return pairs
        return self._unusual_map(pairs, (count >> 1) - len(pairs), start, depth)

    def _unusual_map(self, begun: dict[Value, Value], count: int, start: int, depth: int) -> Value:
        """Decode the rest of a map whose keys a dict would confuse, cannot contain or should not contain.

        `begun` contains the pairs decoded so far.
        """
        pairs = list(begun.items())
        # Two keys are the same if they have the same type and value, and so the same canonical encoding.
        seen = {encode_value(key) for key in begun}
        for _ in range(count):
            at = self.pos
            key = self.value(depth)
            canonical = encode_value(key)
            if canonical in seen:
                raise DecodeError(at, "a map has a duplicate key")
            seen.add(canonical)
            pairs.append((key, self.value(depth)))
        return Map(pairs)

    def _array(self, count: int, depth: int) -> Array:
        descriptors: list[Value] = []
        while self.pos < self.end and self.data[self.pos] == codes.DESCRIBED:
            depth += 1
            if depth > MAX_DEPTH:
                raise DecodeError(self.pos, f"values are nested more than {MAX_DEPTH} deep")
            self.pos += 1
            descriptors.append(self.value(depth))
        if self.pos >= self.end:
            raise DecodeError(self.pos, "expected the element constructor of an array")
        code = self.data[self.pos]
        width = WIDTHS[code]
        if width == codes.NO_SUCH_CODE:
            raise DecodeError(self.pos, f"expected a format code, not 0x{code:02x}")
        self.pos += 1
        if width == 0:
            self._spare -= count
            if self._spare < 0:
                raise DecodeError(self.pos, f"arrays have more than {MAX_EMPTY_ELEMENTS} zero-width elements")
        elif count > self.end - self.pos:
            raise DecodeError(self.pos, f"expected an array of {count} values, not {self.end - self.pos} bytes")
        self.left -= count
        if self.left < 0:
            raise self._too_many()
        return Array(TYPES[code], [self._content(code, depth) for _ in range(count)], tuple(descriptors))


def _scalar(data: bytes, code: int, pos: int, stop: int) -> Value:
    """Return the value between `pos` and `stop`, the end found by `content_end`."""
    number: Value
    if code == codes.STRING_8 or code == codes.STRING_32:
        return decode_text(data, pos + (1 if code == codes.STRING_8 else 4), stop)
    if code == codes.SYMBOL_8 or code == codes.SYMBOL_32:
        return Symbol(decode_symbol(data, pos + (1 if code == codes.SYMBOL_8 else 4), stop))
    if code == codes.NULL:
        return None
    if code == codes.TRUE:
        return True
    if code == codes.FALSE:
        return False
    if code == codes.BINARY_8:
        return data[pos + 1 : stop]
    if code == codes.BINARY_32:
        return data[pos + 4 : stop]
    if code == codes.SMALL_LONG:
        number = _I8(data, pos)[0]
        return number
    if code == codes.LONG:
        number = _I64(data, pos)[0]
        return number
    if code == codes.BOOLEAN:
        if data[pos] > 1:
            raise DecodeError(pos, f"expected a boolean of 0 or 1, not {data[pos]}")
        return data[pos] == 1
    if code == codes.UINT_0:
        return UInt(0)
    if code == codes.SMALL_UINT:
        return UInt(data[pos])
    if code == codes.UINT:
        return UInt(_U32(data, pos)[0])
    if code == codes.ULONG_0:
        return ULong(0)
    if code == codes.SMALL_ULONG:
        return ULong(data[pos])
    if code == codes.ULONG:
        return ULong(_U64(data, pos)[0])
    if code == codes.SMALL_INT:
        return Int(_I8(data, pos)[0])
    if code == codes.INT:
        return Int(_I32(data, pos)[0])
    if code == codes.UBYTE:
        return UByte(data[pos])
    if code == codes.USHORT:
        return UShort(_U16(data, pos)[0])
    if code == codes.BYTE:
        return Byte(_I8(data, pos)[0])
    if code == codes.SHORT:
        return Short(_I16(data, pos)[0])
    if code == codes.TIMESTAMP:
        return Timestamp(_I64(data, pos)[0])
    if code == codes.DOUBLE:
        number = _DOUBLE(data, pos)[0]
        return number
    if code == codes.FLOAT:
        return Float(_FLOAT(data, pos)[0])
    if code == codes.UUID:
        return Uuid(bytes=data[pos:stop])
    if code == codes.LIST_0:
        return []
    if code == codes.CHAR:
        point: int = _U32(data, pos)[0]
        if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
            raise DecodeError(pos, f"expected a Unicode character, not 0x{point:x}")
        return Char(chr(point))
    if code == codes.DECIMAL_32:
        return Decimal32(data[pos:stop])
    if code == codes.DECIMAL_64:
        return Decimal64(data[pos:stop])
    return Decimal128(data[pos:stop])


def decode_text(data: bytes, pos: int, stop: int) -> str:
    """Decode UTF-8."""
    try:
        return data[pos:stop].decode("utf-8")
    except UnicodeDecodeError as error:
        raise DecodeError(pos + error.start, "expected UTF-8") from error


def decode_symbol(data: bytes, pos: int, stop: int) -> str:
    """Decode ASCII."""
    try:
        return data[pos:stop].decode("ascii")
    except UnicodeDecodeError as error:
        raise DecodeError(pos + error.start, "expected ASCII in a symbol") from error
