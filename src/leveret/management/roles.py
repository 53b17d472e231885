"""The roles of users in management: a global parameter with the grants of each user, so that definitions have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from leveret._text import field_error
from leveret.broker.errors import PreconditionFailed
from leveret.broker.parameters import UNKNOWN
from leveret.security.roles import (
    ADMINISTRATOR,
    MAX_GRANTS,
    MAX_GRANTS_OF_USER,
    OBSERVER,
    OPERATOR,
    PARAMETER,
    VIEWER,
    Grant,
    Grants,
    check_grants,
)

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

_NONE: Final = Grants([])

# The role that an operation with the permissions of a user requires, for each object for which it checks a permission.
# Other operations require an administrator.
_REQUIRED: Final = {
    **dict.fromkeys(
        (
            "messages.browse",
            "messages.count",
            "messages.dead_letters",
            "messages.destinations",
            "queue.show",
            "binding.list",
            "binding.compare",
        ),
        OBSERVER,
    ),
    **dict.fromkeys(("messages.payload", "messages.export", "tails.open", "tails.read", "tails.close"), VIEWER),
    **dict.fromkeys(
        (
            "messages.get",
            "messages.publish",
            "messages.import",
            "messages.preview",
            "messages.move",
            "messages.copy",
            "messages.delete",
            "messages.resend",
            "queues.pause",
            "queues.resume",
            "queues.change_matching",
            "queue.purge",
        ),
        OPERATOR,
    ),
}


class RoleHolder:
    """Principal whose grants have the place of permissions, for one operation."""

    setter = UNKNOWN

    def __init__(self, user: str, grants: Grants, operation: str, source: str) -> None:
        self.user = self.actor = user
        self.source = source
        self._grants = grants
        self.required_role = _REQUIRED.get(operation, ADMINISTRATOR)

    def is_operator(self) -> bool:
        return False

    def may(self, vhost: str, permission: str, resource: str) -> bool:
        return self._grants.allows(self.required_role, vhost, resource)

    def may_topic(self, vhost: str, permission: str, exchange: str, routing_key: str) -> bool:
        return self._grants.allows(self.required_role, vhost, exchange)


class Roles:
    """The grants of all users."""

    def __init__(self, broker: Broker) -> None:
        self._parameters = broker.global_parameters
        # The value of the parameter that was read last, and its grants.
        self._value: object = None
        self._by_user: dict[str, Grants] = {}

    def of(self, user: str) -> Grants:
        """Return the grants of a user."""
        self._read()
        return self._by_user.get(user, _NONE)

    def all(self) -> dict[str, list[Grant]]:
        """Return the grants of each user who has some."""
        self._read()
        return {user: grants.listed for user, grants in self._by_user.items()}

    def set(self, user: str, grants: list[Grant]) -> None:
        """Replace the grants of a user, which were checked. Raises PreconditionFailed."""
        if not 1 <= len(user.encode("utf-8", "surrogatepass")) <= 255:
            raise PreconditionFailed("invalid user name; expected 1 to 255 bytes")
        if grants == self.of(user).listed:
            return
        found = {name: kept for name, kept in self.all().items() if name != user}
        if grants:
            found[user] = list(dict.fromkeys(grants))
        _check_numbers(found)
        if found:
            self._parameters.set(PARAMETER, msgspec.to_builtins(found))
        elif self._value is not None:
            self._parameters.delete(PARAMETER)

    def _read(self) -> None:
        value = self._parameters.values.get(PARAMETER)
        if value is not self._value:
            found = {} if value is None else _parse(value)
            self._by_user = {user: Grants(grants) for user, grants in found.items()}
            self._value = value


def check_parameter(value: object) -> None:
    """Raise PreconditionFailed if a value of the global parameter is invalid. Slow: runs in a thread."""
    found = _parse(value)
    _check_numbers(found)
    for user, grants in found.items():
        try:
            check_grants(grants)
        except PreconditionFailed as error:
            raise PreconditionFailed(f"global parameter '{PARAMETER}': user '{user}': {error}") from None


def _parse(value: object) -> dict[str, list[Grant]]:
    try:
        return msgspec.convert(value, dict[str, list[Grant]])
    except msgspec.ValidationError as error:
        raise PreconditionFailed(
            f"global parameter '{PARAMETER}': {field_error(error)}; expected an object with a list of grants by user,"
            " each with role, vhosts and names"
        ) from None


def _check_numbers(found: dict[str, list[Grant]]) -> None:
    for user, grants in found.items():
        if len(grants) > MAX_GRANTS_OF_USER:
            raise PreconditionFailed(f"{len(grants)} roles of user '{user}'; expected at most {MAX_GRANTS_OF_USER}")
    total = sum(map(len, found.values()))
    if total > MAX_GRANTS:
        raise PreconditionFailed(f"{total} roles of all users; expected at most {MAX_GRANTS}")
