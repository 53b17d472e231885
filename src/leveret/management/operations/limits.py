"""Limits of vhosts and users under RabbitMQ's names: list, set, clear.

Those of vhosts are the parameter `limits` of the component `vhost-limits`, those of users are what `users.change` sets.
As in RabbitMQ, a limit of 0 allows none, and a negative one is no limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from leveret.broker.parameters import MAX_CONNECTIONS, MAX_QUEUES
from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.structs import InVhost, Reply, Request
from leveret.security.users import UserLimits

# Names of user limits, and of the fields in the settings.
USER_LIMITS: Final = {"max-connections": "max_connections", "max-channels": "max_channels"}
# Values of a user's setting: the default, and none allowed.
DEFAULT: Final = 0
NONE_ALLOWED: Final = -1


class OfVhost(Request, kw_only=True):
    """Request to clear a limit of a vhost, or all of them."""

    vhost: str
    name: Literal["max-connections", "max-queues"] | None = None


class SetVhost(Request, kw_only=True):
    """Request to set a limit of a vhost."""

    vhost: str
    name: Literal["max-connections", "max-queues"]
    value: int


class ListUsers(Request, kw_only=True):
    """Request for the limits of one user, or of all users."""

    user: str | None = None


class OfUser(Request, kw_only=True):
    """Request to clear a limit of a user, or all of them."""

    user: str
    name: Literal["max-connections", "max-channels"] | None = None


class SetUser(Request, kw_only=True):
    """Request to set a limit of a user."""

    user: str
    name: Literal["max-connections", "max-channels"]
    value: int


class VhostLimits(Reply, kw_only=True):
    """The limits in effect of a vhost that has any, by name: the lower ones of the parameters and the settings."""

    vhost: str
    value: dict[str, int]


class UserLimitsInfo(Reply, kw_only=True):
    """The limits of a user who has any, by name."""

    user: str
    value: dict[str, int]


def list_vhost_limits(context: Context, request: InVhost) -> Iterator[VhostLimits]:
    """List the limits of vhosts. A vhost without limits is left out."""
    for vhost in context.vhosts(request.vhost):
        limits = {MAX_CONNECTIONS: vhost.max_connections, MAX_QUEUES: vhost.max_queues}
        value = {name: limit for name, limit in limits.items() if limit >= 0}
        if value:
            yield VhostLimits(vhost=vhost.name, value=value)


def set_vhost_limit(context: Context, request: SetVhost) -> None:
    """Set a limit of a vhost."""
    context.vhost(request.vhost).parameters.set_limit(request.name, request.value)


def clear_vhost_limits(context: Context, request: OfVhost) -> None:
    """Clear a limit of a vhost, or all of them. Those of the settings stay."""
    names = [request.name] if request.name is not None else [MAX_CONNECTIONS, MAX_QUEUES]
    context.vhost(request.vhost).parameters.clear_limits(*names)


def _shown(limits: UserLimits) -> dict[str, int]:
    values = {name: getattr(limits, field) for name, field in USER_LIMITS.items()}
    return {name: max(value, 0) for name, value in values.items() if value != DEFAULT}


def _setting(value: int) -> int:
    """Return the value of the setting for a limit in RabbitMQ's terms."""
    return DEFAULT if value < 0 else value or NONE_ALLOWED


def list_user_limits(context: Context, request: ListUsers) -> Iterator[UserLimitsInfo]:
    """List the limits of users. A user without limits is left out."""
    for user in context.users.users():
        value = _shown(user.limits)
        if value and request.user in (None, user.name):
            yield UserLimitsInfo(user=user.name, value=value)


def set_user_limit(context: Context, request: SetUser) -> None:
    """Set a limit of a user."""
    context.users.change_limits(request.user, {USER_LIMITS[request.name]: _setting(request.value)})


def clear_user_limits(context: Context, request: OfUser) -> None:
    """Clear a limit of a user, or all of them."""
    names = [request.name] if request.name is not None else list(USER_LIMITS)
    context.users.change_limits(request.user, {USER_LIMITS[name]: DEFAULT for name in names})


OPERATIONS: Operations = {
    "vhost_limits.list": Operation(list_vhost_limits, InVhost, VhostLimits),
    "vhost_limits.set": Operation(set_vhost_limit, SetVhost, changes=True),
    "vhost_limits.clear": Operation(clear_vhost_limits, OfVhost, changes=True),
    "user_limits.list": Operation(list_user_limits, ListUsers, UserLimitsInfo),
    "user_limits.set": Operation(set_user_limit, SetUser, changes=True),
    "user_limits.clear": Operation(clear_user_limits, OfUser, changes=True),
}
