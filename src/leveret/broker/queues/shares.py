"""How much of its entries each queue may keep in memory, so that all queues together stay within a budget.

Every queue has the same share: so it is the largest ones that page out, the sooner the more queues there are. What a queue
asks for includes what it has paged out already, or a share would grow as soon as paging has had its effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

# No queue gets less, bytes: with fewer entries in memory, paging costs more than it frees.
MIN_SHARE: Final = 32 << 10


def share(broker: Broker, budget: int, most: int) -> int:
    """The share of each queue, at most `most` bytes, so that all together have about `budget` in memory."""
    if broker.overflow is None:
        return most  # there is nowhere to page to
    demands: list[int] = []
    total = 0
    paging = broker.paging
    for vhost in broker.vhosts.values():
        for queue in vhost.queues.values():
            demand = queue.memory
            if paging and queue.id in paging:
                demand += queue.paged_memory()
            if demand:
                demand = min(demand, most)
                demands.append(demand)
                total += demand
    if total <= budget:
        return most
    demands.sort()
    rest = budget
    left = len(demands)
    for demand in demands:
        if demand * left > rest:
            return max(rest // left, MIN_SHARE)
        rest -= demand
        left -= 1
    return most
