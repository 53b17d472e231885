"""The ready entries of a classic queue for operators; `delayed_walk` has the delayed ones.

Paged-out entries are read for a walk alone and stay in their places, as for a browser.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.broker.message import Entry
from leveret.broker.queues.classic.backlog import SEQ, Backlog, Chunk
from leveret.broker.queues.classic.browsing import READ_BYTES, READ_ENTRIES, first_elsewhere, next_chunk
from leveret.broker.queues.classic.delayed_walk import DelayedWalk
from leveret.broker.queues.inspection import Inspection, Walk
from leveret.broker.queues.loading import make_entry

if TYPE_CHECKING:
    from leveret.broker.log import Loaded
    from leveret.broker.queues.blocks import Entries
    from leveret.broker.queues.classic.queue import ClassicQueue

# Runs of entries that one `skip` passes.
SKIPPED_RUNS: Final = 16
# Entries, as a power of two, between an entry and the nearer end of a deque: finding it takes 1 µs.
REACH_SHIFT: Final = 13


class ClassicWalk(Walk):
    """A walk over a classic queue.

    The next run of entries is in `_entries` or, paged out, in `_chunk`, from the index `_begin` to `_end` (exclusive).
    `_copies` are paged-out entries that were read.
    """

    def __init__(self, queue: ClassicQueue) -> None:
        super().__init__(queue)
        self._queue = queue
        self._copies: deque[Entry] = deque()
        self._entries: Entries | None = None
        self._chunk: Chunk | None = None
        self._begin = 0
        self._end = 0

    def find(self, seq: int) -> bool:
        self._copies.clear()
        self.ended = False
        for level in self._queue.ready.all_levels():
            self.start_after(self._queue.ready.priority_of(level.priority), seq - 1, seq)
            if self._find_run_in(level):
                return True
        return False

    def skip(self, count: int) -> int:
        for _ in range(SKIPPED_RUNS):
            if not count:
                break
            if not self._find_run():
                self.ended = True
                return 0
            last = min(self._end, self._begin + count) - 1
            count -= last + 1 - self._begin
            entries = self._entries
            if entries is not None:
                self.seq = entries[last].seq
            elif self._chunk is not None:
                self.seq = self._chunk.seqs[last]
        return count

    def next(self, count: int, size: int) -> list[Entry]:
        self.must_read = False
        found: list[Entry] = []
        copies = self._copies
        while copies and count > 0 and size > 0:
            entry = copies.popleft()
            size -= self._pass(entry, found)
            count -= 1
        if found or copies:
            return found
        if not self._find_run():
            self.ended = True
            return found
        entries = self._entries
        if entries is None:
            self.must_read = True
            return found
        index = self._begin
        last = min(self._end, index + count)
        self._queue.broker.work += (last - index) * (1 + (min(index, len(entries) - index) >> REACH_SHIFT))
        while index < last and size > 0:
            size -= self._pass(entries[index], found)
            index += 1
        return found

    def _pass(self, entry: Entry, found: list[Entry]) -> int:
        """Pass an entry, and add it to those found if it is visible. Return its size."""
        self.seq = entry.seq
        if self.is_visible(entry):
            found.append(entry)
        return entry.message.size

    def read(self, done: Callable[[], None]) -> None:
        chunk = self._chunk
        assert chunk is not None
        queue = self._queue
        last = self._begin
        n_bytes = 0
        while last < self._end and last - self._begin < READ_ENTRIES and n_bytes < READ_BYTES:
            n_bytes += chunk.sizes[last]
            last += 1
        log = queue.log
        if chunk.overflow:
            overflow = queue.broker.overflow
            assert overflow is not None
            log = overflow
        reading = _Reading(self, chunk, self._begin, queue.ready.epoch, done)
        log.load(chunk.rows[self._begin : last], chunk.slots[self._begin : last], reading.loaded)

    def accept(self, entries: deque[Entry]) -> None:
        """Accept entries that were read."""
        self._copies = entries

    def _find_run(self) -> bool:
        """Find the next run of entries; return False if there is none."""
        ready = self._queue.ready
        for level in ready.all_levels():
            priority = ready.priority_of(level.priority)
            if priority > self.level:
                continue
            if priority < self.level:
                self.level = priority
                self.seq = 0
            if self._find_run_in(level):
                return True
        return False

    def _find_run_in(self, level: Backlog) -> bool:
        chunk = next_chunk(level, self.seq)
        limit = 0 if chunk is None else chunk.seqs[bisect_right(chunk.seqs, self.seq)]
        if self._find_in_memory(level.head, limit):
            return True
        if chunk is None:
            return level.young is not None and self._find_in_memory(level.young, 0)
        seqs = chunk.seqs
        elsewhere = first_elsewhere(level, chunk, limit)
        self._entries = None
        self._chunk = chunk
        self._begin = bisect_right(seqs, self.seq)
        self._end = min(bisect_left(seqs, elsewhere) if elsewhere else len(seqs), bisect_right(seqs, self.until))
        return self._begin < self._end

    def _find_in_memory(self, entries: Entries, limit: int) -> bool:
        """Find entries behind the place, up to the sequence number `limit` (0 for all)."""
        if not entries or entries[len(entries) - 1].seq <= self.seq:
            return False
        self._entries = entries
        self._chunk = None
        self._begin = bisect_right(entries, self.seq, key=SEQ)
        last = min(limit - 1, self.until) if limit else self.until
        self._end = bisect_right(entries, last, key=SEQ)
        return self._begin < self._end


def _first_seqs(level: Backlog) -> list[int]:
    """Return the sequence numbers of the first entries in each part of a level, one of which is the lowest."""
    first: list[int] = []
    if level.head:
        first.append(level.head[0].seq)
    if level.chunks:
        first.append(level.chunks[0].seqs[0])
        if len(level.chunks) > 1:
            first.append(level.chunks[1].seqs[0])  # the first chunk may be one for a selective consumer
    elif level.young:
        first.append(level.young[0].seq)
    return first


class UnreadWalk(ClassicWalk):
    """A walk over the delayed entries that a classic queue has not read since it was recovered: they are in its chunks."""

    def is_visible(self, entry: Entry) -> bool:
        """Return whether an entry is delayed."""
        overlay = entry.overlay
        return overlay is not None and overlay.visible_at > self.queue.broker.timers.now()

    def _find_run_in(self, level: Backlog) -> bool:
        lowest = 0
        for chunk in level.chunks:
            # The publishers of recovered entries are unknown. A chunk begins with these if it has some.
            if not chunk.overflow and not chunk.publisher and chunk.seqs[-1] > self.seq:
                seq = chunk.seqs[bisect_right(chunk.seqs, self.seq)]
                lowest = min(lowest or seq, seq)
        if not lowest:
            return False
        self.seq = lowest - 1
        return super()._find_run_in(level)

    def _find_in_memory(self, entries: Entries, limit: int) -> bool:
        return False


class _Reading:
    """Positions that are being read for a walk."""

    def __init__(self, walk: ClassicWalk, chunk: Chunk, first: int, epoch: int, done: Callable[[], None]) -> None:
        self.walk = walk
        self.chunk = chunk
        self.first = first
        self.epoch = epoch
        self.done = done

    def loaded(self, loaded: list[Loaded]) -> None:
        queue = self.walk._queue
        if queue.ready.epoch == self.epoch:
            delivered_until = queue.ready.delivered_until
            self.walk.accept(
                deque(
                    make_entry(queue, item, self.chunk.publisher_of(self.first + index), delivered_until)
                    for index, item in enumerate(loaded)
                )
            )
        self.done()


class ClassicInspection(Inspection):
    """Access to a classic queue."""

    def __init__(self, queue: ClassicQueue) -> None:
        super().__init__(queue)
        self._queue = queue

    def walk(self) -> ClassicWalk:
        return ClassicWalk(self._queue)

    def walk_delayed(self) -> DelayedWalk:
        queue = self._queue
        return DelayedWalk(queue, UnreadWalk(queue) if queue.has_delayed else Walk(queue))

    def oldest(self) -> int:
        oldest = 0
        for level in self._queue.ready.all_levels():
            for seq in _first_seqs(level):
                if not oldest or seq < oldest:
                    oldest = seq
        return oldest

    def head(self) -> Entry | None:
        for level in self._queue.ready.all_levels():
            if len(level):
                return level.head[0] if level.head else None
        return None

    def is_arriving(self, entry: Entry) -> bool:
        return self._queue.ready.is_arriving(entry)

    def withdraw(self, entry: Entry, reason: str) -> bool:
        queue = self._queue
        found = None if queue.deleted else queue.ready.withdraw(entry)
        if found is None:
            return False
        if queue.watch is not None:
            queue.watch.left(found, reason)
        queue.archive(found)
        queue.activate()
        return True
