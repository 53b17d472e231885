"""The fanout exchange (0-9-1 section 3.1.3.2): every bound destination, whatever the routing key."""

from __future__ import annotations

from typing import Any, ClassVar

from leveret.broker.exchanges.base import Exchange


class FanoutExchange(Exchange):
    type: ClassVar[str] = "fanout"

    def match(self, routing_key: str, headers: dict[str, Any], hashed: str) -> list[Any]:
        return list(self.by_destination)
