"""Encoder and decoder of composite types, driven by the tables (types 1.4).

On output, fields with their default value are null, trailing nulls are omitted, and a field with multiple values is an
array even for one value. Plain str keys of a map of type `fields` are encoded as symbols. On input, descriptors may be
numeric or symbolic; any deviation from the tables raises DecodeError.

In fields of type `*`, `attach.unsettled` and `dynamic-node-properties`, a described value becomes an object if the tables
have its type; any other becomes `Described`.
"""

from __future__ import annotations

import struct
from typing import Any, Final
from uuid import UUID as Uuid

from leveret.wire.amqp10 import codes, messaging, model, security, transactions, transport
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.constants import DECODE_ERROR, INVALID_FIELD
from leveret.wire.amqp10.decode import MAX_DEPTH, NO_LIMIT, Decoder, check_keys
from leveret.wire.amqp10.encode import (
    encode_binary,
    encode_compound,
    encode_pairs,
    encode_symbol,
    encode_text,
    encode_uint,
    encode_ulong,
    encode_value,
)
from leveret.wire.amqp10.errors import DecodeError, EncodeError
from leveret.wire.amqp10.model import CompositeSpec, FieldSpec
from leveret.wire.amqp10.specs import COMPOSITES
from leveret.wire.amqp10.specs import TYPES as SPECS
from leveret.wire.amqp10.values import (
    Array,
    Checked,
    Described,
    EncodedMap,
    Map,
    Pairs,
    Symbol,
    Table,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Value,
)

_PACK_U16: Final = struct.Struct(">H").pack
_PACK_I64: Final = struct.Struct(">q").pack

_CLASSES: Final[dict[int, type]] = {
    spec.descriptor: getattr(module, spec.class_name)
    for spec in COMPOSITES.values()
    for module in (transport, messaging, transactions, security)
    if spec.class_name in vars(module)
}
_PYTHON_TYPES: Final[list[type[Checked]]] = [
    object,
    bool,
    UByte,
    UShort,
    UInt,
    ULong,
    Timestamp,
    bytes,
    str,
    Symbol,
    dict,
    list,
    Uuid,
    Composite,
]
# Format codes of map keys.
_SYMBOLS: Final = bytes((codes.SYMBOL_8, codes.SYMBOL_32))
_TEXTS: Final = _SYMBOLS + bytes((codes.STRING_8, codes.STRING_32))
_BINARIES: Final = bytes((codes.BINARY_8, codes.BINARY_32))
_INTEGERS: Final = (model.UBYTE, model.USHORT, model.UINT, model.ULONG, model.TIMESTAMP)
# Python types of message ids.
_MESSAGE_IDS: Final = (ULong, Uuid, bytes, str)


class _States(Decoder):
    """A decoder that returns an object for each described value whose type is in the tables."""

    def value(self, depth: int) -> Value:
        pos = self.pos
        if pos < self.end and self.data[pos] == codes.DESCRIBED:
            return _read_described(self, depth)
        return super().value(depth)


def decode_composite(data: bytes, pos: int = 0, end: int = -1, max_values: int = NO_LIMIT) -> tuple[Composite, int]:
    """Return the composite value at `pos`, and its end.

    Raises DecodeError if its type is not in the tables, or if it consists of more than `max_values` values.
    """
    decoder = Decoder(data, pos, len(data) if end < 0 else end, max_values)
    composite = read_composite(decoder)
    return composite, decoder.pos


def read_composite(decoder: Decoder) -> Composite:
    """Return the composite value at the decoder's position. Raises DecodeError as `decode_composite` does."""
    start = decoder.pos
    value = _read_described(decoder, 0)
    if isinstance(value, Composite):
        return value
    raise DecodeError(start, "expected a composite type that AMQP 1.0 defines")


