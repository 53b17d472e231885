"""Roles: what a user may do in management to the objects whose vhosts and names match.

A user with grants has their rights in management in place of those of permissions. Tags keep their meaning, and so do
permissions over AMQP. A user without grants is not restricted by roles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from leveret.broker.errors import PreconditionFailed
from leveret.security.patterns import Pattern, matches
from leveret.security.permissions import DEFAULT_EXCHANGE

OBSERVER: Final = "observer"
VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
POLICYMAKER: Final = "policymaker"
ADMINISTRATOR: Final = "administrator"
# Each role includes those before it.
ROLES: Final = (OBSERVER, VIEWER, OPERATOR, POLICYMAKER, ADMINISTRATOR)
# Maximum number of grants of a user, and of all users.
MAX_GRANTS_OF_USER: Final = 50
MAX_GRANTS: Final = 5000
# The global parameter with the grants of all users: an object with a list of grants by user.
PARAMETER: Final = "leveret_roles"
# The expression that matches every name.
ALL: Final = ".*"

_RANKS: Final = {role: rank for rank, role in enumerate(ROLES)}


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A role for the queues and exchanges whose names match, in the vhosts whose names match.

    Attributes:
        role: One of `ROLES`.
        vhosts: The regular expression that the name of the vhost must match.
        names: The regular expression that the name of the queue or exchange must match.
    """

    role: str
    vhosts: str = ALL
    names: str = ALL


class Grants:
    """The grants of one user.

    Attributes:
        listed: The grants.
    """

    __slots__ = ("listed",)

    def __init__(self, listed: list[Grant]) -> None:
        self.listed = listed

    def __bool__(self) -> bool:
        return bool(self.listed)

    def has_vhost(self, vhost: str) -> bool:
        """Return whether the user has a role in a vhost."""
        return any(_matches(grant.vhosts, vhost) for grant in self.listed)

    def allows(self, role: str, vhost: str, name: str) -> bool:
        """Return whether the user has a role, or one that includes it, for a queue or exchange."""
        return any(
            _rank(grant) >= _RANKS[role]
            and _matches(grant.vhosts, vhost)
            and _matches(grant.names, name or DEFAULT_EXCHANGE)
            for grant in self.listed
        )

    def allows_all_of(self, role: str, vhost: str) -> bool:
        """Return whether the user has a role, or one that includes it, for every name in a vhost."""
        return any(
            _rank(grant) >= _RANKS[role] and grant.names == ALL and _matches(grant.vhosts, vhost) for grant in self.listed
        )

    def role_for(self, vhost: str, name: str) -> str | None:
        """Return the highest role of the user for a queue or exchange, None without one."""
        return next((role for role in reversed(ROLES) if self.allows(role, vhost, name)), None)


def check_grants(grants: Sequence[Grant]) -> None:
    """Raise PreconditionFailed if a grant is invalid. Slow: runs in a thread."""
    for grant in grants:
        if grant.role not in _RANKS:
            raise PreconditionFailed(f"unknown role '{grant.role}'; expected one of {', '.join(ROLES)}")
        for field, pattern in (("vhosts", grant.vhosts), ("names", grant.names)):
            if not pattern:
                raise PreconditionFailed(
                    f"'{field}' of role '{grant.role}' is empty; expected an expression, '{ALL}' for all"
                )
            try:
                Pattern(pattern)
            except ValueError as error:
                raise PreconditionFailed(f"'{field}' of role '{grant.role}': {pattern[:80]!r} {error}") from None
        if grant.role == POLICYMAKER and grant.names != ALL:
            raise PreconditionFailed(
                f"role '{POLICYMAKER}' with names {grant.names[:80]!r}; expected '{ALL}': a policy may apply to any name"
            )


def _rank(grant: Grant) -> int:
    """Return the rank of a role. One of a later version, in the data of this broker, allows nothing."""
    return _RANKS.get(grant.role, -1)


def _matches(pattern: str, name: str) -> bool:
    return pattern == ALL or matches(pattern, name)
