"""Management calls: a name, the struct of the arguments, and a function on `Admin`.

A call returns a JSON value, an awaitable, or an iterator of objects for a list, which may be long and is produced in parts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from leveret.management.admin import Admin

# Integers that every JSON parser with 64-bit integers supports.
_MIN_INTEGER: Final = -(1 << 63)
_MAX_INTEGER: Final = (1 << 64) - 1

Item = dict[str, Any]
Result = Iterator[Item] | Item | Awaitable[Item] | None


class Arguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Base class of arguments, and the arguments of calls without any."""


class InVhost(Arguments, kw_only=True):
    """Arguments of a list: a vhost, or None for all."""

    vhost: str | None = None


class Named(Arguments, kw_only=True):
    """Arguments of a call about an object outside of vhosts."""

    name: str


class NamedInVhost(Arguments, kw_only=True):
    """Arguments of a call about an object in a vhost."""

    name: str
    vhost: str = "/"


@dataclass(frozen=True, slots=True)
class Call:
    """A management call.

    Attributes:
        function: Called on the event loop with the `Admin` and the arguments.
        arguments: The struct of the arguments.
        changes: Whether it writes to the log. The reply is sent when the changes are on disk.
        removes: Whether it removes objects, which may take several turns. The reply is sent when they are removed.
        prepare: Transforms the arguments in a thread before `function` is called, such as a password into its hash.
    """

    function: Callable[[Admin, Any], Result]
    arguments: type[Arguments] = Arguments
    changes: bool = False
    removes: bool = False
    prepare: Callable[[Admin, Any], Any] | None = None


Calls = Mapping[str, Call]


def plain(value: Any) -> Any:
    """Return a value of an argument table as a JSON value. It accepts every value that a client can send.

    Bytes, decimals, NaN and infinities become strings, and times ISO 8601.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return int(value) if _MIN_INTEGER <= value <= _MAX_INTEGER else str(int(value))
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
        while unique in shown:  # such as the byte 0xFF and the string \\xff
            number += 1
            unique = f"{name}#{number}"
        shown[unique] = plain(inner)
    return shown


def _text(text: str) -> str:
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a surrogate that represents no byte
        return text.encode("utf-8", "backslashreplace").decode()


def encode_json(value: Any) -> bytes:
    """Encode a reply as JSON, whatever values it contains."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError):
        return msgspec.json.encode(plain(value))
