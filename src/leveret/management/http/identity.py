"""The users of requests: tags and visible vhosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leveret.management.http.errors import HttpError, not_authorised
from leveret.security.roles import POLICYMAKER as POLICYMAKER_ROLE
from leveret.security.roles import VIEWER, Grants
from leveret.security.tags import ADMINISTRATOR, MANAGEMENT, MONITORING, NO_PAYLOADS, POLICYMAKER, READ_ONLY

# Tags of users who may set policies, parameters and rules.
POLICYMAKERS: Final = (ADMINISTRATOR, POLICYMAKER)
MANAGEMENT_TAGS: Final = frozenset((ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT))
_NO_GRANTS: Final = Grants([])


@dataclass(frozen=True, slots=True)
class Identity:
    """The authenticated user of a request.

    Attributes:
        name: The name of the user.
        tags: The tags.
        vhosts: The vhosts that the user may use.
        token: The token that has the user's permissions; "" for a user of the broker.
        grants: The roles, which have the place of permissions if there are any.
    """

    name: str
    tags: frozenset[str]
    vhosts: frozenset[str]
    token: str = ""
    grants: Grants = _NO_GRANTS

    def is_administrator(self) -> bool:
        return ADMINISTRATOR in self.tags

    def is_monitor(self) -> bool:
        """Return whether the user sees every vhost, and the connections of other users."""
        return not self.tags.isdisjoint((ADMINISTRATOR, MONITORING))

    def is_read_only(self) -> bool:
        """Return whether the user may change nothing over HTTP, whatever the other tags are."""
        return READ_ONLY in self.tags

    def check_payloads(self, vhost: str, queue: str) -> None:
        """Raise `HttpError` (401) unless answers to the user may have payloads of messages of a queue."""
        if NO_PAYLOADS in self.tags:
            raise not_authorised(f"the user has the tag '{NO_PAYLOADS}' and may not read payloads")
        if self.grants and not self.grants.allows(VIEWER, vhost, queue):
            raise not_authorised(f"the user may not read payloads of queue '{queue}' without the role '{VIEWER}'")

    def may_read_payloads(self, vhost: str, queue: str) -> bool:
        """Return whether answers to the user may have payloads of messages of a queue."""
        try:
            self.check_payloads(vhost, queue)
        except HttpError:
            return False
        return True

    def sees(self, vhost: str) -> bool:
        """Return whether lists show the objects of a vhost."""
        return self.is_monitor() or vhost in self.vhosts

    def may_use(self, vhost: str | None) -> bool:
        """Return whether the user may change the objects of a vhost, or those of all vhosts if None."""
        return self.is_administrator() or vhost in self.vhosts


# The user of a request without credentials.
ANONYMOUS: Final = Identity("", frozenset(), frozenset())


class Access:
    """The access rule of a route."""

    def check(self, identity: Identity, vhost: str | None) -> None:
        """Raise `HttpError` unless the user may use the route for a vhost, or for none."""

    def allows(self, identity: Identity, vhost: str | None) -> bool:
        """Return whether the user may use the route for a vhost, or for none."""
        try:
            self.check(identity, vhost)
        except HttpError:
            return False
        return True


class _Tagged(Access):
    def __init__(self, reason: str, *tags: str) -> None:
        self._reason = reason
        self._tags = tags

    def check(self, identity: Identity, vhost: str | None) -> None:
        if identity.tags.isdisjoint(self._tags):
            raise not_authorised(self._reason)


class _Policies(_Tagged):
    """The rule for policies and parameters, which a role for all names of a vhost allows there."""

    def check(self, identity: Identity, vhost: str | None) -> None:
        if vhost is None or not identity.grants.allows_all_of(POLICYMAKER_ROLE, vhost):
            super().check(identity, vhost)


ANY: Final = Access()
ADMIN: Final = _Tagged("Not administrator user", ADMINISTRATOR)
MONITOR: Final = _Tagged("Not monitor user", ADMINISTRATOR, MONITORING)
POLICY: Final = _Policies("User not authorised to access object", *POLICYMAKERS)
