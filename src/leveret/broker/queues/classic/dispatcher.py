"""Handing out the entries of a classic queue to its consumers.

Usually every consumer takes every entry, and entries are handed out from the head on. `selective` is set where some
consumers do not take every entry: no-local, audiences, selectors, and entries that were refused once. The dispatcher then
looks further than the head, so that an entry which nobody takes stops nothing. That costs a pass over the head whenever a
consumer has new credit, but not for each message that comes. Of paged-out entries the positions say enough, who published
them and who refused them: entries that somebody wants are read ahead of those that nobody does.

The dispatcher has no reference to its queue, so that a deleted queue is freed without a garbage collection.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Final

from leveret.broker import settlement
from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import AT_ONCE, ENTRY_OVERHEAD, Entry, is_for
from leveret.broker.outcomes import ACCEPTED, GET_PROTOCOL
from leveret.broker.queues.classic.backlog import CHUNK_BYTES, SEQ, Backlog
from leveret.broker.queues.classic.expiry import expires_at
from leveret.broker.queues.classic.limits import LEVELS_SHIFT
from leveret.broker.queues.rings import Rings

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.consumer import Consumer
    from leveret.broker.queues.classic.queue import ClassicQueue

# To ask so many consumers, and one more, takes 1 µs at least; one less than a power of two.
ASKED: Final = 7
# So many entries at the end are looked at one by one: mostly it is one that has just come.
FEW: Final = 8


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


class Dispatcher(Rings):
    """The consumers of a classic queue, and which of its entries they are given.

    selective            each entry must be offered by itself
    selective_consumers  number of consumers that do not take every entry
    refusing             there may be entries that somebody has refused: consumers that have must not get them again
    asking               the entry that not all consumers could be asked about in one turn
    """

    def __init__(self, broker: Broker, single_active: bool) -> None:
        super().__init__(broker, single_active)
        self.selective = False
        self.selective_consumers = 0
        self.refusing = False
        self.asking: Asking | None = None

    def add(self, consumer: Consumer) -> bool:
        if consumer.selective:
            self.selective_consumers += 1
            self.selective = True
        return super().add(consumer)

    def remove(self, consumer: Consumer) -> Consumer | None:
        if consumer.selective:
            self.selective_consumers -= 1
        return super().remove(consumer)

    def clear_strays(self) -> None:
        super().clear_strays()
        self.asking = None

    def update_selective(self, queue: ClassicQueue) -> None:
        """Find out whether each entry must be offered by itself."""
        if self.refusing and not queue.ready_count and not queue.unacked:
            self.refusing = False
        watch = queue.watch
        self.selective = self.refusing or (watch is not None and watch.sees_out()) or self.selective_consumers > 0

    def offer_again(self, queue: ClassicQueue) -> None:
        """A consumer has come, or has credit again: it may want what nobody else did."""
        for backlog in queue.ready.all_levels():
            backlog.passed = 0
        self.asking = None

    def drain(self, queue: ClassicQueue) -> None:
        """Hand out entries until either these or the credit of the consumers runs out."""
        if self.selective:
            self._drain_selective(queue)
        elif queue.ready.levels is not None:
            self._drain_levels(queue)
        else:
            self._drain_level(queue, queue.ready.backlog)

    def _drain_levels(self, queue: ClassicQueue) -> None:
        """Hand out level by level, from the highest priority on."""
        levels = queue.ready.levels
        assert levels is not None
        for priority in sorted(levels, reverse=True):
            level = levels[priority]
            if len(level):
                self._drain_level(queue, level)
                if len(level):
                    return  # no credit left, or the next entries are being loaded
        queue.ready.collapse()

    def _drain_level(self, queue: ClassicQueue, backlog: Backlog) -> None:
        """Hand the ready entries of one level to consumers that take what comes, until one of the two runs out."""
        head = backlog.head
        ring = self.ring
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
                    queue.ready.release(freed)
                    freed = 0
                    if queue.expiry.drop_expired(queue, backlog, entry):
                        if broker.work - begun > STEP_WORK:
                            queue.expiry.drop_in_steps(queue)
                            if queue.frozen:
                                return
                        continue
                consumer = ring[0]
                if entry.acquired_count and entry.holder is consumer and len(ring) > 1:
                    ring.rotate(-1)  # a requeued message prefers another consumer
                    consumer = ring[0]
                if consumer.left or not consumer.can_take(message.size):
                    self.step_out(ring)
                    ring = self.ring
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
            queue.ready.release(freed)
            queue.delivered += delivered
            broker.work += delivered + (refused >> 1)
        if backlog.chunks and not backlog.loading:
            queue.ready.load_more(queue, backlog)

    def _drain_selective(self, queue: ClassicQueue) -> None:
        """Hand ready entries to consumers: each entry is offered to each consumer that has credit."""
        broker = queue.broker
        begun = broker.work
        now = broker.timers.now()
        in_order = queue.watch is not None and not self.refusing \
            and not self.selective_consumers
        for backlog in queue.ready.all_levels():
            passed = backlog.passed
            position = _first_to_offer(backlog.head, passed)
            offered = False
            while self.ring:
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
                if position == 0 and queue.expiry.drop_expired(queue, backlog, entry):
                    continue
                if AT_ONCE < expires_at(entry) <= now:
                    position += 1  # it goes when it has come to the head
                    continue
                taker = self._taker_of(queue, entry)
                if taker is None:
                    if self.asking is not None:
                        _resume_later(queue, backlog, position)
                        return
                    position += 1
                    continue
                del backlog.head[position]
                broker.work += position >> 10
                queue.hand_out(entry, taker)
            if backlog.chunks and not backlog.loading:
                queue.ready.load_more(queue, backlog)
                if offered and not backlog.loading and not self._read_ahead(queue, backlog):
                    self._offer_young(queue, backlog, passed, now)
            elif not backlog.head:
                backlog.settle_young()
            if in_order and len(backlog):
                return  # watched only: everybody takes everything, and what is left of a level comes before the next one

    def _read_ahead(self, queue: ClassicQueue, backlog: Backlog) -> bool:
        """All of the head was offered and there is still credit: read what somebody would take from behind it. False where
        there is nothing."""
        takers = [consumer for ring in self.lines() for consumer in ring if not consumer.left]
        refusals = queue.ready.refusals
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
                queue.ready.load(queue, backlog)
                return True
        return False

    def _offer_young(self, queue: ClassicQueue, backlog: Backlog, passed: int, now: int) -> None:
        """Deliver from behind the paged-out entries, which match no consumer."""
        young = backlog.young
        if young is None:
            return
        broker = queue.broker
        begun = broker.work
        position = _first_to_offer(young, passed)
        while self.ring and position < len(young):
            broker.work += 1
            entry = young[position]
            taker = None if AT_ONCE < expires_at(entry) <= now else self._taker_of(queue, entry)
            if self.asking is not None or broker.work - begun > STEP_WORK:
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

    def _taker_of(self, queue: ClassicQueue, entry: Entry) -> Consumer | None:
        """Who gets an entry: of the highest priority at which somebody has credit and wants it.

        None with `self.asking` set: asking all consumers takes longer than a turn, so it has to be called again.
        """
        message = entry.message
        overlay = entry.overlay
        broker = queue.broker
        lines = self.lines()
        begun = broker.work  # without what the order of priorities costs: each call must ask somebody
        asked = 0
        fallback: Consumer | None = None
        asking = self.asking
        if asking is not None:
            self.asking = None
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
                    self.asking = Asking(entry.seq, asked, fallback)
                    return None
                if left & ASKED == 0:
                    broker.work += 1
                left -= 1
                consumer = ring[0]
                if consumer.left or not consumer.can_take(message.size):
                    self.step_out(ring)
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

    def get(self, queue: ClassicQueue, no_ack: bool, audience: int, scope: object | None) -> Entry | None:
        """Acquire the next entry for `basic.get`, None where there is none in memory. With an `audience` it is the
        next for this audience, with a `scope` the next that this one has not refused."""
        if queue.frozen:
            return None
        begun = queue.broker.work
        if queue.ready.levels is not None:
            queue.broker.work += len(queue.ready.levels) >> LEVELS_SHIFT
        picks = scope is not None and self.refusing
        queue.serve_consumers()
        for backlog in queue.ready.all_levels():
            while True:
                if not backlog.head:
                    backlog.settle_young()
                    if not backlog.head:
                        break
                entry = backlog.head[0]
                if ((entry.message.expires_at or entry.overlay is not None)
                        and queue.expiry.drop_expired(queue, backlog, entry)):
                    if queue.broker.work - begun > STEP_WORK:
                        queue.expiry.drop_in_steps(queue)
                        if queue.frozen:
                            return None
                    continue
                if picks and not _is_wanted(entry, audience, scope):
                    wanted = _take_wanted(backlog, audience, scope)
                    if wanted is None:
                        break
                    entry = wanted
                elif audience and not is_for(entry.message.publisher, audience):
                    found = backlog.take_of(audience)
                    if found is None:
                        if not backlog.loading and backlog.next_is_for(audience):
                            queue.ready.load(queue, backlog)
                        break
                    entry = found
                else:
                    backlog.head.popleft()
                if backlog.chunks and not backlog.loading:
                    queue.ready.load_more(queue, backlog)
                queue.ready.count_out(entry)
                queue.delivered += 1
                settlement.acquire(entry, None)
                watch = queue.watch
                if watch is not None:
                    watch.delivered(entry, GET_PROTOCOL)
                if queue.expiry.expiring:
                    while (queue.broker.work - begun < STEP_WORK and backlog.head
                           and queue.expiry.drop_expired(queue, backlog, backlog.head[0])):
                        pass  # so that it is not counted as left
                    queue.activate()  # the next one may expire sooner
                if no_ack:
                    queue.archive(entry)
                    if watch is not None:
                        watch.settled(entry, ACCEPTED, GET_PROTOCOL)
                else:
                    queue.unacked += 1
                return entry
            if backlog.chunks:
                if not backlog.loading:
                    queue.ready.load(queue, backlog)
                return None
        return None

    def needs_loading(self, queue: ClassicQueue, audience: int, scope: object | None) -> bool:
        """Whether the next entry (as in `get`) exists but is not in memory: `wait_loaded`, then ask again."""
        if queue.deleted:
            return False
        if queue.frozen:
            return True
        picks = scope is not None and self.refusing
        for backlog in queue.ready.all_levels():
            if picks:
                if any(_is_wanted(entry, audience, scope) for entry in backlog.head):
                    return False
                if backlog.chunks:
                    return True
                continue
            if audience and backlog.loading:
                return True
            if backlog.head:
                return False
            if backlog.chunks:
                return True
        return False



def _resume_later(queue: ClassicQueue, backlog: Backlog, position: int) -> None:
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


def _any_wants(takers: list[Consumer], publisher: int, refused: list[object] | None) -> bool:
    return any(consumer.wants_of(publisher) and (refused is None or consumer.scope not in refused)
               for consumer in takers)


def _is_wanted(entry: Entry, audience: int, scope: object | None) -> bool:
    """Whether an entry is for this audience, if there is one, and was not refused by the scope."""
    overlay = entry.overlay
    return (not audience or is_for(entry.message.publisher, audience)) and (overlay is None or scope not in overlay.refused)


def _take_wanted(backlog: Backlog, audience: int, scope: object | None) -> Entry | None:
    """Take the first such entry; None where it is not in memory."""
    backlog.settle_young()
    for entry in backlog.head:
        if _is_wanted(entry, audience, scope):
            backlog.head.remove(entry)
            return entry
    return None
