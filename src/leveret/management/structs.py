"""Base structs of requests and replies, and structs shared by several operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import msgspec

# The arguments of a declaration. The transport determines the possible values.
Arguments: TypeAlias = dict[str, Any]
# Limits of a table in a request. Tables of AMQP clients are limited by the depth of field tables and the size of frames.
MAX_DEPTH: Final = 64
MAX_VALUES: Final = 10_000
MAX_TEXT: Final = 128 << 10
_MIN_INTEGER: Final = -(1 << 63)
_MAX_INTEGER: Final = (1 << 63) - 1
_MAX_KEY: Final = 255


def check_value(name: str, value: object) -> None:
    """Raise `ValueError` if a value of a request has too many parts to list, or integers of more than 64 bits."""
    for _ in _levels(name, value):
        pass


def check_arguments(arguments: Arguments) -> None:
    """Raise `ValueError` if arguments are larger than a table that an AMQP client can send."""
    text = 0
    for level in _levels("arguments", arguments):
        for item in level:
            if isinstance(item, str):
                text += len(item)
            elif isinstance(item, dict):
                longest = max((len(str(key).encode("utf-8", "surrogateescape")) for key in item), default=0)
                if longest > _MAX_KEY:
                    raise ValueError(f"'arguments' has a key of {longest} bytes; expected at most {_MAX_KEY}")
        if text > MAX_TEXT:
            raise ValueError(f"'arguments' has too much text; expected at most {MAX_TEXT} characters")


def _levels(name: str, value: object) -> Iterator[list[object]]:
    """Yield the value, the values in it, the values in these, and so on. Raises `ValueError` if they are too many."""
    values = depth = 0
    level = [value]
    while level:
        if depth > MAX_DEPTH:
            raise ValueError(f"'{name}' is nested too deep; expected at most {MAX_DEPTH} levels")
        values += len(level)
        if values > MAX_VALUES:
            raise ValueError(f"'{name}' has too many values; expected at most {MAX_VALUES}")
        yield level
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below += item.values()
            elif isinstance(item, list):
                below += item
            elif isinstance(item, int) and not _MIN_INTEGER <= item <= _MAX_INTEGER:
                raise ValueError(f"'{name}' has the integer {str(item)[:40]}; expected 64 bits")
        level = below
        depth += 1


def check_routing_key(routing_key: str) -> None:
    """Raise `ValueError` if a routing key is longer than AMQP allows."""
    size = len(routing_key.encode("utf-8", "surrogateescape"))
    if size > _MAX_KEY:
        raise ValueError(f"the routing key has {size} bytes; expected at most {_MAX_KEY}")


class Request(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Base class of requests, and the request of operations without fields."""


class InVhost(Request, kw_only=True):
    """Request for a list: of one vhost, or of all if None."""

    vhost: str | None = None


class Named(Request, kw_only=True):
    """Request about an object outside of vhosts."""

    name: str


class NamedInVhost(Request, kw_only=True):
    """Request about an object in a vhost."""

    name: str
    vhost: str = "/"


class Reply(msgspec.Struct, kw_only=True):
    """Base class of replies, and a reply without fields."""


class Messages(Reply, kw_only=True):
    """A number of messages."""

    messages: int
