"""A lease, and its records in the metadata of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker import metadata
from leveret.broker.errors import NotFound, PreconditionFailed
from leveret.broker.leases.batch import Batch
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
        return f"lease '{self.name}' of {'a deleted queue' if self.queue is None else self.queue}"

    def check_epoch(self, epoch: int) -> None:
        """Raise PreconditionFailed for an older epoch."""
        if epoch != self.epoch:
            raise PreconditionFailed(
                f"epoch {epoch} of {self} has expired, the current epoch is {self.epoch}: the lease was"
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
        queue.lifetime.touch()

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
