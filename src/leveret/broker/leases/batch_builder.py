"""Planning: ready entries leave the backlog for a batch, in the order in which a consumer would get them.

Of what is paged out nothing is read but what may be of another kind than its position tells: messages that may have expired
or are not due yet, and transient ones, which the log must have before they are planned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.broker.errors import BrokerError
from leveret.broker.jobs import STEP_WORK, Job, Jobs
from leveret.broker.leases.batch import Batch
from leveret.broker.log import CommitWaiter
from leveret.broker.message import ARCHIVED, ENTRY_OVERHEAD, Entry
from leveret.broker.queues import expiry, paging
from leveret.broker.queues.backlog import Backlog

if TYPE_CHECKING:
    from leveret.broker.leases.lease import Lease
    from leveret.broker.queues.base import Queue

# Called with the batch, with None if nothing was ready, or with the error.
Done = Callable[[Batch | None, BrokerError | None], None]


# After so many entries it is looked at whether the turn has time left; one less than a power of two. Two are 1 µs.
TAKEN: Final = 63


class _Later(Job):
    """Job that resumes a plan in the next turn."""

    def __init__(self, jobs: Jobs, builder: BatchBuilder) -> None:
        super().__init__(jobs)
        self.builder = builder

    def step(self) -> bool:
        self.builder.resume()
        return False


class _Loading(paging.Waiting):
    """Callback that resumes a plan when more of its queue is in memory."""

    def __init__(self, builder: BatchBuilder) -> None:
        self.builder = builder

    def loaded(self) -> None:
        self.builder.resume()


class Written(CommitWaiter):
    """Notification of a batch once it is on disk."""

    def __init__(self, batch: Batch, done: Done) -> None:
        self.batch = batch
        self.done = done

    def committed(self, batch: int) -> None:
        self.done(self.batch, None)


class BatchBuilder:
    """A batch in the making: at most so many messages, with bodies of so many bytes together, but at least one."""

    def __init__(self, queue: Queue, lease: Lease, number: int, max_messages: int, max_bytes: int) -> None:
        self.queue = queue
        self.lease = lease
        self.batch = Batch(number, queue.delivered_until, queue.broker.timers.now())
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.waiting: list[Done] = []
        self.over = False
        # Units of work of the turn beyond which no more entries are taken.
        self.max_work = 0

    def resume(self) -> None:
        """Take what is there, as much of it as one turn may; the end of it, unless something has to be read first."""
        if self.over:
            return
        broker = self.queue.broker
        self.max_work = broker.work + STEP_WORK
        if not self._take():
            self.queue.wait_loaded(_Loading(self))
        elif broker.work > self.max_work and not self._is_full(0):
            _Later(broker.jobs, self).resume()
        else:
            self.finish()

    def finish(self) -> None:
        """What was taken is the batch."""
        queue = self.queue
        lease = self.lease
        batch = self.batch
        self.over = True
        lease.builder = None
        if not batch.count:
            for done in self.waiting:
                done(None, None)
            return
        lease.batches[batch.number] = batch
        lease.write_batch(queue, batch)
        for done in self.waiting:
            queue.log.wait(Written(batch, done))
        if queue.refusals:
            for seq in batch.seqs():
                queue.refusals.pop(seq, None)
        paging.read_heads(queue)
        if queue.ring or queue.expiring or queue.levels is not None:
            queue.activate()

    def fail(self, error: BrokerError) -> None:
        """There will be no batch."""
        self.over = True
        self.lease.builder = None
        for done in self.waiting:
            done(None, error)

    def _take(self) -> bool:
        """Take ready entries until the batch is full or nothing is left; False where something has to be read first."""
        queue = self.queue
        cancelled = False
        try:
            for level in queue.all_levels():
                while not self._is_full(0):
                    self._take_head(level, queue.priority_of(level.priority))
                    if level.head:
                        break
                    if not level.chunks:
                        level.settle_young()
                        if not level.head:
                            break
                        continue
                    if level.chunks[0].overflow or _may_differ(queue):
                        if not level.loading:
                            paging.load(queue, level)
                        return False
                    cancelled = cancelled or level.loading
                    level.cancel_load()
                    if not self._take_chunk(level):
                        return True
                if level.head or level.chunks:
                    return True
            return True
        finally:
            if cancelled:
                paging.notify_waiting(queue)

    def _is_full(self, size: int) -> bool:
        batch = self.batch
        return batch.count >= self.max_messages or (batch.count > 0 and batch.bytes + size > self.max_bytes)

    def _take_head(self, level: Backlog, priority: int) -> None:
        queue = self.queue
        batch = self.batch
        head = level.head
        leases = queue.leases
        assert leases is not None
        broker = queue.broker
        taken = 0
        while head:
            taken += 1
            if taken & TAKEN == 0:
                broker.work += TAKEN >> 1
                if broker.work > self.max_work:
                    return
            entry = head[0]
            message = entry.message
            if (message.expires_at or entry.overlay is not None) and expiry.drop_expired(queue, level, entry):
                continue
            if self._is_full(message.size):
                return
            head.popleft()
            queue.memory -= message.size + ENTRY_OVERHEAD
            _store(queue, entry)
            row = entry.row
            assert row is not None
            entry.state = ARCHIVED  # the object; what it stands for goes on in the batch
            batch.add(priority, row.id, entry.slot, entry.seq, message.size, message.publisher)
            leases.count += 1
            leases.bytes += message.size

    def _take_chunk(self, level: Backlog) -> bool:
        """Take from the oldest chunk; False where the batch has no room for the next one."""
        batch = self.batch
        leases = self.queue.leases
        assert leases is not None
        chunk = level.chunks[0]
        if self._is_full(chunk.sizes[0]):
            return False
        piece = level.take_positions(self.max_messages - batch.count, self.max_bytes - batch.bytes)
        batch.add_piece(self.queue.priority_of(level.priority), piece)
        leases.count += len(piece.seqs)
        leases.bytes += piece.bytes
        return True


def _may_differ(queue: Queue) -> bool:
    """Whether what is paged out may not be ready: expired, or not due yet. Only who reads it knows."""
    return queue.message_ttl >= 0 or queue.has_expiring or queue.has_delayed


def _store(queue: Queue, entry: Entry) -> None:
    """Have the log keep an entry that it does not keep yet, for it is transient."""
    row = entry.row
    if row is not None:
        if row.log is queue.log:
            return
        row.log.settle(entry)
        entry.row = None
    queue.log.store(entry)
    if entry.message.expires_at and not queue.has_expiring:
        queue.note_expiring()
