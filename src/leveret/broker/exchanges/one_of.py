"""Base of the exchange types that route each message to one of their destinations, by a number."""

from __future__ import annotations

from bisect import bisect_left

from leveret.broker.destination import Destination
from leveret.broker.exchanges.base import Binding, Effort, Exchange


def _order(destination: Destination) -> tuple[str, str]:
    # A queue and an exchange may have the same name.
    return destination.name, destination.kind


class OneOfExchange(Exchange):
    """Keeps its destinations in the order of their names. Several bindings to one count once; their keys are ignored."""

    def set_up(self) -> None:
        self.ordered: list[Destination] = []
        self.counts: dict[Destination, int] = {}

    def added(self, binding: Binding) -> None:
        destination = binding.destination
        count = self.counts.get(destination, 0)
        self.counts[destination] = count + 1
        if not count:
            self.ordered.insert(bisect_left(self.ordered, _order(destination), key=_order), destination)

    def removed(self, binding: Binding) -> None:
        destination = binding.destination
        self.counts[destination] -= 1
        if self.counts[destination]:
            return
        del self.counts[destination]
        # Beside a destination that is being deleted, there may be others of its name.
        place = bisect_left(self.ordered, _order(destination), key=_order)
        while self.ordered[place] is not destination:
            place += 1
        del self.ordered[place]

    def choose(self, number: int, effort: Effort) -> list[Destination]:
        """Return the destination with this number, modulo the number of destinations, in a list; [] without any."""
        effort.spend(1)
        if not self.ordered:
            return []
        chosen = self.ordered[number % len(self.ordered)]
        if not chosen.deleted:
            return [chosen]
        # The bindings of some destinations are still being removed: choose among the others.
        effort.spend(len(self.ordered))
        left = [destination for destination in self.ordered if not destination.deleted]
        return [left[number % len(left)]] if left else []
