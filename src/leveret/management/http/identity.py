"""The users of requests: credentials, tags and visible vhosts."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final

from leveret.management.http.control import Control
from leveret.management.http.errors import BrokerRefused, HttpError, not_authorised

ADMINISTRATOR: Final = "administrator"
MONITORING: Final = "monitoring"
POLICYMAKER: Final = "policymaker"
MANAGEMENT: Final = "management"

_MANAGEMENT_TAGS: Final = frozenset((ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT))
_REALM: Final = ("www-authenticate", 'Basic realm="RabbitMQ Management"')


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
POLICY: Final = _Tagged("User not authorised to access object", ADMINISTRATOR, POLICYMAKER)


class Authenticator:
    """Verifies the credentials of requests. The broker checks passwords and tokens, and limits and caches the checks."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def authenticate(self, authorization: str | None, address: str) -> Identity:
        """Return the user of a request.

        Args:
            authorization: The `Authorization` header, if any.
            address: The IP address of the client.

        Raises:
            HttpError: 401, the credentials are missing or wrong, or the user has no tag for management.
        """
        name, password = _credentials(authorization)
        try:
            login = {"name": name, "password": password, "address": address}
            user = await self._control.call("users.authenticate", login)
        except BrokerRefused:
            raise HttpError(401, "not_authorized", "Login failed", (_REALM,)) from None
        tags = frozenset(user["tags"])
        if tags.isdisjoint(_MANAGEMENT_TAGS):
            raise not_authorised("Not management user")
        return Identity(user["name"], tags, frozenset(user["vhosts"]), password if user["is_token"] else "")


def _credentials(authorization: str | None) -> tuple[str, str]:
    """Return the name and the password of Basic authentication, or no name and a bearer token."""
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() == "bearer":
        return "", encoded.strip()
    if scheme.lower() != "basic":
        raise HttpError(401, headers=(_REALM,))
    try:
        name, separator, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise HttpError(401, headers=(_REALM,)) from None
    if not separator:
        raise HttpError(401, headers=(_REALM,))
    return name, password
