"""Types of field values, with subclasses of int for types that Python lacks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeAlias, Union

FieldValue: TypeAlias = Union[
    Decimal,
    datetime,
    bool,
    int,
    float,
    str,
    bytes,
    bytearray,
    memoryview,
    list["FieldValue"],
    tuple["FieldValue", ...],
    dict[str, "FieldValue"],
    None,
]
FieldTable: TypeAlias = dict[str, FieldValue]
# A table that is only read. Unlike `FieldTable`, it may be a dict whose values have a narrower type.
FieldMapping: TypeAlias = Mapping[str, FieldValue]

# The arguments of a method and the properties of a content, by the Python names of the fields. The method tables define
# their names and types, and the decoder checks them. Static types cannot express them.
Arguments: TypeAlias = dict[str, Any]
ContentProperties: TypeAlias = dict[str, Any]


class EncodedTable(dict[str, FieldValue]):
    """The decoded arguments of a declaration or binding whose decoding has lost types, with the encoded fields.

    Attributes:
        encoded: The fields in RabbitMQ's dialect, without their length.
    """

    __slots__ = ("encoded",)

    def __init__(self, table: FieldTable, encoded: bytes) -> None:
        super().__init__(table)
        self.encoded = encoded


def encoded_fields(table: FieldTable) -> bytes:
    """Return the encoded fields of a table; empty if its values have all types."""
    return table.encoded if isinstance(table, EncodedTable) else b""


class LongLong(int):
    """An integer that is always sent with 64 bits, for peers that check the type."""

    __slots__ = ()


class RawTimestamp(int):
    """A timestamp beyond the range of `datetime` (the year 9999): seconds since 1970, unsigned 64 bits."""

    __slots__ = ()
