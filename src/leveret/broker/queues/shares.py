"""How much of its entries each queue may keep in memory, so that all queues together stay within a budget.

Every queue has the same share, so the largest ones page out first. The demand of a queue includes what it has paged out,
or its share would grow as soon as paging takes effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

# Minimum share in bytes: below it, paging costs more than it frees.
MIN_SHARE: Final = 32 << 10


def share(broker: Broker, budget: int, max_share: int) -> int:
    """Return the share of each queue, at most `max_share` bytes, with which all queues have about `budget` in memory."""
    if broker.overflow is None:
        return max_share  # there is no log to page to
    demands: list[int] = []
    total = 0
    paging = broker.paging
    for vhost in broker.vhosts.values():
        for queue in vhost.queues.values():
            demand = queue.memory
            if paging and queue.id in paging:
                demand += queue.paged_memory()
            if demand:
                demand = min(demand, max_share)
                demands.append(demand)
                total += demand
    if total <= budget:
        return max_share
    demands.sort()
    rest = budget
    left = len(demands)
    for demand in demands:
        if demand * left > rest:
            return max(rest // left, MIN_SHARE)
        rest -= demand
        left -= 1
    return max_share
