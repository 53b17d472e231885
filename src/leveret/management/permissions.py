"""Permissions of users in vhosts: list, set, delete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leveret.management.calls import Arguments, Call, Item
from leveret.security.permissions import Permission

if TYPE_CHECKING:
    from leveret.management.admin import Admin


class List(Arguments, kw_only=True):
    vhost: str | None = None
    user: str | None = None


class Of(Arguments, kw_only=True):
    user: str
    vhost: str = "/"


class Set(Of, kw_only=True):
    """Regular expressions; an empty one matches nothing."""

    configure: str
    write: str
    read: str


def list_permissions(admin: Admin, arguments: List) -> Iterator[Item]:
    for user in admin.users.users():
        if arguments.user not in (None, user.name):
            continue
        for vhost, permission in sorted(user.permissions.items()):
            if arguments.vhost in (None, vhost):
                yield {"user": user.name, "vhost": vhost, "configure": permission.configure, "write": permission.write,
                       "read": permission.read, "source": admin.users.source(user.name)}


def set_permission(admin: Admin, arguments: Set) -> None:
    admin.vhost(arguments.vhost)
    permission = Permission(arguments.configure, arguments.write, arguments.read)
    admin.users.set_permission(arguments.user, arguments.vhost, permission)


def delete(admin: Admin, arguments: Of) -> None:
    admin.users.set_permission(arguments.user, arguments.vhost, None)


CALLS = {
    "permissions.list": Call(list_permissions, List),
    "permissions.set": Call(set_permission, Set, changes=True),
    "permissions.delete": Call(delete, Of, changes=True),
}
