"""Permissions: regular expressions over the names that a user may configure, write and read in a vhost.

They work as in RabbitMQ: an expression matches anywhere in the name unless it is anchored, the empty expression matches
nothing, and the default exchange is checked under the name `amq.default`. The operations and the permissions that they
require are listed in `docs/security.md`.
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
