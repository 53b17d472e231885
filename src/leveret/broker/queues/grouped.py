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

from leveret.broker.arguments import RETRY_DELAYS, TEXT, Argument
from leveret.broker.consumer import Scope
from leveret.broker.message import Entry, Message
from leveret.broker.queues.blocks import Blocks
from leveret.broker.queues.capabilities import LEASE
from leveret.broker.queues.classic.backlog import MOVED_SHIFT, SEQ
from leveret.broker.queues.classic.searching import is_wanted
from leveret.broker.queues.ordered import OrderedDispatcher, OrderedQueue
from leveret.broker.queues.queue_type import QueueType
from leveret.broker.queues.releasing import releasing, releasing_blocks
from leveret.broker.table import RELEASE_SHIFT, RELEASED, Table
from leveret.broker.values import Frozen, compact_key

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.consumer import Consumer
    from leveret.broker.queues.classic.queue import ClassicQueue
    from leveret.broker.queues.definition import QueueDefinition

KEY: Final = "x-group-key"
# The value of the argument for the property of AMQP 1.0, which JMS calls JMSXGroupID.
GROUP_ID: Final = "group-id"

# Stands for the consumers of entries that were acquired before a start.
UNKNOWN: Final = Scope()


class _Holder:
    """A consumer, or the scope of a `get`, with unacked messages of groups.

    key       the consumer or the scope
    consumer  None for a scope
    groups    number of groups that it holds
    own       the first ready entry of each of these groups
    shown     the one of `own` that is in the order of delivery
    passed    the consumer does not want the entries of `own` up to this sequence number
    epoch     number of purges before the entries of `own` were added; after another one they are no longer in the queue
    """

    __slots__ = ("consumer", "epoch", "groups", "key", "own", "passed", "shown")

    def __init__(self, key: object, consumer: Consumer | None, epoch: int) -> None:
        self.key = key
        self.consumer = consumer
        self.groups = 0
        self.own = Blocks(SEQ)
        self.shown: Entry | None = None
        self.passed = 0
        self.epoch = epoch

    def may_have_credit(self) -> bool:
        """Return whether it is a consumer that may have credit."""
        consumer = self.consumer
        return consumer is not None and not consumer.parked and not consumer.left

    def count_held(self) -> None:
        """Count another group that it holds."""
        self.groups += 1

    def release(self) -> bool:
        """Hold one group less. Return whether it holds none now."""
        self.groups -= 1
        return not self.groups

    def add(self, entry: Entry) -> None:
        """Add the first ready entry of a group that it holds."""
        self.own.add(entry)
        self.passed = min(self.passed, entry.seq - 1)

    def next(self) -> Entry | None:
        """Return the first entry of `own` that the consumer may want."""
        return self.own.after(self.passed)

    def pass_over(self, entry: Entry) -> None:
        """Note that the consumer does not want an entry, which `next` has returned."""
        self.passed = entry.seq

    def show(self, entry: Entry | None) -> None:
        """Note the entry of `own` that is in the order of delivery."""
        self.shown = entry

    def clear(self, epoch: int) -> list[list[Entry]]:
        """Forget its entries, which were purged. Return them in blocks."""
        blocks = self.own.blocks
        self.own = Blocks(SEQ)
        self.shown = None
        self.epoch = epoch
        return blocks


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

    def add_first(self, entry: Entry) -> None:
        """Add a ready entry before all others."""
        first = self.first
        if first is not None:
            if self.later is None:
                self.later = deque()
            self.later.appendleft(first)
        self.first = entry

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

    def hold(self, holder: _Holder) -> None:
        """Give a free group to a holder."""
        self.holder = holder
        holder.count_held()

    def count_unacked(self) -> None:
        self.unacked += 1

    def count_settled(self) -> _Holder | None:
        """Note that an unacked entry is settled or requeued. After the last one, the group is free: return its holder."""
        self.unacked -= 1
        if self.unacked:
            return None
        holder = self.holder
        self.holder = None
        return holder

    def clear(self, epoch: int) -> deque[Entry]:
        """Forget the ready entries, which were purged. Return those behind the first one."""
        later = self.later
        self.first = self.later = None
        self.epoch = epoch
        return deque() if later is None else later


def _releasing_holders(holders: dict[object, _Holder]) -> Iterator[int]:
    while holders:
        yield 1
        yield from releasing_blocks(holders.popitem()[1].own.blocks)


