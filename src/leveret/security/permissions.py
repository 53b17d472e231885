"""Permissions: what a user may configure, write and read in a vhost, by regular expressions over names.

They work as RabbitMQ's: an expression matches anywhere in the name unless it is anchored, the empty expression matches
nothing, and the default exchange is checked under the name `amq.default`. The table of what needs which permission is
in `docs/security.md`.
"""

from __future__ import annotations

import msgspec

from leveret.broker.errors import PreconditionFailed
from leveret.security.patterns import Pattern, matches

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


def check_permission(permission: Permission) -> None:
    """Raise PreconditionFailed if an expression is not valid, too long, or not supported by RE2."""
    for operation in (CONFIGURE, WRITE, READ):
        pattern: str = getattr(permission, operation)
        try:
            Pattern(pattern)
        except ValueError as error:
            raise PreconditionFailed(f"{operation} permission {pattern[:80]!r} {error}") from None


def allows(permission: Permission, operation: str, name: str) -> bool:
    """Whether the permission covers an operation (CONFIGURE, WRITE or READ) on the exchange or queue of that name.

    An expression that cannot be compiled covers nothing.
    """
    if operation == CONFIGURE:
        pattern = permission.configure
    elif operation == WRITE:
        pattern = permission.write
    else:
        pattern = permission.read
    if pattern == ".*":
        return True
    # An empty expression would match every name; it is to match none.
    return pattern != "" and matches(pattern, name or DEFAULT_EXCHANGE)
