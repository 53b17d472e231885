"""The model of AMQP 1.0 types: composite and restricted types, as created by `notation.parse`."""

from __future__ import annotations

from typing import Final

from leveret.wire.amqp10.values import Value

# The primitive types of fields. ANY is `*`; COMPOSITE is any composite type.
ANY: Final = 0
BOOLEAN: Final = 1
UBYTE: Final = 2
USHORT: Final = 3
UINT: Final = 4
ULONG: Final = 5
TIMESTAMP: Final = 6
BINARY: Final = 7
STRING: Final = 8
SYMBOL: Final = 9
MAP: Final = 10
LIST: Final = 11
UUID: Final = 12
COMPOSITE: Final = 13

KINDS: Final[dict[str, int]] = {
    "*": ANY,
    "boolean": BOOLEAN,
    "ubyte": UBYTE,
    "ushort": USHORT,
    "uint": UINT,
    "ulong": ULONG,
    "timestamp": TIMESTAMP,
    "binary": BINARY,
    "string": STRING,
    "symbol": SYMBOL,
    "map": MAP,
    "list": LIST,
    "uuid": UUID,
}
KIND_NAMES: Final[list[str]] = [*KINDS, "composite"]


class RestrictedSpec:
    """A type that restricts the values of another one.

    source      the name of the other type; `base` is the primitive type (or "*") at the end of the chain
    descriptor  numeric descriptor, or 0 if it has none: only message sections have one
    choices     the allowed values by name; empty if all are allowed
    """

    __slots__ = ("base", "choices", "descriptor", "name", "provides", "source", "symbol")

    def __init__(self, name: str, source: str, descriptor: int, provides: list[str], choices: dict[str, Value]) -> None:
        self.name = name
        self.source = source
        self.descriptor = descriptor
        self.provides = provides
        self.choices = choices
        self.base = source
        self.symbol = ""


class FieldSpec:
    """A field of a composite type.

    name       the Python name, with underscores; `spec_name` is the name in the specification
    type       the name of its type; `kind` is the underlying primitive type; `choices` are the allowed values
    requires   the role that the value's type must provide, or ""
    default    the value of an absent field
    symbols    whether the keys of a map are symbols (`fields`)
    """

    __slots__ = (
        "choices",
        "default",
        "default_text",
        "kind",
        "mandatory",
        "multiple",
        "name",
        "requires",
        "spec_name",
        "symbols",
        "type",
    )

    def __init__(
        self, spec_name: str, type: str, requires: str, mandatory: bool, multiple: bool, default_text: str | None
    ) -> None:
        self.name = spec_name.replace("-", "_")
        self.spec_name = spec_name
        self.type = type
        self.requires = requires
        self.mandatory = mandatory
        self.multiple = multiple
        self.default_text = default_text
        self.kind = ANY
        self.choices: list[Value] = []
        self.default: Value = () if multiple else None
        self.symbols = False


class CompositeSpec:
    """A composite type. `symbol` is its symbolic descriptor; `provides` lists its roles."""

    __slots__ = ("descriptor", "fields", "name", "provides", "symbol")

    def __init__(self, name: str, descriptor: int, provides: list[str], fields: list[FieldSpec]) -> None:
        self.name = name
        self.descriptor = descriptor
        self.symbol = f"amqp:{name}:list"
        self.provides = provides
        self.fields = fields

    @property
    def class_name(self) -> str:
        """The name of the Python class."""
        return "".join(word.capitalize() for word in self.name.split("-"))


class Types:
    """All types by name. `descriptors` maps symbolic descriptors to numeric ones."""

    __slots__ = ("composites", "definitions", "descriptors", "restricted")

    def __init__(self) -> None:
        self.composites: dict[str, CompositeSpec] = {}
        self.restricted: dict[str, RestrictedSpec] = {}
        self.definitions: dict[str, int] = {}
        self.descriptors: dict[str, int] = {}
