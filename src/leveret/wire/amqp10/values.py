"""Classes for the AMQP primitive types that Python lacks (types 1.6), so that values keep their types.

| AMQP | Python | AMQP | Python |
| --- | --- | --- | --- |
| null | None | decimal32, 64, 128 | `Decimal32`, `Decimal64`, `Decimal128` |
| boolean | bool | char | `Char` (a str of one character) |
| ubyte, ushort, uint, ulong | `UByte`, `UShort`, `UInt`, `ULong` | timestamp | `Timestamp` (an int: ms since 1970) |
| byte, short, int | `Byte`, `Short`, `Int` | uuid | `uuid.UUID` |
| long | int | binary | bytes |
| float | `Float` | string | str |
| double | float | symbol | `Symbol` (a str) |
| list | list | map | dict, or `Map` if a dict cannot represent it |
| array | `Array` | described value | `Described` |

A plain int is a long and a plain float a double, as in Qpid Proton. The number classes are ints and floats and
compare like them: `UInt(1) == 1 == True`, so keys that differ in AMQP may be equal in Python. A map with such keys, with
unhashable keys, or with more than 32 keys other than strings, symbols and binaries (a peer could make their hashes
collide) is a `Map`, a list of pairs. Both dict and `Map` keep the order of the pairs.

A signalling NaN of type float becomes a quiet one. Everything else survives decoding and encoding unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Union
from uuid import UUID

from leveret.wire.amqp10.decimals import Decimal32, Decimal64, Decimal128

if TYPE_CHECKING:
    from leveret.wire.amqp10.composite import Composite

__all__ = [
    "Array",
    "Byte",
    "Char",
    "Checked",
    "Decimal32",
    "Decimal64",
    "Decimal128",
    "Described",
    "EncodedMap",
    "Float",
    "Int",
    "Map",
    "Pairs",
    "Short",
    "Symbol",
    "Table",
    "Timestamp",
    "UByte",
    "UInt",
    "ULong",
    "UShort",
    "Value",
]

# Any value that can be decoded or encoded. A described value of an AMQP 1.0 composite type may be an object of its class.
# The keys of a mapping are values, too; they are `Any` because mappings are invariant in their keys.
Value: TypeAlias = Union[
    UUID,
    Decimal32,
    Decimal64,
    Decimal128,
    bool,
    int,
    float,
    str,
    bytes,
    "Described",
    "Array",
    "Map",
    "Composite",
    Sequence["Value"],
    Mapping[Any, "Value"],
    None,
]
# A value that the decoder has checked, of a type that the tables define by a role (a source, a delivery state) instead of
# one class.
Checked: TypeAlias = Any
# A map of either Python type.
Table: TypeAlias = Union[Mapping[Any, Value], "Map"]
Pairs: TypeAlias = list[tuple[Value, Value]]


class UByte(int):
    """A ubyte: 0 to 2^8 - 1."""

    __slots__ = ()


class UShort(int):
    """A ushort: 0 to 2^16 - 1."""

    __slots__ = ()


class UInt(int):
    """A uint: 0 to 2^32 - 1."""

    __slots__ = ()


class ULong(int):
    """A ulong: 0 to 2^64 - 1."""

    __slots__ = ()


class Byte(int):
    """A byte: -2^7 to 2^7 - 1."""

    __slots__ = ()


class Short(int):
    """A short: -2^15 to 2^15 - 1."""

    __slots__ = ()


class Int(int):
    """An int: -2^31 to 2^31 - 1."""

    __slots__ = ()


class Timestamp(int):
    """A timestamp: signed 64-bit milliseconds since 1970-01-01T00:00Z."""

    __slots__ = ()


class Float(float):
    """A float: an IEEE 754 binary32. Encoding rounds a number that it cannot represent exactly."""

    __slots__ = ()


class Char(str):
    """A char: one Unicode character."""

    __slots__ = ()


class Symbol(str):
    """A symbol: seven-bit ASCII text."""

    __slots__ = ()


class Described:
    """A value with its descriptor, which is a `Symbol`, a `ULong` or (reserved) any other value."""

    __slots__ = ("descriptor", "value")

    def __init__(self, descriptor: Value, value: Value) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Described):
            return NotImplemented
        return (
            type(self.descriptor) is type(other.descriptor)
            and self.descriptor == other.descriptor
            and type(self.value) is type(other.value)
            and bool(self.value == other.value)
        )

    def __hash__(self) -> int:
        return hash((self.descriptor, self.value))

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"


class Array:
    """An array: values of one type.

    type         the AMQP name of the type, for example "uint"; known even if the array is empty
    items        the values, which may be plain Python values: an int in an array of uint is a uint
    descriptors  the descriptors of every element, outermost first; `items` are the values without them
    """

    __slots__ = ("descriptors", "items", "type")

    def __init__(self, type: str, items: Iterable[Value], descriptors: tuple[Value, ...] = ()) -> None:
        self.type = type
        self.items = list(items)
        self.descriptors = descriptors

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        return self.type == other.type and self.items == other.items and self.descriptors == other.descriptors

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Array({self.type!r}, {self.items!r}, {self.descriptors!r})"


class Map:
    """A map that a dict cannot or should not represent, as an ordered list of pairs."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: Iterable[tuple[Value, Value]]) -> None:
        self.pairs = list(pairs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Map):
            return NotImplemented
        return self.pairs == other.pairs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Map({self.pairs!r})"


class EncodedMap:
    """An encoded map, with its constructor. Only fields of composite types may have one; decoding returns none."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __repr__(self) -> str:
        return f"EncodedMap({len(self.data)} bytes)"
