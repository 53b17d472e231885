"""The users of requests: tags and visible vhosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leveret.management.http.errors import not_authorised
from leveret.security.tags import ADMINISTRATOR, MANAGEMENT, MONITORING, NO_PAYLOADS, POLICYMAKER, READ_ONLY

# Tags of users who may set policies, parameters and rules.
POLICYMAKERS: Final = (ADMINISTRATOR, POLICYMAKER)
MANAGEMENT_TAGS: Final = frozenset((ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT))


@dataclass(frozen=True, slots=True)
class Identity:
    """The authenticated user of a request.

    Attributes:
        name: The name of the user.
        tags: The tags.
        vhosts: The vhosts that the user may use.
        token: The token that has the user's permissions; "" for a user of the broker.
    """

    name: str
    tags: frozenset[str]
    vhosts: frozenset[str]
    token: str = ""

    def is_administrator(self) -> bool:
        return ADMINISTRATOR in self.tags

    def is_monitor(self) -> bool:
        """Return whether the user sees every vhost, and the connections of other users."""
        return not self.tags.isdisjoint((ADMINISTRATOR, MONITORING))

    def is_read_only(self) -> bool:
        """Return whether the user may change nothing over HTTP, whatever the other tags are."""
        return READ_ONLY in self.tags

    def may_read_payloads(self) -> bool:
        """Return whether answers to the user may have payloads of messages."""
        return NO_PAYLOADS not in self.tags

    def sees(self, vhost: str) -> bool:
        """Return whether lists show the objects of a vhost."""
        return self.is_monitor() or vhost in self.vhosts


# The user of a request without credentials.
ANONYMOUS: Final = Identity("", frozenset(), frozenset())


class Access:
    """The access rule of a route."""

    def check(self, identity: Identity) -> None:
        """Raise `HttpError` unless the user may use the route."""


class _Tagged(Access):
    def __init__(self, reason: str, *tags: str) -> None:
        self._reason = reason
        self._tags = tags

    def check(self, identity: Identity) -> None:
        if identity.tags.isdisjoint(self._tags):
            raise not_authorised(self._reason)


ANY: Final = Access()
ADMIN: Final = _Tagged("Not administrator user", ADMINISTRATOR)
MONITOR: Final = _Tagged("Not monitor user", ADMINISTRATOR, MONITORING)
POLICY: Final = _Tagged("User not authorised to access object", *POLICYMAKERS)
