"""Creation of a lease batch: ready entries leave the backlog in the order in which a consumer would get them.

Paged-out entries are loaded only if their positions do not tell whether they are ready (they may have expired or be
delayed), or if they are transient and must be in the log first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.broker import settlement
from leveret.broker.errors import BrokerError
from leveret.broker.jobs import STEP_WORK, Job, Jobs
from leveret.broker.leases.batch import Batch
from leveret.broker.log import CommitWaiter
from leveret.broker.queues.classic.backlog import Backlog
from leveret.broker.queues.loading import Waiting

if TYPE_CHECKING:
    from leveret.broker.leases.lease import Lease
    from leveret.broker.leases.leases import Leases

# Called with the batch, with None if nothing was ready, or with the error.
Done = Callable[[Batch | None, BrokerError | None], None]


# The work of the turn is checked after this many entries, plus one (a power of two). Two entries take 1 µs.
CHECK_MASK: Final = 63


class _Later(Job):
    """Job that resumes a builder in the next turn."""

    def __init__(self, jobs: Jobs, builder: BatchBuilder) -> None:
        super().__init__(jobs)
        self.builder = builder

    def step(self) -> bool:
        self.builder.resume()
        return False


class _Loading(Waiting):
    """Callback that resumes a builder when more of its queue is loaded."""

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
    """Builds a batch of at most `max_messages` messages and `max_bytes` of bodies, but at least one message."""

    def __init__(self, leases: Leases, lease: Lease, number: int, max_messages: int, max_bytes: int) -> None:
        queue = leases.queue
        self.queue = queue
        self.leases = leases
        self.lease = lease
        self.batch = Batch(number, queue.ready.delivered_until, queue.broker.timers.now())
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.waiting: list[Done] = []
        self.over = False
        # Units of work of a turn above which the rest waits for the next turn.
        self.max_work = 0

    def resume(self) -> None:
        """Take ready entries for at most one turn, and finish the batch unless entries must be loaded first."""
        if self.over:
            return
        broker = self.queue.broker
        self.max_work = broker.work + STEP_WORK
        if not self._take():
            self.queue.paging.wait_loaded(_Loading(self))
        elif broker.work > self.max_work and not self._is_full(0):
            _Later(broker.jobs, self).resume()
        else:
            self.finish()

    def finish(self) -> None:
        """Complete the batch with the entries taken so far."""
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
        if queue.ready.refusals:
            for seq in batch.seqs():
                queue.ready.refusals.pop(seq, None)
        queue.ready.read_heads(queue)
        if queue.dispatcher.ring or queue.expiry.expiring or queue.ready.levels is not None:
            queue.activate()

    def fail(self, error: BrokerError) -> None:
        """Abandon the batch because of an error."""
        self.over = True
        self.lease.builder = None
        for done in self.waiting:
            done(None, error)

    def _take(self) -> bool:
        """Take ready entries until the batch is full or none is left. Returns False if entries must be loaded first."""
        queue = self.queue
        cancelled = False
        try:
            for level in queue.ready.all_levels():
                while not self._is_full(0):
                    self._take_head(level, queue.ready.priority_of(level.priority))
                    if level.head:
                        break
                    if not level.chunks:
                        level.settle_young()
                        if not level.head:
                            break
                        continue
                    if level.chunks[0].overflow or queue.may_withhold_paged():
                        if not level.loading:
                            queue.ready.load(queue, level)
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
                queue.dispatcher.notify_waiting()

    def _is_full(self, size: int) -> bool:
        batch = self.batch
        return batch.count >= self.max_messages or (batch.count > 0 and batch.bytes + size > self.max_bytes)

    def _take_head(self, level: Backlog, priority: int) -> None:
        queue = self.queue
        batch = self.batch
        head = level.head
        broker = queue.broker
        taken = 0
        while head:
            taken += 1
            if taken & CHECK_MASK == 0:
                broker.work += CHECK_MASK >> 1
                if broker.work > self.max_work:
                    return
            entry = head[0]
            message = entry.message
            if (message.expires_at or entry.overlay is not None) and queue.expiry.drop_expired(queue, level, entry):
                continue
            if self._is_full(message.size):
                return
            queue.ready.take_head(level)
            queue.ensure_stored(entry)
            row = entry.row
            assert row is not None
            settlement.archive(entry)  # the object is unused from now on; its position is in the batch
            batch.add(priority, row.id, entry.slot, entry.seq, message.size, message.publisher)
            self.leases.count_in(1, message.size)

    def _take_chunk(self, level: Backlog) -> bool:
        """Take entries of the oldest chunk. Returns False if the batch has no room for the first one."""
        batch = self.batch
        chunk = level.chunks[0]
        if self._is_full(chunk.sizes[0]):
            return False
        piece = level.take_positions(self.max_messages - batch.count, self.max_bytes - batch.bytes)
        batch.add_piece(self.queue.ready.priority_of(level.priority), piece)
        self.leases.count_in(len(piece.seqs), piece.bytes)
        return True