def _releasing_groups(groups: Table[Frozen, _Group], epoch: int) -> Iterator[int]:
    for group in groups.drain():
        yield 1
        yield from releasing(group.clear(epoch))


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
        self.groups: Table[Frozen, _Group] = Table()
        self.ready_groups: Table[int, _Group] = Table()
        self.unacked_groups: Table[int, _Group] = Table()
        self.holders: dict[object, _Holder] = {}
        self.epoch = 0

    def before(self, place: int) -> int:
        return place - 1

    # Entries

    def has(self, entry: Entry) -> bool:
        """Return whether a ready entry was inserted."""
        return self.ready_groups.get(entry.seq) is not None or self.order.find(entry.seq) is not None

    def insert(self, entry: Entry, key: Frozen) -> None:
        """Add a ready entry; its key is None if it has no group."""
        if key is None:
            self.offer(entry)
            return
        self._add(entry, self._group_of(key))

    def _group_of(self, key: Frozen) -> _Group:
        """Return the group with a key."""
        group = self.groups.get(key)
        if group is None:
            group = _Group(key, self.epoch)
            self.groups.put(key, group)
        elif group.epoch != self.epoch:
            self._renew(group)
        return group

    def hold(self, entry: Entry, key: Frozen) -> None:
        """Hold the group of an entry that is acquired again; its key is None if it has no group."""
        if key is None or self.unacked_groups.get(entry.seq) is not None:
            return
        group = self._group_of(key)
        if group.holder is None:
            first = group.first
            if first is not None:
                self._withdraw(group, first)
            group.hold(self._holder_of(UNKNOWN, None))
            if first is not None:
                self._offer_first(group)
        group.count_unacked()
        self.unacked_groups.put(entry.seq, group)

    def put_back(self, entry: Entry) -> bool:
        """Add an unacked entry that is requeued. Return False if it is of no group, or its group is unknown."""
        group = self.unacked_groups.pop(entry.seq)
        if group is None:
            return False
        if group.epoch != self.epoch:
            self._renew(group)
        self._add(entry, group)
        self._count_settled(group)
        return True

    def settled(self, entry: Entry) -> None:
        group = self.unacked_groups.pop(entry.seq)
        if group is not None:
            self._count_settled(group)

    def forget(self, entry: Entry) -> None:
        group = self.ready_groups.pop(entry.seq)
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
            self.groups.pop(group.key)

    def forget_ready(self) -> Iterator[int]:
        self.epoch += 1
        ready = self.ready_groups
        self.ready_groups = Table()
        return chain(self.forget_order(SEQ), self._renewing(self.groups), ready.releasing())

    def _renewing(self, groups: Table[Frozen, _Group]) -> Iterator[int]:
        """Forget the purged entries of all groups, and of their holders, in steps."""
        for piece in groups.pieces():
            for group in piece:
                if group.holder is not None:
                    self._renew_holder(group.holder)
                if group.epoch != self.epoch:
                    self._renew(group)
                if group.first is None and not group.unacked and groups.get(group.key) is group:
                    groups.pop(group.key)
                yield 1

    def _renew(self, group: _Group) -> None:
        """Forget the ready entries of a group, which were purged."""
        later = group.clear(self.epoch)
        if len(later) > RELEASED:
            self.broker.jobs.removals.add(releasing(later))
        else:
            self.broker.work += len(later) >> RELEASE_SHIFT

    def _renew_holder(self, holder: _Holder) -> None:
        """Forget the entries of a holder if they were purged."""
        if holder.epoch != self.epoch:
            blocks = holder.clear(self.epoch)
            if len(blocks) > 1:
                self.broker.jobs.removals.add(releasing_blocks(blocks))

    def _add(self, entry: Entry, group: _Group) -> None:
        """Add a ready entry to its group."""
        self.ready_groups.put(entry.seq, group)
        first = group.first
        if first is not None:
            if first.seq < entry.seq:
                self.broker.work += group.add_later(entry)
                return
            self._withdraw(group, first)
        group.add_first(entry)
        self._offer_first(group)

    def _count_settled(self, group: _Group) -> None:
        """Note that an unacked entry of a group is settled or requeued. After the last one, the group is free."""
        if group.epoch != self.epoch:
            self._renew(group)
        first = group.first
        if group.unacked == 1 and first is not None:
            self._withdraw(group, first)
        holder = group.count_settled()
        if holder is None:
            return
        if holder.release():
            del self.holders[holder.key]
        if first is not None:
            self.offer(first)
        else:
            self.groups.pop(group.key)

    # The order of delivery

    def _offer_first(self, group: _Group) -> None:
        """Offer the first ready entry of a group to its holder, or to all consumers."""
        first = group.first
        assert first is not None
        holder = group.holder
        if holder is None:
            self.offer(first)
            return
        self._renew_holder(holder)
        holder.add(first)
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
            self._hide(holder, first)
            self._show(holder)

    def _show(self, holder: _Holder) -> None:
        """Offer a consumer the first entry that it may want of the groups that it holds, if it may have credit."""
        first = holder.next()
        shown = holder.shown
        if first is shown or not holder.may_have_credit():
            return
        if shown is not None:
            self._hide(holder, shown)
        if first is not None:
            holder.show(first)
            self.offer(first)

    def _hide(self, holder: _Holder, shown: Entry) -> None:
        """Stop offering a consumer an entry of the groups that it holds."""
        self.order.discard(shown)
        holder.show(None)

    def taker_of(self, queue: ClassicQueue, entry: Entry) -> Consumer | None:
        group = self.ready_groups.get(entry.seq)
        holder = None if group is None else group.holder
        if holder is None:
            return self._consumer_for(queue, entry)
        self.asking = None
        consumer = holder.consumer
        if consumer is None:
            return None
        if holder.may_have_credit() and not consumer.has_credit_for(entry.message.size):
            self.park(consumer)
        if not holder.may_have_credit():
            self._hide(holder, entry)
            return None
        overlay = entry.overlay
        if not consumer.wants(entry.message, entry) or (overlay is not None and consumer.scope in overlay.refused):
            holder.pass_over(entry)
            self._show(holder)
            return None
        return consumer

    def acquire(self, queue: ClassicQueue, entry: Entry, holder: object, consumer: Consumer | None, no_ack: bool) -> None:
        group = None if no_ack else self.ready_groups.pop(entry.seq)
        if group is None:
            super().acquire(queue, entry, holder, consumer, no_ack)
            return
        queue.ready.backlog.take(entry)
        self._withdraw(group, entry)
        if group.holder is None:
            group.hold(self._holder_of(holder, consumer))
        group.count_unacked()
        self.unacked_groups.put(entry.seq, group)
        if group.advance() is not None:
            self._offer_first(group)

    def _holder_of(self, key: object, consumer: Consumer | None) -> _Holder:
        """Return the holder for a consumer or scope."""
        holder = self.holders.get(key)
        if holder is None:
            holder = self.holders[key] = _Holder(key, consumer, self.epoch)
        return holder

    # basic.get

    def next_for(self, scope: object | None, place: int) -> Entry | None:
        entry = super().next_for(scope, place)
        holder = self.holders.get(scope)
        if holder is None:
            return entry
        self._renew_holder(holder)
        own = holder.own.after(place)
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
            self._renew_holder(holder)
            self._show(holder)
        return is_served

    def clear(self) -> list[Consumer]:
        # The queue is deleted, and freed at once without these references to itself.
        tables = self.ready_groups.releasing(), self.unacked_groups.releasing()
        removals = self.broker.jobs.removals
        removals.add(chain(*tables, _releasing_groups(self.groups, self.epoch), _releasing_holders(self.holders)))
        self.groups = Table()
        self.ready_groups = Table()
        self.unacked_groups = Table()
        self.holders = {}
        return super().clear()

    def could_take(self, message: Message, key: Frozen) -> bool | None:
        """Return whether the holder of a group would get a new message at once; None if the group is free."""
        group = self.groups.get(key)
        if group is None:
            return None
        if group.epoch != self.epoch:
            self._renew(group)
        holder = group.holder
        if group.first is not None:
            return False
        if holder is None:
            return None
        consumer = holder.consumer
        return (
            consumer is not None
            and holder.may_have_credit()
            and consumer.has_credit_for(message.size)
            and consumer.wants(message, None)
        )


