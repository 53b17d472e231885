"""Queues of a type that a test knows."""

from __future__ import annotations

from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.queues.queue import Queue


def classic(queue: Queue | None) -> ClassicQueue:
    """Return a queue whose inside a test looks at."""
    assert isinstance(queue, ClassicQueue)
    return queue
