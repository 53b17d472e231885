"""A queue that delivers in the order of a header (`x-sort-key`, `x-queue-type: sorted`).

The order is ascending; equal values are in the order of arrival. `order_of` is the total order of values of all types.

The ready list has the entries in the order of arrival, as in a classic queue, for limits, expiry, browsers and
operators. The order of delivery is in a second list. Both are lists of blocks, so an insertion or removal anywhere takes
O(log n) and moves at most one block. All entries stay in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

from leveret.broker.arguments import TEXT, Argument, QueueSettings
from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import AT_ONCE, Entry, expires_at
from leveret.broker.queues.blocks import Blocks
from leveret.broker.queues.capabilities import LEASE
from leveret.broker.queues.classic.backlog import SEQ, Backlog
from leveret.broker.queues.classic.dispatcher import Dispatcher, is_wanted
from leveret.broker.queues.classic.expiry import EXPIRED
from leveret.broker.queues.classic.ready_list import ReadyList
from leveret.broker.queues.indexed import IndexedQueue
from leveret.broker.queues.queue_type import QueueType
from leveret.broker.values import FieldTable, FieldValue

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.queues.classic.queue import ClassicQueue
    from leveret.broker.vhost import Vhost

KEY: Final = "x-sort-key"
# Units of work to insert a message, and bytes of its headers (as a power of two) that are decoded in one unit.
INSERT_WORK: Final = 5
DECODE_SHIFT: Final = 6
# Units of work to deliver a message.
DELIVER_WORK: Final = 3
# Places that are released in one step.
RELEASED: Final = 512
# Characters of a value that are compared.
MAX_COMPARED: Final = 256

# The place of an entry in the order of delivery: the rank of the type, the value, and the sequence number.
Place: TypeAlias = "tuple[int, float | int | Decimal | str, int]"


def order_of(value: FieldValue, seq: int) -> Place:
    """Return the place of a header's value: none, then numbers, times, text, and the text of all other values."""
    if value is None:
        return 0, 0, seq
    if isinstance(value, bool):
        return 4, str(value), seq
    if isinstance(value, datetime):
        return 2, value.timestamp(), seq
    if isinstance(value, Decimal):
        return (0, 0, seq) if value.is_nan() else (1, value, seq)
    if isinstance(value, (int, float)):
        return (0, 0, seq) if value != value else (1, value, seq)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if isinstance(value, str):
        return 3, value[:MAX_COMPARED], seq
    return 4, repr(value)[:MAX_COMPARED], seq


class _Backlog(Backlog):
    """The ready entries in the order of arrival."""

    __slots__ = ("blocks",)

    def __init__(self, priority: int) -> None:
        super().__init__(priority)
        self.blocks = Blocks(SEQ)
        self.head = self.blocks

    def insert(self, entry: Entry) -> int:
        self.passed = 0
        self.not_droppable = min(self.not_droppable, entry.seq)
        self.blocks.add(entry)
        return 0

    def take(self, entry: Entry) -> bool:
        return self.blocks.discard(entry) or (self.young is not None and super().take(entry))

    def find(self, seq: int) -> Entry | None:
        return self.blocks.find(seq) or (super().find(seq) if self.young is not None else None)


class _ReadyList(ReadyList):
    """The ready entries of a sorted queue, in one level."""

    def _new_level(self, priority: int) -> Backlog:
        return _Backlog(priority)

    def _recovered_level(self, levels: dict[int, Backlog], raw: int) -> Backlog:
        priority = self.priority_of(raw)
        level = levels.get(priority)
        if level is None:
            level = levels[priority] = _Backlog(raw)
        return level