class GroupedQueue(OrderedQueue):
    """One queue of one vhost with message groups."""

    unsupported: ClassVar[dict[str, str]] = {LEASE: "a queue with message groups, which stick to one consumer"}

    def __init__(self, definition: QueueDefinition) -> None:
        grouping = _Dispatcher(definition.vhost.broker, definition.settings.single_active_consumer)
        super().__init__(definition, grouping, KEY)
        self.grouping = grouping

    def _key_of(self, message: Message) -> Frozen:
        """Return the group of a message, None if it has none."""
        value = self.value_of(message)
        if value is None and self.header == GROUP_ID:
            value = self.broker.property_of(message, GROUP_ID)
        key = compact_key(value)
        return None if key == "" else key

    def index(self, entry: Entry) -> None:
        if not self.grouping.has(entry):
            self.grouping.insert(entry, self._key_of(entry.message))

    def settle(self, entry: Entry) -> None:
        super().settle(entry)
        self._serve_others()

    def archive(self, entry: Entry) -> None:
        super().archive(entry)
        self._serve_others()

    def settle_got(self, entry: Entry) -> None:
        super().settle_got(entry)
        self._serve_others()

    def _serve_others(self) -> None:
        """Deliver at the end of the turn: the group of an entry that has left may be free, or have another first entry."""
        if self.dispatcher.ring:
            self.activate()

    def note_reacquired(self, entry: Entry) -> None:
        if not self.deleted:
            self.grouping.hold(entry, self._key_of(entry.message))

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
