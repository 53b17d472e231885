"""Helpers for leases in the broker core: operations that run until their reply, and readers."""

from __future__ import annotations

from typing import Any

from leveret.broker.bodies import whole
from leveret.broker.consumer import Consumer
from leveret.broker.errors import BrokerError
from leveret.broker.leases.batch import Batch
from leveret.broker.leases.leases import Leases
from leveret.broker.message import Entry
from leveret.broker.queues.queue import Queue
from tests.broker.support import World, text_of


class LeaseReader(Consumer):
    """A consumer of a slice of a batch, with credit for `credit` entries, -1 for no limit."""

    def __init__(
        self,
        queue: Queue,
        lease: str,
        epoch: int,
        batch: int,
        first: int,
        count: int,
        credit: int = -1,
        packed: bool = False,
    ) -> None:
        super().__init__(
            queue,
            "reader",
            None,
            None,
            True,
            False,
            0,
            {
                "x-lease": lease,
                "x-lease-epoch": epoch,
                "x-lease-batch": batch,
                "x-lease-first": first,
                "x-lease-count": count,
                "x-packed": packed,
            },
        )
        self.packs: list[bytes] = []
        self.credit = credit
        self.bodies: list[str] = []
        self.offsets: list[int] = []
        self.redelivered: list[bool] = []
        self.gone = False
        Leases.check_reader(queue, self.arguments, True)
        queue.add_consumer(self)

    def has_credit_for(self, size: int) -> bool:
        return self.credit != 0

    def deliver(self, entry: Entry) -> None:
        if self.credit > 0:
            self.credit -= 1
        if self.arguments["x-packed"]:
            self.packs.append(whole(entry.message.body))
            return
        assert entry.overlay is not None and entry.overlay.shows_offset
        self.bodies.append(text_of(entry))
        self.offsets.append(entry.seq - 1)
        self.redelivered.append(entry.acquired_count > 1)

    def give(self, credit: int) -> None:
        self.credit = credit
        self.wake()

    def queue_deleted(self) -> None:
        self.gone = True


class Answer:
    """The callback of a lease request, with its result."""

    def __init__(self) -> None:
        self.told = False
        self.batch: Batch | None = None
        self.error: BrokerError | None = None

    def __call__(self, batch: Batch | None, error: BrokerError | None) -> None:
        assert not self.told
        self.told = True
        self.batch = batch
        self.error = error


def ask(queue: Queue, lease: str, epoch: int, after: int, most: int, max_bytes: int | None = None) -> Answer:
    """Begin a plan."""
    answer = Answer()
    Leases.of(queue, lease).lease_batch(lease, epoch, after, most, max_bytes, answer)
    return answer


def plan(
    world: World, queue: Queue, lease: str, epoch: int, after: int, most: int, max_bytes: int | None = None
) -> dict[str, int] | None:
    """Lease a batch, and run until the reply arrives."""
    answer = ask(queue, lease, epoch, after, most, max_bytes)
    world.run()
    assert answer.told and answer.error is None
    batch = answer.batch
    return None if batch is None else {"batch": batch.number, "count": batch.count, "octets": batch.bytes}


def read(
    world: World, queue: Queue, lease: str, epoch: int, batch: int, first: int = 0, count: int | None = None
) -> LeaseReader:
    """Read a slice of a batch, all of it by default."""
    assert queue.leases is not None
    if count is None:
        count = queue.leases.find(lease).find(batch).count
    reader = LeaseReader(queue, lease, epoch, batch, first, count)
    world.run()
    queue.remove_consumer(reader)
    return reader


def restart(world: World, clean: bool = False, **options: Any) -> World:
    """Return another broker on the committed log of this one."""
    world.run()
    log, recovery = world.held_log.recovery(clean)
    return World(log=log, recovery=recovery, time=world.clock.time, **options)