def decode_value(data: bytes, pos: int = 0, end: int = -1, max_values: int = NO_LIMIT) -> tuple[Value, int]:
    """Decode like `decode.decode_value`, but return objects for composite types of AMQP 1.0. Raises DecodeError."""
    decoder = Decoder(data, pos, len(data) if end < 0 else end, max_values)
    value = _read_described(decoder, 0) if decoder.pos < decoder.end and data[pos] == 0 else decoder.value(0)
    return value, decoder.pos


def _read_described(decoder: Decoder, depth: int) -> Value:
    """Return a described value: an object of its class if its type is in the tables, otherwise `Described`."""
    data = decoder.data
    start = decoder.pos
    if start >= decoder.end or data[start] != codes.DESCRIBED:
        raise DecodeError(start, "expected a described value")
    if depth >= MAX_DEPTH:
        raise DecodeError(start, f"values are nested more than {MAX_DEPTH} deep")
    decoder.pos = start + 1
    descriptor = decoder.value(depth + 1)
    number = -1
    if isinstance(descriptor, ULong):
        number = descriptor
    elif isinstance(descriptor, Symbol):
        number = SPECS.descriptors.get(descriptor, -1)
    if number in COMPOSITES:
        return _read_fields(decoder, COMPOSITES[number], depth + 1)
    return Described(descriptor, decoder.value(depth + 1))


def _read_fields(decoder: Decoder, spec: CompositeSpec, depth: int) -> Composite:
    """Return the object whose list of fields is at the decoder's position."""
    start = decoder.pos
    end = decoder.end
    count = decoder.enter_list()
    fields = spec.fields
    if count > len(fields):
        raise DecodeError(start, f"{spec.name}: expected at most {len(fields)} fields, not {count}")
    arguments: dict[str, Checked] = {}
    for field in fields:
        at = decoder.pos
        value: Value = None
        if count:
            count -= 1
            value = _read_field(decoder, spec, field, depth)
        if field.mandatory and (value is None or value == ()):
            raise DecodeError(at, f"{spec.name}: {field.spec_name} is mandatory")
        arguments[field.name] = field.default if value is None else value
    if decoder.pos != decoder.end:
        raise DecodeError(decoder.pos, f"expected the end of {spec.name}, not {decoder.end - decoder.pos} more bytes")
    decoder.end = end
    composite: Composite = _CLASSES[spec.descriptor](**arguments)
    return composite


def _read_field(decoder: Decoder, spec: CompositeSpec, field: FieldSpec, depth: int) -> Checked:
    """Return the value of a field, or None."""
    pos = decoder.pos
    kind = field.kind
    if kind == model.MAP:
        _check_keys(decoder, spec, field)
    if (kind == model.ANY or kind == model.COMPOSITE) and pos < decoder.end and decoder.data[pos] == codes.DESCRIBED:
        value = _read_described(decoder, depth)
    elif kind == model.MAP and (field.name == "unsettled" or field.type == "node-properties"):
        states = _States(decoder.data, pos, decoder.end, decoder.left)
        value = states.value(depth)
        decoder.pos = states.pos
        decoder.left = states.left
    else:
        value = decoder.value(depth)
    if value is None:
        return None
    if kind == model.ANY:
        if not _is_allowed(value, field.requires):
            raise _mismatch(pos, spec, field, value, field.requires)
        return value
    if kind == model.COMPOSITE:
        if not isinstance(value, Composite) or COMPOSITES[value.kind].name != field.type:
            raise _mismatch(pos, spec, field, value, field.type)
        return value
    if field.multiple:
        values = value.items if isinstance(value, Array) and not value.descriptors else [value]
        return tuple([_plain(pos, spec, field, item) for item in values])
    return _plain(pos, spec, field, value)


