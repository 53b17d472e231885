"""Handing out where some consumers do not take every entry: no-local, classes of 0-9, and entries that were refused once.

The queue looks further than its head here, so an entry that nobody takes stops nothing. That costs a pass over the head
whenever a consumer has new credit, but not for each message that comes. Of what is paged out the positions say enough,
who published it and who refused it: entries that somebody wants are read ahead of those that nobody does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Final

from leveret.broker.consumer import Consumer
from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import AT_ONCE, Entry
from leveret.broker.queues import rings
from leveret.broker.queues.classic import expiry, paging
from leveret.broker.queues.classic.backlog import CHUNK_BYTES, SEQ, Backlog

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue

# To ask so many consumers, and one more, takes 1 µs at least; one less than a power of two.
ASKED: Final = 7
# So many entries at the end are looked at one by one: mostly it is one that has just come.
FEW: Final = 8


def drain(queue: Queue) -> None:
    """Hand ready entries to consumers: each entry is offered to each consumer that has credit."""
    broker = queue.broker
    begun = broker.work
    now = broker.timers.now()
    in_order = queue.watch is not None and not queue.refusing \
        and not queue.selective_consumers
    for backlog in queue.all_levels():
        passed = backlog.passed
        position = _first_to_offer(backlog.head, passed)
        offered = False
        while queue.ring:
            if position == len(backlog.head):
                backlog.settle_young()
                if position == len(backlog.head):
                    backlog.passed = queue.next_seq - 1
                    offered = True
                    break
            broker.work += 1
            if broker.work - begun > STEP_WORK:
                _resume_later(queue, backlog, position)
                return
            entry = backlog.head[position]
            if position == 0 and expiry.drop_expired(queue, backlog, entry):
                continue
            if AT_ONCE < expiry.expires_at(entry) <= now:
                position += 1  # it goes when it has come to the head
                continue
            taker = taker_of(queue, entry)
            if taker is None:
                if queue.asking is not None:
                    _resume_later(queue, backlog, position)
                    return
                position += 1
                continue
            del backlog.head[position]
            broker.work += position >> 10
            queue.hand_out(entry, taker)
        if backlog.chunks and not backlog.loading:
            paging.load_more(queue, backlog)
            if offered and not backlog.loading and not _read_ahead(queue, backlog):
                _offer_young(queue, backlog, passed, now)
        elif not backlog.head:
            backlog.settle_young()
        if in_order and len(backlog):
            return  # watched only: everybody takes everything, and what is left of a level comes before the next one


def _resume_later(queue: Queue, backlog: Backlog, position: int) -> None:
    """Offer the entries from this position on in the next turn."""
    if position:
        backlog.passed = backlog.head[position - 1].seq
    queue.broker.jobs.again.add(queue)


def _first_to_offer(entries: deque[Entry], passed: int) -> int:
    """Where the entries begin that have come since everything up to the sequence number `passed` was offered."""
    if not passed:
        return 0
    position = len(entries)
    for _ in range(FEW):
        if position == 0 or entries[position - 1].seq <= passed:
            return position
        position -= 1
    return bisect_right(entries, passed, key=SEQ)


def _read_ahead(queue: Queue, backlog: Backlog) -> bool:
    """All of the head was offered and there is still credit: read what somebody would take from behind it. False where
    there is nothing."""
    takers = [consumer for ring in rings.lines(queue) for consumer in ring if not consumer.left]
    refusals = queue.refusals
    for index, chunk in enumerate(backlog.chunks):
        if chunk.publishers is None and not _any_wants(takers, chunk.publisher, None):
            continue
        wanted: list[int] = []
        size = 0
        for position, seq in enumerate(chunk.seqs):
            refused = refusals.get(seq) if refusals else None
            if _any_wants(takers, chunk.publisher_of(position), refused):
                wanted.append(position)
                size += chunk.sizes[position]
                if size >= CHUNK_BYTES:
                    break
        if wanted:
            backlog.take_out(index, wanted)
            paging.load(queue, backlog)
            return True
    return False


def _offer_young(queue: Queue, backlog: Backlog, passed: int, now: int) -> None:
    """Deliver from behind the paged-out entries, which match no consumer."""
    young = backlog.young
    if young is None:
        return
    broker = queue.broker
    begun = broker.work
    position = _first_to_offer(young, passed)
    while queue.ring and position < len(young):
        broker.work += 1
        entry = young[position]
        taker = None if AT_ONCE < expiry.expires_at(entry) <= now else taker_of(queue, entry)
        if queue.asking is not None or broker.work - begun > STEP_WORK:
            backlog.passed = young[position - 1].seq if position else passed
            if taker is not None:
                del young[position]
                queue.hand_out(entry, taker)
            broker.jobs.again.add(queue)
            return
        if taker is None:
            position += 1
        else:
            del young[position]
            queue.hand_out(entry, taker)


def _any_wants(takers: list[Consumer], publisher: int, refused: list[object] | None) -> bool:
    return any(consumer.wants_of(publisher) and (refused is None or consumer.scope not in refused)
               for consumer in takers)


def offer_again(queue: Queue) -> None:
    """A consumer has come, or has credit again: it may want what nobody else did."""
    for backlog in queue.all_levels():
        backlog.passed = 0
    queue.asking = None


class Asking:
    """An entry that so many consumers were asked about that the rest is left to the next turn.

    seq       of the entry
    asked     consumers that do not want it, the last ones of their rings, from the highest priority on
    fallback  the consumer that gave it back, which gets it if nobody else wants it
    """

    __slots__ = ("asked", "fallback", "seq")

    def __init__(self, seq: int, asked: int, fallback: Consumer | None) -> None:
        self.seq = seq
        self.asked = asked
        self.fallback = fallback


def taker_of(queue: Queue, entry: Entry) -> Consumer | None:
    """Who gets an entry: of the highest priority at which somebody has credit and wants it.

    None with `queue.asking` set: asking all consumers takes longer than a turn, so it has to be called again.
    """
    message = entry.message
    overlay = entry.overlay
    broker = queue.broker
    lines = rings.lines(queue)
    begun = broker.work  # without what the order of priorities costs: each call must ask somebody
    asked = 0
    fallback: Consumer | None = None
    asking = queue.asking
    if asking is not None:
        queue.asking = None
        if asking.seq == entry.seq:
            asked = asking.asked
            fallback = asking.fallback
    skipped = asked
    for ring in lines:
        left = len(ring)
        if skipped >= left:
            skipped -= left
            continue
        left -= skipped
        skipped = 0
        while left > 0:
            if broker.work - begun > STEP_WORK:
                queue.asking = Asking(entry.seq, asked, fallback)
                return None
            if left & ASKED == 0:
                broker.work += 1
            left -= 1
            consumer = ring[0]
            if consumer.left or not consumer.can_take(message.size):
                rings.step_out(queue, ring)
                continue
            ring.rotate(-1)
            asked += 1
            if not consumer.wants(message, entry) or (overlay is not None and consumer.scope in overlay.refused):
                continue
            if entry.acquired_count and entry.holder is consumer:
                fallback = consumer
                continue
            return consumer
        if fallback is not None:
            return fallback
    return None
