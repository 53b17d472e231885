"""A queue with message groups (`x-group-key`, `x-queue-type: grouped`).

The group of a message is the value of a header. While a consumer, or the scope of a `get`, has unacked messages of a
group, it is the holder of the group, and no other one gets messages of it. The order within a group is that of arrival,
also for messages that are requeued. Messages without a group are delivered to every consumer.

Only the first ready message of a group can be delivered next. The order of delivery contains the messages without a group,
the first one of each free group, and for each holder with credit the first one of all groups that it holds. So messages
that wait for a holder never delay others, however many they are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Final

from leveret.broker.arguments import RETRY_DELAYS, TEXT, Argument, QueueSettings
from leveret.broker.message import Entry, Message
from leveret.broker.queues.blocks import Blocks
from leveret.broker.queues.capabilities import LEASE
from leveret.broker.queues.classic.backlog import MOVED_SHIFT, SEQ
from leveret.broker.queues.classic.dispatcher import is_wanted
from leveret.broker.queues.ordered import RELEASE_SHIFT, RELEASED, OrderedDispatcher, OrderedQueue, releasing
from leveret.broker.queues.queue_type import QueueType
from leveret.broker.values import FieldTable, Frozen, compact_key

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.consumer import Consumer
    from leveret.broker.queues.classic.queue import ClassicQueue
    from leveret.broker.vhost import Vhost

KEY: Final = "x-group-key"
# The value of the argument for the property of AMQP 1.0, which JMS calls JMSXGroupID.
GROUP_ID: Final = "group-id"
# Units of work to insert a message, and bytes of its headers (as a power of two) that are decoded in one unit.
INSERT_WORK: Final = 5
DECODE_SHIFT: Final = 6


class _Holder:
    """A consumer, or the scope of a `get`, with unacked messages of groups.

    key       the consumer or the scope
    consumer  None for a scope
    groups    number of groups that it holds
    own       the first ready entry of each of these groups
    shown     the first one of `own`, if it is in the order of delivery
    """

    __slots__ = ("consumer", "groups", "key", "own", "shown")

    def __init__(self, key: object, consumer: Consumer | None) -> None:
        self.key = key
        self.consumer = consumer
        self.groups = 0
        self.own = Blocks(SEQ)
        self.shown: Entry | None = None


class _Group:
    """A group with entries in the queue.

    key      its name
    first    the first ready entry
    later    the other ready entries; None if there are none
    unacked  number of unacked entries
    holder   the consumer or scope that has them
    epoch    number of purges before the ready entries were added; after another one they are no longer in the queue
    """

    __slots__ = ("epoch", "first", "holder", "key", "later", "unacked")

    def __init__(self, key: Frozen, epoch: int) -> None:
        self.key = key
        self.first: Entry | None = None
        self.later: deque[Entry] | None = None
        self.unacked = 0
        self.holder: _Holder | None = None
        self.epoch = epoch

    def add_later(self, entry: Entry) -> int:
        """Add a ready entry behind the first one. Return the units of work."""
        later = self.later
        if later is None:
            self.later = deque((entry,))
        elif later[len(later) - 1].seq < entry.seq:
            later.append(entry)
        else:
            index = bisect_left(later, entry.seq, key=SEQ)
            later.insert(index, entry)
            return min(index, len(later) - index) >> MOVED_SHIFT
        return 0

    def remove_later(self, entry: Entry) -> int:
        """Remove a ready entry behind the first one. Return the units of work."""
        later = self.later
        assert later is not None
        index = bisect_left(later, entry.seq, key=SEQ)
        del later[index]
        if not later:
            self.later = None
            return 0
        return min(index, len(later) - index) >> MOVED_SHIFT

    def advance(self) -> Entry | None:
        """Remove the first ready entry. Return the next one."""
        later = self.later
        if later is None:
            self.first = None
        else:
            self.first = later.popleft()
            if not later:
                self.later = None
        return self.first


def _releasing_entries(entries: deque[Entry]) -> Iterator[int]:
    while entries:
        for _ in range(min(len(entries), RELEASED)):
            entries.pop()
        yield RELEASED >> RELEASE_SHIFT


class _Dispatcher(OrderedDispatcher):
    """Delivery by groups.

    groups          all groups with ready or unacked entries, by their keys
    ready_groups    the groups of ready entries, by sequence number
    unacked_groups  the groups of unacked entries, by sequence number
    holders         the holders of groups, by consumer or scope
    epoch           number of purges
    """

    def __init__(self, broker: Broker, single_active: bool) -> None:
        super().__init__(broker, single_active, SEQ, 0)
        self.groups: dict[Frozen, _Group] = {}
        self.ready_groups: dict[int, _Group] = {}
        self.unacked_groups: dict[int, _Group] = {}
        self.holders: dict[object, _Holder] = {}
        self.epoch = 0

    def before(self, place: int) -> int:
        return place - 1

    # Entries

    def has(self, entry: Entry) -> bool:
        """Return whether a ready entry was inserted."""
        return entry.seq in self.ready_groups or self.order.find(entry.seq) is not None

    def insert(self, entry: Entry, key: Frozen) -> None:
        """Add a ready entry; its key is None if it has no group."""
        if key is None:
            self.offer(entry)
            return
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = _Group(key, self.epoch)
        elif group.epoch != self.epoch:
            self._renew(group)
        self._add(entry, group)

    def put_back(self, entry: Entry) -> bool:
        """Add an unacked entry that is requeued. Return False if it is of no group, or its group is unknown."""
        group = self.unacked_groups.pop(entry.seq, None)
        if group is None:
            return False
        if group.epoch != self.epoch:
            self._renew(group)
        self._add(entry, group)
        self._count_settled(group)
        return True

    def settled(self, entry: Entry) -> None:
        group = self.unacked_groups.pop(entry.seq, None)
        if group is not None:
            self._count_settled(group)

    def forget(self, entry: Entry) -> None:
        group = self.ready_groups.pop(entry.seq, None)
        if group is None:
            self.order.discard(entry)
            self.settled(entry)
            return
        if entry is not group.first:
            self.broker.work += group.remove_later(entry)
            return
        self._withdraw(group, entry)
        if group.advance() is not None:
            self._offer_first(group)
        elif not group.unacked:
            del self.groups[group.key]

    def forget_ready(self) -> Iterator[int]:
        self.epoch += 1
        ready = self.ready_groups
        self.ready_groups = {}
        for holder in self.holders.values():
            holder.own = Blocks(SEQ)
            holder.shown = None
        return chain(self.forget_order(SEQ), self._renewing(), releasing(ready))

    def _renewing(self) -> Iterator[int]:
        """Forget the purged entries of all groups in steps."""
        for group in list(self.groups.values()):
            if group.epoch != self.epoch:
                self._renew(group)
                if not group.unacked:
                    self.groups.pop(group.key, None)
            yield 1

    def _renew(self, group: _Group) -> None:
        """Forget the ready entries of a group, which were purged."""
        later = group.later
        group.first = group.later = None
        group.epoch = self.epoch
        if later is not None:
            self.broker.jobs.removals.add(_releasing_entries(later))

    def _add(self, entry: Entry, group: _Group) -> None:
        """Add a ready entry to its group."""
        self.ready_groups[entry.seq] = group
        first = group.first
        if first is not None:
            if first.seq < entry.seq:
                self.broker.work += group.add_later(entry)
                return
            self._withdraw(group, first)
            if group.later is None:
                group.later = deque()
            group.later.appendleft(first)
        group.first = entry
        self._offer_first(group)

    def _count_settled(self, group: _Group) -> None:
        """Note that an unacked entry of a group is settled or requeued. After the last one, the group is free."""
        group.unacked -= 1
        if group.unacked:
            return
        if group.epoch != self.epoch:
            self._renew(group)
        first = group.first
        if first is not None:
            self._withdraw(group, first)
        holder = group.holder
        group.holder = None
        if holder is not None:
            holder.groups -= 1
            if not holder.groups:
                del self.holders[holder.key]
        if first is not None:
            self.offer(first)
        else:
            del self.groups[group.key]

    # The order of delivery

    def _offer_first(self, group: _Group) -> None:
        """Offer the first ready entry of a group to its holder, or to all consumers."""
        first = group.first
        assert first is not None
        holder = group.holder
        if holder is None:
            self.offer(first)
            return
        holder.own.add(first)
        if holder.consumer is None:
            self.reopen(first.seq)
        else:
            self._show(holder)

    def _withdraw(self, group: _Group, first: Entry) -> None:
        """Offer the first ready entry of a group no longer."""
        holder = group.holder
        if holder is None:
            self.order.discard(first)
            return
        holder.own.discard(first)
        if holder.shown is first:
            self.order.discard(first)
            holder.shown = None
            self._show(holder)

    def _show(self, holder: _Holder) -> None:
        """Offer a consumer the first ready entry of the groups that it holds, if it may have credit."""
        consumer = holder.consumer
        first = holder.own.first()
        shown = holder.shown
        if first is shown or consumer is None or consumer.parked or consumer.left:
            return
        if shown is not None:
            self.order.discard(shown)
        holder.shown = first
        if first is not None:
            self.offer(first)

    def taker_of(self, queue: ClassicQueue, entry: Entry) -> Consumer | None:
        group = self.ready_groups.get(entry.seq)
        holder = None if group is None else group.holder
        if holder is None:
            return self._consumer_for(queue, entry)
        self.asking = None
        consumer = holder.consumer
        if consumer is None:
            return None
        if not (consumer.parked or consumer.left) and not consumer.has_credit_for(entry.message.size):
            self.park(consumer)
        if consumer.parked or consumer.left:
            self.order.discard(entry)
            holder.shown = None
            return None
        overlay = entry.overlay
        if not consumer.wants(entry.message, entry) or (overlay is not None and consumer.scope in overlay.refused):
            return None
        return consumer

    def acquire(self, queue: ClassicQueue, entry: Entry, holder: object, consumer: Consumer | None, no_ack: bool) -> None:
        group = None if no_ack else self.ready_groups.pop(entry.seq, None)
        if group is None:
            super().acquire(queue, entry, holder, consumer, no_ack)
            return
        queue.ready.backlog.take(entry)
        self._withdraw(group, entry)
        if group.holder is None:
            found = self.holders.get(holder)
            if found is None:
                found = self.holders[holder] = _Holder(holder, consumer)
            found.groups += 1
            group.holder = found
        group.unacked += 1
        self.unacked_groups[entry.seq] = group
        if group.advance() is not None:
            self._offer_first(group)

    # basic.get

    def next_for(self, scope: object | None, place: int) -> Entry | None:
        entry = super().next_for(scope, place)
        holder = self.holders.get(scope)
        own = None if holder is None else holder.own.after(place)
        return own if own is not None and (entry is None or own.seq < entry.seq) else entry

    def may_get(self, entry: Entry, audience: int, scope: object | None) -> bool:
        group = self.ready_groups.get(entry.seq)
        holder = None if group is None else group.holder
        return (holder is None or holder.key is scope) and is_wanted(entry, audience, scope)

    # Consumers

    def unpark(self, consumer: Consumer) -> bool:
        is_served = super().unpark(consumer)
        holder = self.holders.get(consumer)
        if holder is not None:
            self._show(holder)
        return is_served

    def clear(self) -> list[Consumer]:
        # The queue is deleted, and freed at once without these references to itself.
        self.groups = {}
        self.ready_groups = {}
        self.unacked_groups = {}
        self.holders = {}
        return super().clear()

    def could_take(self, message: Message, key: Frozen) -> bool | None:
        """Return whether the holder of a group would get a new message at once; None if the group is free."""
        group = self.groups.get(key)
        if group is None or (group.epoch != self.epoch and not group.unacked):
            return None
        holder = group.holder
        if group.first is not None or holder is None:
            return False
        consumer = holder.consumer
        return (
            consumer is not None
            and not consumer.left
            and not consumer.parked
            and consumer.has_credit_for(message.size)
            and consumer.wants(message, None)
        )


class GroupedQueue(OrderedQueue):
    """One queue of one vhost with message groups. `header` is the name of the header with the group."""

    unsupported: ClassVar[dict[str, str]] = {LEASE: "a queue with message groups, which stick to one consumer"}

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
        grouping = _Dispatcher(vhost.broker, settings.single_active_consumer)
        super().__init__(vhost, id, name, durable, exclusive_owner, auto_delete, arguments, settings, grouping)
        self.grouping = grouping
        self.header: str = settings.known[KEY]

    def _key_of(self, message: Message) -> Frozen:
        """Return the group of a message, None if it has none."""
        broker = self.broker
        broker.work += INSERT_WORK + (len(message.header) >> DECODE_SHIFT)
        value = broker.decode_headers(message).get(self.header)
        if value is None and self.header == GROUP_ID:
            value = broker.property_of(message, GROUP_ID)
        key = compact_key(value)
        return None if key == "" else key

    def index(self, entry: Entry) -> None:
        if not self.grouping.has(entry):
            self.grouping.insert(entry, self._key_of(entry.message))

    def put_back(self, entry: Entry) -> None:
        if not self.grouping.put_back(entry):
            self.grouping.insert(entry, self._key_of(entry.message))

    def can_deliver_now(self, message: Message) -> bool:
        if self.paused:
            return False
        self.drain()
        is_taken = self.grouping.could_take(message, self._key_of(message))
        return self.has_taker(message) if is_taken is None else is_taken


TYPE: Final[QueueType] = QueueType(
    "grouped",
    GroupedQueue,
    (Argument(KEY, TEXT),),
    refused=("x-max-priority", RETRY_DELAYS),
    because="which keeps the order within a group",
    needs=KEY,
)
