"""Handing out where some consumers do not take every entry: no-local, and entries refused once in strict mode.

The queue looks further than its head here, so an entry that nobody takes stops nothing; that costs a pass over the head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker.consumer import Consumer
from leveret.broker.message import Entry
from leveret.broker.queues import expiry, paging

if TYPE_CHECKING:
    from leveret.broker.queues.base import Queue


def drain(queue: Queue) -> None:
    """Hand ready entries to consumers: each entry is offered to each consumer that has credit."""
    for backlog in queue.all_levels():
        position = 0
        while queue.ring:
            if position == len(backlog.head):
                backlog.settle_young()
                if position == len(backlog.head):
                    break
            entry = backlog.head[position]
            if position == 0 and expiry.drop_expired(queue, backlog, entry):
                continue
            taker = taker_of(queue, entry)
            if taker is None:
                position += 1
                continue
            del backlog.head[position]
            queue.hand_out(entry, taker)
        if backlog.chunks and not backlog.loading:
            paging.load_more(queue, backlog)
        elif not backlog.head:
            backlog.settle_young()


def taker_of(queue: Queue, entry: Entry) -> Consumer | None:
    """Who gets an entry: of the highest priority at which somebody has credit and wants it."""
    message = entry.message
    overlay = entry.overlay
    for _, ring in queue.rings:
        fallback: Consumer | None = None
        for _ in range(len(ring)):
            consumer = ring[0]
            if not consumer.can_take(message.size):
                consumer.parked = True
                ring.popleft()
                queue.choose_ring()
                continue
            ring.rotate(-1)
            if not consumer.wants(message) or (overlay is not None and consumer.scope in overlay.refused):
                continue
            if entry.acquired_count and entry.holder is consumer:
                fallback = consumer
                continue
            return consumer
        if fallback is not None:
            return fallback
    return None
