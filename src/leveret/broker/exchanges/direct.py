"""The direct exchange (0-9-1 section 3.1.3.1): destinations whose binding key equals the routing key."""

from __future__ import annotations

from typing import Any, ClassVar

from leveret.broker.exchanges.base import Binding, Effort, Exchange
from leveret.broker.exchanges.index import add, discard


class DirectExchange(Exchange):
    type: ClassVar[str] = "direct"

    def __init__(self, name: str, durable: bool = False, auto_delete: bool = False, internal: bool = False,
                 arguments: dict[str, Any] | None = None) -> None:
        super().__init__(name, durable, auto_delete, internal, arguments)
        self.by_key: dict[str, dict[Any, int]] = {}

    def added(self, binding: Binding) -> None:
        add(self.by_key.setdefault(binding.routing_key, {}), binding.destination)

    def removed(self, binding: Binding) -> None:
        counts = self.by_key[binding.routing_key]
        discard(counts, binding.destination)
        if not counts:
            del self.by_key[binding.routing_key]

    def match(self, routing_key: str, headers: dict[str, Any], hashed: str, effort: Effort) -> list[Any]:
        counts = self.by_key.get(routing_key)
        if counts is None:
            return []
        effort.spend(len(counts))
        return list(counts)
