"""The ready and delayed entries of a queue for operators, who look at them and remove ready ones: nothing is acquired."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.broker.message import Entry, expires_at

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue

# A place before all entries, and the end of a walk without one.
FIRST_LEVEL: Final = 1 << 15
NO_END: Final = (1 << 62) - 1


class Walk:
    """A walk in the order of delivery. This one is of a queue whose entries cannot be looked at.

    The caller calls `next` until `ended`, and `read` whenever `must_read` is set. Consumers may take entries meanwhile.

    level, seq  the place: the priority level and the sequence number of the last entry that was passed
    until       sequence number of the last entry of the walk
    searching   `next` looks for entries in steps; the place does not change until it has found some
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.level = FIRST_LEVEL
        self.seq = 0
        self.until = NO_END
        self.must_read = False
        self.searching = False
        self.ended = False

    def start_after(self, level: int, seq: int, until: int) -> None:
        """Set the place and the end."""
        self.level = level
        self.seq = seq
        self.until = until

    def start_behind(self, entry: Entry) -> None:
        """Set the place to an entry that `next` has returned."""
        self.start_after(self.level, entry.seq, self.until)
        self.ended = False

    def find(self, seq: int) -> bool:
        """Set the place before one entry, the only one of the walk. Return False if it is certainly not there."""
        return False

    def skip(self, count: int) -> int:
        """Pass entries. Return how many are still to be passed: the work is limited, or `must_read` is set."""
        self.ended = True
        return 0

    def next(self, count: int, size: int) -> list[Entry]:
        """Return the next entries that are in memory, at most `count` and those with `size` bytes, but at least one.

        Those that have expired or are not visible yet are passed. The result may be empty.
        """
        self.ended = True
        return []

    def read(self, done: Callable[[], None]) -> None:
        """Read the next entries, as `must_read` asks for, then call `done`."""

    def is_visible(self, entry: Entry) -> bool:
        """Return whether an entry has neither expired nor becomes visible later."""
        due = expires_at(entry)
        overlay = entry.overlay
        later = 0 if overlay is None else overlay.visible_at
        if not due and not later:
            return True
        now = self.queue.broker.timers.now()
        return later <= now and (not due or due > now)


class Inspection:
    """Access of an operator to the ready entries of a queue. This one is of a queue that gives none."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def walk(self) -> Walk:
        """Return a walk over the ready entries."""
        return Walk(self.queue)

    def walk_delayed(self) -> Walk:
        """Return a walk over the delayed entries, in the order in which they become visible."""
        return Walk(self.queue)

    def oldest(self) -> int:
        """Return the sequence number of the oldest ready entry, 0 if there is none."""
        return 0

    def head(self) -> Entry | None:
        """Return the first ready entry in the order of delivery; None if there is none, or if it is not in memory."""
        return None

    def is_arriving(self, entry: Entry) -> bool:
        """Return whether a ready entry is being loaded: call `paging.wait_loaded` before `withdraw`."""
        return False

    def withdraw(self, entry: Entry, reason: str) -> bool:
        """Remove a ready entry for good, given by itself or by its copy in a walk.

        Args:
            entry: The entry.
            reason: The reason, as named in events.

        Returns:
            False if it is not ready any more.
        """
        return False
