"""Leases: list, release."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leveret.broker.errors import NotFound
from leveret.broker.leases import operations
from leveret.management.calls import Call, InVhost, Item, NamedInVhost, plain

if TYPE_CHECKING:
    from leveret.management.admin import Admin


class Release(NamedInVhost, kw_only=True):
    """`name` is the name of the queue."""

    lease: str


def list_leases(admin: Admin, arguments: InVhost) -> Iterator[Item]:
    for vhost in admin.vhosts(arguments.vhost):
        for queue in list(vhost.queues.values()):
            if queue.leases is not None:
                for lease in list(queue.leases.by_name.values()):
                    yield {"vhost": vhost.name, **plain(operations.describe(lease))}


def release(admin: Admin, arguments: Release) -> Item:
    """Return the messages of a lease to the queue. Returns their number."""
    queue = admin.vhost(arguments.vhost).find_queue(arguments.name)
    if queue is None:
        raise NotFound(f"no queue '{arguments.name}' in vhost '{arguments.vhost}'")
    return {"messages": operations.release(queue, arguments.lease)}


CALLS = {
    "leases.list": Call(list_leases, InVhost),
    "leases.release": Call(release, Release, changes=True),
}
