"""Encoding of values (types 1.1 to 1.6), in the shortest form of their type.

`values` defines the Python types; in addition, tuples are encoded as lists, and bytearrays and memoryviews as binaries. The
elements of an array share a format code: the shortest that fits all of them. Arrays do not use zero-width codes (except
null), and use one byte per boolean, because some peers require that.
"""

from __future__ import annotations

import struct
from typing import Any, Final
from uuid import UUID as Uuid

from leveret.wire.amqp10 import codes
from leveret.wire.amqp10.errors import EncodeError
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

_PACK_U16: Final = struct.Struct(">H").pack
_PACK_U32: Final = struct.Struct(">I").pack
_PACK_U64: Final = struct.Struct(">Q").pack
_PACK_I8: Final = struct.Struct(">b").pack
_PACK_I16: Final = struct.Struct(">h").pack
_PACK_I32: Final = struct.Struct(">i").pack
_PACK_I64: Final = struct.Struct(">q").pack
_PACK_FLOAT: Final = struct.Struct(">f").pack
_PACK_DOUBLE: Final = struct.Struct(">d").pack
_PACK_LIST_8: Final = struct.Struct(">BBB").pack
_PACK_LIST_32: Final = struct.Struct(">BII").pack
_PACK_SIZE_8: Final = struct.Struct(">BB").pack
_PACK_SIZE_32: Final = struct.Struct(">BI").pack

# By type: the class of its values, and the plain class that arrays also accept.
_PYTHON_TYPES: Final[dict[str, type]] = {
    "null": type(None),
    "boolean": bool,
    "ubyte": UByte,
    "ushort": UShort,
    "uint": UInt,
    "ulong": ULong,
    "byte": Byte,
    "short": Short,
    "int": Int,
    "long": int,
    "float": Float,
    "double": float,
    "decimal32": Decimal32,
    "decimal64": Decimal64,
    "decimal128": Decimal128,
    "char": Char,
    "timestamp": Timestamp,
    "uuid": Uuid,
    "binary": bytes,
    "string": str,
    "symbol": Symbol,
    "list": list,
    "map": dict,
    "array": Array,
}
_PLAIN: Final[dict[str, type]] = {
    "ubyte": int,
    "ushort": int,
    "uint": int,
    "ulong": int,
    "byte": int,
    "short": int,
    "int": int,
    "timestamp": int,
    "float": float,
    "char": str,
    "symbol": str,
}

# By type: the short and the long format code of array elements.
_ARRAY_CODES: Final[dict[str, tuple[int, int]]] = {
    "null": (codes.NULL, codes.NULL),
    "boolean": (codes.BOOLEAN, codes.BOOLEAN),
    "ubyte": (codes.UBYTE, codes.UBYTE),
    "ushort": (codes.USHORT, codes.USHORT),
    "uint": (codes.SMALL_UINT, codes.UINT),
    "ulong": (codes.SMALL_ULONG, codes.ULONG),
    "byte": (codes.BYTE, codes.BYTE),
    "short": (codes.SHORT, codes.SHORT),
    "int": (codes.SMALL_INT, codes.INT),
    "long": (codes.SMALL_LONG, codes.LONG),
    "float": (codes.FLOAT, codes.FLOAT),
    "double": (codes.DOUBLE, codes.DOUBLE),
    "decimal32": (codes.DECIMAL_32, codes.DECIMAL_32),
    "decimal64": (codes.DECIMAL_64, codes.DECIMAL_64),
    "decimal128": (codes.DECIMAL_128, codes.DECIMAL_128),
    "char": (codes.CHAR, codes.CHAR),
    "timestamp": (codes.TIMESTAMP, codes.TIMESTAMP),
    "uuid": (codes.UUID, codes.UUID),
    "binary": (codes.BINARY_8, codes.BINARY_32),
    "string": (codes.STRING_8, codes.STRING_32),
    "symbol": (codes.SYMBOL_8, codes.SYMBOL_32),
    "list": (codes.LIST_8, codes.LIST_32),
    "map": (codes.MAP_8, codes.MAP_32),
    "array": (codes.ARRAY_8, codes.ARRAY_32),
}


def encode_value(value: Any, depth: int = 0) -> bytes:
    """Encode a value with its constructor.

    Raises EncodeError for a type that is not in `values`, or a value out of range.
    """
    # Type checkers cannot follow exact type comparisons, hence `Any`.
    if value is None:
        return b"\x40"
    kind = type(value)
    if kind is str:
        return encode_text(value)
    if kind is Symbol:
        return encode_symbol(value)
    if kind is bool:
        return b"\x41" if value else b"\x42"
    if kind is int:
        return encode_long(value)
    if kind is UInt:
        return encode_uint(value)
    if kind is ULong:
        return encode_ulong(value)
    if kind is bytes:
        return encode_binary(value)
    if kind is dict:
        return encode_pairs(list(value.items()), depth)
    if kind is list or kind is tuple:
        return encode_list(list(value), depth)
    if kind is float:
        return b"\x82" + _PACK_DOUBLE(value)
    if kind is Described:
        if depth >= MAX_DEPTH:
            raise EncodeError(f"values are nested more than {MAX_DEPTH} deep")
        return b"\x00" + encode_value(value.descriptor, depth + 1) + encode_value(value.value, depth + 1)
    if kind is Array:
        return _encode_array(value, depth)
    if kind is Map:
        return encode_pairs(value.pairs, depth)
    return _encode_rare(value, depth)


