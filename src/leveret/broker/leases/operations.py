"""What can be done with leases. Callers have checked permissions, and tell nobody of a change before it is on disk: those
that return something have written to the log, `plan` calls back itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.arguments import STREAM
from leveret.broker.errors import AccessRefused, PreconditionFailed, ResourceError
from leveret.broker.leases.batch import Batch
from leveret.broker.leases.batch_builder import BatchBuilder, Done, Written
from leveret.broker.leases.lease import Lease, Leases, place_of, settle
from leveret.broker.leases.returning import return_pieces

if TYPE_CHECKING:
    from leveret.broker.queues.base import Queue

MAX_NAME_BYTES: Final = 255
MAX_MESSAGES: Final = 10_000_000
# Leases of one queue, and batches of one lease that are not committed: each costs memory, however few its messages.
MAX_LEASES: Final = 1000
MAX_BATCHES: Final = 1000
MAX_BYTES: Final = (1 << 63) - 1
# Messages of a batch that may go back to the queue when it is committed.
MAX_RETURNED: int = 10_000  # not Final: tests lower it


def acquire(queue: Queue, name: str, timeout: float | None = None) -> Lease:
    """Take a lease of a queue over, or make it. Its epoch is new: whoever had it before is refused from now on, and what
    reads for it ends. `timeout`: seconds without a call after which batches that nobody has read go back to the queue.

    PreconditionFailed where the queue is of a kind that has no leases; AccessRefused while a consumer has it for itself;
    ResourceError where it has its most leases.
    """
    _check_queue(queue)
    if not 0 < len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES:
        raise PreconditionFailed(f"invalid name of a lease: it takes 1 to {MAX_NAME_BYTES} bytes of UTF-8")
    if timeout is not None and not timeout > 0:
        raise PreconditionFailed(f"invalid timeout {timeout} of lease '{name}': more than 0 seconds are expected, or none")
    leases = queue.leases
    if leases is None:
        leases = queue.leases = Leases(queue)
    lease = leases.by_name.get(name)
    now = queue.broker.timers.now()
    if lease is None:
        if len(leases.by_name) >= MAX_LEASES:
            raise ResourceError(f"{place_of(queue)} has its most leases, {MAX_LEASES}: release some that nobody uses")
        lease = leases.by_name[name] = Lease(queue, name, now)
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


def lease_batch(queue: Queue, name: str, epoch: int, after: int, max_messages: int, max_bytes: int | None,
                done: Done) -> None:
    """Make the batch that follows the one of number `after`: of at most so many messages with bodies of so many bytes
    together, but at least one message where any is ready. The same call again gives the same batch. `done` is called with
    the batch once it is on disk, with None where nothing is ready, or with the error that the queue was deleted.

    NotFound; PreconditionFailed: an older epoch, batches that are committed, a batch that is being made; ResourceError
    where the lease has its most batches.
    """
    lease = find(queue, name, epoch)
    if after < lease.committed:
        raise PreconditionFailed(f"{lease} has committed batch {lease.committed}: nothing is planned after batch {after}")
    if not 0 < max_messages <= MAX_MESSAGES:
        raise PreconditionFailed(f"invalid max_messages {max_messages}: 1 to {MAX_MESSAGES} are expected")
    if max_bytes is not None and max_bytes < 1:
        raise PreconditionFailed(f"invalid max_octets {max_bytes}: more than 0 are expected, or none")
    lease.call(queue)
    batch = next((batch for number, batch in lease.batches.items() if number > after), None)
    if batch is not None:
        if batch.written > queue.log.committed:
            queue.log.wait(Written(batch, done))
        else:
            done(batch, None)
        return
    making = lease.builder
    if making is not None:
        if after >= making.batch.number:
            raise PreconditionFailed(f"batch {making.batch.number} of {lease} is still being made: nothing is planned after"
                                     f" batch {after}")
        making.waiting.append(done)
        return
    if len(lease.batches) >= MAX_BATCHES:
        raise ResourceError(f"{lease} has its most planned batches, {MAX_BATCHES}: commit the first ones")
    _check_alone(queue)
    # Consumers that wait for messages come first, as before a `get`.
    if queue.active and queue.expiring:
        queue.drain()
    else:
        queue.catch_up()
    lease.builder = BatchBuilder(queue, lease, after + 1, max_messages, MAX_BYTES if max_bytes is None else max_bytes)
    lease.builder.waiting.append(done)
    lease.builder.resume()


def commit(queue: Queue, name: str, epoch: int, number: int, back: Iterable[int] = ()) -> int:
    """All messages of a batch are settled, but those of the indices `back`, which go back to the queue as redelivered.
    Returns the number of the last batch that is committed: the same, or a later one where this was done before.

    NotFound, PreconditionFailed: an older epoch, a batch that is not planned or not the first one, an index beyond it.
    """
    lease = find(queue, name, epoch)
    if number <= lease.committed:
        lease.call(queue)
        return lease.committed
    batch = lease.find(number)
    first = next(iter(lease.batches))
    if number != first:
        raise PreconditionFailed(f"batch {first} of {lease} comes before batch {number}: batches are committed in order")
    indexes = sorted(set(back))
    if len(indexes) > MAX_RETURNED:
        raise PreconditionFailed(f"{len(indexes)} messages of batch {number} are to go back to the queue; at most"
                                 f" {MAX_RETURNED} may: plan smaller batches")
    if indexes and not 0 <= indexes[0] <= indexes[-1] < batch.count:
        wrong = indexes[0] if indexes[0] < 0 else indexes[-1]
        raise PreconditionFailed(f"batch {number} of {lease} has {batch.count} messages: there is none of index {wrong}")
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
    return_pieces(queue, returned, returned)
    lease.call(queue)
    return number


def release(queue: Queue, name: str) -> int:
    """The lease is over: everything planned goes back to the queue, and its name is free. Returns how many messages."""
    leases = queue.leases
    if leases is None:
        leases = Leases(queue)
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
        leases = Leases(queue)
    lease = leases.find(name)
    lease.check_epoch(epoch)
    return lease


def describe(lease: Lease) -> dict[str, Any]:
    """The figures of a lease. Ages in seconds: since it was acquired, since it was used last, since a batch was planned."""
    queue = lease.queue
    assert queue is not None
    now = queue.broker.timers.now()
    batches = list(lease.batches.values())
    return {
        "queue": queue.name, "lease": lease.name, "epoch": lease.epoch, "committed": lease.committed,
        "timeout": lease.timeout / 1000 if lease.timeout else None, "age": _age(now, lease.since),
        "idle": 0.0 if lease.readers else _age(now, lease.called_at), "readers": len(lease.readers),
        "messages": sum(batch.count for batch in batches), "octets": sum(batch.bytes for batch in batches),
        "batches": [{**summary(batch), "read": batch.read, "age": _age(now, batch.created_at)} for batch in batches],
    }


def summary(batch: Batch) -> dict[str, int]:
    """What the answer to a plan says."""
    return {"batch": batch.number, "count": batch.count, "octets": batch.bytes}


def _age(now: int, then: int) -> float:
    return max(now - then, 0) / 1000


def _check_queue(queue: Queue) -> None:
    settings = queue.settings
    reason = ""
    if settings.type == STREAM:
        reason = "a stream, which its readers do not empty: it is read by offsets"
    elif not queue.durable:
        reason = "not durable: what is leased must be there after a restart"
    elif queue.exclusive_owner is not None:
        reason = "exclusive, and goes with its connection"
    elif queue.auto_delete:
        reason = "auto-delete, and goes with its last consumer"
    elif settings.single_active_consumer:
        reason = "for a single active consumer: nobody takes messages beside it"
    if reason:
        raise PreconditionFailed(f"{place_of(queue)} has no leases: it is {reason}")
    _check_alone(queue)


def _check_alone(queue: Queue) -> None:
    if queue.is_exclusive():
        raise AccessRefused(f"{place_of(queue)} in exclusive use")
