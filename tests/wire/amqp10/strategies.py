"""Values of AMQP 1.0 and objects of its composite types, for property tests."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from leveret.wire.amqp10 import messaging, model, security, transactions, transport
from leveret.wire.amqp10.composite import Composite
from leveret.wire.amqp10.composites import fields_of
from leveret.wire.amqp10.model import CompositeSpec, FieldSpec
from leveret.wire.amqp10.specs import COMPOSITES, TYPES
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

MODULES = (transport, messaging, transactions, security)
CLASSES: dict[str, Any] = {
    spec.name: getattr(module, spec.class_name)
    for spec in COMPOSITES.values()
    for module in MODULES
    if hasattr(module, spec.class_name) and getattr(module, spec.class_name).__module__ == module.__name__
}


def integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    """All widths, with the limits of the short encodings more often."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    edges = [number for number in (low, -129, -128, -1, 0, 1, 127, 128, 255, 256, high) if low <= number <= high]
    return st.sampled_from(edges) | st.integers(low, high)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(["x" * 255, "é" * 128, "x" * 256])
ascii_text = st.text(st.characters(max_codepoint=127), max_size=12) | st.sampled_from(["s" * 255, "s" * 256])
octets = st.binary(max_size=12) | st.sampled_from([b"b" * 255, b"b" * 256])

SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "ubyte": integers(8, False).map(UByte),
    "ushort": integers(16, False).map(UShort),
    "uint": integers(32, False).map(UInt),
    "ulong": integers(64, False).map(ULong),
    "byte": integers(8, True).map(Byte),
    "short": integers(16, True).map(Short),
    "int": integers(32, True).map(Int),
    "long": integers(64, True),
    "float": st.floats(width=32, allow_nan=False).map(Float),
    "double": st.floats(allow_nan=False),
    "decimal32": st.binary(min_size=4, max_size=4).map(Decimal32),
    "decimal64": st.binary(min_size=8, max_size=8).map(Decimal64),
    "decimal128": st.binary(min_size=16, max_size=16).map(Decimal128),
    "char": st.characters(exclude_categories=["Cs"]).map(Char),
    "timestamp": integers(64, True).map(Timestamp),
    "uuid": st.uuids(),
    "binary": octets,
    "string": text,
    "symbol": ascii_text.map(Symbol),
}
scalars = st.one_of(*SCALARS.values())
# Values described by a composite type of the tables are encoded as such.
descriptors = ascii_text.filter(lambda name: name not in TYPES.descriptors).map(Symbol) | integers(64, False).filter(
    lambda number: number not in COMPOSITES
).map(ULong)


def key_of(value: Any) -> tuple[str, str]:
    """Return what distinguishes two keys of a map."""
    return type(value).__name__, repr(value)


def as_map(pairs: list[tuple[Any, Any]]) -> Any:
    """Return the pairs as they are decoded: a dict if it can hold them."""
    result: dict[Any, Any] = {}
    for key, value in pairs:
        try:
            if key in result:
                return Map(pairs)
        except TypeError:
            return Map(pairs)
        result[key] = value
    return result


def _arrays(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Array]:
    elements: dict[str, st.SearchStrategy[Any]] = dict(SCALARS)
    elements["list"] = st.lists(children, max_size=3)
    elements["map"] = st.lists(st.tuples(scalars, children), max_size=3, unique_by=lambda pair: key_of(pair[0])).map(as_map)
    elements["array"] = st.lists(SCALARS["uint"], max_size=3).map(lambda items: Array("uint", items))
    return st.sampled_from(sorted(elements)).flatmap(
        lambda name: st.builds(
            Array, st.just(name), st.lists(elements[name], max_size=4), st.lists(descriptors, max_size=2).map(tuple)
        )
    )


def _extend(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = scalars | st.lists(scalars, max_size=2) | st.builds(Described, descriptors, scalars)
    return st.one_of(
        st.lists(children, max_size=4),
        st.lists(st.tuples(keys, children), max_size=4, unique_by=lambda pair: key_of(pair[0])).map(as_map),
        st.builds(Described, descriptors | children, children),
        _arrays(children),
    )


values = st.recursive(scalars, _extend, max_leaves=12)

symbol_maps = st.dictionaries(ascii_text.map(Symbol), scalars, max_size=3)
plain_maps = st.dictionaries(octets, scalars, max_size=3)
_PLAIN: dict[int, st.SearchStrategy[Any]] = {
    model.BOOLEAN: st.booleans(),
    model.UBYTE: integers(8, False),
    model.USHORT: integers(16, False),
    model.UINT: integers(32, False),
    model.ULONG: integers(64, False),
    model.TIMESTAMP: integers(64, True),
    model.BINARY: octets,
    model.STRING: text,
    model.SYMBOL: ascii_text,
}


def field_values(field: FieldSpec) -> st.SearchStrategy[Any]:
    """Values of a field that is present."""
    if field.kind == model.COMPOSITE:
        return composites(TYPES.composites[field.type])
    if field.kind == model.MAP:
        return symbol_maps if field.symbols else plain_maps
    if field.kind == model.ANY:
        if field.requires == "message-id":
            return st.one_of(SCALARS["ulong"], SCALARS["uuid"], octets, text)
        if field.requires in ("address", "txn-id"):
            return text if field.requires == "address" else octets
        if field.requires == "global-tx-id":
            return values
        specs = [spec for spec in COMPOSITES.values() if field.requires in spec.provides]
        return st.sampled_from(specs).flatmap(composites)
    if field.choices:
        return st.sampled_from(field.choices)
    if field.multiple:
        return st.lists(ascii_text, min_size=1 if field.mandatory else 0, max_size=3).map(tuple)
    return _PLAIN[field.kind]


def composites(spec: CompositeSpec) -> st.SearchStrategy[Composite]:
    """Objects of a composite type; fields that may be absent often are."""
    required = {field.name: field_values(field) for field in spec.fields if field.mandatory}
    optional = {
        field.name: st.deferred(lambda field=field: field_values(field))  # type: ignore[misc]
        for field in spec.fields
        if not field.mandatory
    }
    return st.fixed_dictionaries(required, optional=optional).map(lambda fields: CLASSES[spec.name](**fields))


any_composite = st.sampled_from(sorted(COMPOSITES)).flatmap(lambda code: composites(COMPOSITES[code]))


def plain(value: Any) -> Any:
    """Return the value as tuples that distinguish types: `UInt(1)`, 1 and True are equal otherwise."""
    if isinstance(value, Composite):
        return value.kind, {name: plain(field) for name, field in fields_of(value).items()}
    if isinstance(value, Described):
        return "described", plain(value.descriptor), plain(value.value)
    if isinstance(value, Array):
        return value.type, [plain(item) for item in value.items], [plain(item) for item in value.descriptors]
    if isinstance(value, Map):
        return "Map", [(plain(key), plain(item)) for key, item in value.pairs]
    if isinstance(value, dict):
        return "dict", [(plain(key), plain(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [plain(item) for item in value]
    if isinstance(value, (Decimal, float)):
        return type(value).__name__, repr(value)
    return type(value).__name__, value
