"""Typed values of messages as JSON, and back: `headers_json` and the JSON columns of `amqp10`.

Null, booleans, strings, lists, objects (tables and maps with string keys), integers and doubles are plain JSON. A plain
integer is 32 bits wide in AMQP 0-x if it fits, else 64, and a long in AMQP 1.0. Every other type is an object with one key,
the name of the type in AMQP 1.0, for both protocols:

    {"$byte": 5} {"$ubyte": 5} {"$short": 5} {"$ushort": 5} {"$int": 5} {"$uint": 5} {"$long": 5} {"$ulong": 5}
    {"$float": 1.5} {"$float": "nan"} {"$double": "inf"} {"$decimal": "1.5"} {"$decimal32": "1.5"} ... 64, 128
    {"$binary": base64} {"$string": base64 of invalid UTF-8} {"$char": "x"} {"$symbol": "x"} {"$uuid": "..."}
    {"$timestamp": ISO 8601, or milliseconds since 1970 if the year is out of range}
    {"$array": {"type": "uint", "items": [...]}}  {"$map": [[key, value], ...]}  {"$described": [descriptor, value]}
    {"$decimal64": {"octets": base64}}  for decimals that their number does not determine
    {"$table": {...}}   an object with one entry whose key begins with "$"

In names, U+FFFD replaces invalid UTF-8.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NoReturn, TypeAlias, Union
from uuid import UUID

from leveret.wire.amqp0 import dialects
from leveret.wire.amqp0.constants import SYNTAX_ERROR
from leveret.wire.amqp0.dialects import RABBITMQ, Dialect
from leveret.wire.amqp0.errors import EncodeError, WireError
from leveret.wire.amqp0.fieldtable import (
    MAX_DEPTH,
    decode_array,
    encode_long_string,
    encode_short_string,
    encode_value,
    value_end,
)
from leveret.wire.amqp0.values import RawTimestamp
from leveret.wire.amqp10.decimals import Decimal32, Decimal64, Decimal128
from leveret.wire.amqp10.values import (
    Array,
    Byte,
    Char,
    Checked,
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

_INT32: Final = struct.Struct(">i").unpack_from
_INT64: Final = struct.Struct(">q").unpack_from
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_YEAR_10000: Final = 253402300800
# Integer types of field tables: their keys, and how RabbitMQ's dialect encodes each key (tag, format).
_AMQP0_INTEGERS: Final = {
    dialects.INT8: "$byte",
    dialects.UINT8: "$ubyte",
    dialects.INT16: "$short",
    dialects.UINT16: "$ushort",
    dialects.UINT32: "$uint",
    dialects.UINT64: "$ulong",
}
_AMQP0_PACKING: Final = {
    "$byte": (b"b", ">b"),
    "$ubyte": (b"B", ">B"),
    "$short": (b"s", ">h"),
    "$ushort": (b"u", ">H"),
    "$int": (b"I", ">i"),
    "$uint": (b"i", ">I"),
    "$long": (b"l", ">q"),
    "$ulong": (b"l", ">q"),
}
_AMQP10_CLASSES: Final[dict[str, type[int]]] = {
    "$byte": Byte,
    "$ubyte": UByte,
    "$short": Short,
    "$ushort": UShort,
    "$int": Int,
    "$uint": UInt,
    "$long": int,
    "$ulong": ULong,
}
_AMQP10_KEYS: Final[dict[type, str]] = {kind: key for key, kind in _AMQP10_CLASSES.items() if kind is not int}
_RANGES: Final = {
    "$byte": (-1 << 7, 1 << 7),
    "$ubyte": (0, 1 << 8),
    "$short": (-1 << 15, 1 << 15),
    "$ushort": (0, 1 << 16),
    "$int": (-1 << 31, 1 << 31),
    "$uint": (0, 1 << 32),
    "$long": (-1 << 63, 1 << 63),
    "$ulong": (0, 1 << 64),
}
_DECIMALS: Final[dict[str, type[Decimal32] | type[Decimal64] | type[Decimal128]]] = {
    "$decimal32": Decimal32,
    "$decimal64": Decimal64,
    "$decimal128": Decimal128,
}


Json: TypeAlias = Union[bool, int, float, str, list["Json"], dict[str, "Json"], None]
JsonObject: TypeAlias = dict[str, Json]
# A parsed document, or a part of one, before its types are checked.
Document: TypeAlias = Any


def dumps(value: Json) -> str:
    """Serialize JSON data."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def parse(document: str | bytes) -> Document:
    """Parse JSON. Raises ValueError if it is invalid."""
    try:
        return json.loads(document, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


# AMQP 0-x: from the encoded table, because Python's values do not keep all types.


def from_table(data: bytes, pos: int, end: int, dialect: Dialect = RABBITMQ, depth: int = 0) -> JsonObject:
    """Convert the fields between `pos` and `end` (without the table's length) to JSON data. WireError 502 if malformed."""
    table: JsonObject = {}
    while pos < end:
        start = pos + 1
        pos = start + data[pos]
        if pos >= end:
            raise WireError(SYNTAX_ERROR, "a field table ends in the middle of a field")
        name = data[start:pos].decode("utf-8", "replace")
        stop = value_end(data, pos, end, dialect)
        table[name] = _from_field(data, pos, stop, dialect, depth)
        pos = stop
    return table


def _from_field(data: bytes, pos: int, stop: int, dialect: Dialect, depth: int) -> Json:
    kind = dialect.types[data[pos]]
    if kind == dialects.LONG_STRING:
        encoded = data[pos + 5 : stop]
        try:
            return encoded.decode("utf-8")
        except UnicodeDecodeError:
            return {"$string": base64.b64encode(encoded).decode()}
    if kind == dialects.INT32:
        number: int = _INT32(data, pos + 1)[0]
        return number
    if kind == dialects.INT64:
        number = _INT64(data, pos + 1)[0]
        return {"$long": number} if -1 << 31 <= number < 1 << 31 else number
    if kind == dialects.BOOLEAN:
        return data[pos + 1] != 0
    if kind in (dialects.TABLE, dialects.ARRAY):
        if depth >= MAX_DEPTH:
            raise WireError(SYNTAX_ERROR, f"a field table is nested more than {MAX_DEPTH} deep")
        if kind == dialects.TABLE:
            return _escape_table(from_table(data, pos + 5, stop, dialect, depth + 1))
        values: list[Json] = []
        at = pos + 5
        while at < stop:
            following = value_end(data, at, stop, dialect)
            values.append(_from_field(data, at, following, dialect, depth + 1))
            at = following
        return values
    value: Checked = decode_array(data, pos, stop, dialect)[0]
    key = _AMQP0_INTEGERS.get(kind)
    if key is not None:
        return {key: value}
    if kind == dialects.FLOAT:
        return {"$float": value if math.isfinite(value) else str(value)}
    if kind == dialects.DOUBLE:
        return value if math.isfinite(value) else {"$double": str(value)}
    if kind in (dialects.DECIMAL, dialects.UNSIGNED_DECIMAL):
        return {"$decimal": str(value)}
    if kind == dialects.TIMESTAMP:
        return {"$timestamp": int(value) * 1000 if isinstance(value, RawTimestamp) else _iso(value)}
    if kind == dialects.BYTE_ARRAY:
        return {"$binary": base64.b64encode(value).decode()}
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if isinstance(value, str) else value


def to_table(value: Json) -> bytes:
    """Encode JSON data as a field table of RabbitMQ's dialect, with its length. EncodeError (a ValueError) if invalid."""
    if not isinstance(value, dict):
        raise EncodeError(f"headers: expected a JSON object, not {_preview(value)}")
    return _to_table(value, 0)


def _to_table(value: JsonObject, depth: int) -> bytes:
    if depth > MAX_DEPTH:
        raise EncodeError(f"tables are nested more than {MAX_DEPTH} deep")
    data = b"".join([encode_short_string(name) + _to_field(name, item, depth) for name, item in value.items()])
    return struct.pack(">I", len(data)) + data


def _to_field(name: str, value: Json, depth: int) -> bytes:
    if isinstance(value, list):
        return _to_array(name, value, depth)
    if not isinstance(value, dict):
        try:
            return encode_value(value, RABBITMQ)
        except EncodeError as error:
            raise EncodeError(f"{name}: {error}") from None
    key, inner = _tag(value)
    if not key:
        return b"F" + _to_table(value, depth + 1)
    if key == "$table" and isinstance(inner, dict):
        return b"F" + _to_table(inner, depth + 1)
    if key in _RANGES:
        number = _integer(name, key, inner)
        tag, form = _AMQP0_PACKING[key]
        if number >= 1 << 63:
            return encode_value(str(number), RABBITMQ)  # see docs/conversion.md
        return tag + struct.pack(form, number)
    if key == "$float":
        return b"f" + struct.pack(">f", _number(name, key, inner))
    if key == "$string":
        return b"S" + encode_long_string(_decode_base64(name, key, inner))
    if key == "$timestamp":
        seconds = _milliseconds(name, inner) // 1000
        if not 0 <= seconds < 1 << 64:
            raise EncodeError(f"{name}: $timestamp: {_preview(inner)} is before 1970, which AMQP 0-9-1 cannot represent")
        return b"T" + struct.pack(">Q", seconds)
    if key == "$array" and isinstance(inner, dict) and isinstance(inner.get("items"), list):
        return _to_array(name, inner["items"], depth)
    if key == "$map" and _is_map(inner):
        return b"F" + _to_table({str(item[0]): item[1] for item in inner}, depth + 1)
    if key == "$described" and isinstance(inner, list) and len(inner) == 2:
        return _to_field(name, inner[1], depth)
    if key in ("$char", "$symbol", "$uuid") and isinstance(inner, str):
        return encode_value(inner, RABBITMQ)
    plain = _plain(name, key, inner)
    try:
        return encode_value(plain, RABBITMQ)
    except EncodeError:
        if isinstance(plain, Decimal):
            return encode_value(str(plain), RABBITMQ)
        raise


def _to_array(name: str, values: list[Json], depth: int) -> bytes:
    if depth > MAX_DEPTH:
        raise EncodeError(f"lists are nested more than {MAX_DEPTH} deep")
    data = b"".join([_to_field(name, item, depth + 1) for item in values])
    return b"A" + struct.pack(">I", len(data)) + data


# AMQP 1.0: from and to the values of leveret.wire.amqp10.


def from_value(value: Checked) -> Json:
    """Convert a decoded AMQP 1.0 value to JSON data."""
    kind = type(value)
    if kind is str or kind is bool or kind is int or value is None:
        scalar: Json = value
        return scalar
    if kind in _AMQP10_KEYS:
        return {_AMQP10_KEYS[kind]: int(value)}
    if kind is Timestamp:
        if 0 <= value < _YEAR_10000 * 1000:
            return {"$timestamp": _iso(_EPOCH + timedelta(milliseconds=int(value)))}
        return {"$timestamp": int(value)}
    if kind is Symbol or kind is Char:
        return {"$symbol" if kind is Symbol else "$char": str(value)}
    if kind is Float:
        return {"$float": float(value) if math.isfinite(value) else str(float(value))}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$double": str(value)}
    if isinstance(value, bytes):
        return {"$binary": base64.b64encode(value).decode()}
    if isinstance(value, UUID):
        return {"$uuid": str(value)}
    if isinstance(value, list):
        return [from_value(item) for item in value]
    if isinstance(value, dict):
        return from_pairs(list(value.items()))
    if isinstance(value, Map):
        return from_pairs(value.pairs)
    if isinstance(value, Array):
        array: JsonObject = {"type": value.type, "items": [from_value(item) for item in value.items]}
        if value.descriptors:
            array["descriptors"] = [from_value(item) for item in value.descriptors]
        return {"$array": array}
    if isinstance(value, Described):
        return {"$described": [from_value(value.descriptor), from_value(value.value)]}
    if isinstance(value, (Decimal32, Decimal64, Decimal128)):
        return _from_decimal(value)
    raise TypeError(f"not an AMQP 1.0 value: {kind.__name__}")


def from_pairs(pairs: Pairs) -> Json:
    """Convert a map to JSON data: an object if its keys are distinct strings."""
    if all(type(key) is str for key, _ in pairs) and len({key for key, _ in pairs}) == len(pairs):
        return _escape_table({str(key): from_value(item) for key, item in pairs})
    return {"$map": [[from_value(key), from_value(item)] for key, item in pairs]}


def _from_decimal(value: Decimal32 | Decimal64 | Decimal128) -> Json:
    key = f"${type(value).__name__.lower()}"
    number = str(value.decimal())
    try:
        if type(value).of(number).encoded == value.encoded:
            return {key: number}
    except (ValueError, ArithmeticError):
        pass
    return {key: {"octets": base64.b64encode(value.encoded).decode()}}


def to_value(name: str, value: Json) -> Value:
    """Convert JSON data to an AMQP 1.0 value. Raises ValueError, which includes `name`, if it is invalid."""
    if isinstance(value, list):
        return [to_value(name, item) for item in value]
    if not isinstance(value, dict):
        return value
    key, inner = _tag(value)
    if not key:
        return {field: to_value(field, item) for field, item in value.items()}
    if key == "$table" and isinstance(inner, dict):
        return {field: to_value(field, item) for field, item in inner.items()}
    if key in _RANGES:
        return _AMQP10_CLASSES[key](_integer(name, key, inner))
    if key == "$timestamp":
        # AMQP 0-9-1 has 64-bit seconds; 1.0 has 64-bit milliseconds.
        return Timestamp(min(max(_milliseconds(name, inner), -1 << 63), (1 << 63) - 1))
    if key == "$float":
        return Float(_number(name, key, inner))
    if key in _DECIMALS:
        if isinstance(inner, dict):
            return _DECIMALS[key](_decode_base64(name, key, inner.get("octets")))
        try:
            return _DECIMALS[key].of(str(inner))
        except ArithmeticError:
            raise ValueError(f"{name}: {key}: {_preview(inner)} is not a number") from None
    if key in ("$symbol", "$char") and isinstance(inner, str):
        return Symbol(inner) if key == "$symbol" else Char(inner)
    if key == "$uuid" and isinstance(inner, str):
        try:
            return UUID(inner)
        except ValueError:
            raise ValueError(f"{name}: $uuid: {_preview(inner)} is not a UUID") from None
    if key == "$string":
        return _decode_base64(name, key, inner).decode("utf-8", "replace")
    if key == "$array" and isinstance(inner, dict) and isinstance(inner.get("items"), list):
        descriptors = [to_value(name, item) for item in inner.get("descriptors", [])]
        return Array(str(inner.get("type")), [to_value(name, item) for item in inner["items"]], tuple(descriptors))
    if key == "$map" and _is_map(inner):
        return Map([(to_value(name, field), to_value(name, item)) for field, item in inner])
    if key == "$described" and isinstance(inner, list) and len(inner) == 2:
        return Described(to_value(name, inner[0]), to_value(name, inner[1]))
    plain = _plain(name, key, inner)
    return str(plain) if isinstance(plain, Decimal) else plain


# Shared


def _escape_table(value: JsonObject) -> JsonObject:
    """Wrap an object that would be read as a tagged type."""
    return {"$table": value} if _tag(value)[0] else value


def _tag(value: JsonObject) -> tuple[str, Document]:
    for key in value:
        return (key, value[key]) if key.startswith("$") and len(value) == 1 else ("", None)
    return "", None


def _is_map(value: Document) -> bool:
    """Return whether a value is a list of pairs."""
    return isinstance(value, list) and all(isinstance(item, list) and len(item) == 2 for item in value)


def _plain(name: str, key: str, inner: Json) -> Decimal | bytes | float:
    if key == "$binary":
        return _decode_base64(name, key, inner)
    if key == "$double":
        return _number(name, key, inner)
    if key == "$decimal" or key in _DECIMALS:
        try:
            return Decimal(str(inner))
        except InvalidOperation:
            raise ValueError(f"{name}: {key}: {_preview(inner)} is not a number") from None
    raise ValueError(f"{name}: unknown AMQP type {_preview({key: inner})}")


def _integer(name: str, key: str, value: Json) -> int:
    low, end = _RANGES[key]
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value < end:
        raise ValueError(f"{name}: {key}: {_preview(value)}; expected an integer from {low} to {end - 1}")
    return value


def _number(name: str, key: str, value: Document) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name}: {key}: {_preview(value)} is not a number") from None


def _decode_base64(name: str, key: str, value: Document) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise ValueError(f"{name}: {key}: {_preview(value)} is not base64") from None


def _iso(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _milliseconds(name: str, value: Document) -> int:
    """Return milliseconds since 1970."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: $timestamp: {_preview(value)}; expected ISO 8601") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MILLISECOND


def _preview(value: Json) -> str:
    return repr(value)[:80]
