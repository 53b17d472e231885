"""Permissions: regular expressions over the names that a user may configure, write and read in a vhost.

They work as in RabbitMQ: an expression matches anywhere in the name unless it is anchored, the empty expression matches
nothing, and the default exchange is checked under the name `amq.default`. The operations and the permissions that they
require are listed in `docs/security.md`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from leveret.broker.errors import PreconditionFailed
from leveret.security.patterns import MAX_PATTERN_LENGTH, Pattern, matches

CONFIGURE = "configure"
WRITE = "write"
READ = "read"

DEFAULT_EXCHANGE = "amq.default"


class Permission(msgspec.Struct, frozen=True):
    """Three regular expressions over the names of exchanges and queues."""

    configure: str = ""
    write: str = ""
    read: str = ""


ALL = Permission(".*", ".*", ".*")


class TopicPermission(msgspec.Struct, frozen=True):
    """Two regular expressions over the routing keys of a topic exchange, with variables such as `{username}`."""

    write: str = ""
    read: str = ""


def check_permission(permission: Permission) -> None:
    """Raise PreconditionFailed if an expression is invalid, too long, or not supported by RE2."""
    for operation in (CONFIGURE, WRITE, READ):
        pattern: str = getattr(permission, operation)
        try:
            Pattern(pattern)
        except ValueError as error:
            raise PreconditionFailed(f"{operation} permission {pattern[:80]!r} {error}") from None


def allows(permission: Permission, operation: str, name: str) -> bool:
    """Return whether a permission covers an operation on the exchange or queue with this name.

    The operation is CONFIGURE, WRITE or READ. An invalid expression covers nothing.
    """
    if operation == CONFIGURE:
        pattern = permission.configure
    elif operation == WRITE:
        pattern = permission.write
    else:
        pattern = permission.read
    if pattern == ".*":
        return True
    # As a regular expression, the empty one would match every name.
    return pattern != "" and matches(pattern, name or DEFAULT_EXCHANGE)


def check_topic_permission(permission: TopicPermission) -> None:
    """Raise PreconditionFailed if an expression is invalid, too long, or not supported by RE2."""
    for operation, pattern in ((WRITE, permission.write), (READ, permission.read)):
        try:
            Pattern(pattern)
        except ValueError as error:
            raise PreconditionFailed(f"{operation} topic permission {pattern[:80]!r} {error}") from None


def allows_topic(permission: TopicPermission, operation: str, routing_key: str, variables: Mapping[str, str]) -> bool:
    """Return whether a topic permission covers an operation with this routing key or binding key.

    The operation is WRITE or READ. As in RabbitMQ, the empty expression matches the empty key, and a variable without a
    value stays as it is. The values match literally, because clients choose some of them. An invalid expression covers
    nothing.
    """
    pattern = permission.write if operation == WRITE else permission.read
    if pattern == ".*":
        return True
    if not pattern:
        return not routing_key
    for name, value in variables.items():
        variable = f"{{{name}}}"
        if variable in pattern:
            pattern = pattern.replace(variable, re.escape(value))
            if len(pattern) > MAX_PATTERN_LENGTH:
                return False
    return matches(pattern, routing_key)
