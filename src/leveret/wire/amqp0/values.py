"""Types of fields: what a field table can hold, and the subclasses of int for what Python lacks."""

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
# A table that is only read: of any values that a field can hold.
FieldMapping: TypeAlias = Mapping[str, FieldValue]

# The arguments of a method and the properties of a content, by the Python names of the fields. The tables of the protocol
# say which there are and of what types; the decoder checks it, and no static type can follow them.
Arguments: TypeAlias = dict[str, Any]
ContentProperties: TypeAlias = dict[str, Any]


class LongLong(int):
    """An integer that is always sent in 64 bits, for peers that check the type."""

    __slots__ = ()


class RawTimestamp(int):
    """An AMQP timestamp that `datetime` cannot hold (beyond the year 9999): seconds since 1970, unsigned 64 bits."""

    __slots__ = ()
