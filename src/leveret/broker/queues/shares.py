"""Memory shares: limits for the entries of each queue in memory, so that all queues together stay within a budget.

Every queue has the same share, so the largest ones page out first. The demand of a queue includes its paged-out
entries, or its share would grow as soon as paging takes effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

# Minimum share in bytes: below it, paging costs more than it frees.
MIN_SHARE: Final = 32 << 10
# Demands are counted in classes: binary logarithm of the number of classes for each power of two.
CLASSES_SHIFT: Final = 3
CLASSES: Final = 64 << CLASSES_SHIFT
# Number of queues that are added up between two checks of the turn's budget, and their units of work: more than the time
# that they take, so that a turn of this periodic work is short.
QUEUES: Final = 64
QUEUES_WORK: Final = 256


class MemoryShares:
    """The division of a budget of memory among all queues of a broker.

    counts, sums  number of queues with a demand of each class, and the sum of their demands
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.budget = 0
        self.max_share = 0
        self.counts: list[int] = []
        self.sums: list[int] = []
        self.running = False

    def divide(self, budget: int, max_share: int) -> None:
        """Set `Broker.page_above`, at most `max_share` bytes, so that all queues use about `budget` bytes of memory.

        Adding up the demands of many queues takes several turns.
        """
        self.budget = budget
        self.max_share = max_share
        broker = self.broker
        if broker.overflow is None:
            broker.page_above = max_share  # no log to page out to
            return
        broker.page_above = min(broker.page_above, max_share)
        if not self.running:
            self.running = True
            broker.jobs.run_steps(self._dividing())

    def _dividing(self) -> Iterator[int]:
        self.counts = [0] * CLASSES
        self.sums = [0] * CLASSES
        broker = self.broker
        paging = broker.paging
        passed = 0
        try:
            for vhost in list(broker.vhosts.values()):
                for queue in vhost.queue_list.walk():
                    demand = queue.paging.memory()
                    if queue.id in paging:
                        demand += queue.paging.paged_memory()
                    if demand:
                        demand = min(demand, self.max_share)
                        found = _class_of(demand)
                        self.counts[found] += 1
                        self.sums[found] += demand
                    passed += 1
                    if passed == QUEUES:
                        passed = 0
                        yield QUEUES_WORK
            broker.page_above = min(self._share(), self.max_share)
        finally:
            self.running = False

    def _share(self) -> int:
        """Return the share with which the queues added up so far use about the budget."""
        if sum(self.sums) <= self.budget:
            return self.max_share
        rest = self.budget
        left = sum(self.counts)
        for count, total in zip(self.counts, self.sums, strict=True):
            if total * left > rest * count:
                return max(rest // left, MIN_SHARE)
            rest -= total
            left -= count
        return self.max_share


def _class_of(demand: int) -> int:
    """Return the class of a demand: the position of its highest bit, and the bits that follow."""
    below = max(demand.bit_length() - 1 - CLASSES_SHIFT, 0)
    return (below << CLASSES_SHIFT) + (demand >> below)