def _plain(pos: int, spec: CompositeSpec, field: FieldSpec, value: Checked) -> Checked:
    """Return the value of a field with a primitive type as a plain Python value."""
    kind = field.kind
    if kind == model.MAP:
        if not isinstance(value, (dict, Map)):
            raise _mismatch(pos, spec, field, value, "map")
        return _read_map(pos, spec, field, value)
    if type(value) is not _PYTHON_TYPES[kind]:
        raise _mismatch(pos, spec, field, value, model.KIND_NAMES[kind])
    if kind in _INTEGERS:
        value = int(value)
    elif kind == model.SYMBOL:
        value = str(value)
    if field.choices and value not in field.choices:
        raise DecodeError(pos, f"{spec.name}: {field.spec_name} cannot be {value!r}", INVALID_FIELD)
    return value


def _check_keys(decoder: Decoder, spec: CompositeSpec, field: FieldSpec) -> None:
    """Raise DecodeError if a key of the map at the decoder's position has a type that the field does not allow.

    The map is not decoded.
    """
    if field.symbols:
        # RabbitMQ's Python client uses strings as keys of the annotations of an outcome.
        allowed = _TEXTS if field.name == "message_annotations" else _SYMBOLS
        expected = "symbol"
    elif field.name == "unsettled":
        allowed = _BINARIES
        expected = "delivery-tag"
    else:
        return
    code = check_keys(decoder.data, decoder.pos, decoder.end, allowed)
    if code >= 0:
        raise DecodeError(
            decoder.pos,
            f"{spec.name}: {field.spec_name}: expected a {expected} as key, not"
            f" {codes.TYPES.get(code, 'a described value')}",
            DECODE_ERROR,
        )


def _read_map(pos: int, spec: CompositeSpec, field: FieldSpec, value: Table) -> Value:
    if field.name == "message_annotations":
        pairs: Pairs = value.pairs if isinstance(value, Map) else list(value.items())
        strings = False
        for key, _ in pairs:
            if type(key) is str:
                strings = True
                if not key.isascii():
                    raise _mismatch(pos, spec, field, key, "symbol as key")
        if strings:
            return {Symbol(str(key)): item for key, item in pairs}
    return value


def _is_allowed(value: Value, requires: str) -> bool:
    """Return whether a value's type provides the role that a field requires.

    Described types that are not in the tables may provide any role.
    """
    if isinstance(value, Composite):
        return not requires or requires in COMPOSITES[value.kind].provides
    if requires == "message-id":
        return type(value) in _MESSAGE_IDS
    if requires == "address":
        return type(value) is str
    if requires == "txn-id":
        return type(value) is bytes
    if requires == "" or requires == "global-tx-id":
        return True
    return isinstance(value, Described)


def _mismatch(pos: int, spec: CompositeSpec, field: FieldSpec, value: Value, expected: str) -> DecodeError:
    name = COMPOSITES[value.kind].name if isinstance(value, Composite) else type(value).__name__
    return DecodeError(pos, f"{spec.name}: {field.spec_name}: expected a {expected}, not {name}", DECODE_ERROR)


def from_described(value: Described) -> Value:
    """Return the object that a described value represents, or the value itself if its type is not in the tables."""
    data = encode_value(value)
    return _read_described(Decoder(data, 0, len(data)), 0)


def encode_composite(value: Composite) -> bytes:
    """Encode an object with its numeric descriptor. Raises EncodeError for a field that does not fit its type."""
    spec = COMPOSITES[value.kind]
    encoded: list[bytes] = []
    nulls = 0
    for field in spec.fields:
        encoded_field = _encode_field(spec, field, getattr(value, field.name))
        if encoded_field == b"\x40":
            nulls += 1
            continue
        if nulls:
            encoded.extend([b"\x40"] * nulls)
            nulls = 0
        encoded.append(encoded_field)
    head = bytes((codes.DESCRIBED, codes.SMALL_ULONG, spec.descriptor))
    if not encoded:
        return head + b"\x45"
    return head + encode_compound(codes.LIST_8, len(encoded), b"".join(encoded))


