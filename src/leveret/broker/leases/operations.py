"""Operations on leases.

The caller has checked permissions, and reports a change only when it is on disk: operations that return a value have
written to the log, and `lease_batch` calls `done` after the commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from leveret.broker.errors import AccessRefused, PreconditionFailed, ResourceError
from leveret.broker.leases.batch_builder import BatchBuilder, Done, Written
from leveret.broker.leases.lease import Lease, no_lease, place_of, settle
from leveret.broker.leases.returning import return_pieces
from leveret.broker.queues import capabilities

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue

MAX_NAME_BYTES: Final = 255
MAX_MESSAGES: Final = 10_000_000
# Leases of one queue, and uncommitted batches of one lease. Each takes memory, however few its messages.
MAX_LEASES: Final = 1000
MAX_BATCHES: Final = 1000
MAX_BYTES: Final = (1 << 63) - 1
# Messages of a batch that its commit may return to the queue.
MAX_RETURNED: int = 10_000  # not Final: tests lower it


def acquire(queue: Queue, name: str, timeout: float | None = None) -> Lease:
    """Create a lease of a queue, or take it over. Operations with an older epoch are refused, and current readers end.

    Args:

        queue: The queue.
        name: The name of the lease.
        timeout: Seconds without a call after which unread batches return to the queue.

    Raises:

        PreconditionFailed: The queue does not support leases.
        AccessRefused: The queue has an exclusive consumer.
        ResourceError: The queue has the maximum number of leases.
    """
    _check_queue(queue)
    if not 0 < len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES:
        raise PreconditionFailed(f"invalid lease name: expected 1 to {MAX_NAME_BYTES} bytes of UTF-8")
    if timeout is not None and not timeout > 0:
        raise PreconditionFailed(f"invalid timeout {timeout} of lease '{name}': expected more than 0 seconds, or none")
    leases = queue.make_leases()
    lease = leases.by_name.get(name)
    now = queue.broker.timers.now()
    if lease is None:
        if len(leases.by_name) >= MAX_LEASES:
            raise ResourceError(f"{place_of(queue)} has the maximum of {MAX_LEASES} leases: release unused ones")
        lease = leases.by_name[name] = Lease(leases.queue, name, now)
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


def lease_batch(
    queue: Queue, name: str, epoch: int, after: int, max_messages: int, max_bytes: int | None, done: Done
) -> None:
    """Lease the batch that follows batch `after`. Repeating the call gives the same batch.

    A batch has at most `max_messages` messages whose bodies have at most `max_bytes` bytes in total, but at least one
    message if any is ready. `done` is called with the batch once it is on disk, with None if no message is ready, or
    with an error if the queue is deleted.

    Raises:

        NotFound: The lease does not exist.
        PreconditionFailed: The epoch is old, the batch is committed, or an earlier batch is still being created.
        ResourceError: The lease has the maximum number of uncommitted batches.
    """
    lease = find(queue, name, epoch)
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
    _check_alone(queue)
    source = lease.queue
    assert source is not None
    source.serve_consumers()  # waiting consumers take precedence, as with `get`
    lease.builder = BatchBuilder(source, lease, after + 1, max_messages, MAX_BYTES if max_bytes is None else max_bytes)
    lease.builder.waiting.append(done)
    lease.builder.resume()


def commit(queue: Queue, name: str, epoch: int, number: int, back: Iterable[int] = ()) -> int:
    """Settle the messages of a batch, except those with the indices `back`, which return to the queue as redelivered.

    Returns the number of the last committed batch, which is a later one if the commit is repeated.

    Raises:

        NotFound: The lease or the batch does not exist.
        PreconditionFailed: The epoch is old, the batch is not the first one, or an index is out of range.
    """
    lease = find(queue, name, epoch)
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
    leases = queue.leases
    assert leases is not None
    lease.end_readers(batch)
    returned = batch.pick(indexes)
    settle(queue, *batch.positions(indexes))
    settled = batch.count - len(indexes)
    queue.settled += settled
    if queue.watch is not None:
        queue.watch.committed(settled)
    leases.count -= settled
    leases.bytes -= batch.bytes - sum(piece.bytes for _, piece in returned)
    del lease.batches[number]
    lease.committed = number
    lease.forget_batch(queue, number)
    lease.write(queue)
    return_pieces(leases.queue, returned, returned)
    lease.call(queue)
    return number


def release(queue: Queue, name: str) -> int:
    """Release a lease: its messages return to the queue, and its name is free. Returns the number of messages."""
    leases = queue.leases
    if leases is None:
        raise no_lease(queue, name)
    lease = leases.find(name)
    if lease.builder is not None:
        lease.builder.finish()
    lease.end_readers()
    batches = list(lease.batches.values())
    leases.take_back(lease, batches)
    del leases.by_name[name]
    lease.forget(queue)
    return sum(batch.count for batch in batches)


def find(queue: Queue, name: str, epoch: int) -> Lease:
    """Return a lease of the queue. Raises NotFound, or PreconditionFailed for an older epoch."""
    leases = queue.leases
    if leases is None:
        raise no_lease(queue, name)
    lease = leases.find(name)
    lease.check_epoch(epoch)
    return lease


def _check_queue(queue: Queue) -> None:
    settings = queue.settings
    reason = ""
    if not queue.supports(capabilities.LEASE):
        reason = queue.unsupported[capabilities.LEASE]
    elif not queue.durable:
        reason = "not durable, and leased messages must survive a restart"
    elif queue.exclusive_owner is not None:
        reason = "exclusive, and deleted with its connection"
    elif queue.auto_delete:
        reason = "auto-delete, and deleted with its last consumer"
    elif settings.single_active_consumer:
        reason = "restricted to a single active consumer"
    if reason:
        raise PreconditionFailed(f"{place_of(queue)} does not support leases: it is {reason}")
    _check_alone(queue)


def _check_alone(queue: Queue) -> None:
    if queue.is_exclusive():
        raise AccessRefused(f"{place_of(queue)} in exclusive use")
