"""Return of many entries to their queues, in steps and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from leveret.broker.message import Entry
from leveret.broker.queues.frozen import FrozenQueues

if TYPE_CHECKING:
    from leveret.broker.broker import Broker


def return_entries(broker: Broker, entries: list[Entry], apply: Callable[[Entry], None]) -> None:
    """Apply an outcome to acquired entries, in steps.

    Entries are processed newest first, so that each goes in front of the previous one. Their queues deliver nothing until
    all are returned.

    Args:
        broker: The broker.
        entries: The entries, oldest first. The list is consumed.
        apply: Applies the outcome to an entry.
    """
    broker.jobs.run_steps(_returning(entries, apply))


def _returning(entries: list[Entry], apply: Callable[[Entry], None]) -> Iterator[int]:
    frozen = FrozenQueues()
    try:
        while entries:
            entry = entries.pop()
            frozen.freeze(entry.queue)
            apply(entry)
            yield 2
    finally:
        frozen.thaw()
