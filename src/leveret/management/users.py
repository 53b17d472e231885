"""Users: list, add, change, delete. Configured users can only be changed in the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leveret.management.calls import Arguments, Call, Item, Named
from leveret.management.connections import close_all
from leveret.security.users import Secret, User, UserLimits

if TYPE_CHECKING:
    from leveret.management.admin import Admin


class Add(Named, kw_only=True):
    """A user without a password can only log in with EXTERNAL or ANONYMOUS."""

    password: str | None = None
    tags: list[str] = []
    max_connections: int = 0
    max_channels: int = 0


class Change(Named, kw_only=True):
    """Arguments that are omitted stay unchanged."""

    password: str | None = None
    tags: list[str] | None = None
    max_connections: int | None = None
    max_channels: int | None = None


def _with_secret(admin: Admin, arguments: Add | Change) -> tuple[Add | Change, Secret | None]:
    """Return the arguments, and the hashes of their password."""
    if arguments.password is None:
        return arguments, None
    return arguments, admin.users.secret(arguments.name, arguments.password.encode())


def _describe(admin: Admin, user: User) -> Item:
    return {
        "name": user.name,
        "tags": list(user.tags),
        "source": admin.users.source(user.name),
        "vhosts": sorted(user.permissions),
        "max_connections": user.limits.max_connections,
        "max_channels": user.limits.max_channels,
        "scram": admin.users.has_scram(user),
        "loopback_only": user.name in admin.users.loopback_users,
    }


def list_users(admin: Admin, arguments: Arguments) -> Iterator[Item]:
    return (_describe(admin, user) for user in admin.users.users())


def add(admin: Admin, wanted: tuple[Add, Secret | None]) -> None:
    arguments, secret = wanted
    admin.users.add(User(name=arguments.name, password_hash=secret.password_hash if secret is not None else "",
                         scram=secret.scram if secret is not None else None, tags=tuple(arguments.tags),
                         limits=UserLimits(arguments.max_connections, arguments.max_channels)))


def change(admin: Admin, wanted: tuple[Change, Secret | None]) -> None:
    arguments, secret = wanted
    user = admin.users.get(arguments.name)
    limits = None
    if user is not None and (arguments.max_connections is not None or arguments.max_channels is not None):
        limits = UserLimits(
            user.limits.max_connections if arguments.max_connections is None else arguments.max_connections,
            user.limits.max_channels if arguments.max_channels is None else arguments.max_channels,
        )
    admin.users.change(arguments.name, secret=secret, tags=arguments.tags, limits=limits)


def delete(admin: Admin, arguments: Named) -> Item:
    """Delete a user and close its connections. Returns their number."""
    admin.users.delete(arguments.name)
    return {"connections": close_all(admin, arguments.name, f"user '{arguments.name}' was deleted")}


CALLS = {
    "users.list": Call(list_users),
    "users.add": Call(add, Add, changes=True, prepare=_with_secret),
    "users.change": Call(change, Change, changes=True, prepare=_with_secret),
    "users.delete": Call(delete, Named, changes=True),
}
