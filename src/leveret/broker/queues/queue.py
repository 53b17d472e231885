"""A queue: entries in, entries out to consumers.

The theory. Ready entries stand in one `Backlog` a priority level; most queues only ever have one, `self.backlog`, and
`self.levels` stays None. A push appends and marks the queue active; at the end of the turn `drain` hands entries to the
consumers in `self.ring`, those that took an entry last time they were asked. What a queue does not use costs nothing:
`guarded` is set only where limits, a TTL or a delivery limit need a look at each push, `selective` only where some
consumer does not take every entry.

An entry is AVAILABLE (in a backlog), ACQUIRED (unacked) or ARCHIVED (removed); `settle`, `requeue` and `dead_letter` end an
acquisition. The module `settlement` has the transitions.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar, Final

from leveret.broker import settlement
from leveret.broker.arguments import DROP_HEAD, QueueSettings
from leveret.broker.consumer import Consumer, Scope
from leveret.broker.content_policy import DROP_FIRST
from leveret.broker.errors import NotImplementedByBroker
from leveret.broker.jobs import STEP_WORK
from leveret.broker.leases import reading
from leveret.broker.message import (
    AT_ONCE,
    DEFAULT_PRIORITY,
    ENTRY_OVERHEAD,
    Entry,
    Message,
    Overlay,
    own_overlay,
)
from leveret.broker.outcomes import ACCEPTED, DELIVERY_LIMIT, REJECTED, RELEASED, protocol_of
from leveret.broker.queues import capabilities, removal, rings
from leveret.broker.queues.classic import browsing, delayed, draining, expiry, getting, limits, paging, selective
from leveret.broker.queues.classic.backlog import Backlog
from leveret.broker.values import FieldTable

if TYPE_CHECKING:
    from leveret.broker.events import Watch
    from leveret.broker.leases.lease import Leases
    from leveret.broker.log import Log, Recovery
    from leveret.broker.streams.queue import StreamQueue
    from leveret.broker.streams.recovery import StreamRecords
    from leveret.broker.vhost import Vhost


# Units of work of a dead letter: its headers are decoded, and it is routed.
DEAD_LETTER_WORK: Final = 25


class Hidden:
    """Entries that are not visible yet: their sequence numbers and sizes, and the total size."""

    __slots__ = ("bytes", "sizes")

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.sizes)

    def add(self, seq: int, size: int) -> None:
        self.sizes[seq] = size
        self.bytes += size

    def discard(self, seq: int) -> None:
        self.bytes -= self.sizes.pop(seq, 0)


class Queue:
    """One queue of one vhost. `id` is its identity in the log; names may be used again, ids are not.

    A queue type is a subclass and one line in the registry. It declares its capabilities, which callers ask for
    instead of its type:

    unsupported  the operations of `capabilities` that it leaves out, each with the reason: what the queue is
    replayable   consumers remove nothing: each reads from an offset of its own
    pageable     entries may be paged out
    counts_deliveries  consumers see how often a message was returned, in `x-delivery-count`
    """

    unsupported: ClassVar[dict[str, str]] = {}
    replayable: ClassVar[bool] = False
    pageable: ClassVar[bool] = True
    counts_deliveries: ClassVar[bool] = False

    def __init__(self, vhost: Vhost, id: int, name: str, durable: bool, exclusive_owner: object | None, auto_delete: bool,
                 arguments: FieldTable, settings: QueueSettings) -> None:
        self.vhost = vhost
        self.broker = vhost.broker
        self.log: Log = vhost.broker.log
        self.id = id
        self.name = name
        self.durable = durable
        # Whether the log has a definition of this queue; an exclusive one goes with its connection.
        self.stored = False
        # Whether the log knows of a deleted queue that it has entries of.
        self.leftover = False
        self.exclusive_owner = exclusive_owner
        self.auto_delete = auto_delete
        # Made for one client, whose end it does not outlive.
        self.temporary = exclusive_owner is not None or auto_delete
        self.arguments = arguments
        self.settings = settings
        self.next_seq = 1
        self.backlog = Backlog(-1)
        self.levels: dict[int, Backlog] | None = None
        self.memory = 0
        self.unacked = 0
        self.consumers: dict[Consumer, None] = {}
        self.exclusive_consumer: Consumer | None = None
        # The single active one, where the queue has such.
        self.active_consumer: Consumer | None = None
        self.selective_consumers = 0
        self.browsers: dict[Consumer, browsing.Browser] = {}
        # Units of work of the broker's turn beyond which the one that is being served gets nothing.
        self.browse_until = 0
        # They are being served, in steps; and there is more to do about them after that.
        self.serving_browsers = False
        self.browsers_waiting = False
        self.ring: deque[Consumer] = deque()
        self.rings: dict[int, rings.Ring] = {}
        # The negated priorities of the rings in which somebody may stand, as a heap.
        self.serving: list[int] = []
        # Work that gives entries back in steps is under way: until their order is right again nothing is handed out.
        self.frozen = 0
        # Consumers in rings that have left.
        self.strays = 0
        self.active = False
        self.deleted = False
        # Deleted, and its entries become dead letters in steps.
        self.moving = False
        self.selective = False
        # The entry that not all consumers could be asked about in one turn.
        self.asking: selective.Asking | None = None
        # Whether there may be entries that somebody has refused: consumers who have must not get them again.
        self.refusing = False
        self.expiring = False
        # Whether the log knows that there may be messages that expire by themselves: after a start their head is read.
        self.has_expiring = False
        # The same for messages that become visible later.
        self.has_delayed = False
        # Whether there may be messages in memory that overflow drops first, as their content policy says.
        self.droppable = False
        self.had_consumer = False
        self.epoch = 0
        self.delivered_until = 0
        # Entries below this have been offered to consumers once: what expires AT_ONCE does so now.
        self.offered_until = 0
        self.waiting: list[paging.Waiting] = []
        # Who refused an entry of which only the position is in memory, by sequence number.
        self.refusals: dict[int, list[object]] = {}
        # What is planned for readers outside.
        self.leases: Leases | None = None
        # Entries that wait for the commit of their transaction.
        self.hidden = Hidden()
        # There may be more in it than its limits allow: it drops that when it is drained.
        self.overfull = False
        # Deaths of the dead letters that came in while it was beyond its limits, until it is within them again.
        self.overflow = 0
        # Most copies that it made of a message as dead letters.
        self.max_copies = 1
        # Delayed entries.
        self.delays: delayed.Delays | None = None
        self.expiry: expiry.Expiry | None = None
        self.unused: expiry.Unused | None = None
        self.max_priority = -1 if settings.max_priority is None else settings.max_priority
        self.message_ttl = -1 if settings.message_ttl is None else settings.message_ttl
        self.max_length = -1 if settings.max_length is None else settings.max_length
        self.max_bytes = -1 if settings.max_length_bytes is None else settings.max_length_bytes
        self.delivery_limit = -1 if settings.delivery_limit is None else settings.delivery_limit
        self.rejects_publish = settings.overflow != DROP_HEAD
        self.guarded = self._has_guards()
        # Watch on events of the queue; usually None.
        self.watch: Watch | None = None
        # Statistics
        self.published = 0
        self.delivered = 0
        self.settled = 0

    def _has_guards(self) -> bool:
        return (self.message_ttl >= 0 or self.max_length >= 0 or self.max_bytes >= 0
                or self.counts_deliveries)

    def set_watch(self, watch: Watch | None) -> None:
        """Set or remove the watch on events of the queue."""
        self.watch = watch
        self.guarded = watch is not None or self._has_guards()
        rings.set_selective(self)
        selective.offer_again(self)

    def begin(self) -> None:
        """Begin what belongs to the type, once the queue is declared or its definition restored."""

    def recover(self, recovery: Recovery, streams: StreamRecords) -> None:
        """Take over the entries that the log has of the queue."""
        recovered = recovery.queues.get(self.id)
        if recovered is not None:
            paging.recover(self, recovered, not recovery.clean)

    def start(self) -> None:
        """Start timers and first reads, once all queues are recovered and the log commits."""
        paging.start(self)

    # Capabilities

    def supports(self, operation: str) -> bool:
        return operation not in self.unsupported

    def check_supports(self, operation: str) -> None:
        """Raise NotImplementedByBroker for an operation that the type leaves out."""
        reason = self.unsupported.get(operation)
        if reason is not None:
            raise NotImplementedByBroker(f"queue '{self.name}' in vhost '{self.vhost.name}' is {reason}",
                                         closes_connection=True)

    def as_stream(self) -> StreamQueue | None:
        """Return the queue if it has offsets, segments and tracked consumers."""
        return None

    @property
    def announces_activity(self) -> bool:
        """Whether to notify consumers when they become active."""
        return self.settings.single_active_consumer

    # Figures

    @property
    def ready_count(self) -> int:
        """Entries that wait for a consumer, in memory or not."""
        levels = self.levels
        if levels is None:
            return len(self.backlog)
        return sum(len(level) for level in levels.values())

    @property
    def delayed_count(self) -> int:
        """Entries that become visible later."""
        return 0 if self.delays is None else len(self.delays)

    @property
    def leased_count(self) -> int:
        """Entries of planned batches."""
        return 0 if self.leases is None else self.leases.count

    @property
    def ready_bytes(self) -> int:
        """Bytes of the bodies of the ready entries."""
        in_memory = 0
        paged = 0
        for level in self.all_levels():
            in_memory += len(level) - level.paged
            paged += level.paged_bytes
        delays = 0 if self.delays is None else self.delays.memory
        return self.memory - delays - in_memory * ENTRY_OVERHEAD + paged

    def all_levels(self) -> list[Backlog]:
        levels = self.levels
        return [self.backlog] if levels is None else [levels[p] for p in sorted(levels, reverse=True)]

    # In

    def replaced_by(self, message: Message) -> Entry | None:
        """Return the ready entry that a new message would replace."""
        return None

    def push(self, message: Message) -> bool:
        """Append a message; False where the queue refuses it (`x-overflow: reject-publish`)."""
        if self.guarded:
            return self._push_guarded(message)
        seq = self.next_seq
        self.next_seq = seq + 1
        entry = Entry(self, message, seq)
        if self.stored and message.persistent:
            self.log.store(entry)
        backlog = self.backlog
        if message.priority != backlog.priority or self.levels is not None:
            backlog = self.level_of(message.priority)
        young = backlog.young
        if young is None:
            backlog.head.append(entry)
        else:
            young.append(entry)
        self.published += 1
        memory = self.memory + message.size + ENTRY_OVERHEAD
        self.memory = memory
        if memory > self.broker.page_above:
            paging.page_out(self, backlog)
        if message.expires_at:
            self.expiring = True
            if self.stored and not self.has_expiring and message.persistent:
                self.note_expiring()
        if not self.active:
            self.active = True
            self.broker.active.append(self)
        return True

    def note_droppable(self) -> None:
        """Note that a message was pushed which overflow drops first."""
        self.droppable = True

    def delay(self, message: Message, due: int) -> bool:
        """Append a message that becomes visible at `due`; False where the queue refuses it."""
        if self.rejects_publish and limits.turns_away(self, message, due):
            return False
        overlay = Overlay()
        overlay.visible_at = due
        self.insert_new(self.prepare(message, overlay))
        return True

    def _push_guarded(self, message: Message) -> bool:
        if self.rejects_publish and limits.turns_away(self, message):
            return False
        entry = self.prepare(message)
        self.insert_new(entry)
        return True

    def prepare(self, message: Message, overlay: Overlay | None = None) -> Entry:
        """Make an entry, in the log but not visible yet (transactions, dead letters)."""
        seq = self.next_seq
        self.next_seq = seq + 1
        entry = Entry(self, message, seq)
        entry.overlay = overlay
        if self.counts_deliveries:
            self._show_deliveries(entry)
        if self.message_ttl >= 0:
            due = expiry.expires_at(entry)
            begin = self.broker.timers.now()
            if overlay is not None and overlay.visible_at > begin:
                begin = overlay.visible_at
            expires = begin + self.message_ttl if self.message_ttl else AT_ONCE
            if not due or expires < due:
                if overlay is None:
                    entry.overlay = Overlay(None, None, False, expires)
                else:
                    overlay.expires_at = expires
        if self.stored and message.persistent:
            self.log.store(entry)
            if message.expires_at and not self.has_expiring:
                self.note_expiring()
            if overlay is not None and overlay.visible_at and not self.has_delayed:
                self.has_delayed = True
                self.vhost.keep_queue(self)
        if self.watch is not None:
            self.watch.routed(entry)
        return entry

    def note_expiring(self) -> None:
        """The log has messages of this queue that expire by themselves."""
        self.has_expiring = True
        self.vhost.keep_queue(self)

    def insert_new(self, entry: Entry) -> None:
        """Make a prepared entry visible."""
        if self.deleted:
            settlement.settle(entry)
            return
        overlay = entry.overlay
        if overlay is not None and overlay.visible_at and overlay.visible_at > self.broker.timers.now():
            delayed.hold(self, entry, overlay.visible_at)
            return
        message = entry.message
        backlog = self.level_of(message.priority)
        if entry.seq <= backlog.passed:
            backlog.passed = 0
        young = backlog.young
        if young is None and (not backlog.head or backlog.head[len(backlog.head) - 1].seq < entry.seq):
            backlog.head.append(entry)
        elif young is not None and (not young or young[len(young) - 1].seq < entry.seq):
            young.append(entry)
        else:
            backlog.insert(entry)
        self.published += 1
        self.memory += message.size + ENTRY_OVERHEAD
        if self.memory > self.broker.page_above:
            paging.page_out(self, backlog)
        self.offered_until = min(self.offered_until, entry.seq)
        if message.expires_at or entry.overlay is not None:
            self.expiring = True
        if self.broker.overflow_rule(message) == DROP_FIRST:
            self.droppable = True
        if self.browsers:
            browsing.came_late(self, entry)
        if self.max_length >= 0 or self.max_bytes >= 0:
            limits.shorten(self)
        self.activate()

    def insert_many(self, entries: list[Entry]) -> None:
        """Make prepared entries visible, which come in the order of their sequence numbers: much less work than one by one
        if others have come behind them in the meantime."""
        if self.deleted:
            for entry in entries:
                settlement.settle(entry)
            return
        run: list[Entry] = []
        backlog = self.backlog
        priority = -2
        for entry in entries:
            overlay = entry.overlay
            if overlay is not None and overlay.visible_at and overlay.visible_at > self.broker.timers.now():
                delayed.hold(self, entry, overlay.visible_at)
                continue
            message = entry.message
            if message.priority != priority:
                self._insert_run(backlog, run)
                run = []
                priority = message.priority
                backlog = self.level_of(priority)
            run.append(entry)
            self.memory += message.size + ENTRY_OVERHEAD
            if message.expires_at or overlay is not None:
                self.expiring = True
            if self.broker.overflow_rule(message) == DROP_FIRST:
                self.droppable = True
        self._insert_run(backlog, run)
        if self.max_length >= 0 or self.max_bytes >= 0:
            limits.shorten(self)
        self.activate()

    def _insert_run(self, backlog: Backlog, run: list[Entry]) -> None:
        """Entries of one level."""
        if not run:
            return
        if run[0].seq <= backlog.passed:
            backlog.passed = 0
        self.broker.work += backlog.merge(run) >> 4
        self.published += len(run)
        if self.memory > self.broker.page_above:
            paging.page_out(self, backlog)
        self.offered_until = min(self.offered_until, run[0].seq)
        if self.browsers:
            for entry in run:
                browsing.came_late(self, entry)

    def priority_of(self, raw: int) -> int:
        """The effective level of a raw priority (-1 for none); DESIGN of priorities: see docs/queues.md."""
        highest = self.max_priority
        if highest >= 0:
            if highest < 9 and self.vhost.strict:
                # So many of the ten levels, around their middle (1.0, messaging section 3.2.1).
                lowest = 5 - ((highest + 2) >> 1)
                return min(max(DEFAULT_PRIORITY if raw < 0 else raw, lowest), lowest + highest)
            return min(max(raw, 0), highest)
        return DEFAULT_PRIORITY if raw < 0 else min(raw, 9)

    def level_of(self, raw: int) -> Backlog:
        """The backlog of a raw priority."""
        levels = self.levels
        backlog = self.backlog
        if levels is None:
            if raw == backlog.priority or self.priority_of(raw) == self.priority_of(backlog.priority):
                return backlog
            if not len(backlog) and not backlog.loading:
                backlog.priority = raw
                return backlog
            levels = {self.priority_of(backlog.priority): backlog}
            self.levels = levels
        priority = self.priority_of(raw)
        level = levels.get(priority)
        if level is None:
            level = Backlog(priority)
            levels[priority] = level
        return level

    def activate(self) -> None:
        """Have `drain` called at the end of this turn."""
        if not self.active:
            self.active = True
            self.broker.active.append(self)

    # Out

    def drain(self) -> None:
        """Hand ready entries to consumers until one of the two runs out."""
        if self.frozen:
            return
        if self.overfull:
            self.overfull = False
            limits.shorten(self)
        if self.browsers:
            browsing.serve(self)
        if self.leases is not None:
            reading.serve(self)
        if self.selective:
            selective.drain(self)
        elif self.levels is not None:
            draining.drain_levels(self)
        else:
            draining.drain_backlog(self, self.backlog)
        self.offered_until = self.next_seq
        if self.droppable:
            limits.drop_droppable(self)
        if self.expiring:
            expiry.schedule(self)

    def freeze(self) -> None:
        """Hand out nothing until `thaw` is called as often."""
        self.frozen += 1

    def thaw(self) -> None:
        self.frozen -= 1
        if not self.frozen:
            paging.notify_waiting(self)
            self.activate()

    def catch_up(self) -> None:
        """Hand out now what the end of the turn would: a method that comes after a publish must not see a message that
        a consumer was waiting for."""
        if self.active and self.ring:
            self.drain()

    def hand_out(self, entry: Entry, consumer: Consumer) -> None:
        """Acquire an entry, which is in no backlog any more, for a consumer."""
        self.memory -= entry.message.size + ENTRY_OVERHEAD
        self.delivered += 1
        settlement.acquire(entry, consumer)
        watch = self.watch
        if watch is not None:
            watch.delivered(entry, consumer.protocol())
        if consumer.no_ack:
            consumer.deliver(entry)
            entry.holder = None
            self.archive(entry)
            if watch is not None:
                watch.settled(entry, ACCEPTED, consumer.protocol())
        else:
            consumer.unacked += 1
            self.unacked += 1
            consumer.deliver(entry)

    def get(self, no_ack: bool, audience: int = 0, scope: object | None = None) -> Entry | None:
        """Acquire the next entry for `basic.get`, None where there is none in memory. With an `audience` it is the next for
        this audience, with a `scope` the next that this one has not refused."""
        self.check_supports(capabilities.GET)
        return getting.get(self, no_ack, audience, scope)

    def needs_loading(self, audience: int = 0, scope: object | None = None) -> bool:
        """Whether the next entry (as in `get`) exists but is not in memory: `wait_loaded`, then ask again."""
        return getting.needs_loading(self, audience, scope)

    def wait_loaded(self, waiting: paging.Waiting) -> None:
        self.waiting.append(waiting)

    def can_deliver_now(self, message: Message) -> bool:
        """Whether a message published now would reach a consumer at once (0-9-1 basic.publish.immediate)."""
        if self.ready_count:
            self.drain()
            # What is left of a selective queue nobody wants who has credit, unless it is being read.
            if self.ready_count and not (self.selective and not any(level.loading for level in self.all_levels())):
                return False
        lines = rings.lines(self)
        begun = self.broker.work
        for ring in lines:
            for consumer in ring:
                self.broker.work += 1
                if self.broker.work - begun > STEP_WORK:
                    return False  # more cannot be asked at once
                if not consumer.left and consumer.can_take(message.size) and consumer.wants(message, None):
                    return True
        return False

    # Settlement

    def settle(self, entry: Entry) -> None:
        """Settle an acquired entry that was accepted or needs no acknowledgement."""
        holder = entry.holder
        if self.watch is not None:
            self.watch.settled(entry, ACCEPTED, protocol_of(holder))
        if holder is not None:
            holder.unacked -= 1
            entry.holder = None
        self.unacked -= 1
        settlement.settle(entry)
        self.settled += 1

    def archive(self, entry: Entry) -> None:
        settlement.settle(entry)
        self.settled += 1

    def retract(self, entry: Entry) -> None:
        """Take back a prepared entry, which is not visible yet."""
        settlement.settle(entry)

    def exceeds_delivery_limit(self, entry: Entry) -> bool:
        """Return whether the queue would not take an entry back after one more failed delivery."""
        return 0 <= self.delivery_limit <= entry.delivery_count and not self.deleted

    def requeue(self, entry: Entry, failed: bool = True) -> None:
        """Give an acquired entry back: to its old place, or to the dead letters past the delivery limit."""
        holder = entry.holder
        if self.watch is not None:
            self.watch.settled(entry, RELEASED, protocol_of(holder))
        if holder is not None:
            holder.unacked -= 1
            if not holder.active:
                entry.holder = None  # the entry may wait here for long after its channel and connection are gone
        self.unacked -= 1
        if self.deleted:
            settlement.settle(entry)
            return
        if failed:
            entry.delivery_count += 1
            if 0 <= self.delivery_limit < entry.delivery_count:
                entry.holder = None
                self.dead_letter(entry, DELIVERY_LIMIT)
                return
            if self.counts_deliveries:
                self._show_deliveries(entry)
        settlement.requeue(entry)
        message = entry.message
        self.level_of(message.priority).insert(entry)
        self.memory += message.size + ENTRY_OVERHEAD
        if message.expires_at or entry.overlay is not None:
            self.expiring = True
        if self.broker.overflow_rule(message) == DROP_FIRST:
            self.droppable = True
        if self.max_length >= 0 or self.max_bytes >= 0:
            limits.shorten(self)
        self.activate()

    def _show_deliveries(self, entry: Entry) -> None:
        overlay = own_overlay(entry)
        overlay.headers["x-delivery-count"] = entry.delivery_count
        overlay.rendered = None

    def requeue_elsewhere(self, entry: Entry, scope: object) -> None:
        """Give an acquired entry back, but never again to consumers of this scope."""
        self.refuse(entry, scope)
        self.requeue(entry)

    def refuse(self, entry: Entry, scope: object) -> None:
        """Consumers of this scope must not get the entry again (0-9-1 basic.reject.requeue.01)."""
        overlay = own_overlay(entry)
        # Without those that are gone: or a message that nobody wants would remember all who did not.
        overlay.refused = [other for other in overlay.refused if not (isinstance(other, Scope) and other.departed)]
        overlay.refused.append(scope)
        self.refusing = True
        if not self.selective:
            self.selective = True
            selective.offer_again(self)

    def reject(self, entry: Entry, reason: str = REJECTED) -> None:
        """An acquired entry was rejected without requeue: dead-lettered where the queue says so, dropped otherwise."""
        holder = entry.holder
        if self.watch is not None:
            self.watch.settled(entry, REJECTED, protocol_of(holder))
        if holder is not None:
            holder.unacked -= 1
            entry.holder = None
        self.unacked -= 1
        if self.deleted:
            settlement.settle(entry)
        else:
            self.dead_letter(entry, reason)

    def dead_letter(self, entry: Entry, reason: str) -> None:
        """The entry leaves this queue; the copy for the dead-letter exchange and the settle are one unit of a batch."""
        if self.watch is not None:
            self.watch.left(entry, reason)
        if self.settings.dead_letter_exchange is not None:
            self.broker.work += DEAD_LETTER_WORK
            self.vhost.dead_letters.publish(entry, reason)
        self.broker.work += 1
        self.archive(entry)

    def touch(self) -> None:
        """The queue was used: its `x-expires` starts again."""
        expiry.touch(self)

    # Consumers

    def is_exclusive(self) -> bool:
        """Whether a consumer has the queue to itself."""
        consumer = self.exclusive_consumer
        return consumer is not None and not consumer.is_leaving()

    def is_consumed(self) -> bool:
        """Whether there is a consumer that is not about to leave."""
        passed = 0
        for consumer in self.consumers:
            if not consumer.is_leaving():
                return True
            passed += 1
        self.broker.work += passed >> 3
        return False

    def check_consumer(self, arguments: FieldTable) -> None:
        """Raise an error for invalid arguments of a consumer, before it joins."""

    def add_consumer(self, consumer: Consumer) -> None:
        """A consumer joins; with a single active consumer it may have to wait for its turn."""
        if consumer.seen is not None:
            browsing.add(self, consumer)
        elif reading.LEASE in consumer.arguments:
            consumer.apart = True
            reading.add(self, consumer)
        else:
            rings.add(self, consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """A consumer leaves; its unsettled entries stay with its channel."""
        if consumer.seen is not None:
            browsing.remove(self, consumer)
        elif consumer.apart:
            reading.remove(self, consumer)
        else:
            rings.remove(self, consumer)

    def leave_ring(self, consumer: Consumer) -> None:
        """Hand nothing more to this consumer, which is about to be removed."""
        rings.leave(self, consumer)

    def unpark(self, consumer: Consumer) -> None:
        """A parked consumer has credit again."""
        if not consumer.active or consumer.left:
            consumer.parked = True
            return
        if len(self.rings) == 1:
            self.ring.append(consumer)
        else:
            rings.stand(self, consumer)
        if self.selective:
            selective.offer_again(self)
        if not self.active:
            self.active = True
            self.broker.active.append(self)

    # The end

    def purge(self) -> int:
        """Drop all ready entries; those with consumers stay (0-9-1 queue.purge.02). Returns how many."""
        self.check_supports(capabilities.PURGE)
        count = removal.purge(self)
        if self.watch is not None:
            self.watch.removed("purged", count)
        return count

    def delete(self) -> int:
        """Delete the queue and its entries; return the number of ready entries."""
        held = self.unacked + self.leased_count
        count = removal.delete(self)
        if self.watch is not None:
            self.watch.removed("deleted", held + count)
        return count


def freeze(queue: Queue, frozen: dict[Queue, None]) -> None:
    """Have a queue hand out nothing until `thaw`: its order is right again only then."""
    if queue not in frozen:
        frozen[queue] = None
        queue.freeze()


def thaw(frozen: dict[Queue, None]) -> None:
    for queue in frozen:
        queue.thaw()
