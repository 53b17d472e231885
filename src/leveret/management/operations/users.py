"""Users: list, add, change, delete. Users from the configuration can only be changed there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from leveret.management.operations.connections import Closed, close_all
from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.structs import Named, Reply, Request
from leveret.security.users import Secret, User, UserLimits


class Add(Named, kw_only=True):
    """Request to add a user. A user without a password can log in only with EXTERNAL or ANONYMOUS."""

    password: str | None = None
    tags: list[str] = []
    max_connections: int = 0
    max_channels: int = 0


class Change(Named, kw_only=True):
    """Request to change a user. Omitted fields stay unchanged."""

    password: str | None = None
    tags: list[str] | None = None
    max_connections: int | None = None
    max_channels: int | None = None


class UserInfo(Reply, kw_only=True):
    """A user."""

    name: str
    tags: list[str]
    source: str
    vhosts: list[str]
    max_connections: int
    max_channels: int
    scram: bool
    loopback_only: bool


async def _secret(context: Context, request: Add | Change) -> Secret | None:
    """Hash the password in a thread, because hashing is slow."""
    if request.password is None:
        return None
    return await context.managed.in_thread(partial(context.users.secret, request.name, request.password.encode()))


def _describe(context: Context, user: User) -> UserInfo:
    return UserInfo(
        name=user.name,
        tags=list(user.tags),
        source=context.users.source(user.name),
        vhosts=sorted(user.permissions),
        max_connections=user.limits.max_connections,
        max_channels=user.limits.max_channels,
        scram=context.users.has_scram(user),
        loopback_only=user.name in context.users.loopback_users,
    )


def list_users(context: Context, request: Request) -> Iterator[UserInfo]:
    """List users."""
    return (_describe(context, user) for user in context.users.users())


async def add(context: Context, request: Add) -> None:
    """Add a user."""
    secret = await _secret(context, request)
    context.users.add(
        User(
            name=request.name,
            password_hash=secret.password_hash if secret is not None else "",
            scram=secret.scram if secret is not None else None,
            tags=tuple(request.tags),
            limits=UserLimits(request.max_connections, request.max_channels),
        )
    )


async def change(context: Context, request: Change) -> None:
    """Change a user."""
    secret = await _secret(context, request)
    user = context.users.get(request.name)
    limits = None
    if user is not None and (request.max_connections is not None or request.max_channels is not None):
        limits = UserLimits(
            user.limits.max_connections if request.max_connections is None else request.max_connections,
            user.limits.max_channels if request.max_channels is None else request.max_channels,
        )
    context.users.change(request.name, secret=secret, tags=request.tags, limits=limits)


def delete(context: Context, request: Named) -> Closed:
    """Delete a user, close its connections and return their number."""
    context.users.delete(request.name)
    return Closed(connections=close_all(context, request.name, f"user '{request.name}' was deleted"))


OPERATIONS: Operations = {
    "users.list": Operation(list_users, Request, UserInfo),
    "users.add": Operation(add, Add, changes=True),
    "users.change": Operation(change, Change, changes=True),
    "users.delete": Operation(delete, Named, Closed, changes=True),
}
