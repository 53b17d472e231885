"""The leases of a queue, and their records in the metadata of the log."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from leveret.broker import metadata
from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.leases.batch import Batch
from leveret.broker.leases.returning import Return, return_pieces
from leveret.broker.queues.classic.backlog import Chunk
from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.broker.leases.batch_builder import BatchBuilder
    from leveret.broker.leases.reading import Reader
    from leveret.broker.queues.classic.queue import ClassicQueue
    from leveret.broker.queues.queue import Queue


class Lease(Timed):
    """One lease of a queue.

    epoch      grows with each acquisition; operations with an older one are refused
    committed  number of the last committed batch, 0 for none
    batches    the uncommitted batches, by number in ascending order
    timeout    milliseconds without a call after which unread batches return to the queue, 0 for no timeout
    since, called_at  when it was acquired, and last used: milliseconds of Unix time
    builder    creates the next batch; None if no batch is being created
    """

    def __init__(self, queue: ClassicQueue, name: str, now: int) -> None:
        super().__init__()
        self.queue: ClassicQueue | None = queue
        self.name = name
        self.epoch = 0
        self.committed = 0
        self.batches: dict[int, Batch] = {}
        self.timeout = 0
        self.since = now
        self.called_at = now
        self.readers: list[Reader] = []
        self.builder: BatchBuilder | None = None

    def __str__(self) -> str:
        return f"lease '{self.name}' of {place_of(self.queue)}"

    def check_epoch(self, epoch: int) -> None:
        """Raise PreconditionFailed for an older epoch."""
        if epoch != self.epoch:
            raise PreconditionFailed(
                f"epoch {epoch} of {self} is over, the current one is {self.epoch}: the lease was"
                " acquired again or timed out"
            )

    def find(self, number: int) -> Batch:
        """Return an uncommitted batch. Raises NotFound."""
        batch = self.batches.get(number)
        if batch is None:
            raise NotFound(
                f"batch {number} of {self} does not exist or is committed: the last committed batch is {self.committed}"
            )
        return batch

    def call(self, queue: Queue) -> None:
        """Note a use of the lease: its timeout restarts, and so does that of the queue."""
        now = queue.broker.timers.now()
        self.called_at = now
        if self.timeout:
            queue.broker.timers.at(now + self.timeout, self)
        queue.touch()

    def fire(self, now: int) -> None:
        """Fence off the owner after the timeout, and return unread messages to the queue."""
        queue = self.queue
        if queue is None or queue.leases is None:
            return
        if self.readers or self.builder is not None:
            self.call(queue)
            return
        unread = [batch for batch in self.batches.values() if not batch.read]
        if unread:
            self.epoch = queue.broker.new_lease_epoch()
            self.write(queue)
            queue.leases.take_back(self, unread)
            queue.broker.end_turn()

    def end_readers(self, batch: Batch | None = None) -> None:
        """End all readers, or those of one batch."""
        ended = [reader for reader in self.readers if batch is None or reader.batch is batch]
        self.readers = [reader for reader in self.readers if reader not in ended]
        for reader in ended:
            reader.consumer.queue_deleted()

    # Metadata

    def write(self, queue: Queue) -> None:
        queue.log.put(
            metadata.LEASE,
            metadata.make_key(str(queue.id), self.name),
            metadata.pack({"epoch": self.epoch, "committed": self.committed, "timeout": self.timeout, "since": self.since}),
        )

    def write_batch(self, queue: Queue, batch: Batch) -> None:
        batch.written = queue.log.filling
        queue.log.put(metadata.LEASE_BATCH, self._batch_key(queue, batch.number), metadata.pack(batch.record()))

    def forget_batch(self, queue: Queue, number: int) -> None:
        queue.log.put(metadata.LEASE_BATCH, self._batch_key(queue, number), None)

    def forget(self, queue: Queue) -> None:
        """Delete the records of the lease."""
        queue.broker.timers.cancel(self)
        self.queue = None  # the timers may keep a reference for a while
        queue.log.put(metadata.LEASE, metadata.make_key(str(queue.id), self.name), None)
        for number in self.batches:
            self.forget_batch(queue, number)

    def _batch_key(self, queue: Queue, number: int) -> str:
        return metadata.make_key(str(queue.id), self.name, str(number))


class Leases:
    """The leases of one queue by name.

    `count` and `bytes` are of all leased entries, including those that return to the queue with the next commit.
    """

    def __init__(self, queue: ClassicQueue) -> None:
        self.queue = queue
        self.by_name: dict[str, Lease] = {}
        self.count = 0
        self.bytes = 0
        self.returning: list[Return] = []

    def find(self, name: str) -> Lease:
        """Return the lease with this name. Raises NotFound."""
        lease = self.by_name.get(name)
        if lease is None:
            raise no_lease(self.queue, name)
        return lease

    def take_back(self, lease: Lease, batches: list[Batch]) -> None:
        """Return batches to the queue once that is on disk."""
        pieces: list[tuple[int, Chunk]] = []
        read: list[tuple[int, Chunk]] = []
        for batch in batches:
            lease.end_readers(batch)
            del lease.batches[batch.number]
            lease.forget_batch(self.queue, batch.number)
            pieces.extend(batch.all())
            if batch.read:
                read.extend(batch.all())
        return_pieces(self.queue, pieces, read)

    def forget(self) -> None:
        """Release everything when the queue is deleted."""
        queue = self.queue
        for lease in self.by_name.values():
            lease.end_readers()
            batches = list(lease.batches.values())
            if lease.builder is not None:
                batches.append(lease.builder.batch)
                lease.builder.fail(NotFound(f"{place_of(queue)} was deleted"))
            for batch in batches:
                rows, slots = batch.positions()
                settle(queue, rows, slots)
            lease.forget(queue)
        for on_its_way in self.returning:
            for _, piece in on_its_way.pieces:
                settle(queue, piece.rows, piece.slots)
        self.returning = []
        self.by_name = {}
        self.count = self.bytes = 0


def settle(queue: Queue, rows: array[int], slots: array[int]) -> None:
    """Settle entries of a lease by their positions."""
    if rows:
        queue.log.settle_range(queue.id, 0, queue.next_seq - 1, (), rows, slots)


def no_lease(queue: Queue, name: str) -> NotFound:
    """Return the error for a lease that does not exist."""
    return NotFound(f"no lease '{name}' of {place_of(queue)}: it was released, or never acquired")


def place_of(queue: Queue | None) -> str:
    return "a deleted queue" if queue is None else f"queue '{queue.name}' in vhost '{queue.vhost.name}'"
