"""Permissions and topic permissions of users in vhosts: list, set, delete."""

from __future__ import annotations

from collections.abc import Iterator

from leveret.management.operations.operation import OWN, PERMISSIONS, Context, Operation, Operations
from leveret.management.structs import Reply, Request
from leveret.security.permissions import Permission, TopicPermission


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


class OwnNames(Request, kw_only=True):
    """Names of exchanges and queues, which need not exist."""

    vhost: str = "/"
    names: list[str]


class Permitted(Reply, kw_only=True):
    """Those of `configure`, `write` and `read` that a user has for each name."""

    permissions: list[list[str]]


class TopicSet(Of, kw_only=True):
    """Request to set topic permissions. They are regular expressions; an empty one matches the empty routing key only."""

    exchange: str
    write: str
    read: str


class TopicClear(Of, kw_only=True):
    """Request to clear the topic permissions for an exchange, or for all exchanges of the vhost."""

    exchange: str | None = None


class TopicPermissionInfo(Reply, kw_only=True):
    """The topic permissions of a user for an exchange, as regular expressions."""

    user: str
    vhost: str
    exchange: str
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
    context.managed.check_vhost(request.vhost)
    permission = Permission(request.configure, request.write, request.read)
    context.users.set_permission(request.user, request.vhost, permission)


def delete(context: Context, request: Of) -> None:
    """Delete the permissions of a user in a vhost."""
    context.users.set_permission(request.user, request.vhost, None)


def show_own(context: Context, request: OwnNames) -> Permitted:
    """Return the permissions of the caller for exchanges and queues."""
    may = context.principal.may
    return Permitted(permissions=[[one for one in PERMISSIONS if may(request.vhost, one, name)] for name in request.names])


def list_topic_permissions(context: Context, request: List) -> Iterator[TopicPermissionInfo]:
    """List topic permissions."""
    for user in context.users.users():
        if request.user not in (None, user.name):
            continue
        for vhost, by_exchange in sorted(user.topic_permissions.items()):
            if request.vhost not in (None, vhost):
                continue
            for exchange, permission in sorted(by_exchange.items()):
                yield TopicPermissionInfo(
                    user=user.name,
                    vhost=vhost,
                    exchange=exchange,
                    write=permission.write,
                    read=permission.read,
                    source=context.users.source(user.name),
                )


def set_topic_permission(context: Context, request: TopicSet) -> None:
    """Set the topic permissions of a user for an exchange, which may not exist yet."""
    context.managed.check_vhost(request.vhost)
    permission = TopicPermission(request.write, request.read)
    context.users.set_topic_permission(request.user, request.vhost, request.exchange, permission)


def clear_topic_permissions(context: Context, request: TopicClear) -> None:
    """Clear the topic permissions of a user for an exchange, or for all exchanges of a vhost."""
    context.users.clear_topic_permissions(request.user, request.vhost, request.exchange)


OPERATIONS: Operations = {
    "permissions.list": Operation(list_permissions, List, PermissionInfo),
    "permissions.set": Operation(set_permission, Set, changes=True),
    "permissions.delete": Operation(delete, Of, changes=True),
    "permissions.show_own": Operation(show_own, OwnNames, Permitted, OWN),
    "topic_permissions.list": Operation(list_topic_permissions, List, TopicPermissionInfo),
    "topic_permissions.set": Operation(set_topic_permission, TopicSet, changes=True),
    "topic_permissions.clear": Operation(clear_topic_permissions, TopicClear, changes=True),
}
