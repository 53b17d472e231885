"""The states of an entry and the transitions between them: the only writer of `Entry.state`.

    AVAILABLE ── acquire ──► ACQUIRED ── settle ──► ARCHIVED
        ▲                       │
        └────── requeue ────────┘

An entry that expires or that a limit drops goes from AVAILABLE to ARCHIVED. A dead letter is a settled entry of which the
queue has published a copy before (`Queue.dead_letter`). The queue keeps the counters, so these functions know no queue;
mypyc compiles a call of one to a direct C call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker.message import ACQUIRED, ARCHIVED, AVAILABLE, Entry

if TYPE_CHECKING:
    from leveret.broker.consumer import Consumer


def acquire(entry: Entry, holder: Consumer | None) -> None:
    """Acquire an entry for a consumer, or for None in a `get`."""
    entry.state = ACQUIRED
    entry.holder = holder
    entry.acquired_count += 1


def restore(entry: Entry) -> None:
    """Restore an entry that was acquired before the broker stopped."""
    entry.state = ACQUIRED
    entry.acquired_count = max(entry.acquired_count, 1)


def undo(entry: Entry) -> None:
    """Return an entry to the acquired state after its settlement could not be written."""
    entry.state = ACQUIRED


def requeue(entry: Entry) -> None:
    """Return an acquired entry to its queue; after a restart it is redelivered, too."""
    row = entry.row
    if row is not None:
        row.log.update(entry)
    entry.state = AVAILABLE


def settle(entry: Entry) -> None:
    """Remove an entry from its queue for good, and its record from the log."""
    entry.state = ARCHIVED
    row = entry.row
    if row is not None:
        row.log.settle(entry)


def archive(entry: Entry) -> None:
    """Remove an entry whose record the caller settles together with others, or which has no record."""
    entry.state = ARCHIVED
