"""What a management call is: a name, the shape of its arguments, a function over `Admin`.

A call returns a value of JSON's types, or an iterator of objects for a list, which may be long and is made piece by
piece; one that changes something may also return what it is answered with later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from leveret.management.admin import Admin

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
    prepare     turns some of the arguments into others in a thread, before `function`: a password into its hash
    """

    function: Callable[[Admin, Any], Result]
    arguments: type[Arguments] = Arguments
    changes: bool = False
    prepare: Callable[[Admin, Any], Any] | None = None


Calls = Mapping[str, Call]


def plain(value: Any) -> Any:
    """A value of an argument table as JSON can say it: octets as text, times in ISO 8601, decimals as text."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
