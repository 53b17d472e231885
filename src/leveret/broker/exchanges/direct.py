"""The direct exchange (0-9-1 section 3.1.3.1): destinations whose binding key equals the routing key."""

from __future__ import annotations

from typing import ClassVar

from leveret.broker.destination import Destination
from leveret.broker.exchanges.base import Binding, Effort, Exchange
from leveret.broker.exchanges.index import add, discard
from leveret.broker.table import Table
from leveret.broker.values import FieldTable


class DirectExchange(Exchange):
    type: ClassVar[str] = "direct"

    def set_up(self) -> None:
        self.by_key: Table[str, dict[Destination, int]] = Table()

    def added(self, binding: Binding) -> None:
        counts = self.by_key.get(binding.routing_key)
        if counts is None:
            counts = {}
            self.by_key.put(binding.routing_key, counts)
        add(counts, binding.destination)

    def removed(self, binding: Binding) -> None:
        counts = self.by_key.get(binding.routing_key)
        assert counts is not None
        discard(counts, binding.destination)
        if not counts:
            self.by_key.pop(binding.routing_key)

    def match(self, routing_key: str, headers: FieldTable, hashed: str, effort: Effort) -> list[Destination]:
        counts = self.by_key.get(routing_key)
        if counts is None:
            return []
        effort.spend(len(counts))
        return list(counts)
