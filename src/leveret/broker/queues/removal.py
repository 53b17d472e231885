"""Purge and delete. Both take effect at once; entries are removed from the log and from memory in steps."""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker import metadata, settlement
from leveret.broker.log import RecoveredQueue
from leveret.broker.message import ACQUIRED

if TYPE_CHECKING:
    from leveret.broker.consumer import Consumer
    from leveret.broker.log import Log, Recovery
    from leveret.broker.queues.classic.backlog import Backlog
    from leveret.broker.queues.classic.delayed import Delays
    from leveret.broker.queues.classic.queue import ClassicQueue
    from leveret.broker.queues.queue import Queue

logger = logging.getLogger("leveret.broker")

# Entries that are settled between two checks of the budget.
PIECE: Final = 512


def purge(queue: ClassicQueue) -> int:
    """Drop all ready and delayed entries; acquired ones stay (0-9-1 queue.purge.02). Return their number.

    Clients see the effect at once; the log and the memory follow in steps.
    """
    count = queue.ready_count + queue.delayed_count
    delays = queue.delays
    if delays is not None:
        delays.clear(queue)
        queue.delays = None
    queue.limits.end_overflow(queue)
    refusals = queue.ready.refusals
    backlogs = queue.ready.reset()
    queue.broker.jobs.removals.add(_take_apart(queue, backlogs, delays, refusals))
    queue.ready.notify_waiting()
    return count


def _take_apart(
    queue: ClassicQueue, backlogs: list[Backlog], delays: Delays | None, refusals: dict[int, list[object]]
) -> Iterator[int]:
    """Settle entries that their queue has dropped, and release their memory."""
    overflow = queue.broker.overflow
    for backlog in backlogs:
        for group in (backlog.head, backlog.young or deque()):
            while group:
                rows: array[int] = array("Q")
                slots: array[int] = array("I")
                taken = 0
                highest = 0
                while group and taken < PIECE:
                    entry = group.popleft()
                    taken += 1
                    settlement.archive(entry)
                    row = entry.row
                    if row is None:
                        continue
                    if row.log is overflow:
                        overflow.settle(entry)
                    else:
                        rows.append(row.id)
                        slots.append(entry.slot)
                        highest = max(highest, entry.seq)
                if rows:
                    queue.log.settle_range(queue.id, 0, highest, (), rows, slots)
                yield taken
        while backlog.chunks:
            chunk = backlog.chunks.popleft()
            if not chunk.overflow:
                queue.log.settle_range(queue.id, 0, chunk.seqs[-1], (), chunk.rows, chunk.slots)
            elif overflow is not None:
                overflow.settle_range(queue.id, chunk.seqs[0], chunk.seqs[-1], (), chunk.rows, chunk.slots)
            yield len(chunk.seqs)
    if delays is not None:
        for seq, row_id, slot, outside in delays.positions():
            if not outside:
                queue.log.settle_range(queue.id, 0, seq, (), (row_id,), (slot,))
            elif overflow is not None:
                overflow.settle_range(queue.id, seq, seq, (), (row_id,), (slot,))
            yield 3
        while delays.recent:
            delays.recent.popitem()
            yield 1
    while refusals:
        refusals.popitem()
        yield 1


def delete(queue: ClassicQueue) -> int:
    """Delete a queue and its entries; return the number of ready entries."""
    _forget_leases(queue)  # before a waiting lease sees the queue empty
    count = purge(queue)
    queue.detach()
    removals = queue.broker.jobs.removals
    removals.add(_forget_last(queue))
    if queue.stored and removals.pending:
        queue.leftover = True
        queue.log.put(metadata.REMOVAL, _key(queue.vhost.name, queue.id), b"")
    return count


def _forget_last(queue: ClassicQueue) -> Iterator[int]:
    forget(queue)
    if queue.leftover:
        queue.log.put(metadata.REMOVAL, _key(queue.vhost.name, queue.id), None)
    yield 1


def _key(vhost: str, queue_id: int) -> str:
    return metadata.make_key(vhost, str(queue_id))


def take_leftovers(recovery: Recovery) -> dict[str, RecoveredQueue]:
    """Return the recovered entries of queues whose removal was interrupted, by the keys of their records."""
    return {
        key: recovery.queues.pop(_id_of(key), RecoveredQueue())
        for kind, key in recovery.metadata
        if kind == metadata.REMOVAL
    }


def finish(log: Log, key: str, left: RecoveredQueue) -> Iterator[int]:
    """Remove the recovered entries of a deleted queue."""
    queue_id = _id_of(key)
    seqs = left.seqs
    for at in range(0, len(seqs), PIECE):
        end = min(at + PIECE, len(seqs))
        log.settle_range(queue_id, seqs[at], seqs[end - 1], (), left.rows[at:end], left.slots[at:end])
        yield end - at
    log.forget(queue_id)
    log.put(metadata.REMOVAL, key, None)
    yield 1


def _id_of(key: str) -> int:
    return int(metadata.split_key(key)[1])


def _forget_leases(queue: Queue) -> None:
    leases = queue.leases
    if leases is not None:
        leases.forget()
        queue.leases = None


def detach(queue: Queue, consumers: list[Consumer]) -> None:
    """Detach the consumers of a deleted queue, and settle its acquired entries."""
    queue.deleted = True
    queue.exclusive_owner = None  # a remaining reference to the queue must not keep the connection
    if queue.unacked:
        queue.broker.jobs.removals.add(_settle_held(queue))
    _forget_leases(queue)
    for consumer in consumers:
        consumer.left = True
    consumers.reverse()
    queue.broker.jobs.removals.add(_notify_deleted(consumers))


def _settle_held(queue: Queue) -> Iterator[int]:
    """Settle the acquired entries. The queue settles those that are returned meanwhile."""
    for holder in list(queue.broker.holders):
        entries = holder.all_held()
        yield 1 + (len(entries) >> 7)
        for at in range(0, len(entries), PIECE):
            for entry in entries[at : at + PIECE]:
                if entry.queue is queue and entry.state == ACQUIRED:
                    row = entry.row
                    if row is not None:
                        row.log.settle(entry)
                        entry.row = None
            yield PIECE >> 3


def _notify_deleted(consumers: list[Consumer]) -> Iterator[int]:
    """Notify the consumers of a deleted queue."""
    while consumers:
        consumer = consumers.pop()
        try:
            consumer.queue_deleted()
        except Exception:  # the others must be notified
            logger.exception("cannot notify a consumer of the deleted queue '%s'", consumer.queue.name)
        yield 3


def forget(queue: Queue) -> None:
    """Remove the record of a deleted queue, which has no entries left."""
    if queue.stored:
        queue.log.forget(queue.id)
    overflow = queue.broker.overflow
    if overflow is not None:
        overflow.forget(queue.id)
    queue.broker.paging.discard(queue)
