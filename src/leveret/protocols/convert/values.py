"""Conversion of single values: to field tables (`plain`) and to AMQP 1.0 (`typed`)."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final
from uuid import UUID

from leveret.broker import values
from leveret.wire.amqp0 import dialects
from leveret.wire.amqp0.dialects import RABBITMQ
from leveret.wire.amqp0.fieldtable import encode_short_string, encode_value, value_end
from leveret.wire.amqp0.values import FieldTable, FieldValue, RawTimestamp, encoded_fields
from leveret.wire.amqp10.errors import EncodeError
from leveret.wire.amqp10.values import Array, Decimal32, Decimal64, Decimal128, Described, Map, Timestamp, Value

MAX_DEPTH: Final = 32
# Maximum encoded bytes of arguments whose numbers keep their types.
MAX_SIZED_BYTES: Final = 16384
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = 1000
_MAX_LONG: Final = (1 << 63) - 1
_LAST_TIMESTAMP: Final = 253402300800000
_SIZED: Final[dict[int, type]] = {
    dialects.INT8: values.Int8,
    dialects.UINT8: values.UInt8,
    dialects.INT16: values.Int16,
    dialects.UINT16: values.UInt16,
    dialects.INT32: values.Int32,
    dialects.UINT32: values.UInt32,
    dialects.INT64: values.Int64,
    dialects.FLOAT: values.Float32,
}
# The layouts of the same types with their tags.
_SIZED_LAYOUTS: Final[dict[type, tuple[bytes, str]]] = {
    values.Int8: (b"b", ">cb"),
    values.UInt8: (b"B", ">cB"),
    values.Int16: (b"s", ">ch"),
    values.UInt16: (b"u", ">cH"),
    values.Int32: (b"I", ">ci"),
    values.UInt32: (b"i", ">cI"),
    values.Int64: (b"l", ">cq"),
    values.Float32: (b"f", ">cf"),
}
# Types whose values JSON represents.
_JSON_TYPES: Final = (bool, int, type(None))


def plain(value: Value) -> FieldValue:
    """Convert a 1.0 value to one that a field table, or an overlay in the log, can contain."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, Timestamp):
        return _EPOCH + timedelta(milliseconds=int(value)) if 0 <= value < _LAST_TIMESTAMP else int(value)
    if isinstance(value, int):
        return int(value) if -_MAX_LONG - 1 <= value <= _MAX_LONG else str(int(value))
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bytes):
        return value
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name_of(key): plain(item) for key, item in value.items()}
    if isinstance(value, Map):
        return {name_of(key): plain(item) for key, item in value.pairs}
    if isinstance(value, Array):
        return [plain(item) for item in value.items]
    if isinstance(value, Described):
        return plain(value.value)
    if isinstance(value, (Decimal32, Decimal64, Decimal128)):
        return _plain_decimal(value.decimal())
    return str(value)


def _plain_decimal(value: Decimal) -> Decimal | str:
    """Return the decimal if it fits a field table (32 bits, scale up to 255), otherwise a string."""
    _, digits, exponent = value.as_tuple()
    if isinstance(exponent, int) and -255 <= exponent <= 0 and len(digits) < 10:
        return value
    return str(value)


def name_of(key: Value) -> str:
    """Return a map key as a field name."""
    return str(key) if isinstance(key, (str, int, UUID)) else repr(key)


def typed(value: FieldValue, depth: int = 0) -> Value:
    """Convert a value of a field table to a 1.0 value.

    Raises:
        EncodeError: the value is nested too deeply for most peers.
    """
    if depth > MAX_DEPTH:
        raise EncodeError(f"values are nested more than {MAX_DEPTH} deep")
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return Timestamp((moment - _EPOCH) // timedelta(milliseconds=1))
    if isinstance(value, RawTimestamp):
        return Timestamp(min(int(value), _MAX_LONG // _SECOND) * _SECOND)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value) if -_MAX_LONG - 1 <= value <= _MAX_LONG else str(value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [typed(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {text_of(key): typed(item, depth + 1) for key, item in value.items()}
    return value


def text(value: str) -> str | bytes:
    """Return the string, or its bytes if they are not valid UTF-8."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogateescape")
    return value


def text_of(value: str) -> str:
    """Return the string with U+FFFD in place of invalid UTF-8, for fields that must be strings."""
    data = value.encode("utf-8", "surrogateescape")
    return data.decode("utf-8", "replace")


def is_simple(value: FieldValue) -> bool:
    """Return whether application-properties may contain the value."""
    return not isinstance(value, (list, tuple, dict))


def sized_table(table: FieldTable) -> FieldTable:
    """Return arguments with the types of their numbers, if the decoder has kept the encoded fields.

    Arguments of more than `MAX_SIZED_BYTES` are returned without types, because they are read a second time.
    """
    encoded = encoded_fields(table)
    return _sized_fields(encoded, table) if 0 < len(encoded) <= MAX_SIZED_BYTES else table


def encoded_sized(table: FieldTable) -> bytes:
    """Return the fields of arguments with the types of their values, in RabbitMQ's dialect and without their length.

    Raises:
        EncodeError: the dialect does not support a value.
    """
    return b"".join([encode_short_string(name) + _encoded_sized(value) for name, value in table.items()])


def _encoded_sized(value: FieldValue) -> bytes:
    layout = _SIZED_LAYOUTS.get(type(value))
    if layout is not None:
        return struct.pack(layout[1], layout[0], value)
    if isinstance(value, dict):
        return b"F" + _with_length(encoded_sized(value))
    if isinstance(value, (list, tuple)):
        return b"A" + _with_length(b"".join([_encoded_sized(item) for item in value]))
    return encode_value(value, RABBITMQ)


def _with_length(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def is_json(value: FieldValue) -> bool:
    """Return whether JSON represents a value without loss. A plain integer has no type."""
    if isinstance(value, str):
        return _is_unicode(value)
    if isinstance(value, dict):
        return all(_is_unicode(name) and is_json(item) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(is_json(item) for item in value)
    if type(value) is float:
        return math.isfinite(value)
    return type(value) in _JSON_TYPES


def _is_unicode(text: str) -> bool:
    return text.isascii() or text == text_of(text)


def _sized_fields(data: bytes, table: FieldTable) -> FieldTable:
    fields: dict[str, tuple[int, int]] = {}
    pos = 0
    while pos < len(data):
        start = pos + 1
        pos = start + data[pos]
        name = data[start:pos].decode("utf-8", "surrogateescape")
        stop = value_end(data, pos, len(data), dialects.RABBITMQ)
        fields[name] = pos, stop  # the last one of a name, as in the table
        pos = stop
    return {name: _sized(data, start, stop, table[name]) for name, (start, stop) in fields.items()}


def _sized(data: bytes, pos: int, stop: int, value: FieldValue) -> FieldValue:
    """Return the decoded value, whose tag is at `pos`, with its type."""
    type = dialects.RABBITMQ.types[data[pos]]
    if type == dialects.TABLE and isinstance(value, dict):
        return _sized_fields(data[pos + 5 : stop], value)
    if type == dialects.ARRAY and isinstance(value, list):
        found: list[FieldValue] = []
        pos += 5
        for item in value:
            end = value_end(data, pos, stop, dialects.RABBITMQ)
            found.append(_sized(data, pos, end, item))
            pos = end
        return found
    sized = _SIZED.get(type)
    return value if sized is None else sized(value)
