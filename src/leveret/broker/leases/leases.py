"""The leases of a queue, and the operations on them.

The caller has checked permissions, and reports a change only when it is on disk: operations that return a value have
written to the log, and `lease_batch` calls `done` after the commit.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from leveret.broker.errors import AccessRefused, NotFound, PreconditionFailed, ResourceError
from leveret.broker.leases.batch import Batch
from leveret.broker.leases.batch_builder import BatchBuilder, Done, Written
from leveret.broker.leases.lease import Lease
from leveret.broker.leases.reading import LEASE, Reader, Slice
from leveret.broker.log import CommitWaiter
from leveret.broker.queues.classic.backlog import Chunk

if TYPE_CHECKING:
    from leveret.broker.consumer import Consumer
    from leveret.broker.queues.classic.queue import ClassicQueue
    from leveret.broker.queues.queue import Queue
    from leveret.broker.values import FieldTable

MAX_NAME_BYTES: Final = 255
MAX_MESSAGES: Final = 10_000_000
# Leases of one queue, and uncommitted batches of one lease. Each takes memory, however few its messages.
MAX_LEASES: Final = 1000
MAX_BATCHES: Final = 1000
MAX_BYTES: Final = (1 << 63) - 1
# Messages of a batch that its commit may return to the queue.
MAX_RETURNED: int = 10_000  # not Final: tests lower it


class Return(CommitWaiter):
    """Positions that return to their old places in the queue once that is on disk, in pieces with their priorities."""

    def __init__(self, leases: Leases, pieces: list[tuple[int, Chunk]]) -> None:
        self.leases = leases
        self.pieces = pieces

    def committed(self, batch: int) -> None:
        self.leases.returned(self)


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

    @staticmethod
    def of(queue: Queue, name: str) -> Leases:
        """Return the leases of a queue. Raises NotFound, as for the lease `name`, if it has none."""
        leases = queue.leases
        if leases is None:
            raise _no_lease(queue, name)
        return leases

    def find(self, name: str) -> Lease:
        """Return the lease with this name. Raises NotFound."""
        lease = self.by_name.get(name)
        if lease is None:
            raise _no_lease(self.queue, name)
        return lease

    def find_current(self, name: str, epoch: int) -> Lease:
        """Return a lease. Raises NotFound, or PreconditionFailed for an older epoch."""
        lease = self.find(name)
        lease.check_epoch(epoch)
        return lease

    def start(self) -> None:
        """Start the timeouts of recovered leases."""
        for lease in self.by_name.values():
            lease.call(self.queue)

    # Operations

    def acquire(self, name: str, timeout: float | None = None) -> Lease:
        """Create a lease, or take it over. Operations with an older epoch are refused, and current readers end.

        Args:
            name: The name of the lease.
            timeout: Seconds without a call after which unread batches return to the queue.

        Raises:
            PreconditionFailed: The name or the timeout is invalid.
            ResourceError: The queue has the maximum number of leases.
        """
        queue = self.queue
        if not 0 < len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES:
            raise PreconditionFailed(f"invalid lease name: expected 1 to {MAX_NAME_BYTES} bytes of UTF-8")
        if timeout is not None and not timeout > 0:
            raise PreconditionFailed(f"invalid timeout {timeout} of lease '{name}': expected more than 0 seconds, or none")
        lease = self.by_name.get(name)
        now = queue.broker.timers.now()
        if lease is None:
            if len(self.by_name) >= MAX_LEASES:
                raise ResourceError(f"{queue} has the maximum of {MAX_LEASES} leases: release unused ones")
            lease = self.by_name[name] = Lease(queue, name, now)
        lease.epoch = queue.broker.new_lease_epoch()
        lease.since = now
        lease.end_readers()
        if lease.builder is not None:
            lease.builder.finish()  # its caller gets a batch of an expired epoch
        if timeout is None:
            queue.broker.timers.cancel(lease)
            lease.timeout = 0
        else:
            lease.timeout = max(1, int(timeout * 1000))
        lease.write(queue)
        lease.call(queue)
        return lease

    def lease_batch(self, name: str, epoch: int, after: int, max_messages: int, max_bytes: int | None, done: Done) -> None:
        """Lease the batch that follows batch `after`. Repeated calls return the same batch.

        A batch has at most `max_messages` messages whose bodies have at most `max_bytes` bytes in total, but at least one
        message if any is ready. `done` is called with the batch once it is on disk, with None if no message is ready, or
        with an error if the queue is deleted.

        Raises:
            NotFound: The lease does not exist.
            PreconditionFailed: The epoch is old, the batch is committed, or an earlier batch is still being created.
            AccessRefused: The queue has an exclusive consumer.
            ResourceError: The lease has the maximum number of uncommitted batches.
        """
        queue = self.queue
        lease = self.find_current(name, epoch)
        if after < lease.committed:
            raise PreconditionFailed(
                f"{lease} has committed batch {lease.committed}: cannot lease the batch after batch {after}"
            )
        if not 0 < max_messages <= MAX_MESSAGES:
            raise PreconditionFailed(f"invalid max_messages {max_messages}: expected 1 to {MAX_MESSAGES}")
        if max_bytes is not None and max_bytes < 1:
            raise PreconditionFailed(f"invalid max_octets {max_bytes}: expected more than 0, or none")
        lease.call(queue)
        batch = next((batch for number, batch in lease.batches.items() if number > after), None)
        if batch is not None:
            if batch.written > queue.log.committed:
                queue.log.wait(Written(batch, done))
            else:
                done(batch, None)
            return
        builder = lease.builder
        if builder is not None:
            if after >= builder.batch.number:
                raise PreconditionFailed(
                    f"batch {builder.batch.number} of {lease} is still being created: cannot lease"
                    f" the batch after batch {after}"
                )
            builder.waiting.append(done)
            return
        if len(lease.batches) >= MAX_BATCHES:
            raise ResourceError(f"{lease} has the maximum of {MAX_BATCHES} uncommitted batches: commit the first ones")
        if queue.consumers.is_exclusive():
            raise AccessRefused(f"{queue} in exclusive use")
        if queue.paused:
            done(None, None)
            return
        queue.serve_consumers()  # waiting consumers take precedence, as with `get`
        lease.builder = BatchBuilder(self, lease, after + 1, max_messages, MAX_BYTES if max_bytes is None else max_bytes)
        lease.builder.waiting.append(done)
        lease.builder.resume()

    def commit(self, name: str, epoch: int, number: int, back: Iterable[int] = ()) -> int:
        """Settle the messages of a batch, except those with the indices `back`, which return to the queue as redelivered.

        Returns the number of the last committed batch, which is a later one if the commit is repeated.

        Raises:
            NotFound: The lease or the batch does not exist.
            PreconditionFailed: The epoch is old, the batch is not the first one, or an index is out of range.
        """
        queue = self.queue
        lease = self.find_current(name, epoch)
        if number <= lease.committed:
            lease.call(queue)
            return lease.committed
        batch = lease.find(number)
        first = next(iter(lease.batches))
        if number != first:
            raise PreconditionFailed(f"batch {first} of {lease} precedes batch {number}: commit batches in order")
        indexes = sorted(set(back))
        if len(indexes) > MAX_RETURNED:
            raise PreconditionFailed(
                f"{len(indexes)} messages of batch {number} would return to the queue; expected at most"
                f" {MAX_RETURNED}: lease smaller batches"
            )
        if indexes and not 0 <= indexes[0] <= indexes[-1] < batch.count:
            wrong = indexes[0] if indexes[0] < 0 else indexes[-1]
            raise PreconditionFailed(f"batch {number} of {lease} has {batch.count} messages: index {wrong} is out of range")
        lease.end_readers(batch)
        returned = batch.pick(indexes)
        self._settle(*batch.positions(indexes))
        settled = batch.count - len(indexes)
        queue.note_committed(settled)
        self.count -= settled
        self.bytes -= batch.bytes - sum(piece.bytes for _, piece in returned)
        del lease.batches[number]
        lease.committed = number
        lease.forget_batch(queue, number)
        lease.write(queue)
        self._return(returned, returned)
        lease.call(queue)
        return number

    def release(self, name: str) -> int:
        """Release a lease: its messages return to the queue, and its name is free. Returns the number of messages."""
        lease = self.find(name)
        if lease.builder is not None:
            lease.builder.finish()
        lease.end_readers()
        batches = list(lease.batches.values())
        self.take_back(lease, batches)
        del self.by_name[name]
        lease.forget(self.queue)
        return sum(batch.count for batch in batches)

    # Entries

    def count_in(self, count: int, size: int) -> None:
        """Count entries that a batch has taken, with bodies of `size` bytes in total."""
        self.count += count
        self.bytes += size

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
        self._return(pieces, read)

    def _return(self, pieces: list[tuple[int, Chunk]], read: list[tuple[int, Chunk]]) -> None:
        """Return entries, given by their priorities and positions, with the commit that is being filled.

        Entries of `read` may have been delivered, so they count as redelivered; so do older paged-out entries, because the
        log has one mark per queue.
        """
        if not pieces:
            return
        if read:
            self.queue.mark_delivered(max(piece.seqs[-1] for _, piece in read))
        on_its_way = Return(self, pieces)
        self.returning.append(on_its_way)
        self.queue.log.wait(on_its_way)

    def returned(self, on_its_way: Return) -> None:
        """Return entries to their old places in the queue, once the log has recorded their return."""
        if on_its_way not in self.returning:
            return  # the queue was deleted
        self.returning.remove(on_its_way)
        for _, piece in on_its_way.pieces:
            self.count -= len(piece.seqs)
            self.bytes -= piece.bytes
        self.queue.return_leased(on_its_way.pieces)
        self.queue.broker.end_turn()

    def _settle(self, rows: array[int], slots: array[int]) -> None:
        """Settle entries by their positions."""
        queue = self.queue
        if rows:
            queue.log.settle_range(queue.id, 0, queue.next_seq - 1, (), rows, slots)

    def forget(self) -> None:
        """Release everything when the queue is deleted."""
        queue = self.queue
        for lease in self.by_name.values():
            lease.end_readers()
            batches = list(lease.batches.values())
            if lease.builder is not None:
                batches.append(lease.builder.batch)
                lease.builder.fail(NotFound(f"{queue} was deleted"))
            for batch in batches:
                self._settle(*batch.positions())
            lease.forget(queue)
        for on_its_way in self.returning:
            for _, piece in on_its_way.pieces:
                self._settle(piece.rows, piece.slots)
        self.returning = []
        self.by_name = {}
        self.count = self.bytes = 0

    # Readers

    @staticmethod
    def check_reader(queue: Queue, arguments: FieldTable, no_ack: bool) -> None:
        """Check the arguments of a reader.

        Raises:
            NotFound: The lease or the batch does not exist.
            PreconditionFailed: The epoch is old, the slice is out of range, or the consumer wants to acknowledge.
        """
        if not no_ack:
            raise PreconditionFailed(
                f"'{LEASE}' of queue '{queue.name}' is read without acknowledgements: consume with no-ack"
            )
        part = Slice(arguments)
        Leases.of(queue, part.lease)._batch_of(part)

    def add_reader(self, consumer: Consumer) -> None:
        """Add a reader. Its first delivery waits until the log has a record that the batch is read."""
        queue = self.queue
        part = Slice(consumer.arguments)
        batch = self._batch_of(part)
        lease = self.by_name[part.lease]
        reader = Reader(queue, lease, batch, consumer, part)
        lease.readers.append(reader)
        lease.call(queue)
        if not batch.read:
            batch.read = True
            lease.write_batch(queue, batch)
        if batch.written > queue.log.committed:
            queue.log.wait(reader)
        else:
            reader.ready = True
        queue.activate()

    def remove_reader(self, consumer: Consumer) -> None:
        for lease in self.by_name.values():
            if any(reader.consumer is consumer for reader in lease.readers):
                lease.readers = [reader for reader in lease.readers if reader.consumer is not consumer]
                lease.call(self.queue)

    def serve(self) -> None:
        """Deliver to the readers that have credit."""
        for lease in self.by_name.values():
            for reader in list(lease.readers):
                reader.serve()

    def is_reading(self, consumer: Consumer) -> bool:
        """Return whether entries for this reader are still to be loaded."""
        return any(
            reader.asked < reader.end or reader.loading
            for lease in self.by_name.values()
            for reader in lease.readers
            if reader.consumer is consumer
        )

    def _batch_of(self, part: Slice) -> Batch:
        """Return the batch of a slice. Raises NotFound, or PreconditionFailed for an old epoch or a range outside of it."""
        lease = self.find_current(part.lease, part.epoch)
        batch = lease.find(part.batch)
        if part.first + part.count > batch.count:
            raise PreconditionFailed(
                f"batch {batch.number} of {lease} has {batch.count} messages: a slice of {part.count}"
                f" from index {part.first} is out of range"
            )
        return batch


def _no_lease(queue: Queue, name: str) -> NotFound:
    """Return the error for a lease that does not exist."""
    return NotFound(f"lease '{name}' of {queue} does not exist: it was released or never acquired")
