"""Queues of a known type, for tests."""

from __future__ import annotations

from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.queues.queue import Queue


def classic(queue: Queue | None) -> ClassicQueue:
    """Return a classic queue whose internals a test inspects."""
    assert isinstance(queue, ClassicQueue)
    return queue
