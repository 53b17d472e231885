"""What a management call is: a name, the shape of its arguments, a function over `Admin`.

A call returns a value of JSON's types, or an iterator of objects for a list, which may be long and is made piece by
piece; one that changes something may also return what it is answered with later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from leveret.management.admin import Admin

# Integers that every reader of JSON that has 64 bits can hold.
_LOWEST: Final = -(1 << 63)
_HIGHEST: Final = (1 << 64) - 1

Item = dict[str, Any]
Result = Iterator[Item] | Item | Awaitable[Item] | None


class Arguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of the arguments of calls; itself those of a call that takes none."""


class InVhost(Arguments, kw_only=True):
    """Of a list: one vhost, or all."""

    vhost: str | None = None


class Named(Arguments, kw_only=True):
    """Of a call about one thing that belongs to no vhost."""

    name: str


class NamedInVhost(Arguments, kw_only=True):
    """Of a call about one thing in a vhost."""

    name: str
    vhost: str = "/"


@dataclass(frozen=True, slots=True)
class Call:
    """function    called on the event loop with the `Admin` and the arguments
    arguments   their struct
    changes     whether it writes to the log: it is answered when that is on disk
    removes     whether it may remove much: it is answered when that is taken apart, and then on disk
    prepare     turns some of the arguments into others in a thread, before `function`: a password into its hash
    """

    function: Callable[[Admin, Any], Result]
    arguments: type[Arguments] = Arguments
    changes: bool = False
    removes: bool = False
    prepare: Callable[[Admin, Any], Any] | None = None


Calls = Mapping[str, Call]


def plain(value: Any) -> Any:
    """A value of an argument table as JSON can say it: octets as text, times in ISO 8601, decimals, NaN and infinities as
    text. It takes every value that a client can send."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return int(value) if _LOWEST <= value <= _HIGHEST else str(int(value))
    if isinstance(value, float):
        return float(value) if isfinite(value) else str(float(value))
    if isinstance(value, dict):
        return _plain_table(value)
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "backslashreplace")
    return value.isoformat() if hasattr(value, "isoformat") else _text(str(value))


def _plain_table(table: dict[Any, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for key, inner in table.items():
        name = unique = str(plain(key))
        number = 1
        while unique in shown:  # such as the octet 0xFF and the text \\xff
            number += 1
            unique = f"{name}#{number}"
        shown[unique] = plain(inner)
    return shown


def _text(text: str) -> str:
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a surrogate that stands for no octet
        return text.encode("utf-8", "backslashreplace").decode()


def encode_json(value: Any) -> bytes:
    """An answer as JSON, whatever is in it."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError):
        return msgspec.json.encode(plain(value))
