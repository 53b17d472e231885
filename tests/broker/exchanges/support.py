"""Helpers of the exchange tests."""

from __future__ import annotations

from typing import Any

from leveret.broker.exchanges.base import Exchange


class Target:
    """A destination, as far as exchanges care."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def matched(exchange: Exchange, routing_key: str = "", headers: dict[str, Any] | None = None,
            hashed: str = "") -> list[str]:
    """Names of the destinations, sorted; a duplicate shows."""
    return sorted(target.name for target in exchange.match(routing_key, headers or {}, hashed))
