"""Helpers of the exchange tests."""

from __future__ import annotations

from typing import Any

from leveret.broker.exchanges.base import Effort, Exchange
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.queues.definition import QueueDefinition
from leveret.broker.queues.queue import Queue
from tests.broker.support import World

_VHOST = World().vhost


def make_target(name: str) -> Queue:
    """A queue as a destination; it is not in its vhost, so that any number may have any name."""
    return ClassicQueue(QueueDefinition(_VHOST, 0, name))


def matched(
    exchange: Exchange,
    routing_key: str = "",
    headers: dict[str, Any] | None = None,
    hashed: str = "",
    effort: Effort | None = None,
) -> list[str]:
    """Return the sorted names of the destinations, with duplicates."""
    return sorted(target.name for target in exchange.match(routing_key, headers or {}, hashed, effort or Effort()))
