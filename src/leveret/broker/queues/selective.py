"""Handing out where some consumers do not take every entry: no-local, and entries refused once in strict mode.

The queue looks further than its head here, so an entry that nobody takes stops nothing. That costs a pass over the head
whenever a consumer has new credit, but not for each message that comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker.consumer import Consumer
from leveret.broker.message import AT_ONCE, Entry
from leveret.broker.queues import expiry, paging
from leveret.broker.queues.backlog import Backlog

if TYPE_CHECKING:
    from leveret.broker.queues.base import Queue


def drain(queue: Queue) -> None:
    """Hand ready entries to consumers: each entry is offered to each consumer that has credit."""
    now = queue.broker.timers.now()
    for backlog in queue.all_levels():
        position = _first_to_offer(backlog)
        while queue.ring:
            if position == len(backlog.head):
                backlog.settle_young()
                if position == len(backlog.head):
                    backlog.passed = queue.next_seq - 1
                    break
            entry = backlog.head[position]
            if position == 0 and expiry.drop_expired(queue, backlog, entry):
                continue
            if AT_ONCE < expiry.expires_at(entry) <= now:
                position += 1  # it goes when it has come to the head
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


def _first_to_offer(backlog: Backlog) -> int:
    """Where the entries begin that have come since all of the head was offered to everybody."""
    passed = backlog.passed
    if not passed:
        return 0
    head = backlog.head
    position = len(head)
    while position > 0 and head[position - 1].seq > passed:
        position -= 1
    return position


def offer_again(queue: Queue) -> None:
    """A consumer has come, or has credit again: it may want what nobody else did."""
    for backlog in queue.all_levels():
        backlog.passed = 0


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