def _encode_rare(value: Value, depth: int) -> bytes:
    """Encode a value of a less frequent type, or of a subclass of any type."""
    try:
        if isinstance(value, Int):
            return b"\x54" + _PACK_I8(value) if -128 <= value <= 127 else b"\x71" + _PACK_I32(value)
        if isinstance(value, UByte):
            return bytes((codes.UBYTE, value))
        if isinstance(value, UShort):
            return b"\x60" + _PACK_U16(value)
        if isinstance(value, Byte):
            return b"\x51" + _PACK_I8(value)
        if isinstance(value, Short):
            return b"\x61" + _PACK_I16(value)
        if isinstance(value, Timestamp):
            return b"\x83" + _PACK_I64(value)
        if isinstance(value, Float):
            return b"\x72" + encode_float(value)
    except (ValueError, struct.error) as error:
        raise EncodeError(f"{value!s} is out of the range of a {type(value).__name__}") from error
    if isinstance(value, Uuid):
        return b"\x98" + value.bytes
    if isinstance(value, Char):
        return b"\x73" + _code_point(value)
    if isinstance(value, Decimal32):
        return b"\x74" + value.encoded
    if isinstance(value, Decimal64):
        return b"\x84" + value.encoded
    if isinstance(value, Decimal128):
        return b"\x94" + value.encoded
    if isinstance(value, (bytearray, memoryview)):
        return encode_binary(bytes(value))
    # Subclasses of the types that `encode_value` compares exactly.
    if isinstance(value, UInt):
        return encode_uint(value)
    if isinstance(value, ULong):
        return encode_ulong(value)
    if isinstance(value, Symbol):
        return encode_symbol(value)
    if isinstance(value, str):
        return encode_text(value)
    if isinstance(value, int):
        return encode_long(value)
    if isinstance(value, float):
        return b"\x82" + _PACK_DOUBLE(value)
    if isinstance(value, bytes):
        return encode_binary(value)
    if isinstance(value, dict):
        return encode_pairs(list(value.items()), depth)
    if isinstance(value, (list, tuple)):
        return encode_list(list(value), depth)
    raise EncodeError(f"AMQP 1.0 has no type for a {type(value).__name__}")


def encode_uint(value: int) -> bytes:
    """Encode a uint. Raises EncodeError if it is out of range."""
    if value == 0:
        return b"\x43"
    if 0 < value <= 255:
        return bytes((codes.SMALL_UINT, value))
    if 0 < value <= 0xFFFFFFFF:
        return b"\x70" + _PACK_U32(value)
    raise EncodeError(f"{value} is out of the range of a uint")


def encode_ulong(value: int) -> bytes:
    """Encode a ulong. Raises EncodeError if it is out of range."""
    if value == 0:
        return b"\x44"
    if 0 < value <= 255:
        return bytes((codes.SMALL_ULONG, value))
    if 0 < value <= 0xFFFFFFFFFFFFFFFF:
        return b"\x80" + _PACK_U64(value)
    raise EncodeError(f"{value} is out of the range of a ulong")


def encode_long(value: int) -> bytes:
    """Encode a long. Raises EncodeError if it is out of range."""
    if -128 <= value <= 127:
        return b"\x55" + _PACK_I8(value)
    if -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
        return b"\x81" + _PACK_I64(value)
    raise EncodeError(f"{value} is out of the range of a long")


def encode_float(value: float) -> bytes:
    """Return the four bytes of a binary32. Raises EncodeError if the number is too large."""
    try:
        return _PACK_FLOAT(value)
    except OverflowError as error:
        raise EncodeError(f"{value} is out of the range of a float") from error


def encode_text(value: str) -> bytes:
    """Encode a string. Raises EncodeError if it has a lone surrogate."""
    return _sized(codes.STRING_8, codes.STRING_32, _utf8(value))


def encode_symbol(value: str) -> bytes:
    """Encode a symbol. Raises EncodeError if it is not ASCII."""
    return _sized(codes.SYMBOL_8, codes.SYMBOL_32, _ascii(value))


def encode_binary(value: bytes) -> bytes:
    """Encode a binary."""
    return _sized(codes.BINARY_8, codes.BINARY_32, value)


