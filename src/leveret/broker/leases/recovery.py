"""Recovery of leases: leased positions are removed from the recovered state before the queues get it."""

from __future__ import annotations

import logging
from bisect import bisect_left
from typing import TYPE_CHECKING

from leveret.broker import metadata
from leveret.broker.leases.batch import Batch, decode_runs
from leveret.broker.leases.lease import Lease
from leveret.broker.leases.leases import Leases
from leveret.broker.log import RecoveredQueue, Recovery
from leveret.broker.metadata import Record
from leveret.broker.queues.classic.backlog import CHUNK_ENTRIES, recovered_chunk

if TYPE_CHECKING:
    from leveret.broker.log import Log
    from leveret.broker.queues.classic.queue import ClassicQueue
    from leveret.broker.queues.classic.ready_list import ReadyList

logger = logging.getLogger("leveret.broker")


class RestoredBatch:
    """A batch as stored in the log. The priorities of its pieces are as published."""

    __slots__ = ("lease", "number", "runs", "value")

    def __init__(self, lease: str, number: int, value: Record) -> None:
        self.lease = lease
        self.number = number
        self.value = value
        self.runs = list(decode_runs(value["runs"]))

    def restore(self, queue: ClassicQueue, recovered: RecoveredQueue, taken: list[tuple[int, int]]) -> Batch:
        """Return the batch with its entries of a recovered queue. Their spans of positions are added to `taken`."""
        value = self.value
        batch = Batch(self.number, value["mark"], value["planned_at"])
        batch.read = value["read"]
        seqs = recovered.seqs
        for first, count in self.runs:
            at = bisect_left(seqs, first)
            end = at
            if at + count <= len(seqs) and seqs[at + count - 1] == first + count - 1:
                end = at + count
            else:
                while end < len(seqs) and seqs[end] < first + count:
                    end += 1
            if end > at:
                _take(batch, queue.ready, recovered, at, end)
                taken.append((at, end))
        if batch.count != value["count"]:
            logger.error(
                "batch %d of lease '%s' of queue '%s' had %d messages, but %d were recovered",
                self.number,
                self.lease,
                queue.name,
                value["count"],
                batch.count,
            )
        return batch


class Restoring:
    """The records of leases by the id of their queue, during recovery."""

    def __init__(self, recovery: Recovery) -> None:
        self.recovery = recovery
        self.leases: dict[int, dict[str, metadata.Record]] = {}
        self.batches: dict[int, list[RestoredBatch]] = {}
        self.keys: dict[int, list[tuple[str, str]]] = {}
        for (kind, key), value in recovery.metadata.items():
            if kind not in (metadata.LEASE, metadata.LEASE_BATCH):
                continue
            names = metadata.split_key(key)
            queue_id = int(names[0])
            self.keys.setdefault(queue_id, []).append((kind, key))
            if kind == metadata.LEASE:
                self.leases.setdefault(queue_id, {})[names[1]] = metadata.unpack(value)
            else:
                self.batches.setdefault(queue_id, []).append(RestoredBatch(names[1], int(names[2]), metadata.unpack(value)))

    def restore(self, queue: ClassicQueue) -> Leases | None:
        """Return the leases of a queue and their batches, whose entries are removed from those of the queue."""
        self.keys.pop(queue.id, None)
        found = self.leases.get(queue.id)
        if found is None:
            return None
        leases = Leases(queue)
        now = queue.broker.timers.now()
        for name, value in found.items():
            lease = leases.by_name[name] = Lease(queue, name, now)
            lease.epoch = value["epoch"]
            lease.committed = value["committed"]
            lease.timeout = value["timeout"]
            lease.since = value["since"]
        recovered = self.recovery.queues.get(queue.id, RecoveredQueue())
        taken: list[tuple[int, int]] = []
        for stored in sorted(self.batches.get(queue.id, ()), key=_number_of):
            batch = stored.restore(queue, recovered, taken)
            leases.by_name[stored.lease].batches[batch.number] = batch
            leases.count_in(batch.count, batch.bytes)
        if taken:
            self.recovery.queues[queue.id] = without(recovered, taken)
        return leases

    def finish(self, log: Log) -> None:
        """Delete the records of leases whose queue does not exist. Called when all queues are recovered."""
        for keys in self.keys.values():
            for kind, key in keys:
                log.put(kind, key, None)


def _number_of(stored: RestoredBatch) -> int:
    return stored.number


def _take(batch: Batch, ready: ReadyList, recovered: RecoveredQueue, at: int, end: int) -> None:
    """Add recovered positions to a batch, in pieces of one priority."""
    while at < end:
        until = min(at + CHUNK_ENTRIES, end)
        priority = ready.priority_of(recovered.priorities[at])
        raw = recovered.priorities[at:until]
        if raw.count(raw[0]) != len(raw):
            same = 1
            while same < len(raw) and ready.priority_of(raw[same]) == priority:
                same += 1
            until = at + same
        batch.add_piece(priority, recovered_chunk(recovered, at, until))
        at = until


def without(recovered: RecoveredQueue, taken: list[tuple[int, int]]) -> RecoveredQueue:
    """Return the recovered state of a queue without these spans of positions."""
    left = RecoveredQueue()
    at = 0
    for begin, end in [*sorted(taken), (len(recovered.seqs), 0)]:
        left.seqs.extend(recovered.seqs[at:begin])
        left.rows.extend(recovered.rows[at:begin])
        left.slots.extend(recovered.slots[at:begin])
        left.priorities.extend(recovered.priorities[at:begin])
        left.sizes.extend(recovered.sizes[at:begin])
        at = end
    return left
