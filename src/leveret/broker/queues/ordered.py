"""A queue that does not deliver in the order of arrival.

The ready list has the entries in the order of arrival, as in a classic queue, for limits, expiry, browsers and
operators. The order of delivery is in a second list. Both are lists of blocks, so an insertion or removal anywhere takes
O(log n) and moves at most one block. All entries stay in memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import AT_ONCE, AVAILABLE, Entry, expires_at
from leveret.broker.queues.blocks import Blocks
from leveret.broker.queues.classic.backlog import SEQ, Backlog
from leveret.broker.queues.classic.dispatcher import Dispatcher
from leveret.broker.queues.classic.expiry import EXPIRED
from leveret.broker.queues.classic.ready_list import ReadyList
from leveret.broker.queues.classic.searching import NextTurn, is_wanted
from leveret.broker.queues.indexed import IndexedQueue
from leveret.broker.queues.releasing import releasing_blocks
from leveret.broker.values import FieldValue

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.consumer import Consumer
    from leveret.broker.message import Message
    from leveret.broker.queues.classic.queue import ClassicQueue
    from leveret.broker.queues.definition import QueueDefinition

# Units of work to insert a message, to deliver one, to requeue one, and to pass one that a `get` must not return.
INSERT_WORK: Final = 5
DELIVER_WORK: Final = 6
REQUEUE_WORK: Final = 6
PASS_WORK: Final = 3
# Places of `passed` (as a power of two) that are compared in 1 µs.
PASSED_SHIFT: Final = 4
# Number of scopes for which `get` notes how far it has looked.
MAX_SCOPES: Final = 1000


class _Backlog(Backlog):
    """The ready entries in the order of arrival."""

    __slots__ = ("blocks",)

    def __init__(self, priority: int) -> None:
        super().__init__(priority)
        self.blocks = Blocks(SEQ)
        self.head = self.blocks

    def insert(self, entry: Entry) -> int:
        self.blocks.add(entry)
        return self.reopen(entry.seq)

    def take(self, entry: Entry) -> bool:
        return self.blocks.discard(entry) or (self.young is not None and super().take(entry))

    def find(self, seq: int) -> Entry | None:
        return self.blocks.find(seq) or (super().find(seq) if self.young is not None else None)


class _ReadyList(ReadyList):
    """The ready entries in one level, whatever their priorities are."""

    def _new_level(self, priority: int) -> Backlog:
        return _Backlog(priority)

    def _recovered_level(self, levels: dict[int, Backlog], raw: int) -> Backlog:
        priority = self.priority_of(raw)
        level = levels.get(priority)
        if level is None:
            level = levels[priority] = _Backlog(raw)
        return level


class OrderedDispatcher(Dispatcher):
    """Delivery in the order of places, which subclasses define.

    order    the entries that may be delivered, in the order of delivery
    lowest   a value below all places
    offered  no consumer with credit wants the entries up to this place
    passed   the place up to which `get` must not return an entry, by scope and audience, of those that have looked far
    """

    def __init__(self, broker: Broker, single_active: bool, key: Callable[[Entry], Any], lowest: Any) -> None:
        super().__init__(broker, single_active)
        self.order = Blocks(key)
        self.lowest = lowest
        self.offered = lowest
        self.passed: dict[tuple[object, int], Any] = {}

    @abstractmethod
    def before(self, place: Any) -> Any:
        """Return a value that is below a place, and not below those before it."""

    @abstractmethod
    def forget(self, entry: Entry) -> None:
        """Note that an entry, ready or not, leaves the queue."""

    def settled(self, entry: Entry) -> None:
        """Note that an acquired entry leaves the queue."""
        self.forget(entry)

    @abstractmethod
    def forget_ready(self) -> Iterator[int]:
        """Note that all ready entries have left the queue, and release their memory in steps."""

    def offer(self, entry: Entry) -> None:
        """Offer an entry to consumers."""
        self.order.add(entry)
        self.reopen(self.order.key(entry))

    def reopen(self, place: Any) -> None:
        """Note that there is a new entry at a place."""
        if place <= self.offered:
            self.offered = self.before(place)
        passed = self.passed
        if passed:
            self.broker.work += len(passed) >> PASSED_SHIFT
            for key, last in passed.items():
                if place <= last:
                    passed[key] = self.before(place)

    def offer_again(self, queue: ClassicQueue) -> None:
        super().offer_again(queue)
        self.offered = self.lowest

    def _after(self, place: Any) -> Entry | None:
        return self.order.first() if place is self.lowest else self.order.after(place)

    def drain(self, queue: ClassicQueue) -> None:
        broker = queue.broker
        begun = broker.work
        if not self.selective:
            self.offered = self.lowest  # the consumers that did not want the entries may have left
        while self.ring:
            entry = self._after(self.offered)
            if entry is None:
                return
            if broker.work - begun > STEP_WORK:
                broker.jobs.deferred.add(queue)
                return
            broker.work += DELIVER_WORK
            if self._drop_expired(queue, entry):
                continue
            place = self.order.key(entry)
            taker = self.taker_of(queue, entry)
            if taker is not None:
                self.acquire(queue, entry, taker, taker, taker.no_ack)
                queue.deliver(entry, taker)
            elif self.asking is not None:
                broker.jobs.deferred.add(queue)
                return
            elif self.ring:
                self.offered = place

    def taker_of(self, queue: ClassicQueue, entry: Entry) -> Consumer | None:
        """Return the consumer that gets an entry, as `_consumer_for` does."""
        return self._consumer_for(queue, entry)

    def acquire(self, queue: ClassicQueue, entry: Entry, holder: object, consumer: Consumer | None, no_ack: bool) -> None:
        """Remove an entry from the ready ones, whose memory the caller counts.

        Args:
            queue: The queue.
            entry: The entry.
            holder: The consumer, or the scope of a `get`.
            consumer: The consumer, None for a `get`.
            no_ack: Whether the entry leaves the queue at once.
        """
        queue.ready.backlog.take(entry)
        if no_ack:
            self.forget(entry)
        else:
            self.order.discard(entry)

    def _drop_expired(self, queue: ClassicQueue, entry: Entry) -> bool:
        """Drop an entry if it has expired."""
        due = expires_at(entry)
        if not due or (entry.seq >= queue.expiry.offered_until if due == AT_ONCE else due > queue.broker.timers.now()):
            return False
        queue.ready.backlog.take(entry)
        queue.ready.count_out(entry)
        queue.dead_letter(entry, EXPIRED)
        return True

    # basic.get

    def next_for(self, scope: object | None, place: Any) -> Entry | None:
        """Return the first entry after a place that a `get` with this scope may return."""
        return self._after(place)

    def may_get(self, entry: Entry, audience: int, scope: object | None) -> bool:
        """Return whether a `get` for an audience and with a scope may return an entry."""
        return is_wanted(entry, audience, scope)

    def get(self, queue: ClassicQueue, no_ack: bool, audience: int, scope: object | None) -> Entry | None:
        if self.frozen:
            return None
        queue.serve_consumers()
        broker = queue.broker
        key = (scope, audience)
        passed = self.passed
        is_noted = key in passed
        if not is_noted:
            if len(passed) >= MAX_SCOPES:
                del passed[next(iter(passed))]
            passed[key] = self.lowest
        looked = False
        while True:
            entry = self.next_for(scope, passed[key])
            if entry is not None and looked and broker.work > STEP_WORK:
                broker.jobs.deferred.add(queue)
                broker.jobs.deferred.wait(queue, NextTurn(self))
                return None
            if entry is None or (not self._drop_expired(queue, entry) and self.may_get(entry, audience, scope)):
                break
            looked = True
            if entry.state == AVAILABLE:
                broker.work += PASS_WORK
                passed[key] = self.order.key(entry)
        if not is_noted:
            del passed[key]
        if entry is not None:
            self.acquire(queue, entry, scope, None, no_ack)
            self.acquire_got(queue, entry, no_ack)
        return entry

    def must_load(self, queue: ClassicQueue, audience: int, scope: object | None) -> bool:
        if queue.deleted or self.frozen:
            return not queue.deleted
        place = self.passed.get((scope, audience))
        return place is not None and self.next_for(scope, place) is not None

    def forget_order(self, key: Callable[[Entry], Any]) -> Iterator[int]:
        """Begin a new list of the entries that may be delivered, and release the memory of the old one in steps."""
        blocks = self.order.blocks
        self.order = Blocks(key)
        self.offered = self.lowest
        self.passed = {}
        return releasing_blocks(blocks)


class OrderedQueue(IndexedQueue):
    """A queue of one vhost that does not deliver in the order of arrival.

    ordering  the dispatcher of the queue
    header    the name of the header that determines the order, which is the value of the argument `key`
    """

    def __init__(self, definition: QueueDefinition, dispatcher: OrderedDispatcher, key: str) -> None:
        super().__init__(definition)
        # All priorities are one level.
        self.ready = _ReadyList(self.vhost, 0, self.pageable)
        self.ordering = dispatcher
        self.dispatcher = dispatcher
        self.header: str = definition.settings.known[key]

    def value_of(self, message: Message) -> FieldValue:
        """Return the header that determines the order. Later changes to the headers of an entry have no effect."""
        return self.broker.read_headers(message, INSERT_WORK).get(self.header)

    @abstractmethod
    def put_back(self, entry: Entry) -> None:
        """Add an acquired entry that is requeued to the order of delivery."""

    def hold(self, entry: Entry, due: int) -> None:
        self.ordering.settled(entry)  # one that is delivered again after a delay gets a new place then
        super().hold(entry, due)

    def _note_inserted(self, entry: Entry) -> None:
        self.index(entry)
        super()._note_inserted(entry)

    def requeue(self, entry: Entry, failed: bool = True) -> None:
        if not self.deleted:
            self.broker.work += REQUEUE_WORK
            self.put_back(entry)
        super().requeue(entry, failed)

    def settle(self, entry: Entry) -> None:
        super().settle(entry)
        self.ordering.settled(entry)

    def archive(self, entry: Entry) -> None:
        super().archive(entry)
        self.ordering.forget(entry)

    def discard(self) -> int:
        count = super().discard()
        self.broker.jobs.removals.add(self.ordering.forget_ready())
        return count
