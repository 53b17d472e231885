"""The end of entries and of queues: purge and delete, as one record of the log each."""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING

from leveret.broker.message import ARCHIVED
from leveret.broker.queues import delayed, paging
from leveret.broker.queues.backlog import Backlog

if TYPE_CHECKING:
    from leveret.broker.queues.base import Queue


def purge(queue: Queue) -> int:
    """Drop all ready entries, and those that become so later; those with consumers stay (0-9-1 queue.purge.02). Returns how
    many."""
    count = queue.ready_count
    rows: array[int] = array("Q")
    slots: array[int] = array("I")
    highest = 0
    overflow = queue.broker.overflow
    for backlog in queue.all_levels():
        for group in (backlog.head, backlog.young or ()):
            for entry in group:
                entry.state = ARCHIVED
                row = entry.row
                if row is None:
                    continue
                if row.log is overflow:
                    overflow.settle(entry)
                else:
                    rows.append(row.id)
                    slots.append(entry.slot)
                    highest = max(highest, entry.seq)
        for chunk in backlog.chunks:
            if chunk.overflow:
                if overflow is not None:
                    overflow.settle_range(queue.id, chunk.seqs[0], chunk.seqs[-1], (), chunk.rows, chunk.slots)
            else:
                rows.extend(chunk.rows)
                slots.extend(chunk.slots)
                highest = max(highest, chunk.seqs[-1])
    delays = queue.delays
    if delays is not None:
        count += len(delays)
        for seq, row_id, slot, outside in delays.positions():
            if not outside:
                rows.append(row_id)
                slots.append(slot)
                highest = max(highest, seq)
            elif overflow is not None:
                overflow.settle_range(queue.id, seq, seq, (), (row_id,), (slot,))
        delayed.clear(queue)
    if rows:
        queue.log.settle_range(queue.id, 0, highest, held(queue), rows, slots)
    queue.epoch += 1
    queue.levels = None
    queue.backlog = Backlog(-1)
    queue.memory = 0
    queue.refusals = {}
    paging.tell_waiting(queue)
    return count


def held(queue: Queue) -> list[int]:
    """Sequence numbers of the entries that consumers hold, and of those that nobody may see yet."""
    return [*queue.hidden, *(entry.seq for entry in queue.broker.held_entries(queue))]


def delete(queue: Queue) -> int:
    """The queue is gone, with everything in it. Returns how many ready entries it had."""
    _forget_leases(queue)  # before a plan that waits sees the queue empty
    count = purge(queue)
    detach(queue)
    forget(queue)
    return count


def _forget_leases(queue: Queue) -> None:
    leases = queue.leases
    if leases is not None:
        leases.forget()
        queue.leases = None


def detach(queue: Queue) -> None:
    """Nobody has to do with the queue any more: who held its entries, its consumers, its timers."""
    queue.deleted = True
    queue.exclusive_owner = None  # what still refers to the queue shall not keep the connection
    for entry in queue.broker.held_entries(queue):
        row = entry.row
        if row is not None:
            row.log.settle(entry)
            entry.row = None
    _forget_leases(queue)
    consumers = queue.consumers
    queue.consumers = []
    queue.ring = deque()
    queue.rings = []
    browsers = queue.browsers
    queue.browsers = []
    for consumer in [*consumers, *(browser.consumer for browser in browsers)]:
        consumer.queue_gone()
    # The timers may remember theirs for a while, and must not keep the queue.
    if queue.expiry is not None:
        queue.broker.timers.cancel(queue.expiry)
        queue.expiry.queue = None
        queue.expiry = None
    if queue.unused is not None:
        queue.broker.timers.cancel(queue.unused)
        queue.unused.queue = None
        queue.unused = None


def forget(queue: Queue) -> None:
    """Nothing is left of the queue."""
    if queue.stored:
        queue.log.forget(queue.id)
    overflow = queue.broker.overflow
    if overflow is not None:
        overflow.forget(queue.id)
    queue.broker.paging.pop(queue.id, None)
