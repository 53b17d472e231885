"""Lossless encoding of overlay header values, for all types of field tables and annotations.

A value is one byte with its type, then its content. Lengths and element counts are four bytes, little-endian. Strings
are UTF-8 with surrogates passed through, for names that were not UTF-8 on the wire.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from leveret.broker.values import FieldValue

_LENGTH: Final = struct.Struct("<I")
_DOUBLE: Final = struct.Struct("<d")
_MICROSECONDS: Final = struct.Struct("<q")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def encode_value(value: FieldValue) -> bytes:
    """Encode a value. Raises `TypeError` for a type that no wire format has."""
    out = bytearray()
    _encode(value, out)
    return bytes(out)


def _sized(tag: bytes, content: bytes, out: bytearray) -> None:
    out += tag
    out += _LENGTH.pack(len(content))
    out += content


def _encode(value: FieldValue, out: bytearray) -> None:
    if value is None:
        out += b"N"
    elif value is True:
        out += b"T"
    elif value is False:
        out += b"F"
    elif isinstance(value, str):
        _sized(b"s", value.encode("utf-8", "surrogatepass"), out)
    elif isinstance(value, int):
        _sized(b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True), out)
    elif isinstance(value, float):
        out += b"d"
        out += _DOUBLE.pack(value)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        _sized(b"b", bytes(value), out)
    elif isinstance(value, dict):
        out += b"m"
        out += _LENGTH.pack(len(value))
        for key, item in value.items():
            _encode(key, out)
            _encode(item, out)
    elif isinstance(value, (list, tuple)):
        out += b"l"
        out += _LENGTH.pack(len(value))
        for item in value:
            _encode(item, out)
    elif isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        past = moment - _EPOCH
        out += b"t"
        out += _MICROSECONDS.pack((past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds)
    elif isinstance(value, Decimal):
        _sized(b"D", str(value).encode("ascii"), out)
    else:
        raise TypeError(f"a header value of type {type(value).__name__} cannot be stored")


def decode_value(data: bytes, at: int = 0) -> FieldValue:
    """Decode the value at an offset. Raises `ValueError` or `struct.error` if there is none."""
    return _Reader(data, at).value()


class _Reader:
    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def length(self) -> int:
        length: int = _LENGTH.unpack_from(self.data, self.at)[0]
        self.at += 4
        return length

    def content(self) -> bytes:
        length = self.length()
        begin = self.at
        self.at = begin + length
        return self.data[begin : self.at]

    def value(self) -> FieldValue:
        tag = self.data[self.at : self.at + 1]
        self.at += 1
        if tag == b"s":
            return self.content().decode("utf-8", "surrogatepass")
        if tag == b"i":
            return int.from_bytes(self.content(), "little", signed=True)
        if tag == b"N":
            return None
        if tag == b"T":
            return True
        if tag == b"F":
            return False
        if tag == b"b":
            return self.content()
        if tag == b"d":
            self.at += 8
            number: float = _DOUBLE.unpack_from(self.data, self.at - 8)[0]
            return number
        if tag == b"t":
            self.at += 8
            microseconds: int = _MICROSECONDS.unpack_from(self.data, self.at - 8)[0]
            return _EPOCH + timedelta(microseconds=microseconds)
        if tag == b"m":
            return {str(self.value()): self.value() for _ in range(self.length())}
        if tag == b"l":
            return [self.value() for _ in range(self.length())]
        if tag == b"D":
            return Decimal(self.content().decode("ascii"))
        raise ValueError(f"a stored overlay has a value of unknown type {tag!r}")