def encode_map(pieces: list[bytes]) -> EncodedMap:
    """Return the map whose pairs are encoded already, one per piece."""
    return EncodedMap(encode_compound(codes.MAP_8, 2 * len(pieces), b"".join(pieces)))


def encode_any(value: Value) -> bytes:
    """Encode a value, or an object of a composite type. Raises EncodeError."""
    return encode_composite(value) if isinstance(value, Composite) else encode_value(value)


def _encode_field(spec: CompositeSpec, field: FieldSpec, value: Value) -> bytes:
    if value is None or value == ():
        if field.mandatory:
            raise EncodeError(f"{spec.name}: {field.spec_name} is mandatory")
        return b"\x40"
    try:
        return _encode_present(field, value)
    except (EncodeError, struct.error, TypeError, AttributeError) as error:
        raise EncodeError(f"{spec.name}: {field.spec_name}: {error}") from error


def _encode_present(field: FieldSpec, value: Any) -> bytes:
    """Encode a value that is not None. The default is encoded as null."""
    kind = field.kind
    if kind == model.ANY:
        if not _is_allowed(value, field.requires):
            raise EncodeError(f"expected a {field.requires}, not {value!r}")
        return encode_any(value)
    if kind == model.COMPOSITE:
        if not isinstance(value, Composite) or COMPOSITES[value.kind].name != field.type:
            raise EncodeError(f"expected a {field.type}, not {value!r}")
        return encode_composite(value)
    if kind == model.MAP:
        return _encode_map(field, value)
    if field.multiple:
        return encode_value(Array("symbol", [str(item) for item in value]))
    if isinstance(value, bool) != (kind == model.BOOLEAN):
        raise EncodeError(f"expected a {model.KIND_NAMES[kind]}, not {value!r}")
    if field.choices and value not in field.choices:
        raise EncodeError(f"cannot be {value!r}")
    if field.default is not None and value == field.default and not field.mandatory:
        return b"\x40"
    return _encode_primitive(kind, value)


def _encode_primitive(kind: int, value: Any) -> bytes:
    """Encode a value as the primitive type `kind`."""
    if kind == model.UINT:
        return encode_uint(value)
    if kind == model.BOOLEAN:
        return b"\x41" if value else b"\x42"
    if kind == model.STRING:
        return encode_text(value)
    if kind == model.SYMBOL:
        return encode_symbol(value)
    if kind == model.BINARY:
        return encode_binary(value)
    if kind == model.ULONG:
        return encode_ulong(value)
    if kind == model.TIMESTAMP:
        return b"\x83" + _PACK_I64(value)
    if kind == model.USHORT:
        return b"\x60" + _PACK_U16(value)
    if not 0 <= value <= 255:
        raise EncodeError(f"{value} is out of the range of a ubyte")
    return bytes((codes.UBYTE, value))


def _encode_map(field: FieldSpec, value: Any) -> bytes:
    if isinstance(value, EncodedMap):
        return value.data
    pairs = list(value.items()) if isinstance(value, dict) else value.pairs
    pairs = [(key, to_described(item) if isinstance(item, Composite) else item) for key, item in pairs]
    if field.symbols:
        for key, _ in pairs:
            if not isinstance(key, str):
                raise EncodeError(f"expected a symbol as key, not {key!r}")
    return encode_pairs(pairs, 0, field.symbols)


def to_described(value: Composite) -> Described:
    """Return the described list that represents an object."""
    data = encode_composite(value)
    described = Decoder(data, 0, len(data)).value(0)
    assert isinstance(described, Described)
    return described


def fields_of(value: Composite) -> dict[str, Value]:
    """Return the fields of an object by their Python names, for logs and comparisons."""
    return {field.name: getattr(value, field.name) for field in COMPOSITES[value.kind].fields}


def name_of(value: Composite) -> str:
    """Return the name of an object's type, for example "transfer"."""
    return COMPOSITES[value.kind].name
