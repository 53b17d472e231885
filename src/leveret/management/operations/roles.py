"""Roles of users in management: list, set, grant, revoke."""

from __future__ import annotations

from collections.abc import Iterator

from leveret.broker.errors import NotFound
from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.structs import Reply, Request
from leveret.security.roles import ALL, Grant, check_grants


class List(Request, kw_only=True):
    """Request for the grants of a user, or of all users if None."""

    user: str | None = None


class Set(Request, kw_only=True):
    """Request to replace the grants of a user, which need not exist yet."""

    user: str
    grants: list[Grant]


class GrantRole(Request, kw_only=True):
    """Request to grant a role to a user, in addition to the other grants."""

    user: str
    role: str
    vhosts: str = ALL
    names: str = ALL


class Revoke(Request, kw_only=True):
    """Request to revoke the grants of a user that have these fields; None stands for any."""

    user: str
    role: str | None = None
    vhosts: str | None = None
    names: str | None = None


class GrantInfo(Reply, kw_only=True):
    """A role of a user."""

    user: str
    role: str
    vhosts: str
    names: str


class Revoked(Reply, kw_only=True):
    """The grants that were revoked."""

    grants: list[Grant]


def list_roles(context: Context, request: List) -> Iterator[GrantInfo]:
    """List the roles of users."""
    return (
        GrantInfo(user=user, role=grant.role, vhosts=grant.vhosts, names=grant.names)
        for user, grants in sorted(context.managed.roles.all().items())
        if request.user in (None, user)
        for grant in grants
    )


async def set_roles(context: Context, request: Set) -> None:
    """Replace the roles of a user. Without grants, permissions decide again."""
    await context.managed.in_thread(lambda: check_grants(request.grants))
    context.managed.roles.set(request.user, request.grants)


async def grant(context: Context, request: GrantRole) -> None:
    """Grant a role to a user."""
    added = Grant(request.role, request.vhosts, request.names)
    grants = [*context.managed.roles.all().get(request.user, ()), added]
    await context.managed.in_thread(lambda: check_grants(grants))
    context.managed.roles.set(request.user, [*context.managed.roles.all().get(request.user, ()), added])


def revoke(context: Context, request: Revoke) -> Revoked:
    """Revoke roles of a user. Without grants, permissions decide again."""
    grants = context.managed.roles.all().get(request.user, [])
    revoked = [
        grant
        for grant in grants
        if request.role in (None, grant.role)
        and request.vhosts in (None, grant.vhosts)
        and request.names in (None, grant.names)
    ]
    if not revoked:
        raise NotFound(f"user '{request.user}' has no such role")
    context.managed.roles.set(request.user, [grant for grant in grants if grant not in revoked])
    return Revoked(grants=revoked)


OPERATIONS: Operations = {
    "roles.list": Operation(list_roles, List, GrantInfo),
    "roles.set": Operation(set_roles, Set, changes=True),
    "roles.grant": Operation(grant, GrantRole, changes=True),
    "roles.revoke": Operation(revoke, Revoke, Revoked, changes=True),
}
