"""The state of the broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from leveret.management.calls import Arguments, Call, Item

if TYPE_CHECKING:
    from leveret.management.admin import Admin

# Queues that are added up in one turn.
STEP: Final = 1000


async def status(admin: Admin, arguments: Arguments) -> Item:
    """Return the state of the process, totals, and statistics of the log, in bytes and seconds.

    Queues may come and go while they are added up, which takes several turns if there are many.
    """
    queues = exchanges = ready = unacked = consumers = memory = 0
    for vhost in list(admin.broker.vhosts.values()):
        exchanges += len(vhost.exchanges)
        for queue in list(vhost.queues.values()):
            queues += 1
            if not queues % STEP:
                await asyncio.sleep(0)
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
