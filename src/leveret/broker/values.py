"""Types of the values that clients supply: arguments of declarations and bindings, and headers of messages."""

from __future__ import annotations

import re
from collections.abc import Hashable
from datetime import datetime
from decimal import Decimal
from hashlib import sha256
from typing import Final, TypeAlias, Union

# A value in a field table of any protocol; values of AMQP 1.0 are converted to these types first.
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


class Int8(int):
    """An integer that a client has declared with 8 bits; the other classes likewise. It equals a plain integer."""

    __slots__ = ()


class UInt8(int):
    __slots__ = ()


class Int16(int):
    __slots__ = ()


class UInt16(int):
    __slots__ = ()


class Int32(int):
    __slots__ = ()


class UInt32(int):
    __slots__ = ()


class Int64(int):
    __slots__ = ()


class UInt64(int):
    __slots__ = ()


class Float32(float):
    __slots__ = ()


# Types of numbers in the arguments of declarations and bindings. Their indices are in the log. Numbers of other origin,
# such as JSON, and those that earlier versions stored have no type: they are int and float.
SIZED: Final[tuple[type, ...]] = (Int8, UInt8, Int16, UInt16, Int32, UInt32, Int64, UInt64, Float32)

# A value as part of a key: hashable, and equal only to an equal value of a comparable type.
Frozen: TypeAlias = Hashable

# Maximum length of a key; a longer one is replaced by its hash.
MAX_KEY: Final = 256

_INTERVAL: Final = re.compile(r"([0-9]{1,9})([YMDhms])", re.ASCII)
_SECONDS: Final = {"Y": 31_536_000, "M": 2_592_000, "D": 86_400, "h": 3600, "m": 60, "s": 1}


def intervals_of(text: str) -> tuple[int, ...] | None:
    """Return the milliseconds of intervals with commas between them such as `5s,30s,5m`, or None."""
    found: list[int] = []
    for part in text.split(","):
        interval = interval_of(part.strip())
        if interval is None:
            return None
        found.append(interval)
    return tuple(found)


def freeze(value: FieldValue) -> Frozen:
    """Return a hashable key for a field value: equal for equal values, but different for a bool and an equal number."""
    if isinstance(value, dict):
        return ("F", tuple(sorted([(str(name), freeze(item)) for name, item in value.items()], key=_by_name)))
    if isinstance(value, (list, tuple)):
        return ("A", tuple([freeze(item) for item in value]))
    if isinstance(value, bool):
        return ("t", value)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, float) and value != value:
        return ("d", "nan")  # NaN does not equal itself, so such a binding could never be removed
    return value


def compact_key(value: FieldValue) -> Frozen:
    """Return a key for a field value that can be compared quickly: as `freeze` returns it, but as text if it is compound.

    Binary and text with the same bytes have the same key. The key of None is None. A large value is replaced by its hash.
    Python salts the hashes of text, but not those of tuples, of which a client could find many with the same hash.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        value = bytes(value).decode("utf-8", "surrogateescape")
    key = freeze(value)
    if isinstance(key, tuple):
        key = key[0], repr(key)
        text = key[1]
    elif isinstance(key, str):
        text = key
    else:
        return key
    if len(text) > MAX_KEY:
        return "sha256", sha256(text.encode("utf-8", "surrogatepass")).digest()
    return key


def _by_name(pair: tuple[str, Frozen]) -> str:
    return pair[0]


def interval_of(text: str) -> int | None:
    """Return the milliseconds of an interval such as `7D` (units Y, M, D, h, m and s), or None."""
    found = _INTERVAL.fullmatch(text)
    return None if found is None else int(found.group(1)) * _SECONDS[found.group(2)] * 1000