class _Dispatcher(Dispatcher):
    """Delivery in the order of places.

    places   the place of each entry in the queue, by its sequence number
    order    the ready entries in the order of delivery
    offered  no consumer with credit wants the entries up to this place; None if unknown
    """

    def __init__(self, broker: Broker, single_active: bool) -> None:
        super().__init__(broker, single_active)
        self.places: dict[int, Place] = {}
        self.order = Blocks(self._place_of)
        self.offered: Place | None = None

    def _place_of(self, entry: Entry) -> Place:
        return self.places[entry.seq]

    def insert(self, entry: Entry, place: Place) -> None:
        """Add a ready entry."""
        self.places[entry.seq] = place
        self.order.add(entry)
        if self.offered is not None and place < self.offered:
            self.offered = (place[0], place[1], place[2] - 1)

    def forget(self, entry: Entry) -> None:
        """Remove an entry that leaves the queue, ready or not."""
        if entry.seq in self.places:
            self.order.discard(entry)
            del self.places[entry.seq]

    def forget_all(self) -> Iterator[int]:
        """Remove all entries, and release their memory in steps. Acquired ones get their places again when requeued."""
        places = self.places
        self.places = {}
        self.order = Blocks(self._place_of)
        self.offered = None
        return _releasing(places)

    def offer_again(self, queue: ClassicQueue) -> None:
        super().offer_again(queue)
        self.offered = None

    def drain(self, queue: ClassicQueue) -> None:
        broker = queue.broker
        begun = broker.work
        while self.ring:
            offered = self.offered
            entry = self.order.first() if offered is None else self.order.after(offered)
            if entry is None:
                return
            if broker.work - begun > STEP_WORK:
                broker.jobs.deferred.add(queue)
                return
            broker.work += DELIVER_WORK
            if self._drop_expired(queue, entry):
                continue
            taker = self._consumer_for(queue, entry)
            if taker is not None:
                self._take(queue, entry)
                queue.deliver(entry, taker)
                if taker.no_ack:
                    self.forget(entry)
            elif self.asking is not None:
                broker.jobs.deferred.add(queue)
                return
            elif self.ring:
                self.offered = self.places[entry.seq]

    def _take(self, queue: ClassicQueue, entry: Entry) -> None:
        """Remove an entry from the ready ones, whose memory the caller counts."""
        self.order.discard(entry)
        queue.ready.backlog.take(entry)

    def _drop_expired(self, queue: ClassicQueue, entry: Entry) -> bool:
        """Drop an entry if it has expired."""
        due = expires_at(entry)
        if not due or (entry.seq >= queue.expiry.offered_until if due == AT_ONCE else due > queue.broker.timers.now()):
            return False
        self._take(queue, entry)
        queue.ready.count_out(entry)
        queue.dead_letter(entry, EXPIRED)
        return True

    def get(self, queue: ClassicQueue, no_ack: bool, audience: int, scope: object | None) -> Entry | None:
        if self.frozen:
            return None
        queue.serve_consumers()
        entry = self.order.first()
        while entry is not None:
            queue.broker.work += 1
            place = self.places[entry.seq]
            if not self._drop_expired(queue, entry) and is_wanted(entry, audience, scope):
                self._take(queue, entry)
                self.acquire_got(queue, entry, no_ack)
                return entry
            entry = self.order.after(place)
        return None

    def must_load(self, queue: ClassicQueue, audience: int, scope: object | None) -> bool:
        return self.frozen > 0 and not queue.deleted


def _releasing(places: dict[int, Place]) -> Iterator[int]:
    while places:
        for _ in range(min(len(places), RELEASED)):
            places.popitem()
        yield RELEASED >> 4


class SortedQueue(IndexedQueue):
    """One sorted queue of one vhost. `header` is the name of the header with the value."""

    unsupported: ClassVar[dict[str, str]] = {LEASE: "a sorted queue, whose order of delivery changes while messages wait"}

    def __init__(
        self,
        vhost: Vhost,
        id: int,
        name: str,
        durable: bool,
        exclusive_owner: object | None,
        auto_delete: bool,
        arguments: FieldTable,
        settings: QueueSettings,
    ) -> None:
        super().__init__(vhost, id, name, durable, exclusive_owner, auto_delete, arguments, settings)
        self.header: str = settings.known[KEY]
        # All priorities are one level.
        self.ready = _ReadyList(vhost, 0, self.pageable)
        self.sorting = _Dispatcher(self.broker, settings.single_active_consumer)
        self.dispatcher = self.sorting

    def _place_of(self, entry: Entry) -> Place:
        message = entry.message
        self.broker.work += INSERT_WORK + (len(message.header) >> DECODE_SHIFT)
        return order_of(self.broker.decode_headers(message).get(self.header), entry.seq)

    def index(self, entry: Entry) -> None:
        if entry.seq not in self.sorting.places:
            self.sorting.insert(entry, self._place_of(entry))

    def _note_inserted(self, entry: Entry) -> None:
        self.index(entry)
        super()._note_inserted(entry)

    def requeue(self, entry: Entry, failed: bool = True) -> None:
        sorting = self.sorting
        sorting.insert(entry, sorting.places.get(entry.seq) or self._place_of(entry))
        super().requeue(entry, failed)

    def settle(self, entry: Entry) -> None:
        super().settle(entry)
        self.sorting.forget(entry)

    def settle_got(self, entry: Entry) -> None:
        super().settle_got(entry)
        self.sorting.forget(entry)

    def archive(self, entry: Entry) -> None:
        super().archive(entry)
        self.sorting.forget(entry)

    def discard(self) -> int:
        count = super().discard()
        self.broker.jobs.removals.add(self.sorting.forget_all())
        return count


TYPE: Final[QueueType] = QueueType(
    "sorted",
    SortedQueue,
    (Argument(KEY, TEXT),),
    refused=("x-max-priority",),
    because="which delivers in the order of a header",
    needs=KEY,
)
