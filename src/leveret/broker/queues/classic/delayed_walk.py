"""The delayed entries of a classic queue for operators, in the order in which they become visible.

The heap of the queue is not in that order. A walk looks through the positions of all delayed entries, in steps, for those
that follow its place, then returns them. Paged-out entries are read for the walk alone and stay in their places.

After a restart, delayed entries are positions in the ready list until the queue has read them. They come last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.broker.message import Entry
from leveret.broker.queues.classic.delayed import Delays, Position
from leveret.broker.queues.inspection import FIRST_LEVEL, Walk

if TYPE_CHECKING:
    from leveret.broker.queues.classic.queue import ClassicQueue

# Positions that one step looks at, and a power of two of them that take 1 µs.
SEARCHED: Final = 2048
SEARCH_SHIFT: Final = 4
# Maximum number of entries that are found by looking through all positions once.
MAX_FOUND: Final = 2048
# A due time after all others.
NEVER: Final = (1 << 62) - 1


class DelayedWalk(Walk):
    """A walk over the delayed entries of a classic queue, then over those that it has not read since it was recovered.

    `level` is the due time of the last entry that was passed; for unread entries, their level, which is less than
    `FIRST_LEVEL`. `_found` are the next positions, the first one first, and `_copies` paged-out entries that were read, by
    their sequence numbers.
    """

    def __init__(self, queue: ClassicQueue, unread: Walk) -> None:
        super().__init__(queue)
        self._queue = queue
        self._delays: Delays | None = queue.delays
        self._found: deque[Position] = deque()
        self._copies: dict[int, Entry] = {}
        self._searched = 0
        # The lowest sequence number, and whether more entries than `_found` may follow.
        self._lowest = 0
        self._has_more = False
        self.searching = True
        # The walk over the unread entries, and whether it has begun.
        self._unread = unread
        self._reads_unread = False

    def start_after(self, level: int, seq: int, until: int) -> None:
        super().start_after(level, seq, until)
        self._unread.start_after(min(level, FIRST_LEVEL - 1), seq if level < FIRST_LEVEL else 0, until)
        self._search_again()
        self._reads_unread = level < FIRST_LEVEL
        self.searching = not self._reads_unread

    def start_behind(self, entry: Entry) -> None:
        overlay = entry.overlay
        level = self.level if self._reads_unread or overlay is None else overlay.visible_at
        self.start_after(level, entry.seq, self.until)
        self.ended = False

    def find(self, seq: int) -> bool:
        self.start_after(FIRST_LEVEL, 0, seq)
        self._lowest = seq
        if not self._unread.find(seq):
            self._unread.ended = True
        return True

    def skip(self, count: int) -> int:
        self.must_read = False
        self._continue()
        if self._searches():
            return count
        if self._reads_unread:
            return count - len(self._next_unread(count, NEVER))
        while self._found and count:
            self._pass()
            count -= 1
        return count

    def next(self, count: int, size: int) -> list[Entry]:
        self.must_read = False
        entries: list[Entry] = []
        delays = self._delays
        # Not in the call that returns the last ones that were found: `start_behind` may return to these.
        self._continue()
        if self._searches():
            return entries
        if self._reads_unread or delays is None:
            return self._next_unread(count, size)
        found = self._found
        now = self._queue.broker.timers.now()
        while found and len(entries) < count and size > 0:
            position = found[0]
            if position[0] > now and delays.has(position):
                entry = delays.recent.get(position[1]) or self._copies.pop(position[1], None)
                if entry is None:
                    self.must_read = not entries
                    return entries
                entries.append(entry)
                size -= entry.message.size
            self._pass()
        return entries

    def _next_unread(self, count: int, size: int) -> list[Entry]:
        """Return the next unread entries, as `next` does."""
        unread = self._unread
        entries: list[Entry] = [] if unread.ended else unread.next(count, size)
        self.level, self.seq = unread.level, unread.seq
        self.must_read, self.ended = unread.must_read, unread.ended
        return entries

    def read(self, done: Callable[[], None]) -> None:
        if self._reads_unread:
            self._unread.read(done)
            return
        delays = self._delays
        assert delays is not None
        # None of them is due, as `next` has seen of the first one: those that were due may be settled.
        delays.load([position for position in self._found if delays.has(position)], _Reading(self, done).loaded)

    def accept(self, entries: list[Entry]) -> None:
        """Accept copies of entries that were read."""
        self._copies = {entry.seq: entry for entry in entries}

    def _pass(self) -> None:
        """Pass the next position."""
        self.level, self.seq, _ = self._found.popleft()

    def _continue(self) -> None:
        """Look for more entries once those that were found were passed, or begin with the unread ones."""
        if self._found or self.searching or self._reads_unread:
            return
        if self._has_more:
            self._search_again()
        else:
            self._begin_unread()

    def _begin_unread(self) -> None:
        self.level, self.seq = FIRST_LEVEL - 1, 0
        self.searching = False
        self._reads_unread = True
        self.ended = self._unread.ended

    def _search_again(self) -> None:
        self._found.clear()
        self._searched = 0
        self._has_more = False
        self.searching = True

    def _searches(self) -> bool:
        """Do a step of the search, if it is in progress. Return whether it still is."""
        if self._reads_unread:
            return False
        delays = self._delays
        if delays is None or delays.queue is None:
            self._begin_unread()
            return False
        if not self.searching:
            return False
        last = self._searched + SEARCHED
        found = self._found
        latest = found[len(found) - 1][0] if self._has_more else NEVER
        earliest = max(self.level, self._queue.broker.timers.now() + 1)
        new = [
            position
            for position in delays.due_between(earliest, latest, self._searched, last)
            if self._lowest <= position[1] <= self.until and (position[0] > self.level or position[1] > self.seq)
        ]
        if new:
            ordered = sorted([*found, *new])
            if len(ordered) > MAX_FOUND:
                self._has_more = True
            self._found = deque(ordered[:MAX_FOUND])
        self._queue.broker.work += SEARCHED >> SEARCH_SHIFT
        self._searched = last
        if last >= delays.places:
            self.searching = False
            if not self._found:
                self._begin_unread()
        return self.searching


class _Reading:
    """Entries that are being read for a walk."""

    def __init__(self, walk: DelayedWalk, done: Callable[[], None]) -> None:
        self.walk = walk
        self.done = done

    def loaded(self, entries: list[Entry]) -> None:
        self.walk.accept(entries)
        self.done()
