"""lease.*: numbered batches of a queue, which are read and settled as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta, field

from leveret.broker.errors import BrokerError, ResourceError
from leveret.broker.jobs import STEP_WORK, Job, Jobs
from leveret.broker.leases import operations
from leveret.broker.leases.batch import Batch
from leveret.broker.leases.lease import Lease
from leveret.management.calls import plain
from leveret.management.requests.operation import Answer, Arguments, Asked, Fields, Later, Operation

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue

Number = Annotated[int, Meta(ge=0, le=(1 << 62))]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
# More than three years.
Seconds = Annotated[float, Meta(gt=0, le=1e8)]


# Maximum number of leases and batches in a reply; units of work to describe each.
MAX_LISTED: Final = 10_000
LEASE_WORK: Final = 8
BATCH_WORK: Final = 3


class OfQueue(Arguments, kw_only=True):
    queue: str | None = None


class OfLease(Arguments, kw_only=True):
    queue: str
    lease: Name


class Acquire(OfLease, kw_only=True):
    timeout: Seconds | None = None


class LeaseBatch(OfLease, kw_only=True):
    epoch: Number
    after: Number
    max_messages: Annotated[int, Meta(ge=1, le=operations.MAX_MESSAGES)]
    max_octets: Annotated[int, Meta(ge=1, le=(1 << 62))] | None = None


class Commit(OfLease, kw_only=True):
    """`except` has the indices of messages to return to the queue."""

    epoch: Number
    batch: Number
    returned: list[Number] = field(default_factory=list, name="except")


def _find(asked: Asked, name: str) -> Queue:
    asked.check("read", name)
    return asked.vhost.queue(name, asked.session)


def acquire(asked: Asked, arguments: Acquire) -> Fields:
    """Create or take over a lease. Returns its uncommitted batches."""
    lease = operations.acquire(_find(asked, arguments.queue), arguments.lease, arguments.timeout)
    return {"epoch": lease.epoch, "committed": lease.committed,
            "planned": [operations.summary(batch) for batch in lease.batches.values()]}


def lease_batch(asked: Asked, arguments: LeaseBatch) -> Answer:
    """Lease the batch after a batch; repeated calls return the same one. `count` is 0 if no messages are ready."""
    later = Later()

    def done(batch: Batch | None, error: BrokerError | None) -> None:
        if error is not None:
            later.fail(error)
        elif batch is None:
            later.answer({"batch": arguments.after, "count": 0, "octets": 0})
        else:
            later.answer(dict(operations.summary(batch)))

    operations.lease_batch(_find(asked, arguments.queue), arguments.lease, arguments.epoch, arguments.after,
                    arguments.max_messages, arguments.max_octets, done)
    return later


def commit(asked: Asked, arguments: Commit) -> Fields:
    """Settle a batch. Returns the number of the last settled batch."""
    return {"committed": operations.commit(_find(asked, arguments.queue), arguments.lease, arguments.epoch,
                                           arguments.batch, arguments.returned)}


def release(asked: Asked, arguments: OfLease) -> Fields:
    """Return all leased messages to the queue. Returns their number."""
    return {"messages": operations.release(_find(asked, arguments.queue), arguments.lease)}


class Listing(Job):
    """Describes leases, limited by the work of one turn per step, and resolves `later` with them."""

    def __init__(self, jobs: Jobs, leases: list[Lease], later: Later) -> None:
        super().__init__(jobs)
        self.leases = leases
        self.later = later
        self.at = 0
        self.described: list[Fields] = []

    def step(self) -> bool:
        work = 0
        while self.at < len(self.leases) and work < STEP_WORK:
            lease = self.leases[self.at]
            self.at += 1
            work += cost_of(lease)
            if lease.queue is not None:  # it may have been released meanwhile
                self.described.append(plain(operations.describe(lease)))
        self.jobs.broker.work += work
        if self.at < len(self.leases):
            return True
        self.later.answer({"leases": self.described})
        return False


def cost_of(lease: Lease) -> int:
    """Return the units of work to describe a lease."""
    return LEASE_WORK + BATCH_WORK * len(lease.batches)


def list_leases(asked: Asked, arguments: OfQueue) -> Later:
    """List the leases of a queue, or of all queues that the user may read. Raises `ResourceError` if they are too many."""
    if arguments.queue is not None:
        found = [_find(asked, arguments.queue)]
    else:
        found = [queue for queue in asked.vhost.queues.values()
                 if queue.leases is not None and asked.may("read", queue.name)]
    leases = [lease for queue in found if queue.leases is not None for lease in queue.leases.by_name.values()]
    count = len(leases) + sum(len(lease.batches) for lease in leases)
    if count > MAX_LISTED:
        raise ResourceError(f"{count} leases and batches exceed the maximum of {MAX_LISTED} in a reply: name a queue, or"
                            " list them with `leveret leases`")
    later = Later()
    listing = Listing(asked.vhost.broker.jobs, leases, later)
    if listing.step():
        listing.resume()
    return later


OPERATIONS = {
    "lease.acquire": Operation(acquire, Acquire),
    "lease.plan": Operation(lease_batch, LeaseBatch),
    "lease.commit": Operation(commit, Commit),
    "lease.release": Operation(release, OfLease),
    "lease.list": Operation(list_leases, OfQueue),
}
