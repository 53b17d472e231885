"""Operations that a queue type may not support, as keys of `Queue.unsupported`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.errors import NotImplementedByBroker

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue

GET: Final = "get"
PURGE: Final = "purge"
BROWSE: Final = "browse"
LEASE: Final = "lease"


def check_supported(queue: Queue, operation: str) -> None:
    """Raise NotImplementedByBroker for an operation that the type of a queue does not support."""
    reason = queue.unsupported.get(operation)
    if reason is not None:
        raise NotImplementedByBroker(f"{queue} is {reason}", closes_connection=True)
