"""Encoder and decoder of method arguments, driven by the tables (0-9-1 section 4.2.4)."""

from __future__ import annotations

import struct
from typing import Any, Final

from leveret.wire.amqp0 import model
from leveret.wire.amqp0.constants import SYNTAX_ERROR
from leveret.wire.amqp0.dialects import RABBITMQ, Dialect
from leveret.wire.amqp0.errors import EncodeError, WireError
from leveret.wire.amqp0.fieldtable import (
    decode_table,
    encode_long_string,
    encode_short_string,
    encode_table,
    encode_timestamp,
    loses_types,
)
from leveret.wire.amqp0.model import FieldSpec, MethodSpec
from leveret.wire.amqp0.values import Arguments, EncodedTable

_U16: Final = struct.Struct(">H").unpack_from
_U32: Final = struct.Struct(">I").unpack_from
_U64: Final = struct.Struct(">Q").unpack_from
# The methods whose table may become an `EncodedTable`.
_TYPED_METHODS: Final = ("queue.declare", "queue.bind", "exchange.bind")
_PACK_U16: Final = struct.Struct(">H").pack
_PACK_U32: Final = struct.Struct(">I").pack
_PACK_U64: Final = struct.Struct(">Q").pack


def decode_arguments(spec: MethodSpec, data: bytes, pos: int, end: int, dialect: Dialect) -> Arguments:
    """Decode all fields of a method except reserved ones, by name, from the bytes after the two indices.

    Strings are `str`, timestamps are seconds. In 0-9, `content` is (0 inline or 1 reference, bytes) and `octets` are
    `bytes`.

    Raises:
        WireError: 502, the method has too few or too many bytes, or a malformed field.
    """
    arguments: Arguments = {}
    bit = 8
    for field in spec.fields:
        type = field.type
        if type == model.BIT:
            if bit == 8:
                bit = 0
                pos += 1
                if pos > end:
                    raise WireError(SYNTAX_ERROR, f"{spec.name} ends within {field.spec_name}")
            if not field.reserved:
                arguments[field.name] = bool(data[pos - 1] >> bit & 1)
            bit += 1
            continue
        bit = 8
        start = pos
        pos = field_end(type, data, start, end)
        if pos > end:
            raise WireError(SYNTAX_ERROR, f"{spec.name} ends within {field.spec_name}")
        if not field.reserved:
            arguments[field.name] = decode_field(type, data, start, pos, dialect)
            if (
                type == model.TABLE
                and spec.name in _TYPED_METHODS
                and dialect is RABBITMQ
                and loses_types(data, start + 4, pos, dialect)
            ):
                arguments[field.name] = EncodedTable(arguments[field.name], data[start + 4 : pos])
    if pos != end:
        raise WireError(SYNTAX_ERROR, f"{spec.name} has {end - pos} bytes after its last field")
    return arguments


def field_end(type: int, data: bytes, pos: int, end: int) -> int:
    """Return the end of the field at `pos`; more than `end` if it is truncated."""
    if type == model.SHORTSTR:
        return pos + 1 + data[pos] if pos < end else end + 1
    if type == model.SHORT:
        return pos + 2
    if type == model.LONG:
        return pos + 4
    if type == model.LONGLONG or type == model.TIMESTAMP:
        return pos + 8
    if type == model.OCTET:
        return pos + 1
    if type == model.CONTENT:
        pos += 1
    if pos + 4 > end:
        return end + 1
    length: int = _U32(data, pos)[0]
    return pos + 4 + length


def decode_field(type: int, data: bytes, pos: int, stop: int, dialect: Dialect) -> Any:
    """Decode the field between `pos` and `stop`, of any type but bit."""
    if type == model.SHORTSTR:
        return data[pos + 1 : stop].decode("utf-8", "surrogateescape")
    if type == model.SHORT:
        return _U16(data, pos)[0]
    if type == model.LONG:
        return _U32(data, pos)[0]
    if type == model.LONGLONG or type == model.TIMESTAMP:
        return _U64(data, pos)[0]
    if type == model.OCTET:
        return data[pos]
    if type == model.TABLE:
        return decode_table(data, pos + 4, stop, dialect)
    if type == model.LONGSTR:
        return data[pos + 4 : stop].decode("utf-8", "surrogateescape")
    if type == model.OCTETS:
        return data[pos + 4 : stop]
    if data[pos] > 1:
        raise WireError(SYNTAX_ERROR, f"a content must be inline (0) or a reference (1), not {data[pos]}")
    return (data[pos], data[pos + 5 : stop])


def encode_arguments(spec: MethodSpec, arguments: Arguments, dialect: Dialect) -> bytes:
    """Return the payload of the method's frame. Missing arguments become 0, empty or false.

    A reply text that is too long is truncated.

    Raises:
        EncodeError: an argument is unknown or does not fit its field.
    """
    pieces = [_PACK_U32(spec.key)]
    bits = 0
    bit = 0
    known = 0
    for field in spec.fields:
        value = None
        if not field.reserved and field.name in arguments:
            value = arguments[field.name]
            known += 1
        if field.type == model.BIT:
            if bit == 8:
                pieces.append(bytes((bits,)))
                bits = bit = 0
            if value:
                bits |= 1 << bit
            bit += 1
            continue
        if bit:
            pieces.append(bytes((bits,)))
            bits = bit = 0
        try:
            pieces.append(encode_field(field, value, dialect))
        except (ValueError, struct.error) as error:
            raise EncodeError(f"{spec.name}: {field.name}: {error}") from error
    if bit:
        pieces.append(bytes((bits,)))
    if known != len(arguments):
        unknown = set(arguments) - {field.name for field in spec.fields if not field.reserved}
        raise EncodeError(f"{spec.name} has no {', '.join(sorted(unknown))}")
    return b"".join(pieces)


def encode_field(field: FieldSpec, value: Any, dialect: Dialect) -> bytes:
    """Encode a field of any type but bit; None means 0 or empty."""
    type = field.type
    if type == model.SHORTSTR:
        if value is None:
            return b"\0"
        if field.name == "reply_text":
            value = _cut(value)
        return encode_short_string(value)
    if type == model.SHORT:
        return _PACK_U16(value or 0)
    if type == model.LONG:
        return _PACK_U32(value or 0)
    if type == model.LONGLONG:
        return _PACK_U64(value or 0)
    if type == model.OCTET:
        return bytes((value or 0,))
    if type == model.TIMESTAMP:
        return _PACK_U64(encode_timestamp(value or 0))
    if type == model.TABLE:
        return encode_table(value or {}, dialect)
    if type == model.LONGSTR or type == model.OCTETS:
        return encode_long_string(value or b"")
    kind, data = value or (0, b"")
    return bytes((kind,)) + encode_long_string(data)


def _cut(text: str | bytes) -> bytes:
    """Truncate a text to 255 bytes of UTF-8, at a character boundary."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    if len(data) <= 255:
        return data
    return data[:255].decode("utf-8", "ignore").encode("utf-8")
