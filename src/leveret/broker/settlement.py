"""The states of an entry and the transitions between them: the only writer of `Entry.state`, its holder and its counts.

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
    """Acquire an entry for a consumer, or for None in a `get`. The consumer does not count it as unacked."""
    entry.state = ACQUIRED
    entry.holder = holder
    entry.acquired_count += 1


def acquire_unacked(entry: Entry, consumer: Consumer) -> None:
    """Acquire an entry for a consumer, which counts it as unacked."""
    entry.state = ACQUIRED
    entry.holder = consumer
    entry.acquired_count += 1
    consumer.unacked += 1


def assign(entry: Entry, consumer: Consumer) -> None:
    """Make a consumer the holder of an entry; it counts it as unacked."""
    entry.holder = consumer
    consumer.unacked += 1


def detach(entry: Entry) -> None:
    """Take an entry from its holder, if there is one, which no longer counts it as unacked."""
    holder = entry.holder
    if holder is not None:
        holder.unacked -= 1
        entry.holder = None


def release(entry: Entry) -> None:
    """Take a requeued entry from its holder, which no longer counts it as unacked.

    The reference to an active holder is kept. Any other is dropped, because the entry may outlive its channel and
    connection.
    """
    holder = entry.holder
    if holder is not None:
        holder.unacked -= 1
        if not holder.active:
            entry.holder = None


def set_holder(copy: Entry, consumer: Consumer) -> None:
    """Make a browser the holder of a copy of an entry, which it does not count as unacked."""
    copy.holder = consumer


def forget_holder(entry: Entry) -> None:
    """Take an entry from a holder that does not count it."""
    entry.holder = None


def count_delivery(entry: Entry) -> None:
    """Count another delivery of an acquired entry to its holder."""
    entry.acquired_count += 1


def count_failure(entry: Entry) -> None:
    """Count a failed delivery."""
    entry.delivery_count += 1


def restore_counts(entry: Entry, acquired: int, failed: int) -> None:
    """Restore the numbers of deliveries and of failed ones from the log."""
    entry.acquired_count = acquired
    entry.delivery_count = failed


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


def settle_unacked(entry: Entry) -> None:
    """Settle an entry that its holder counts as unacked: `detach` and `settle` in one call."""
    holder = entry.holder
    if holder is not None:
        holder.unacked -= 1
        entry.holder = None
    entry.state = ARCHIVED
    row = entry.row
    if row is not None:
        row.log.settle(entry)


def archive(entry: Entry) -> None:
    """Remove an entry whose record the caller settles together with others, or which has no record."""
    entry.state = ARCHIVED
