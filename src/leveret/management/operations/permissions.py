"""Permissions of users in vhosts: list, set, delete."""

from __future__ import annotations

from collections.abc import Iterator

from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.structs import Reply, Request
from leveret.security.permissions import Permission


class List(Request, kw_only=True):
    vhost: str | None = None
    user: str | None = None


class Of(Request, kw_only=True):
    user: str
    vhost: str = "/"


class Set(Of, kw_only=True):
    """Request to set permissions. They are regular expressions; an empty one matches nothing."""

    configure: str
    write: str
    read: str


class PermissionInfo(Reply, kw_only=True):
    """The permissions of a user in a vhost, as regular expressions."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str
    source: str


def list_permissions(context: Context, request: List) -> Iterator[PermissionInfo]:
    """List permissions."""
    for user in context.users.users():
        if request.user not in (None, user.name):
            continue
        for vhost, permission in sorted(user.permissions.items()):
            if request.vhost in (None, vhost):
                yield PermissionInfo(
                    user=user.name,
                    vhost=vhost,
                    configure=permission.configure,
                    write=permission.write,
                    read=permission.read,
                    source=context.users.source(user.name),
                )


def set_permission(context: Context, request: Set) -> None:
    """Set the permissions of a user in a vhost."""
    context.vhost(request.vhost)
    permission = Permission(request.configure, request.write, request.read)
    context.users.set_permission(request.user, request.vhost, permission)


def delete(context: Context, request: Of) -> None:
    """Delete the permissions of a user in a vhost."""
    context.users.set_permission(request.user, request.vhost, None)


OPERATIONS: Operations = {
    "permissions.list": Operation(list_permissions, List, PermissionInfo),
    "permissions.set": Operation(set_permission, Set, changes=True),
    "permissions.delete": Operation(delete, Of, changes=True),
}
