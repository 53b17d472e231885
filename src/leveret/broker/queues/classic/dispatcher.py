"""Delivery of the entries of a classic queue to its consumers.

Usually every consumer accepts every entry, and entries are delivered from the head. `selective` is set if some
consumers do not accept every entry: no-local, audiences, selectors, and entries that a consumer has refused. The
dispatcher then looks beyond the head, so an entry that no consumer wants blocks no other. This costs a pass over the
head whenever a consumer gets credit, but not for each new message. For paged-out entries, the position records the
publisher and the refusals, so entries that a consumer wants are read ahead of the others.

The dispatcher has no reference to its queue, so that a deleted queue is freed without a garbage collection.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Final

from leveret.broker import settlement
from leveret.broker.errors import Undelivered
from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import AT_ONCE, ENTRY_OVERHEAD, Entry, expires_at
from leveret.broker.outcomes import ACCEPTED, GET_PROTOCOL
from leveret.broker.queues.classic.backlog import CHUNK_BYTES, Backlog, first_above
from leveret.broker.queues.classic.limits import LEVELS_SHIFT
from leveret.broker.queues.classic.searching import NextTurn, Search
from leveret.broker.queues.pace import Pace
from leveret.broker.queues.rings import Rings

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.consumer import Consumer
    from leveret.broker.queues.classic.queue import ClassicQueue
    from leveret.broker.queues.loading import Waiting

# Deliveries of a queue in one turn, and as many again for each client that was read in the turn.
MAX_DELIVERED: Final = 1000
# Asking this many consumers, plus one, takes at least 1 µs; one less than a power of two.
ASKED: Final = 7


class Asking:
    """An entry that was offered to too many consumers for one turn. The next turn offers it to the others.

    seq       its sequence number
    asked     consumers that do not want it, the last ones of their rings, from the highest priority down
    fallback  the consumer that returned it, which gets it if no other consumer wants it
    """

    __slots__ = ("asked", "fallback", "seq")

    def __init__(self, seq: int, asked: int, fallback: Consumer | None) -> None:
        self.seq = seq
        self.asked = asked
        self.fallback = fallback


class Dispatcher(Rings):
    """The dispatch of the entries of a classic queue to its consumers.

    selective            each entry must be offered individually
    selective_consumers  number of consumers that do not accept every entry
    refusing             a consumer may have refused an entry, which must not be offered to that consumer again
    asking               the entry that could not be offered to all consumers in one turn
    frozen               number of jobs that return entries in steps: nothing is delivered until the order is right again
    waiting              callbacks for when the head is in memory
    pace                 the pace of consumers without credit; None until a publisher is slowed down or might be
    parkings_checked     the number of parkings at the last check of the pace
    """

    def __init__(self, broker: Broker, single_active: bool) -> None:
        super().__init__(broker, single_active)
        self.selective = False
        self.selective_consumers = 0
        self.refusing = False
        self.asking: Asking | None = None
        self.frozen = 0
        self.waiting: list[Waiting] = []
        self.pace: Pace | None = None
        self.parkings_checked = 0

    def add(self, consumer: Consumer) -> bool:
        if consumer.selective:
            self.selective_consumers += 1
            self.selective = True
        return super().add(consumer)

    def remove(self, consumer: Consumer) -> Consumer | None:
        if consumer.selective:
            self.selective_consumers -= 1
        return super().remove(consumer)

    def become_selective(self, consumer: Consumer) -> None:
        super().become_selective(consumer)
        if consumer in self.consumers:
            self.selective_consumers += 1
            self.selective = True

    def clear_strays(self) -> None:
        super().clear_strays()
        self.asking = None

    def freeze(self) -> None:
        self.frozen += 1

    def thaw(self) -> bool:
        self.frozen -= 1
        if self.frozen:
            return False
        self.notify_waiting()
        return True

    def update_selective(self, queue: ClassicQueue) -> None:
        """Determine whether each entry must be offered individually."""
        if self.refusing and not queue.ready_count and not queue.unacked:
            self.refusing = False
        watch = queue.watch
        self.selective = self.refusing or (watch is not None and watch.watches_deliveries()) or self.selective_consumers > 0

    def note_refusal(self, queue: ClassicQueue) -> None:
        """Note that a consumer has refused an entry."""
        self.refusing = True
        if not self.selective:
            self.selective = True
            self.offer_again(queue)

    def offer_again(self, queue: ClassicQueue) -> None:
        """Offer all entries again: a new consumer, or one with new credit, may want those that the others refused."""
        for backlog in queue.ready.all_levels():
            backlog.passed = 0
        self.asking = None

    def has_taker(self) -> bool:
        """Return whether the consumer that is served next has credit and a writable socket."""
        ring = self.ring
        if not ring:
            return False
        consumer = ring[0]
        return not consumer.left and consumer.is_writable() and consumer.has_credit_for(0)

    def is_delayed(self, delivered: int) -> bool:
        """Return whether consumers that wait for credit would be faster if the broker were not busy with publishers.

        Args:
            delivered: The number of deliveries of the queue so far.
        """
        pace = self.pace
        waited = (pace is not None and pace.slowing) or self.parkings != self.parkings_checked
        self.parkings_checked = self.parkings
        for consumer in islice(self.consumers, ASKED + 1):
            if (waited or consumer.parked) and not consumer.left and consumer.is_writable():
                if pace is None:
                    pace = self.pace = Pace()
                return pace.is_behind(time.monotonic(), delivered)
        return False

    def drain(self, queue: ClassicQueue) -> None:
        """Deliver until the entries or the credit of the consumers run out."""
        try:
            if self.selective:
                self._drain_selective(queue)
            elif queue.ready.levels is not None:
                self._drain_levels(queue)
            else:
                self._drain_level(queue, queue.ready.backlog)
        except Undelivered as undelivered:
            queue.take_back(undelivered)
            self.broker.jobs.deferred.add(queue)

    def _drain_levels(self, queue: ClassicQueue) -> None:
        """Deliver level by level, from the highest priority down."""
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
        """Deliver the entries of one level, which every consumer accepts, until they or the credit run out."""
        head = backlog.head
        ring = self.ring
        delivered = unacked = settled = redelivered = 0
        unacked_bytes = 0
        transient = queue.counters.transient
        refused = 0
        freed = 0
        broker = queue.broker
        begun = broker.work
        most = MAX_DELIVERED * (1 + broker.inputs)
        try:
            while ring:
                if delivered >= most:
                    broker.jobs.deferred.add(queue)
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
                    # A dead letter may return to this queue, so the counts must be right.
                    queue.ready.release(freed)
                    freed = 0
                    if queue.expiry.drop_expired(queue, backlog, entry):
                        if broker.work - begun > STEP_WORK:
                            queue.expiry.drop_in_steps(queue)
                            if self.frozen:
                                return
                        transient = queue.counters.transient
                        continue
                consumer = ring[0]
                if entry.acquired_count:
                    redelivered += 1
                    if entry.holder is consumer and len(ring) > 1:
                        ring.rotate(-1)  # a requeued message prefers another consumer
                        consumer = ring[0]
                if consumer.left or not consumer.has_credit_for(message.size):
                    if entry.acquired_count:
                        redelivered -= 1  # it counts when a consumer takes it
                    self.step_out(ring)
                    ring = self.ring
                    refused += 1
                    if refused >= most:
                        broker.jobs.deferred.add(queue)
                        break
                    continue
                if len(ring) > 1:
                    ring.rotate(-1)
                head.popleft()
                freed += message.size + ENTRY_OVERHEAD
                delivered += 1
                if not consumer.no_ack:
                    settlement.acquire_unacked(entry, consumer)
                    unacked += 1
                    unacked_bytes += message.size
                    if transient is not None and not queue.is_stored(entry):
                        transient.acquire(message.size)
                    consumer.deliver(entry)
                else:
                    settlement.acquire(entry, consumer)
                    consumer.deliver(entry)
                    settlement.forget_holder(entry)
                    if transient is not None:
                        queue.forget_transient(entry)
                    settlement.settle(entry)
                    settled += 1
        finally:
            queue.ready.release(freed)
            queue.counters.count_deliveries(delivered, unacked, unacked_bytes, settled, redelivered)
            broker.work += delivered + (refused >> 1)
        if backlog.chunks and not backlog.loading:
            queue.ready.load_more(queue, backlog)

    def _drain_selective(self, queue: ClassicQueue) -> None:
        """Offer each ready entry to each consumer with credit."""
        broker = queue.broker
        begun = broker.work
        now = broker.timers.now()
        in_order = queue.watch is not None and not self.refusing and not self.selective_consumers
        for backlog in queue.ready.all_levels():
            passed = backlog.passed
            position = first_above(backlog.head, passed)
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
                    self._resume_later(queue, backlog, position)
                    return
                entry = backlog.head[position]
                if position == 0 and queue.expiry.drop_expired(queue, backlog, entry):
                    continue
                if AT_ONCE < expires_at(entry) <= now:
                    position += 1  # it is removed when it reaches the head
                    continue
                taker = self._consumer_for(queue, entry)
                if taker is None:
                    if self.asking is not None:
                        self._resume_later(queue, backlog, position)
                        return
                    position += 1
                    continue
                del backlog.head[position]
                broker.work += position >> 10
                queue.deliver(entry, taker)
            if backlog.chunks and not backlog.loading:
                queue.ready.load_more(queue, backlog)
                if offered and not backlog.loading and not self._read_ahead(queue, backlog):
                    self._offer_young(queue, backlog, passed, now)
            elif not backlog.head:
                backlog.settle_young()
            if in_order and len(backlog):
                return  # only watched: consumers accept every entry, and the rest of a level precedes the next one

    def _resume_later(self, queue: ClassicQueue, backlog: Backlog, position: int) -> None:
        """Offer the entries from this position in the next turn."""
        if position:
            backlog.passed = backlog.head[position - 1].seq
        self.broker.jobs.deferred.add(queue)

    def _read_ahead(self, queue: ClassicQueue, backlog: Backlog) -> bool:
        """Read paged-out entries that a consumer with credit wants, after the whole head was offered.

        Returns False if there are none.
        """
        takers = [consumer for ring in self.lines() for consumer in ring if not consumer.left]
        refusals = queue.ready.refusals
        for index, chunk in enumerate(backlog.chunks):
            if chunk.publishers is None and not _is_wanted_by_any(takers, chunk.publisher, None):
                continue
            wanted: list[int] = []
            size = 0
            for position, seq in enumerate(chunk.seqs):
                refused = refusals.get(seq) if refusals else None
                if _is_wanted_by_any(takers, chunk.publisher_of(position), refused):
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
        """Deliver entries behind the paged-out ones, which no consumer wants."""
        young = backlog.young
        if young is None:
            return
        broker = queue.broker
        begun = broker.work
        position = first_above(young, passed)
        while self.ring and position < len(young):
            broker.work += 1
            entry = young[position]
            taker = None if AT_ONCE < expires_at(entry) <= now else self._consumer_for(queue, entry)
            if self.asking is not None or broker.work - begun > STEP_WORK:
                backlog.passed = young[position - 1].seq if position else passed
                if taker is not None:
                    del young[position]
                    queue.deliver(entry, taker)
                broker.jobs.deferred.add(queue)
                return
            if taker is None:
                position += 1
            else:
                del young[position]
                queue.deliver(entry, taker)

    def _consumer_for(self, queue: ClassicQueue, entry: Entry) -> Consumer | None:
        """Return the consumer that gets an entry: of those with credit that want it, one of the highest priority.

        None with `self.asking` set means that asking all consumers takes longer than a turn: call it again.
        """
        message = entry.message
        overlay = entry.overlay
        broker = queue.broker
        lines = self.lines()
        begun = broker.work  # without the cost of sorting the priorities: each call must ask at least one consumer
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
                if consumer.left or not consumer.has_credit_for(message.size):
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
        """Acquire the next entry for `basic.get`. Return None if it is not in memory.

        With an `audience`, it is the next entry for this audience; with a `scope`, the next one that the scope has not
        refused.
        """
        if self.frozen:
            return None
        begun = queue.broker.work
        if queue.ready.levels is not None:
            queue.broker.work += len(queue.ready.levels) >> LEVELS_SHIFT
        search = self._search_for(queue, audience, scope)
        queue.serve_consumers()
        for backlog in queue.ready.all_levels():
            while True:
                if not backlog.head:
                    backlog.settle_young()
                entry = backlog.head[0] if backlog.head else None
                if entry is None:
                    if search is None or not backlog.chunks:
                        break
                elif (entry.message.expires_at or entry.overlay is not None) and queue.expiry.drop_expired(
                    queue, backlog, entry
                ):
                    if queue.broker.work - begun > STEP_WORK:
                        queue.expiry.drop_in_steps(queue)
                        if self.frozen:
                            return None
                    continue
                if search is not None and (entry is None or not search.wants(entry)):
                    found = search.take(backlog)
                    if search.is_paused:
                        queue.broker.jobs.deferred.add(queue)
                        queue.broker.jobs.deferred.wait(queue, NextTurn(self))
                        return None
                    if found is None:
                        break
                    entry = found
                else:
                    entry = backlog.head.popleft()
                if backlog.chunks and not backlog.loading:
                    queue.ready.load_more(queue, backlog)
                self.acquire_got(queue, entry, no_ack)
                if queue.expiry.expiring:
                    while (
                        queue.broker.work - begun < STEP_WORK
                        and backlog.head
                        and queue.expiry.drop_expired(queue, backlog, backlog.head[0])
                    ):
                        pass  # so it is not counted as remaining
                    queue.activate()  # the next one may expire sooner
                return entry
            if backlog.chunks and (search is None or not search.is_complete(backlog)):
                if not backlog.loading:
                    queue.ready.load(queue, backlog)
                return None
        return None

    def _search_for(self, queue: ClassicQueue, audience: int, scope: object | None) -> Search | None:
        """Return the search of a `get`, None if it may return every entry."""
        if not self.refusing:
            scope = None
        if scope is None and not audience:
            return None
        return Search(queue.broker, audience, scope, queue.ready.refusals)

    def acquire_got(self, queue: ClassicQueue, entry: Entry, no_ack: bool) -> None:
        """Acquire an entry, which was removed from its backlog, for `basic.get`; settle it with `no_ack`."""
        queue.ready.count_out(entry)
        counters, size = queue.counters, entry.message.size
        counters.count_get(size, no_ack, entry.acquired_count > 0)
        if counters.transient is not None and not no_ack and not queue.is_stored(entry):
            counters.transient.acquire(size)
        settlement.acquire(entry, None)
        watch = queue.watch
        if watch is not None:
            watch.got(entry)
        if no_ack:
            queue.settle_got(entry)
            if watch is not None:
                watch.settled(entry, ACCEPTED, GET_PROTOCOL)

    def must_load(self, queue: ClassicQueue, audience: int, scope: object | None) -> bool:
        """Return whether the next entry (as in `get`) exists but is not in memory: call `wait_loaded`, then ask again."""
        if queue.deleted:
            return False
        if self.frozen:
            return True
        search = self._search_for(queue, audience, scope)
        for backlog in queue.ready.all_levels():
            if search is not None:
                if not search.is_complete(backlog):
                    return True
                continue
            if backlog.head:
                return False
            if backlog.chunks:
                return True
        return False

    def wait_loaded(self, waiting: Waiting) -> None:
        """Notify the caller when more entries are in memory, after `must_load` returned True."""
        self.waiting.append(waiting)

    def notify_waiting(self) -> None:
        """Notify the callbacks that wait for the head: it is in memory, or removed."""
        waiting = self.waiting
        if waiting:
            self.waiting = []
            for waiter in waiting:
                waiter.loaded()


def _is_wanted_by_any(takers: list[Consumer], publisher: int, refused: dict[object, None] | None) -> bool:
    return any(consumer.wants_of(publisher) and (refused is None or consumer.scope not in refused) for consumer in takers)
