"""Queues: list, add, delete, purge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import field

from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.queues.queue import Queue
from leveret.management.calls import Call, InVhost, Item, NamedInVhost, plain

if TYPE_CHECKING:
    from leveret.management.admin import Admin


class Add(NamedInVhost, kw_only=True):
    durable: bool = True
    auto_delete: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)


class Delete(NamedInVhost, kw_only=True):
    if_unused: bool = False
    if_empty: bool = False


def describe(queue: Queue) -> Item:
    """Return the statistics of a queue: messages, and bytes without those of paged-out bodies on disk."""
    return {
        "vhost": queue.vhost.name,
        "name": plain(queue.name),
        "durable": queue.durable,
        "exclusive": queue.exclusive_owner is not None,
        "auto_delete": queue.auto_delete,
        "arguments": plain(queue.arguments),
        "ready": queue.ready_count,
        "delayed": queue.delayed_count,
        "unacked": queue.unacked,
        "leased": queue.leased_count,
        "ready_bytes": queue.ready_bytes,
        "memory": queue.memory,
        "consumers": len(queue.consumers),
        "published": queue.published,
        "delivered": queue.delivered,
        "settled": queue.settled,
    }


def _find(admin: Admin, arguments: NamedInVhost) -> Queue:
    queue = admin.vhost(arguments.vhost).find_queue(arguments.name)
    if queue is None:
        raise NotFound(f"no queue '{arguments.name}' in vhost '{arguments.vhost}'")
    return queue


def list_queues(admin: Admin, arguments: InVhost) -> Iterator[Item]:
    found = [queue for vhost in admin.vhosts(arguments.vhost) for queue in vhost.queues.values()]
    return (describe(queue) for queue in found)


def show(admin: Admin, arguments: NamedInVhost) -> Item:
    return describe(_find(admin, arguments))


def add(admin: Admin, arguments: Add) -> Item:
    """Declare a queue, as a client does. An equal queue may exist already."""
    vhost = admin.vhost(arguments.vhost)
    if not arguments.name:
        raise PreconditionFailed("the name of the queue is empty; expected 1 to 255 bytes")
    queue = vhost.declare_queue(arguments.name, None, durable=arguments.durable, auto_delete=arguments.auto_delete,
                                arguments=arguments.arguments)
    return describe(queue)


def delete(admin: Admin, arguments: Delete) -> Item:
    """Delete a queue, even an exclusive one. Returns the number of its ready messages."""
    queue = _find(admin, arguments)
    if arguments.if_unused and queue.is_consumed():
        raise PreconditionFailed(f"queue '{arguments.name}' has {len(queue.consumers)} consumers")
    count = queue.ready_count + queue.delayed_count + queue.unacked + queue.leased_count
    if arguments.if_empty and count:
        raise PreconditionFailed(f"queue '{arguments.name}' has {count} messages")
    return {"messages": queue.vhost.remove_queue(queue)}


def purge(admin: Admin, arguments: NamedInVhost) -> Item:
    """Drop the ready messages of a queue; unacked messages stay. Returns their number."""
    return {"messages": _find(admin, arguments).purge()}


CALLS = {
    "queues.list": Call(list_queues, InVhost),
    "queues.show": Call(show, NamedInVhost),
    "queues.add": Call(add, Add, changes=True),
    "queues.delete": Call(delete, Delete, changes=True, removes=True),
    "queues.purge": Call(purge, NamedInVhost, changes=True, removes=True),
}
