"""Handing out where every consumer takes every entry, from the head on. `selective` is for where some do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker import settlement
from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import ENTRY_OVERHEAD
from leveret.broker.queues import rings
from leveret.broker.queues.classic import expiry, paging
from leveret.broker.queues.classic.backlog import Backlog

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue


def drain_levels(queue: Queue) -> None:
    """Hand out level by level, from the highest priority on."""
    levels = queue.levels
    assert levels is not None
    for priority in sorted(levels, reverse=True):
        level = levels[priority]
        if len(level):
            drain_backlog(queue, level)
            if len(level):
                return  # no credit left, or the next entries are being loaded
    # Everything was handed out: go back to the cheap form.
    if not any(level.loading or len(level) for level in levels.values()):
        queue.levels = None
        queue.backlog = Backlog(-1)


def drain_backlog(queue: Queue, backlog: Backlog) -> None:
    """Hand the ready entries of one level to consumers, each of which takes what comes, until one of the two runs out."""
    head = backlog.head
    ring = queue.ring
    delivered = 0
    refused = 0
    freed = 0
    broker = queue.broker
    begun = broker.work
    most = STEP_WORK * (1 + broker.inputs)
    try:
        while ring:
            if delivered >= most:
                broker.jobs.again.add(queue)
                break
            if not head:
                if backlog.chunks:
                    break
                young = backlog.young
                if young is None or not young:
                    break
                backlog.settle_young()
            entry = head[0]
            message = entry.message
            if message.expires_at or entry.overlay is not None:
                # A dead letter may lead back here: the figures must be right.
                queue.memory -= freed
                freed = 0
                if expiry.drop_expired(queue, backlog, entry):
                    if broker.work - begun > STEP_WORK:
                        expiry.drop_in_steps(queue)
                        if queue.frozen:
                            return
                    continue
            consumer = ring[0]
            if entry.acquired_count and entry.holder is consumer and len(ring) > 1:
                ring.rotate(-1)  # a requeued message prefers another consumer
                consumer = ring[0]
            if consumer.left or not consumer.can_take(message.size):
                rings.step_out(queue, ring)
                ring = queue.ring
                refused += 1
                if refused >= most:
                    broker.jobs.again.add(queue)
                    break
                continue
            if len(ring) > 1:
                ring.rotate(-1)
            head.popleft()
            freed += message.size + ENTRY_OVERHEAD
            delivered += 1
            settlement.acquire(entry, consumer)
            if not consumer.no_ack:
                consumer.unacked += 1
                queue.unacked += 1
                consumer.deliver(entry)
            else:
                consumer.deliver(entry)
                entry.holder = None
                settlement.settle(entry)
                queue.settled += 1
    finally:
        queue.memory -= freed
        queue.delivered += delivered
        broker.work += delivered + (refused >> 1)
    if backlog.chunks and not backlog.loading:
        paging.load_more(queue, backlog)
