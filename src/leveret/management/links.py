"""Links of AMQP 1.0 that are attached, or suspended and kept: list, release what they hold, delete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.management.calls import Call, InVhost, Item, NamedInVhost, plain

if TYPE_CHECKING:
    from leveret.management.admin import Admin

# What identifies a link, in the order of the registry's arguments.
IDENTITY = ("vhost", "user", "container", "name", "role")


class LinkRegistry(Protocol):
    """What management needs of the protocol's links. Errors are `BrokerError`s."""

    def describe(self) -> list[Item]: ...

    def release(self, vhost: str, user: str, container: str, name: str, role: str) -> int: ...

    def delete(self, vhost: str, user: str, container: str, name: str, role: str) -> None: ...


class One(NamedInVhost, kw_only=True):
    """Of a call about one link: as much of what identifies it as it takes."""

    user: str | None = None
    container: str | None = None
    role: str | None = None


def list_links(admin: Admin, arguments: InVhost) -> Iterator[Item]:
    names = {vhost.name for vhost in admin.vhosts(arguments.vhost)}
    return (plain(item) for item in admin.links.describe() if item["vhost"] in names)


def release(admin: Admin, arguments: One) -> Item:
    """What a suspended link holds goes back to its queue; how many messages that are."""
    return {"messages": admin.links.release(*_find(admin, arguments))}


def delete(admin: Admin, arguments: One) -> None:
    """What is left of a link goes, with a queue of its own. One that is attached is detached with an error."""
    admin.links.delete(*_find(admin, arguments))


def _find(admin: Admin, arguments: One) -> list[Any]:
    """What identifies the one link that is meant."""
    wanted = {"vhost": arguments.vhost, "name": arguments.name, "user": arguments.user, "container": arguments.container,
              "role": arguments.role}
    admin.vhost(arguments.vhost)
    found = [item for item in admin.links.describe()
             if all(value is None or value in (item[key], plain(item[key])) for key, value in wanted.items())]
    if not found:
        raise NotFound(f"no link '{arguments.name}' in vhost '{arguments.vhost}', as far as it was described")
    if len(found) > 1:
        kinds = ", ".join(sorted(f"container '{item['container']}' of user '{item['user']}' ({item['role']})"
                                 for item in found)[:5])
        raise PreconditionFailed(f"{len(found)} links have the name '{arguments.name}': {kinds}; expected container, user"
                                 " and role that only one of them has")
    return [found[0][key] for key in IDENTITY]


CALLS = {
    "links.list": Call(list_links, InVhost),
    "links.release": Call(release, One, changes=True),
    "links.delete": Call(delete, One, changes=True),
}
