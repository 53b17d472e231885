"""The state of the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.management.calls import Arguments, Call, Item

if TYPE_CHECKING:
    from leveret.management.admin import Admin


def status(admin: Admin, arguments: Arguments) -> Item:
    """Return the state of the process, totals, and statistics of the log, in bytes and seconds."""
    queues = exchanges = ready = unacked = consumers = memory = 0
    for vhost in admin.broker.vhosts.values():
        exchanges += len(vhost.exchanges)
        queues += len(vhost.queues)
        for queue in vhost.queues.values():
            ready += queue.ready_count
            unacked += queue.unacked
            consumers += len(queue.consumers)
            memory += queue.memory
    log = admin.broker.log
    return {
        **admin.facts(),
        "alarm": admin.alarm(),
        "vhosts": len(admin.broker.vhosts),
        "connections": len(list(admin.sessions())),
        "exchanges": exchanges,
        "queues": queues,
        "consumers": consumers,
        "ready": ready,
        "unacked": unacked,
        "queue_memory": memory,
        "log": {"state": log.state, "reason": log.reason, **log.statistics()},
    }


CALLS = {"status": Call(status)}
