"""Return of many entries to their queues, in steps and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker.message import Entry
from leveret.broker.queues.frozen import FrozenQueues

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

# Units of work to return an entry.
RETURN_WORK: Final = 2


def return_entries(broker: Broker, entries: list[Entry], apply: Callable[[Entry], None]) -> None:
    """Apply an outcome to acquired entries, in steps.

    Entries are processed newest first, so that each goes in front of the previous one. Their queues deliver nothing until
    all are returned.

    Args:
        broker: The broker.
        entries: The entries, oldest first. The list is consumed.
        apply: Applies the outcome to an entry.
    """
    if len(entries) == 1:
        # Without steps: a job for each of many single entries would take longer.
        broker.work += RETURN_WORK
        apply(entries.pop())
        return
    broker.jobs.run_steps(_returning(entries, apply))


def _returning(entries: list[Entry], apply: Callable[[Entry], None]) -> Iterator[int]:
    frozen = FrozenQueues()
    try:
        while entries:
            entry = entries.pop()
            frozen.freeze(entry.queue)
            apply(entry)
            yield RETURN_WORK
    finally:
        frozen.thaw()
