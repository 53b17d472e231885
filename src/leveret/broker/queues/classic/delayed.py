"""Entries that become visible later.

They are in no backlog. Paged-out ones are positions of tens of bytes each, in a heap by due time. Each queue has one timer,
for the first of them.

The due time is part of an entry's overlay, so the log has it. After a start, delayed entries are positions in a backlog
like all others, and count as ready until the queue has read them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from leveret.broker import settlement
from leveret.broker.log import Loaded, Log
from leveret.broker.message import ENTRY_OVERHEAD, Entry
from leveret.broker.queues.loading import make_entry
from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.broker.queues.classic.queue import ClassicQueue

# The due time, the sequence number and the place of the position of an entry.
Position: TypeAlias = tuple[int, int, int]

# Maximum number of entries that become visible in one step, and of those that are read at once.
MAX_RELEASED_AT_ONCE: Final = 1000
READ_ENTRIES: Final = 256
READ_BYTES: Final = 1 << 20
# Entries that are paged out in one step.
PAGED_AT_ONCE: Final = 4000


class Delays(Timed):
    """The delayed entries of one queue.

    recent  the entries in memory, by sequence number, oldest first
    memory  bytes that the queue counts for the entries in memory
    bytes   bytes of the bodies of all entries
    retrying  number of entries that were rejected and wait for their next delivery
    """

    def __init__(self, queue: ClassicQueue) -> None:
        super().__init__()
        self.queue: ClassicQueue | None = queue
        self.recent: dict[int, Entry] = {}
        self.memory = 0
        self.bytes = 0
        self.retrying = 0
        # Indices of positions: a heap by `_dues`; those that are being read, the first `_reading` of them; free ones.
        self._heap: array[int] = array("I")
        self._coming: list[int] = []
        self._reading = 0
        self._free: list[int] = []
        self._dues: array[int] = array("Q")
        self._seqs: array[int] = array("Q")
        self._rows: array[int] = array("Q")
        self._publishers: array[int] = array("Q")
        self._slots: array[int] = array("I")
        self._sizes: array[int] = array("I")
        self._overflow: array[int] = array("B")
        self._retries: array[int] = array("B")

    def __len__(self) -> int:
        return len(self._heap) + len(self._coming)

    @property
    def paged_count(self) -> int:
        """The entries of which only the positions are in memory."""
        return len(self) - len(self.recent)

    @property
    def paged_bytes(self) -> int:
        """Bytes of the bodies of these."""
        return self.bytes - (self.memory - ENTRY_OVERHEAD * len(self.recent))

    def hold(self, queue: ClassicQueue, entry: Entry, due: int) -> None:
        """Keep an entry until it is due."""
        overflow = queue.broker.overflow
        if entry.row is None and overflow is not None:
            overflow.store(entry)
        self._push(self._note(queue, entry, due))
        message = entry.message
        self.recent[entry.seq] = entry
        self.bytes += message.size
        self.memory += message.size + ENTRY_OVERHEAD
        queue.ready.count_in(entry)
        if queue.ready.memory > queue.broker.page_above:
            self.page()
            if self.recent:
                queue.broker.paging.add(queue)
        self._schedule(queue)

    def page(self) -> int:
        """Page out committed entries, oldest first. Return how many, at most PAGED_AT_ONCE."""
        queue = self.queue
        if queue is None:
            return 0
        paged: list[Entry] = []
        for entry in self.recent.values():
            row = entry.row
            if row is None or row.batch > row.log.committed or len(paged) == PAGED_AT_ONCE:
                break
            paged.append(entry)
        for entry in paged:
            self._make_ready(queue, entry)
        return len(paged)

    def _make_ready(self, queue: ClassicQueue, entry: Entry) -> None:
        del self.recent[entry.seq]
        self.memory -= entry.message.size + ENTRY_OVERHEAD
        queue.ready.count_out(entry)

    def _schedule(self, queue: ClassicQueue) -> None:
        if self._heap:
            queue.broker.timers.at(self._dues[self._heap[0]], self)

    def fire(self, now: int) -> None:
        """Make due entries visible."""
        queue = self.queue
        if queue is None:
            return
        heap = self._heap
        due: list[tuple[int, int]] = []
        room = MAX_RELEASED_AT_ONCE - len(self._coming)
        while heap and self._dues[heap[0]] <= now and len(due) < room:
            number = self._pop()
            due.append((self._seqs[number], number))
        # In the order of the log: it is that of the queue, and the fastest to read.
        due.sort()
        self._coming.extend([number for _, number in due])
        if heap:
            queue.broker.timers.at(max(self._dues[heap[0]], now + 1), self)
        if not self._reading:
            self._show(queue)

    def _show(self, queue: ClassicQueue) -> None:
        """Make due entries visible in their order, up to the first that is not in memory, and read the next ones."""
        coming = self._coming
        shown = 0
        for number in coming:
            entry = self.recent.get(self._seqs[number])
            if entry is None or shown == MAX_RELEASED_AT_ONCE:
                break
            shown += 1
            self._make_ready(queue, entry)
            self._release(number)
            queue.forget_transient(entry)
            queue.insert_new(entry)
        del coming[:shown]
        if shown == MAX_RELEASED_AT_ONCE:
            queue.broker.timers.at(queue.broker.timers.now() + 1, self)
        elif coming:
            self._read(queue)

    def _read(self, queue: ClassicQueue) -> None:
        """Read the first due entries that are not in memory."""
        coming = self._coming
        rows: array[int] = array("Q")
        slots: array[int] = array("I")
        outside = self._overflow[coming[0]]
        n_bytes = 0
        for number in coming:
            if (
                self._overflow[number] != outside
                or len(rows) >= READ_ENTRIES
                or n_bytes >= READ_BYTES
                or self._seqs[number] in self.recent
            ):
                break
            rows.append(self._rows[number])
            slots.append(self._slots[number])
            n_bytes += self._sizes[number]
        self._reading = len(rows)
        log: Log = queue.log
        if outside:
            overflow = queue.broker.overflow
            assert overflow is not None
            log = overflow
        log.load(rows, slots, _Reading(self, queue.ready.epoch).done)

    def loaded(self, loaded: list[Loaded], epoch: int) -> None:
        """Make the loaded entries visible, then those that follow in memory."""
        queue = self.queue
        if queue is None or epoch != queue.ready.epoch:
            return
        numbers = self._coming[: self._reading]
        del self._coming[: self._reading]
        self._reading = 0
        for number, item in zip(numbers, loaded, strict=True):
            entry = make_entry(queue, item, self._publishers[number], queue.ready.delivered_until)
            self._release(number)
            queue.forget_transient(entry)
            queue.insert_new(entry)
        self._show(queue)
        queue.broker.end_turn()

    def clear(self, queue: ClassicQueue) -> None:
        """Settle the entries: the queue has no delayed entries any more."""
        queue.broker.timers.cancel(self)
        for entry in self.recent.values():
            settlement.archive(entry)
            queue.ready.count_out(entry)
        self.memory = 0
        self.queue = None  # a timer may keep a reference to it for a while

    def settling(self, queue_id: int, log: Log, overflow: Log | None) -> Iterator[int]:
        """Settle the positions of cleared entries, and release their memory, in steps."""
        for seq, row_id, slot, outside in self.positions():
            if not outside:
                log.settle_range(queue_id, 0, seq, (), (row_id,), (slot,))
            elif overflow is not None:
                overflow.settle_range(queue_id, seq, seq, (), (row_id,), (slot,))
            yield 3
        while self.recent:
            self.recent.popitem()
            yield 1

    def drop(self, queue: ClassicQueue) -> None:
        """Drop the entries, also in the log."""
        overflow = queue.broker.overflow
        for seq, row, slot, outside in self.positions():
            log = overflow if outside else queue.log
            if log is not None:
                log.settle_range(queue.id, seq, seq, (), (row,), (slot,))
        self.clear(queue)

    def positions(self) -> Iterator[tuple[int, int, int, bool]]:
        """Yield the sequence number, row, slot, and whether it is in the overflow log, of each entry in a log."""
        for number in [*self._heap, *self._coming]:
            entry = self.recent.get(self._seqs[number])
            if entry is not None and entry.row is None:
                continue
            yield self._seqs[number], self._rows[number], self._slots[number], bool(self._overflow[number])

    # Inspection

    @property
    def places(self) -> int:
        """The number of places of positions. Some are free, or have positions of entries that are due."""
        return len(self._dues)

    def due_between(self, earliest: int, latest: int, first: int, last: int) -> list[Position]:
        """Return the positions at the places from `first` to `last` (exclusive) that are due in an interval.

        It must begin in the future: a free place has the due time of an entry that is visible.
        """
        dues = self._dues
        seqs = self._seqs
        return [
            (dues[number], seqs[number], number)
            for number in range(first, min(last, len(dues)))
            if earliest <= dues[number] <= latest
        ]

    def has(self, position: Position) -> bool:
        """Return whether a position is still at its place, which is free if the entry was due."""
        due, seq, number = position
        return self.queue is not None and self._dues[number] == due and self._seqs[number] == seq

    def load(self, positions: list[Position], done: Callable[[list[Entry]], None]) -> None:
        """Read copies of entries; the entries stay where they are.

        Args:
            positions: Positions that are there, of which the first is not in memory. Others in memory or in another log
                than the first, and those that exceed the limits of a read, are left out.
            done: Called with the copies, or with none if the entries were removed meanwhile.
        """
        queue = self.queue
        assert queue is not None
        outside = self._overflow[positions[0][2]]
        numbers: list[int] = []
        n_bytes = 0
        for _, seq, number in positions:
            if len(numbers) >= READ_ENTRIES or n_bytes >= READ_BYTES:
                break
            if self._overflow[number] == outside and seq not in self.recent:
                numbers.append(number)
                n_bytes += self._sizes[number]
        log: Log = queue.log
        if outside:
            overflow = queue.broker.overflow
            assert overflow is not None
            log = overflow
        # In the order of the log, which is the fastest to read.
        order = sorted([(self._seqs[number], number) for number in numbers])
        rows: array[int] = array("Q", [self._rows[number] for _, number in order])
        slots: array[int] = array("I", [self._slots[number] for _, number in order])
        publishers: array[int] = array("Q", [self._publishers[number] for _, number in order])
        log.load(rows, slots, _Copying(self, publishers, done).done)

    # Positions

    def _note(self, queue: ClassicQueue, entry: Entry, due: int) -> int:
        row = entry.row
        number = self._free.pop() if self._free else len(self._dues)
        values = (due, entry.seq, 0 if row is None else row.id, entry.message.publisher)
        for place, value in zip((self._dues, self._seqs, self._rows, self._publishers), values, strict=True):
            _set(place, number, value)
        _set(self._slots, number, entry.slot)
        _set(self._sizes, number, entry.message.size)
        _set(self._overflow, number, row is not None and row.log is queue.broker.overflow)
        overlay = entry.overlay
        is_retry = overlay is not None and overlay.retries > 0
        _set(self._retries, number, is_retry)
        if is_retry:
            self.retrying += 1
        return number

    def _release(self, number: int) -> None:
        self.bytes -= self._sizes[number]
        self.retrying -= self._retries[number]
        self._free.append(number)

    def _push(self, number: int) -> None:
        heap = self._heap
        heap.append(number)
        at = len(heap) - 1
        while at:
            above = (at - 1) >> 1
            other = heap[above]
            if not self._is_before(number, other):
                break
            heap[at] = other
            at = above
        heap[at] = number

    def _is_before(self, number: int, other: int) -> bool:
        """Return whether one position is due before another; if they are due at the same time, the older is first."""
        due = self._dues[number]
        later = self._dues[other]
        return due < later or (due == later and self._seqs[number] < self._seqs[other])

    def _pop(self) -> int:
        heap = self._heap
        first = heap[0]
        last = heap.pop()
        count = len(heap)
        if count:
            at = 0
            while True:
                below = 2 * at + 1
                if below >= count:
                    break
                if below + 1 < count and self._is_before(heap[below + 1], heap[below]):
                    below += 1
                if not self._is_before(heap[below], last):
                    break
                heap[at] = heap[below]
                at = below
            heap[at] = last
        return first


def _set(place: array[int], number: int, value: int) -> None:
    if number == len(place):
        place.append(value)
    else:
        place[number] = value


class _Reading:
    """Delayed entries that are being read."""

    __slots__ = ("delays", "epoch")

    def __init__(self, delays: Delays, epoch: int) -> None:
        self.delays = delays
        self.epoch = epoch

    def done(self, loaded: list[Loaded]) -> None:
        self.delays.loaded(loaded, self.epoch)


class _Copying:
    """Delayed entries of which copies are being read."""

    __slots__ = ("delays", "done_with", "publishers")

    def __init__(self, delays: Delays, publishers: array[int], done_with: Callable[[list[Entry]], None]) -> None:
        self.delays = delays
        self.publishers = publishers
        self.done_with = done_with

    def done(self, loaded: list[Loaded]) -> None:
        queue = self.delays.queue
        if queue is None:
            self.done_with([])
            return
        delivered_until = queue.ready.delivered_until
        self.done_with(
            [make_entry(queue, item, self.publishers[index], delivered_until) for index, item in enumerate(loaded)]
        )
