"""Readers of a lease batch: consumers that get copies of a slice of it, in order, and do not acknowledge them.

Any number of consumers can read at the same time, and the same slice repeatedly. The log is read a few entries ahead of
their credit.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, Final

from leveret.broker import settlement
from leveret.broker.arguments import CONSUMER_ARGUMENTS, Validated
from leveret.broker.errors import PreconditionFailed, Undelivered
from leveret.broker.jobs import STEP_WORK
from leveret.broker.leases.batch import Batch
from leveret.broker.log import CommitWaiter, Loaded
from leveret.broker.message import Entry, with_offset
from leveret.broker.queues.loading import make_entry
from leveret.broker.queues.record_batches import PACKED, RecordBatch
from leveret.broker.values import FieldTable

if TYPE_CHECKING:
    from leveret.broker.consumer import Consumer
    from leveret.broker.leases.lease import Lease
    from leveret.broker.queues.classic.queue import ClassicQueue

LEASE: Final = "x-lease"
EPOCH: Final = "x-lease-epoch"
BATCH: Final = "x-lease-batch"
FIRST: Final = "x-lease-first"
COUNT: Final = "x-lease-count"
# Maximum entries and body bytes of one read from the log. The next read starts when half of them are delivered.
READ_ENTRIES: Final = 1024
READ_BYTES: Final = 1 << 20


class Slice:
    """The slice of a batch that the arguments of a consumer specify.

    first, count  the index of its first entry in the batch, and the number of its entries
    """

    __slots__ = ("batch", "count", "epoch", "first", "lease")

    def __init__(self, arguments: FieldTable) -> None:
        """Raise PreconditionFailed for missing or invalid arguments."""
        found: Validated = {}
        for name in (LEASE, EPOCH, BATCH, FIRST, COUNT):
            if name not in arguments:
                raise PreconditionFailed(f"invalid arg '{LEASE}': received without '{name}', expected together with it")
            found[name] = CONSUMER_ARGUMENTS[name].parse(arguments[name])
        self.lease: str = found[LEASE]
        self.epoch: int = found[EPOCH]
        self.batch: int = found[BATCH]
        self.first: int = found[FIRST]
        self.count: int = found[COUNT]


class Reader(CommitWaiter):
    """A consumer's place in a slice of a batch.

    next, end  indices in the batch: of the next entry to deliver, and after the last one
    asked      index of the next entry to load
    loaded     entries that were loaded
    ready      whether the log has a record that the batch is read
    packed     whether it gets record batches (leveret.broker.queues.record_batches)
    """

    def __init__(self, queue: ClassicQueue, lease: Lease, batch: Batch, consumer: Consumer, part: Slice) -> None:
        self.queue = queue
        self.lease = lease
        self.batch = batch
        self.consumer = consumer
        self.next = self.asked = part.first
        self.end = part.first + part.count
        self.loaded: deque[Entry] = deque()
        self.loading = False
        self.ready = False
        self.packed = consumer.arguments.get(PACKED) is True

    def committed(self, batch: int) -> None:
        self.ready = True
        self.queue.activate()
        self.queue.broker.end_turn()

    def serve(self) -> None:
        """Deliver entries while consumers have credit."""
        queue = self.queue
        consumer = self.consumer
        loaded = self.loaded
        begun = queue.broker.work
        delivered = self._serve_record_batches() if self.packed else 0
        while loaded and consumer.active and not self.packed:
            entry = loaded[0]
            if not consumer.has_credit_for(entry.message.size):
                consumer.park()
                break
            loaded.popleft()
            self.next += 1
            delivered += 1
            settlement.acquire(entry, consumer)
            try:
                consumer.deliver(entry)
            except Undelivered as undelivered:
                consumer.missed(str(undelivered))  # the batch is read again
            settlement.forget_holder(entry)
            if consumer.left:
                break
            if queue.watch is not None:
                queue.watch.delivered(entry, consumer, True)
                if queue.broker.work - begun > STEP_WORK:
                    queue.broker.jobs.deferred.add(queue)
                    break
        queue.counters.count_deliveries(delivered, 0, 0, 0, 0)
        if self.ready and not self.loading and self.asked < self.end and len(loaded) <= READ_ENTRIES >> 1:
            if loaded or consumer.has_credit_for(0):
                self._read()
            else:
                consumer.park()

    def _serve_record_batches(self) -> int:
        """Deliver record batches with the indices that they cover. Returns the number of their entries."""
        queue = self.queue
        consumer = self.consumer
        loaded = self.loaded
        delivered = 0
        begun = queue.broker.work
        while loaded and consumer.active:
            if not consumer.has_credit_for(0):
                consumer.park()
                break
            record_batch = RecordBatch()
            first = self.next
            while loaded and record_batch.has_room(loaded[0].message.size):
                entry = loaded.popleft()
                self.next += 1
                # A queue does not record when its messages arrived.
                record_batch.add(
                    entry.message, entry.seq - 1, 0, entry.overlay, entry.acquired_count > 0, entry.delivery_count
                )
                if queue.watch is not None:
                    queue.watch.delivered(entry, consumer, True)
                    if queue.broker.work - begun > STEP_WORK:
                        break
            delivered += record_batch.count
            packed = Entry(queue, record_batch.message(queue.name, first, self.next), 0)
            settlement.acquire(packed, consumer)
            consumer.deliver(packed)
            settlement.forget_holder(packed)
            if queue.broker.work - begun > STEP_WORK:
                queue.broker.jobs.deferred.add(queue)
                break
        return delivered

    def _read(self) -> None:
        number, at = self.batch.find(self.asked)
        piece = self.batch.pieces[number]
        last = at
        size = 0
        stop = min(len(piece.seqs), at + self.end - self.asked, at + READ_ENTRIES)
        while last < stop and (last == at or size < READ_BYTES):
            size += piece.sizes[last]
            last += 1
        rows: array[int] = piece.rows[at:last]
        slots: array[int] = piece.slots[at:last]
        self.asked += last - at
        self.loading = True
        self.queue.log.load(rows, slots, _Reading(self, number, at).done)

    def take(self, loaded: list[Loaded], number: int, first: int) -> None:
        """Accept the loaded entries of a piece, starting at index `first`."""
        self.loading = False
        queue = self.queue
        if self not in self.lease.readers:
            return
        batch = self.batch
        piece = batch.pieces[number]
        for index, item in enumerate(loaded):
            entry = make_entry(queue, item, piece.publisher_of(first + index), batch.mark)
            if not self.packed:
                entry.overlay = with_offset(entry.overlay)
            self.loaded.append(entry)
        queue.dispatcher.notify_waiting()
        queue.activate()
        queue.broker.end_turn()


class _Reading:
    """Entries of a batch that are being loaded."""

    __slots__ = ("first", "number", "reader")

    def __init__(self, reader: Reader, number: int, first: int) -> None:
        self.reader = reader
        self.number = number
        self.first = first

    def done(self, loaded: list[Loaded]) -> None:
        self.reader.take(loaded, self.number, self.first)
