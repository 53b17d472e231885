"""Scopes in RabbitMQ's syntax: `PERMISSION:VHOST/NAME[/ROUTING_KEY]` and `tag:TAG`.

The permission is `configure`, `write` or `read`. The other parts are percent-encoded patterns in which `*` stands for any
characters and `{CLAIM}` for the text of a claim of the token; `{vhost}` stands for the vhost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import unquote

from leveret.security.permissions import CONFIGURE, DEFAULT_EXCHANGE, READ, WRITE

_PERMISSIONS: Final = (CONFIGURE, WRITE, READ)
_TAG: Final = "tag"
_VHOST: Final = "{vhost}"
_VARIABLE: Final = re.compile(r"\{([^{}]+)\}")


class Glob:
    """A pattern in which `*` stands for any characters. A match takes time linear in the length of the text."""

    __slots__ = ("_parts",)

    def __init__(self, pattern: str, variables: Mapping[str, str]) -> None:
        self._parts = [_expand(unquote(part, errors="surrogateescape"), variables) for part in pattern.split("*")]

    def matches(self, text: str, vhost: str) -> bool:
        first, *middle = [part.replace(_VHOST, vhost) for part in self._parts]
        if not middle:
            return text == first
        last = middle.pop()
        end = len(text) - len(last)
        at = len(first)
        if at > end or not text.startswith(first) or not text.endswith(last):
            return False
        for part in middle:
            found = text.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return True


def _expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace variables. One without a value stays as it is, and so does `{vhost}`, which depends on the request."""
    return _VARIABLE.sub(lambda found: variables.get(found[1], found[0]), text)


_ANY: Final = Glob("*", {})


class _Grant:
    """One permission for names in vhosts, and for routing keys of topic exchanges."""

    __slots__ = ("name", "permission", "routing_key", "vhost")

    def __init__(self, permission: str, vhost: Glob, name: Glob, routing_key: Glob) -> None:
        self.permission = permission
        self.vhost = vhost
        self.name = name
        self.routing_key = routing_key

    def covers(self, vhost: str, permission: str, name: str) -> bool:
        return (
            self.permission == permission
            and self.vhost.matches(vhost, vhost)
            and self.name.matches(name or DEFAULT_EXCHANGE, vhost)
        )


class Scopes:
    """The rights that scopes grant. Scopes that are not in RabbitMQ's syntax grant nothing.

    Args:
        scopes: The scopes, without the prefix.
        variables: The values of variables in patterns.

    Attributes:
        scopes: The scopes.
        variables: The values of the variables that the scopes may use.
        tags: The tags.
    """

    def __init__(self, scopes: Iterable[str], variables: Mapping[str, str]) -> None:
        self.scopes = tuple(dict.fromkeys(scopes))
        used = set(_VARIABLE.findall(unquote(" ".join(self.scopes), errors="surrogateescape"))) - {"vhost"}
        self.variables = values = {name: value for name, value in variables.items() if name in used}
        self._grants: list[_Grant] = []
        tags: dict[str, None] = {}
        for scope in self.scopes:
            kind, _, rest = scope.partition(":")
            if kind == _TAG:
                tags[rest] = None
            elif kind in _PERMISSIONS:
                patterns = [_ANY if pattern == "*" else Glob(pattern, values) for pattern in rest.split("/")]
                if len(patterns) == 2:
                    patterns.append(_ANY)
                if len(patterns) == 3:
                    self._grants.append(_Grant(kind, *patterns))
        self.tags = tuple(tag for tag in tags if tag)

    def allow(self, vhost: str, permission: str, name: str) -> bool:
        """Return whether the scopes cover an operation on an exchange or queue; "" is the default exchange."""
        return any(grant.covers(vhost, permission, name) for grant in self._grants)

    def allow_topic(self, vhost: str, permission: str, exchange: str, routing_key: str) -> bool:
        """Return whether the scopes cover an operation with a routing key of a topic exchange."""
        return any(
            grant.covers(vhost, permission, exchange) and grant.routing_key.matches(routing_key, vhost)
            for grant in self._grants
        )

    def open(self, vhost: str) -> bool:
        """Return whether any scope names the vhost."""
        return any(grant.vhost.matches(vhost, vhost) for grant in self._grants)
