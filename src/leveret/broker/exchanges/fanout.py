"""The fanout exchange (0-9-1 section 3.1.3.2): every bound destination, whatever the routing key."""

from __future__ import annotations

from typing import ClassVar

from leveret.broker.destination import Destination
from leveret.broker.exchanges.base import Effort, Exchange
from leveret.broker.values import FieldTable


class FanoutExchange(Exchange):
    type: ClassVar[str] = "fanout"

    def set_up(self) -> None:
        self.needs_key = False

    def match(self, routing_key: str, headers: FieldTable, hashed: str, effort: Effort) -> list[Destination]:
        effort.spend(len(self.by_destination))
        return list(self.by_destination)
