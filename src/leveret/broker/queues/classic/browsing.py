"""Browsing: copies of the ready entries of a queue, in order, for consumers that acquire nothing (AMQP 1.0, 3.5.2).

A browser remembers the sequence number up to which it has seen each level, so it needs no state for each entry and does
not affect other consumers. It skips entries that consumers acquire before it reaches them, and entries that are requeued
to a place that it has passed. It gets entries that become visible late (from a transaction, or after a delay).

Paged-out entries are read for the browser alone, a few positions at a time, which stay in their place. The copies are used
only while these positions exist: if a consumer has loaded the chunk meanwhile, the entries are in the head.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from leveret.broker import settlement
from leveret.broker.errors import Undelivered
from leveret.broker.message import Entry, expires_at
from leveret.broker.queues.classic.backlog import SEQ, Backlog, Chunk
from leveret.broker.queues.loading import make_entry
from leveret.broker.queues.record_batches import PACKED, RecordBatch

if TYPE_CHECKING:
    from leveret.broker.consumer import Consumer
    from leveret.broker.log import Loaded, Log
    from leveret.broker.queues.blocks import Entries
    from leveret.broker.queues.classic.queue import ClassicQueue

# Limits of one read for a browser: entries, and bytes of their bodies; at least one entry.
READ_ENTRIES: Final = 256
READ_BYTES: Final = 256 << 10
# Units of work: the portion of one browser before the next one is served, the check of one browser, and the search for a
# late entry.
PORTION: Final = 500
VISIT_WORK: Final = 4
LATE_WORK: Final = 2
# Number of browsers, as a power of two, that are checked in 1 µs for having passed an entry.
ASK_SHIFT: Final = 3
# Entries, as a power of two, that are skipped in 1 µs. Up to this many at the end are found without skipping the others.
SKIP_SHIFT: Final = 7
NEAR_END: Final = 64
# Maximum number of late entries that are remembered for a browser without credit.
MAX_LATE: Final = 4096


class Browser:
    """The position of one consumer in its browsing of a queue.

    seen     the sequence number up to which it has seen each priority level; the consumer owns it
    late     sequence numbers at or below those, of entries that became visible afterwards; ascending
    read     copies of paged-out entries, by ascending sequence numbers, all from `chunk`
    record_batch  the record batch that is being built, if it gets these instead of copies
    ended    it was notified that it has seen everything
    """

    __slots__ = ("chunk", "consumer", "ended", "late", "queue", "read", "reading", "record_batch", "seen")

    def __init__(self, queue: ClassicQueue, consumer: Consumer) -> None:
        self.queue = queue
        self.consumer = consumer
        self.seen: dict[int, int] = consumer.seen if consumer.seen is not None else {}
        self.late: list[int] = []
        self.read: deque[Entry] = deque()
        self.chunk: Chunk | None = None
        self.reading = False
        self.record_batch: RecordBatch | None = RecordBatch() if consumer.arguments.get(PACKED) is True else None
        self.ended = False

    def serve(self) -> None:
        """Deliver a portion of the unseen entries."""
        for level in self.queue.ready.all_levels():
            if self.late and not self._deliver_late(level):
                break
            if not self._deliver_level(level):
                break
        else:
            # Everything was seen: the remaining late entries are not ready any more.
            self.late.clear()
            self.read.clear()
            self._end()
        self._deliver_batch()

    def _deliver_level(self, level: Backlog) -> bool:
        """Deliver the unseen entries of a level. Return False without credit, or if the browser must wait for a read."""
        queue = self.queue
        priority = queue.ready.priority_of(level.priority)
        while True:
            seen = self.seen.get(priority, 0)
            chunk = next_chunk(level, seen)
            limit = 0
            if chunk is not None:
                limit = chunk.seqs[bisect_right(chunk.seqs, seen)]
            if not self._deliver_from(level.head, priority, limit):
                return False
            if chunk is None:
                young = level.young
                return young is None or self._deliver_from(young, priority, 0)
            if self.chunk is not chunk or not self.read or self.read[len(self.read) - 1].seq < limit:
                if self.reading:
                    return False
                if self.consumer.has_credit_for(0):
                    self._read(chunk, limit)
                else:
                    self.consumer.park()
                return False
            read = self.read
            # There may be other entries between those that were read: the next round delivers them.
            until = first_elsewhere(level, chunk, limit)
            while read and (not until or read[0].seq < until):
                if read[0].seq >= limit and not self._offer(read[0]):
                    return False
                self.seen[priority] = max(self.seen.get(priority, 0), read[0].seq)
                read.popleft()

    def _deliver_from(self, entries: Entries, priority: int, limit: int) -> bool:
        """Deliver unseen entries in memory up to the sequence number `limit` (0: all). Return False without credit."""
        seen = self.seen.get(priority, 0)
        if not entries or entries[len(entries) - 1].seq <= seen:
            return True
        for entry in self._entries_above(entries, seen):
            if limit and entry.seq > limit:
                break
            if not self._offer(entry):
                return False
            self.seen[priority] = entry.seq
        return True

    def _entries_above(self, entries: Entries, seen: int) -> Iterable[Entry]:
        """Return the entries with a sequence number above `seen`, which the last entry has."""
        if entries[0].seq > seen:
            return entries
        first = len(entries) - 1
        if entries[first - 1].seq > seen:
            first = bisect_right(entries, seen, key=SEQ)
        if first >= len(entries) - NEAR_END:
            return [entries[index] for index in range(first, len(entries))]
        self.queue.broker.work += first >> SKIP_SHIFT
        return islice(entries, first, None)

    def _deliver_late(self, level: Backlog) -> bool:
        """Deliver late entries, except for paged-out ones. Return False if no credit is left."""
        late = self.late
        for entries in (level.head, level.young):
            if not entries:
                continue
            for seq in list(late):
                self.queue.broker.work += LATE_WORK
                at = bisect_right(entries, seq - 1, key=SEQ)
                if at < len(entries) and entries[at].seq == seq:
                    if not self._offer(entries[at]):
                        return False
                    late.remove(seq)
        return True

    def _offer(self, entry: Entry) -> bool:
        """Deliver a copy of an entry if the browser wants it. Return False if its credit or its portion is used up."""
        broker = self.queue.broker
        if broker.work >= self.queue.browsing.browse_until:
            return False
        broker.work += 1
        consumer = self.consumer
        message = entry.message
        due = expires_at(entry)
        if due and due <= self.queue.broker.timers.now():
            return True
        overlay = entry.overlay
        if overlay is not None and overlay.visible_at and overlay.visible_at > self.queue.broker.timers.now():
            return True  # recovered from disk
        if consumer.selective and not consumer.wants(message, entry):
            return True
        record_batch = self.record_batch
        if record_batch is not None:
            if not record_batch.has_room(message.size):
                self._deliver_batch()
                record_batch = self.record_batch = RecordBatch()
            if not record_batch.count and not (consumer.active and consumer.has_credit_for(0)):
                consumer.park()
                return False
            # The queue does not record when messages arrived.
            record_batch.add(message, entry.seq - 1, 0, entry.overlay, entry.acquired_count > 0, entry.delivery_count)
            if self.queue.watch is not None:
                self.queue.watch.delivered(entry, consumer, True)
            return True
        if not consumer.active or not consumer.has_credit_for(message.size):
            consumer.park()
            return False
        copy = Entry(entry.queue, message, entry.seq)
        copy.overlay = entry.overlay
        # The counts that it would have if this consumer acquired it now.
        settlement.restore_counts(copy, entry.acquired_count + 1, entry.delivery_count)
        settlement.set_holder(copy, consumer)
        watch = self.queue.watch
        if watch is not None:
            watch.delivered(entry, consumer, True)
        try:
            consumer.deliver(copy)
        except Undelivered as undelivered:
            consumer.missed(str(undelivered))
            return False
        return True

    def _deliver_batch(self, empty: bool = False) -> None:
        """Deliver the record batch that is being built, unless it is empty. A batch is begun only with credit."""
        record_batch = self.record_batch
        if record_batch is None or not (record_batch.count or empty):
            return
        self.record_batch = RecordBatch()
        queue = self.queue
        copy = Entry(queue, record_batch.message(queue.name, 0, queue.next_seq - 1), queue.next_seq)
        settlement.restore_counts(copy, 1, 0)
        settlement.set_holder(copy, self.consumer)
        self.consumer.deliver(copy)

    def _end(self) -> None:
        """Notify a browser, once, that it has seen everything; with record batches, by an empty one."""
        if self.ended:
            return
        if self.record_batch is None:
            self.ended = True
            self.consumer.seen_all()
            return
        self._deliver_batch()
        if self.consumer.has_credit_for(0):
            self.ended = True
            self._deliver_batch(True)
        else:
            self.consumer.park()

    def _read(self, chunk: Chunk, seq: int) -> None:
        """Start to read the entries of a chunk from a sequence number."""
        queue = self.queue
        first = bisect_right(chunk.seqs, seq - 1)
        last = first
        n_bytes = 0
        while last < len(chunk.seqs) and last - first < READ_ENTRIES and (last == first or n_bytes < READ_BYTES):
            n_bytes += chunk.sizes[last]
            last += 1
        rows: array[int] = chunk.rows[first:last]
        slots: array[int] = chunk.slots[first:last]
        log: Log = queue.log
        if chunk.overflow:
            overflow = queue.broker.overflow
            assert overflow is not None
            log = overflow
        self.reading = True
        self.read.clear()
        log.load(rows, slots, _Reading(self, chunk, first).done)


class _Reading:
    """Positions that are being read for one browser."""

    __slots__ = ("browser", "chunk", "epoch", "first")

    def __init__(self, browser: Browser, chunk: Chunk, first: int) -> None:
        self.browser = browser
        self.chunk = chunk
        self.first = first
        self.epoch = browser.queue.ready.epoch

    def done(self, loaded: list[Loaded]) -> None:
        browser = self.browser
        queue = browser.queue
        browser.reading = False
        if browser.consumer not in queue.browsing.browsers:
            return
        if self.epoch == queue.ready.epoch:
            browser.chunk = self.chunk
            browser.read = deque(
                make_entry(queue, item, self.chunk.publisher_of(self.first + index), queue.ready.delivered_until)
                for index, item in enumerate(loaded)
            )
        queue.dispatcher.notify_waiting()
        queue.activate()
        queue.broker.end_turn()


class Browsing:
    """The browsers of one classic queue.

    browsers      by consumer
    browse_until  units of work in the broker's turn at which the portion of the current browser ends
    serving       a job serves them in steps
    unserved      they must be served once more after that
    """

    def __init__(self) -> None:
        self.browsers: dict[Consumer, Browser] = {}
        self.browse_until = 0
        self.serving = False
        self.unserved = False

    def clear(self) -> list[Consumer]:
        """Remove all browsers, and return their consumers."""
        consumers = list(self.browsers)
        self.browsers = {}
        return consumers

    def add(self, queue: ClassicQueue, consumer: Consumer) -> None:
        """Add a browsing consumer. It counts as use of the queue and does not affect other consumers."""
        self.browsers[consumer] = Browser(queue, consumer)
        queue.lifetime.begin_use()
        queue.activate()

    def remove(self, queue: ClassicQueue, consumer: Consumer) -> None:
        """Remove a browsing consumer."""
        if self.browsers.pop(consumer, None) is not None:
            queue.lifetime.end_use()

    def is_reading(self, consumer: Consumer) -> bool:
        """Return whether this consumer may still get entries, which are being read or delivered in steps."""
        browser = self.browsers.get(consumer)
        return browser is not None and (browser.reading or self.serving)

    def note_late(self, queue: ClassicQueue, entry: Entry) -> None:
        """Note a ready entry whose sequence number the browsers may have passed."""
        if entry.seq == queue.next_seq - 1:
            return  # the newest one
        queue.broker.work += len(self.browsers) >> ASK_SHIFT
        level = queue.ready.priority_of(entry.message.priority)
        for browser in self.browsers.values():
            if entry.seq <= browser.seen.get(level, 0) and len(browser.late) < MAX_LATE:
                insort(browser.late, entry.seq)

    def serve(self, queue: ClassicQueue) -> None:
        """Deliver to the browsers in steps: one step in a turn of the event loop, however many clients are read in it."""
        if self.serving:
            self.unserved = True
            return
        self.serving = True
        queue.broker.jobs.run_steps(self._serving(queue))

    def _serving(self, queue: ClassicQueue) -> Iterator[int]:
        """Deliver a portion to each browser in turn, until no browser with credit has unseen entries."""
        broker = queue.broker
        more = True
        try:
            while more:
                more = self.unserved = False
                for browser in list(self.browsers.values()):
                    if queue.dispatcher.frozen or queue.paused:
                        return  # the queue is drained once its order is right again, or when it is resumed
                    if browser.consumer not in self.browsers:
                        continue
                    self.browse_until = broker.work + PORTION
                    browser.serve()
                    if broker.work >= self.browse_until:
                        more = True
                    yield VISIT_WORK
                if self.unserved:
                    more = True
        finally:
            self.serving = False
            queue.dispatcher.notify_waiting()


def next_chunk(level: Backlog, seen: int) -> Chunk | None:
    """Return the chunk with the lowest sequence number above `seen`. One that is read ahead is out of order."""
    found: Chunk | None = None
    lowest = 0
    for chunk in level.chunks:
        seqs = chunk.seqs
        if seqs[-1] <= seen or (found is not None and seqs[0] >= lowest):
            continue
        seq = seqs[bisect_right(seqs, seen)]
        if found is None or seq < lowest:
            found = chunk
            lowest = seq
    return found


def first_elsewhere(level: Backlog, chunk: Chunk, seq: int) -> int:
    """Return the lowest sequence number above `seq` in the head and in other chunks, 0 for none."""
    found = 0
    head = level.head
    if head and head[len(head) - 1].seq > seq:
        found = head[bisect_right(head, seq, key=SEQ)].seq
    for other in level.chunks:
        seqs = other.seqs
        if other is not chunk and seqs[-1] > seq and (not found or seqs[0] < found):
            lowest = seqs[bisect_right(seqs, seq)]
            if not found or lowest < found:
                found = lowest
    return found
