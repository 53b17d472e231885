"""Attached and suspended links of AMQP 1.0: list, release, delete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.management.calls import Call, InVhost, Item, NamedInVhost, plain

if TYPE_CHECKING:
    from leveret.management.admin import Admin

# The fields that identify a link, in the order of the registry's arguments.
IDENTITY = ("vhost", "user", "container", "name", "role")


class LinkRegistry(Protocol):
    """The part of the protocol's links that management uses. Errors are `BrokerError`s."""

    def describe(self) -> Iterable[Item]: ...

    def release(self, vhost: str, user: str, container: str, name: str, role: str) -> int: ...

    def delete(self, vhost: str, user: str, container: str, name: str, role: str) -> None: ...


class One(NamedInVhost, kw_only=True):
    """Arguments of a call about a link: as many of its identifying fields as necessary."""

    user: str | None = None
    container: str | None = None
    role: str | None = None


def list_links(admin: Admin, arguments: InVhost) -> Iterator[Item]:
    names = {vhost.name for vhost in admin.vhosts(arguments.vhost)}
    return (plain(item) for item in admin.links.describe() if item["vhost"] in names)


def release(admin: Admin, arguments: One) -> Item:
    """Return the unsettled messages of a suspended link to their queue. Returns their number."""
    return {"messages": admin.links.release(*_find(admin, arguments))}


def delete(admin: Admin, arguments: One) -> None:
    """Delete a link with its subscription queue. An attached link is detached with an error."""
    admin.links.delete(*_find(admin, arguments))


def _find(admin: Admin, arguments: One) -> list[Any]:
    """Return the identifying fields of the link that matches the arguments."""
    wanted = {"vhost": arguments.vhost, "name": arguments.name, "user": arguments.user, "container": arguments.container,
              "role": arguments.role}
    admin.vhost(arguments.vhost)
    found = [item for item in admin.links.describe()
             if all(value is None or value in (item[key], plain(item[key])) for key, value in wanted.items())]
    if not found:
        raise NotFound(f"no link '{arguments.name}' in vhost '{arguments.vhost}' matches the arguments")
    if len(found) > 1:
        candidates = ", ".join(sorted(f"container '{item['container']}' of user '{item['user']}' ({item['role']})"
                                      for item in found)[:5])
        raise PreconditionFailed(f"{len(found)} links have the name '{arguments.name}': {candidates}; expected the"
                                 " container, user and role of only one of them")
    return [found[0][key] for key in IDENTITY]


CALLS = {
    "links.list": Call(list_links, InVhost),
    "links.release": Call(release, One, changes=True),
    "links.delete": Call(delete, One, changes=True),
}
