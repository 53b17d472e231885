"""Entries that are loaded into memory: a callback for them, and their creation."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

from leveret.broker import settlement
from leveret.broker.message import AUDIENCE_SHIFT, Entry

if TYPE_CHECKING:
    from leveret.broker.log import Loaded
    from leveret.broker.queues.queue import Queue


@mypyc_attr(allow_interpreted_subclasses=True)
class Waiting:
    """Callback for when the head of a queue is in memory, or the queue has continued its deliveries."""

    @abstractmethod
    def loaded(self) -> None:
        """Continue with the entries that are in memory."""


def make_entry(queue: Queue, item: Loaded, publisher: int, delivered_until: int) -> Entry:
    """Return the entry of a loaded item.

    Args:
        queue: The queue of the entry.
        item: The loaded item.
        publisher: Its publisher, 0 if unknown.
        delivered_until: Sequence number up to which all entries count as delivered before.
    """
    message = item.message
    message.publisher = publisher or queue.broker.audience_of(message) << AUDIENCE_SHIFT
    entry = Entry(queue, message, item.seq)
    entry.row = item.row
    entry.slot = item.slot
    entry.overlay = item.overlay
    acquired = item.acquired_count
    if item.seq <= delivered_until and not acquired:
        acquired = 1
    settlement.restore_counts(entry, acquired, item.delivery_count)
    return entry
