"""Base structs of requests and replies, and structs shared by several operations."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

# The arguments of a declaration. The transport determines the possible values.
Arguments: TypeAlias = dict[str, Any]


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
