"""A queue that delivers in the order of a header (`x-sort-key`, `x-queue-type: sorted`).

The order is ascending; equal values are in the order of arrival. `order_of` is the total order of values of all types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

from leveret.broker.arguments import TEXT, Argument
from leveret.broker.message import Entry
from leveret.broker.queues.capabilities import LEASE
from leveret.broker.queues.ordered import OrderedDispatcher, OrderedQueue
from leveret.broker.queues.queue_type import QueueType
from leveret.broker.table import Table
from leveret.broker.values import FieldValue

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.queues.definition import QueueDefinition

KEY: Final = "x-sort-key"
# Characters of a value that are compared.
MAX_COMPARED: Final = 256

# The place of an entry in the order of delivery: the rank of the type, the value, and the sequence number.
Place: TypeAlias = "tuple[int, float | int | Decimal | str, int]"
LOWEST: Final[Place] = (-1, 0, 0)


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


def _by(places: Table[int, Place]) -> Callable[[Entry], Place | None]:
    return lambda entry: places.get(entry.seq)


class _Dispatcher(OrderedDispatcher):
    """Delivery in the order of the values. `places` has the place of each entry in the queue, by its sequence number."""

    def __init__(self, broker: Broker, single_active: bool) -> None:
        places: Table[int, Place] = Table()
        super().__init__(broker, single_active, _by(places), LOWEST)
        self.places = places

    def before(self, place: Place) -> Place:
        return place[0], place[1], place[2] - 1

    def insert(self, entry: Entry, place: Place) -> None:
        """Add a ready entry."""
        self.places.put(entry.seq, place)
        self.offer(entry)

    def forget(self, entry: Entry) -> None:
        if self.places.get(entry.seq) is not None:
            self.order.discard(entry)
            self.places.pop(entry.seq)

    def forget_ready(self) -> Iterator[int]:
        # Acquired entries get their places again when they are requeued.
        places = self.places
        self.places = Table()
        return chain(self.forget_order(_by(self.places)), places.releasing())


class SortedQueue(OrderedQueue):
    """One sorted queue of one vhost."""

    unsupported: ClassVar[dict[str, str]] = {LEASE: "a sorted queue, whose order of delivery changes while messages wait"}

    def __init__(self, definition: QueueDefinition) -> None:
        sorting = _Dispatcher(definition.vhost.broker, definition.settings.single_active_consumer)
        super().__init__(definition, sorting, KEY)
        self.sorting = sorting

    def _place_of(self, entry: Entry) -> Place:
        return order_of(self.value_of(entry.message), entry.seq)

    def index(self, entry: Entry) -> None:
        if self.sorting.places.get(entry.seq) is None:
            self.sorting.insert(entry, self._place_of(entry))

    def put_back(self, entry: Entry) -> None:
        self.sorting.insert(entry, self.sorting.places.get(entry.seq) or self._place_of(entry))


TYPE: Final[QueueType] = QueueType(
    "sorted",
    SortedQueue,
    (Argument(KEY, TEXT),),
    refused=("x-max-priority",),
    because="which delivers in the order of a header",
    needs=KEY,
)
