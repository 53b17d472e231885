"""Types of the values that clients supply: arguments of declarations and bindings, and headers of messages."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TypeAlias, Union

# What a field table can hold, whatever protocol it came by: a value of AMQP 1.0 is converted to one of these first.
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
