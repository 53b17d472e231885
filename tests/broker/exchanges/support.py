"""Helpers of the exchange tests."""

from __future__ import annotations

from typing import Any

from leveret.broker.exchanges.base import Effort, Exchange


class Target:
    """A destination as exchanges see it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.deleted = False

    def __repr__(self) -> str:
        return self.name


def matched(
    exchange: Exchange,
    routing_key: str = "",
    headers: dict[str, Any] | None = None,
    hashed: str = "",
    effort: Effort | None = None,
) -> list[str]:
    """Names of the destinations, sorted; a duplicate shows."""
    return sorted(target.name for target in exchange.match(routing_key, headers or {}, hashed, effort or Effort()))
