"""Leases: numbered batches of a queue that readers read and settle as a whole. Operators list and release leases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import UNSET, Meta, UnsetType, field

from leveret.broker.errors import INTERNAL_ERROR, BrokerError, NotFound, ResourceError
from leveret.broker.jobs import STEP_WORK, Job
from leveret.broker.leases.batch import Batch
from leveret.broker.leases.lease import Lease
from leveret.broker.leases.leases import MAX_MESSAGES, Leases
from leveret.management.operations.operation import (
    EACH,
    Context,
    Later,
    Operation,
    Operations,
    Right,
    VhostContext,
    VhostOperation,
    VhostOperations,
)
from leveret.management.structs import InVhost, Messages, NamedInVhost, Reply, Request

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue

Number = Annotated[int, Meta(ge=0, le=(1 << 62))]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
# The maximum is more than three years.
Seconds = Annotated[float, Meta(gt=0, le=1e8)]


# Maximum number of leases and batches in a reply, and units of work to describe each.
MAX_LISTED: Final = 10_000
LEASE_WORK: Final = 8
BATCH_WORK: Final = 3


class Release(NamedInVhost, kw_only=True):
    """Request to release a lease. `name` is the name of the queue."""

    lease: str


class OfQueue(Request, kw_only=True):
    queue: str | None = None


class OfLease(Request, kw_only=True):
    queue: str
    lease: Name


class LagOf(OfLease, kw_only=True):
    """Request for the lag of a reader that has read the batches up to `after`."""

    after: Number = 0


class Acquire(OfLease, kw_only=True):
    timeout: Seconds | None = None


class LeaseBatch(OfLease, kw_only=True):
    epoch: Number
    after: Number
    max_messages: Annotated[int, Meta(ge=1, le=MAX_MESSAGES)]
    max_octets: Annotated[int, Meta(ge=1, le=(1 << 62))] | None = None


class Commit(OfLease, kw_only=True):
    """Request to commit a batch. `except` lists the indices of messages to return to the queue."""

    epoch: Number
    batch: Number
    returned: list[Number] = field(default_factory=list, name="except")


class BatchSummary(Reply, kw_only=True):
    """A batch. `count` is 0 if no messages are ready."""

    batch: int
    count: int
    octets: int


class Acquired(Reply, kw_only=True):
    """An acquired lease. `planned` lists its uncommitted batches."""

    epoch: int
    committed: int
    planned: list[BatchSummary]


class Committed(Reply, kw_only=True):
    """The number of the last settled batch."""

    committed: int


class Lag(Reply, kw_only=True):
    """The ready messages of the queue, and those of the batches that the reader has not read.

    `seconds` is the minimum age of the oldest one, None if it is unknown.
    """

    lag: int
    bytes: int
    seconds: float | None


class BatchInfo(BatchSummary, kw_only=True):
    """A batch. `age` is the seconds since it was created."""

    read: bool
    age: float


class LeaseInfo(Reply, kw_only=True):
    """A lease. `age` and `idle` are the seconds since it was acquired and last used."""

    vhost: str | UnsetType = UNSET
    queue: str
    lease: str
    epoch: int
    committed: int
    timeout: float | None
    age: float
    idle: float
    readers: int
    messages: int
    octets: int
    batches: list[BatchInfo]


class LeaseList(Reply, kw_only=True):
    leases: list[LeaseInfo]


def describe(lease: Lease) -> LeaseInfo:
    """Describe a lease."""
    queue = lease.queue
    assert queue is not None
    now = queue.broker.timers.now()
    batches = list(lease.batches.values())
    return LeaseInfo(
        queue=queue.name,
        lease=lease.name,
        epoch=lease.epoch,
        committed=lease.committed,
        timeout=lease.timeout / 1000 if lease.timeout else None,
        age=_age(now, lease.since),
        idle=0.0 if lease.readers else _age(now, lease.called_at),
        readers=len(lease.readers),
        messages=sum(batch.count for batch in batches),
        octets=sum(batch.bytes for batch in batches),
        batches=[
            BatchInfo(
                batch=batch.number, count=batch.count, octets=batch.bytes, read=batch.read, age=_age(now, batch.created_at)
            )
            for batch in batches
        ],
    )


def _age(now: int, then: int) -> float:
    return max(now - then, 0) / 1000


def _summary(batch: Batch) -> BatchSummary:
    return BatchSummary(batch=batch.number, count=batch.count, octets=batch.bytes)


def list_all(context: Context, request: InVhost) -> Iterator[LeaseInfo | None]:
    """List leases."""
    for vhost in context.vhosts(request.vhost):
        for queue in vhost.queue_list.walk():
            yield None
            if queue.leases is not None:
                for lease in list(queue.leases.by_name.values()):
                    found = describe(lease)
                    found.vhost = vhost.name
                    yield found


def release_by_operator(context: Context, request: Release) -> Messages:
    """Release a lease: requeue its messages and return their number."""
    queue = context.vhost(request.vhost).find_queue(request.name)
    if queue is None:
        raise NotFound(f"no queue '{request.name}' in vhost '{request.vhost}'")
    return Messages(messages=Leases.of(queue, request.lease).release(request.lease))


def _find(context: VhostContext, name: str) -> Queue:
    return context.vhost.queue(name, context.session)


def _leases_of(context: VhostContext, request: OfLease) -> Leases:
    return Leases.of(_find(context, request.queue), request.lease)


def acquire(context: VhostContext, request: Acquire) -> Acquired:
    """Create or take over a lease, and return its uncommitted batches."""
    lease = _find(context, request.queue).make_leases().acquire(request.lease, request.timeout)
    return Acquired(
        epoch=lease.epoch, committed=lease.committed, planned=[_summary(batch) for batch in lease.batches.values()]
    )


def lease_batch(context: VhostContext, request: LeaseBatch) -> Later[BatchSummary]:
    """Lease the batch that follows a batch. Repeated requests return the same batch."""
    later = Later[BatchSummary]()

    def done(batch: Batch | None, error: BrokerError | None) -> None:
        if error is not None:
            later.fail(error)
        elif batch is None:
            later.answer(BatchSummary(batch=request.after, count=0, octets=0))
        else:
            later.answer(_summary(batch))

    _leases_of(context, request).lease_batch(
        request.lease,
        request.epoch,
        request.after,
        request.max_messages,
        request.max_octets,
        done,
    )
    return later


def commit(context: VhostContext, request: Commit) -> Committed:
    """Settle a batch."""
    return Committed(
        committed=_leases_of(context, request).commit(request.lease, request.epoch, request.batch, request.returned)
    )


def lag(context: VhostContext, request: LagOf) -> Lag:
    """Return the number, bytes and age of the messages that the reader of a lease has not read."""
    queue = _find(context, request.queue)
    lease = Leases.of(queue, request.lease).find(request.lease)
    batches = [batch for batch in lease.batches.values() if batch.number > request.after]
    now = queue.broker.timers.now()
    ages = [_age(now, batch.created_at) for batch in batches]
    if queue.ready_count:
        ready = None if context.ready_ages is None else context.ready_ages.age_of(queue)
        if ready is not None:
            ages.append(float(ready))
    else:
        ages.append(0.0)
    return Lag(
        lag=queue.ready_count + sum(batch.count for batch in batches),
        bytes=queue.ready_bytes + sum(batch.bytes for batch in batches),
        seconds=max(ages, default=None),
    )


def release(context: VhostContext, request: OfLease) -> Messages:
    """Release a lease: requeue its messages and return their number."""
    return Messages(messages=_leases_of(context, request).release(request.lease))


class Listing(Job):
    """Job that lists the leases of queues, with the work of one turn per step.

    Resolves `later` with the leases, or with a `ResourceError` if there are too many.
    """

    def __init__(self, context: VhostContext, queues: Iterator[Queue], later: Later[LeaseList]) -> None:
        super().__init__(context.vhost.broker.jobs)
        self.context = context
        self.queues = queues
        self.later = later
        self.leases: list[Lease] = []
        self.count = 0
        self.at = 0
        self.described: list[LeaseInfo] = []

    def step(self) -> bool:
        work = 0
        for queue in self.queues:
            if queue.leases is not None and self.context.may("read", queue.name):
                found = list(queue.leases.by_name.values())
                self.leases.extend(found)
                self.count += len(found) + sum(len(lease.batches) for lease in found)
                work += len(found)
            work += 1
            if work >= STEP_WORK:
                self.jobs.broker.work += work
                return True
        if self.count > MAX_LISTED:
            self.later.fail(
                ResourceError(
                    f"{self.count} leases and batches exceed the maximum of {MAX_LISTED} in a reply; expected a queue"
                    " name, or `leveret leases`"
                )
            )
            return False
        while self.at < len(self.leases) and work < STEP_WORK:
            lease = self.leases[self.at]
            self.at += 1
            work += cost_of(lease)
            if lease.queue is not None:  # it may have been released meanwhile
                self.described.append(describe(lease))
        self.jobs.broker.work += work
        if self.at < len(self.leases):
            return True
        self.later.answer(LeaseList(leases=self.described))
        return False

    def failed(self) -> None:
        self.later.fail(BrokerError(INTERNAL_ERROR))


def cost_of(lease: Lease) -> int:
    """Return the units of work to describe a lease."""
    return LEASE_WORK + BATCH_WORK * len(lease.batches)


def list_leases(context: VhostContext, request: OfQueue) -> Later[LeaseList]:
    """List the leases of a queue, or of all queues that the user may read. Fails with `ResourceError` if too many."""
    if request.queue is not None:
        context.check("read", request.queue)
        queues = iter([_find(context, request.queue)])
    else:
        queues = context.vhost.queue_list.walk()
    later = Later[LeaseList]()
    listing = Listing(context, queues, later)
    if listing.step():
        listing.resume()
    return later


READ: Final = Right("read", "queue")

OPERATIONS: Operations = {
    "leases.list": Operation(list_all, InVhost, LeaseInfo),
    "leases.release": Operation(release_by_operator, Release, Messages, changes=True),
}
VHOST_OPERATIONS: VhostOperations = {
    "lease.acquire": VhostOperation(acquire, Acquire, Acquired, READ),
    "lease.plan": VhostOperation(lease_batch, LeaseBatch, BatchSummary, READ),
    "lease.commit": VhostOperation(commit, Commit, Committed, READ),
    "lease.release": VhostOperation(release, OfLease, Messages, READ),
    "lease.lag": VhostOperation(lag, LagOf, Lag, READ),
    "lease.list": VhostOperation(list_leases, OfQueue, LeaseList, EACH),
}
