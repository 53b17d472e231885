"""Entries that go back to their queues, many at a time: in steps, and in order all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from leveret.broker.message import Entry

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.queues.base import Queue


def give_back(broker: Broker, entries: list[Entry], apply: Callable[[Entry], None]) -> None:
    """Apply an outcome to acquired entries, which come oldest first: the youngest first, so that each comes in front of the
    one before. Their queues hand out nothing until all are back. The list is used up."""
    broker.jobs.carry_out(_giving_back(entries, apply))


def _giving_back(entries: list[Entry], apply: Callable[[Entry], None]) -> Iterator[int]:
    frozen: dict[Queue, None] = {}
    try:
        while entries:
            entry = entries.pop()
            queue = entry.queue
            if queue not in frozen:
                frozen[queue] = None
                queue.freeze()
            apply(entry)
            yield 2
    finally:
        for queue in frozen:
            queue.thaw()