def encode_list(values: list[Value], depth: int = 0) -> bytes:
    """Encode a list of values."""
    if not values:
        return b"\x45"
    if depth >= MAX_DEPTH:
        raise EncodeError(f"values are nested more than {MAX_DEPTH} deep")
    return encode_compound(codes.LIST_8, len(values), b"".join([encode_value(value, depth + 1) for value in values]))


def encode_pairs(pairs: Pairs, depth: int = 0, symbols: bool = False) -> bytes:
    """Encode a map. With `symbols`, plain str keys are encoded as symbols. Raises EncodeError for a duplicate key."""
    if depth >= MAX_DEPTH:
        raise EncodeError(f"values are nested more than {MAX_DEPTH} deep")
    keys: set[bytes] = set()
    pieces: list[bytes] = []
    for key, value in pairs:
        encoded_key = encode_symbol(key) if symbols and type(key) is str else encode_value(key, depth + 1)
        if encoded_key in keys:
            raise EncodeError(f"a map has the duplicate key {key!r}")
        keys.add(encoded_key)
        pieces.append(encoded_key)
        pieces.append(encode_value(value, depth + 1))
    return encode_compound(codes.MAP_8, len(pieces), b"".join(pieces))


def encode_compound(code: int, count: int, content: bytes) -> bytes:
    """Encode a list, map or array of `count` encoded values; `code` is the format code with a size of one byte."""
    size = len(content)
    if size < 255 and count < 256:
        return _PACK_LIST_8(code, size + 1, count) + content
    return _PACK_LIST_32(code + 0x10, size + 4, count) + content


def _sized(short: int, long: int, content: bytes) -> bytes:
    if len(content) < 256:
        return _PACK_SIZE_8(short, len(content)) + content
    return _PACK_SIZE_32(long, len(content)) + content


def _utf8(value: str) -> bytes:
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise EncodeError(f"a string must not contain surrogates: {error}") from error


def _ascii(value: str) -> bytes:
    try:
        return value.encode("ascii")
    except UnicodeEncodeError as error:
        raise EncodeError(f"a symbol must be ASCII: {error}") from error


def _code_point(value: str) -> bytes:
    if len(value) != 1 or 0xD800 <= ord(value) <= 0xDFFF:
        raise EncodeError(f"{value!r} is not one Unicode character")
    return _PACK_U32(ord(value))


def _encode_array(array: Array, depth: int) -> bytes:
    if array.type not in _ARRAY_CODES:
        raise EncodeError(f"AMQP 1.0 has no type {array.type!r} for array elements")
    depth += 1 + len(array.descriptors)
    if depth > MAX_DEPTH:
        raise EncodeError(f"values are nested more than {MAX_DEPTH} deep")
    constructor = b"".join([b"\x00" + encode_value(descriptor, depth) for descriptor in array.descriptors])
    short, long = _ARRAY_CODES[array.type]
    encoded = [_element(array.type, item, depth) for item in array.items]
    wide = False
    for element in encoded:
        if element[0] == long:
            wide = True
            break
    code = long if wide else short
    content = b"".join([element[1:] if element[0] == code else _converted(element, code) for element in encoded])
    return encode_compound(codes.ARRAY_8, len(encoded), constructor + bytes((code,)) + content)


def _element(name: str, item: Any, depth: int) -> bytes:
    """Encode an array element of the type `name` as a value with a constructor. Plain Python values are accepted."""
    expected = _PYTHON_TYPES[name]
    kind = type(item)
    if kind is not expected:
        if kind is _PLAIN.get(name):
            item = expected(item)
        elif not (name == "list" and kind is tuple) and not (name == "map" and kind is Map):
            raise EncodeError(f"an array of {name} cannot contain {item!r}")
    return encode_value(item, depth)


def _converted(encoded: bytes, code: int) -> bytes:
    """Convert an encoded value to the format code `code`, and return the bytes after the code."""
    old = encoded[0]
    if code == codes.BOOLEAN:
        return b"\x01" if old == codes.TRUE else b"\x00"
    if code in (codes.SMALL_UINT, codes.SMALL_ULONG):
        return b"\x00"
    if code in (codes.UINT, codes.ULONG):
        return (encoded[1] if len(encoded) > 1 else 0).to_bytes(4 if code == codes.UINT else 8, "big")
    if code in (codes.INT, codes.LONG):
        width = 4 if code == codes.INT else 8
        return int.from_bytes(encoded[1:], "big", signed=True).to_bytes(width, "big", signed=True)
    if old == codes.LIST_0:
        return b"\x01\x00" if code == codes.LIST_8 else b"\x00\x00\x00\x04\x00\x00\x00\x00"
    if code in (codes.BINARY_32, codes.STRING_32, codes.SYMBOL_32):
        return _PACK_U32(encoded[1]) + encoded[2:]
    # Widen size and count of a list, map or array from one byte to four.
    return _PACK_U32(encoded[1] + 3) + _PACK_U32(encoded[2]) + encoded[3:]
