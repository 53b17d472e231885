"""A classic queue: entries in, entries out to consumers.

The theory. Ready entries stand in one `Backlog` a priority level; most queues only ever have one, `self.backlog`, and
`self.levels` stays None. A push appends and marks the queue active; at the end of the turn `drain` has the dispatcher hand
entries to the consumers in its ring, those that took an entry last time they were asked. What a queue does not use costs
nothing: `guarded` is set only if limits, a TTL or a delivery limit need a look at each push.

An entry is AVAILABLE (in a backlog), ACQUIRED (unacked) or ARCHIVED (removed); `settle`, `requeue` and `dead_letter` end an
acquisition. The module `settlement` has the transitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from leveret.broker import settlement
from leveret.broker.arguments import DROP_HEAD, QueueSettings
from leveret.broker.consumer import Consumer, Scope
from leveret.broker.content_policy import DROP_FIRST
from leveret.broker.jobs import STEP_WORK
from leveret.broker.leases import reading
from leveret.broker.leases.lease import Leases
from leveret.broker.message import AT_ONCE, DEFAULT_PRIORITY, ENTRY_OVERHEAD, Entry, Message, Overlay, own_overlay
from leveret.broker.outcomes import ACCEPTED, DELIVERY_LIMIT, REJECTED, RELEASED, protocol_of
from leveret.broker.queues import capabilities, pending_dead_letters, removal
from leveret.broker.queues.classic import browsing, delayed, expiry, getting, limits, paging
from leveret.broker.queues.classic.backlog import Backlog
from leveret.broker.queues.classic.dispatcher import Dispatcher
from leveret.broker.queues.queue import Queue
from leveret.broker.values import FieldTable

if TYPE_CHECKING:
    from leveret.broker.events import Watch
    from leveret.broker.log import Recovery
    from leveret.broker.metadata import Record
    from leveret.broker.queues.loading import Waiting
    from leveret.broker.streams.recovery import StreamRecords
    from leveret.broker.vhost import Vhost


# Units of work of a dead letter: its headers are decoded, and it is routed.
DEAD_LETTER_WORK: Final = 25


class ClassicQueue(Queue):
    """One classic queue of one vhost.

    pageable     entries may be paged out
    counts_deliveries  consumers see how often a message was returned, in `x-delivery-count`
    """

    pageable: ClassVar[bool] = True
    counts_deliveries: ClassVar[bool] = False

    def __init__(self, vhost: Vhost, id: int, name: str, durable: bool, exclusive_owner: object | None, auto_delete: bool,
                 arguments: FieldTable, settings: QueueSettings) -> None:
        super().__init__(vhost, id, name, durable, exclusive_owner, auto_delete, arguments, settings)
        self.backlog = Backlog(-1)
        self.levels: dict[int, Backlog] | None = None
        self.dispatcher = Dispatcher(self.broker, settings.single_active_consumer)
        self.browsers: dict[Consumer, browsing.Browser] = {}
        # Units of work of the broker's turn beyond which the one that is being served gets nothing.
        self.browse_until = 0
        # They are being served, in steps; and there is more to do about them after that.
        self.serving_browsers = False
        self.browsers_waiting = False
        # Work that gives entries back in steps is under way: until their order is right again nothing is handed out.
        self.frozen = 0
        # Deleted, and its entries become dead letters in steps.
        self.moving = False
        # Whether the log knows of a deleted queue that it has entries of.
        self.leftover = False
        self.expiring = False
        # Whether the log knows that there may be messages that expire by themselves: after a start their head is read.
        self.has_expiring = False
        # The same for messages that become visible later.
        self.has_delayed = False
        # Whether there may be messages in memory that overflow drops first, as their content policy says.
        self.droppable = False
        self.epoch = 0
        self.delivered_until = 0
        # Entries below this have been offered to consumers once: what expires AT_ONCE does so now.
        self.offered_until = 0
        self.waiting: list[Waiting] = []
        # Who refused an entry of which only the position is in memory, by sequence number.
        self.refusals: dict[int, list[object]] = {}
        # There may be more in it than its limits allow: it drops that when it is drained.
        self.overfull = False
        # Deaths of the dead letters that came in while it was beyond its limits, until it is within them again.
        self.overflow = 0
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

    def _has_guards(self) -> bool:
        return (self.message_ttl >= 0 or self.max_length >= 0 or self.max_bytes >= 0
                or self.counts_deliveries)

    # Definition

    def record(self) -> Record:
        return {**super().record(), "has_expiring": self.has_expiring, "has_delayed": self.has_delayed,
                "handed_out_until": self.delivered_until}

    def restore(self, record: Record) -> None:
        self.has_expiring = record.get("has_expiring", False)
        self.has_delayed = record.get("has_delayed", False)
        self.delivered_until = record.get("handed_out_until", 0)

    def recover(self, recovery: Recovery, streams: StreamRecords) -> None:
        recovered = recovery.queues.get(self.id)
        if recovered is not None:
            paging.recover(self, recovered, not recovery.clean)

    def start(self) -> None:
        paging.start(self)

    def apply_settings(self) -> None:
        limit = self.settings.delivery_limit
        self.delivery_limit = -1 if limit is None else limit

    def set_watch(self, watch: Watch | None) -> None:
        self.watch = watch
        self.guarded = watch is not None or self._has_guards()
        self.dispatcher.update_selective(self)
        self.dispatcher.offer_again(self)

    def touch(self) -> None:
        expiry.touch(self)

    @property
    def announces_activity(self) -> bool:
        return self.settings.single_active_consumer

    # Figures

    @property
    def ready_count(self) -> int:
        levels = self.levels
        if levels is None:
            return len(self.backlog)
        return sum(len(level) for level in levels.values())

    @property
    def delayed_count(self) -> int:
        return 0 if self.delays is None else len(self.delays)

    @property
    def ready_bytes(self) -> int:
        in_memory = 0
        paged = 0
        for level in self.all_levels():
            in_memory += len(level) - level.paged
            paged += level.paged_bytes
        delays = 0 if self.delays is None else self.delays.memory
        return self.memory - delays - in_memory * ENTRY_OVERHEAD + paged

    # Memory

    def paged_memory(self) -> int:
        return sum(level.paged_bytes + level.paged * ENTRY_OVERHEAD for level in self.all_levels())

    def page_down(self, share: int) -> None:
        paging.page_down(self, share)

    def page_more(self) -> bool:
        return paging.page_more(self)

    def all_levels(self) -> list[Backlog]:
        levels = self.levels
        return [self.backlog] if levels is None else [levels[p] for p in sorted(levels, reverse=True)]

    # In

    def replaced_by(self, message: Message) -> Entry | None:
        """Return the ready entry that a new message would replace."""
        return None

    def push(self, message: Message) -> bool:
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
        self.droppable = True

    def delay(self, message: Message, due: int) -> bool:
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
        """The same as `insert_new` for each, with much less work if others have come behind them in the meantime."""
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

    # Limits

    def turns_away(self, message: Message, due: int = 0) -> bool:
        return limits.turns_away(self, message, due)

    def refuses(self, message: Message, due: int = 0) -> bool:
        return limits.refuses(self, message, due)

    def takes_always(self, message: Message, due: int) -> bool:
        return not self.rejects_publish or (not due and limits.replaces(self, message))

    def exceeds(self, size: int, count: int = 1) -> bool:
        return limits.exceeds(self, size, count)

    def refuses_publish(self, size: int) -> bool:
        return limits.refuses_publish(self, size)

    def is_over(self) -> bool:
        return self.guarded and limits.is_over(self)

    def is_overflowing(self) -> bool:
        return self.overfull and limits.is_over(self)

    def count_overflow(self, deaths: int) -> int:
        if not self.is_overflowing():
            return 0
        self.overflow += deaths
        return deaths

    def end_overflow(self) -> None:
        """Stop counting dead letters as overflow: the queue is within its limits again, or deleted."""
        if self.overflow:
            self.vhost.dead_letters.end_overflow(self.overflow)
            self.overflow = 0

    # Out

    def drain(self) -> None:
        if self.frozen:
            return
        if self.overfull:
            self.overfull = False
            limits.shorten(self)
        if self.browsers:
            browsing.serve(self)
        if self.leases is not None:
            reading.serve(self)
        self.dispatcher.drain(self)
        self.offered_until = self.next_seq
        if self.droppable:
            limits.drop_droppable(self)
        if self.expiring:
            expiry.schedule(self)

    def freeze(self) -> None:
        self.frozen += 1

    def thaw(self) -> None:
        self.frozen -= 1
        if not self.frozen:
            paging.notify_waiting(self)
            self.activate()

    def catch_up(self) -> None:
        if self.active and self.dispatcher.ring:
            self.drain()

    def serve_consumers(self) -> None:
        """Serve the consumers before somebody else takes entries: what expires at once is for consumers only."""
        if self.active and (self.expiring or self.dispatcher.ring):
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
        return getting.get(self, no_ack, audience, scope)

    def needs_loading(self, audience: int = 0, scope: object | None = None) -> bool:
        return getting.needs_loading(self, audience, scope)

    def wait_loaded(self, waiting: Waiting) -> None:
        self.waiting.append(waiting)

    def is_reading_for(self, consumer: Consumer) -> bool:
        if consumer.seen is not None:
            return browsing.is_reading(self, consumer)
        if consumer.apart:
            return reading.is_reading(self, consumer)
        if consumer.selective and not self.deleted and self._is_loading():
            return True
        return self.needs_loading()

    def _is_loading(self) -> bool:
        return any(level.loading for level in self.all_levels())

    def can_deliver_now(self, message: Message) -> bool:
        if self.ready_count:
            self.drain()
            # What is left of a selective queue nobody wants who has credit, unless it is being read.
            if self.ready_count and not (self.dispatcher.selective and not self._is_loading()):
                return False
        lines = self.dispatcher.lines()
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

    def exceeds_delivery_limit(self, entry: Entry) -> bool:
        return 0 <= self.delivery_limit <= entry.delivery_count and not self.deleted

    def requeue(self, entry: Entry, failed: bool = True) -> None:
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

    def refuse(self, entry: Entry, scope: object) -> None:
        overlay = own_overlay(entry)
        # Without those that are gone: or a message that nobody wants would remember all who did not.
        overlay.refused = [other for other in overlay.refused if not (isinstance(other, Scope) and other.departed)]
        overlay.refused.append(scope)
        dispatcher = self.dispatcher
        dispatcher.refusing = True
        if not dispatcher.selective:
            dispatcher.selective = True
            dispatcher.offer_again(self)

    def reject(self, entry: Entry, reason: str = REJECTED) -> None:
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

    # Consumers

    @property
    def consumers(self) -> dict[Consumer, None]:
        return self.dispatcher.consumers

    @property
    def exclusive_consumer(self) -> Consumer | None:
        return self.dispatcher.exclusive_consumer

    def has_browsers(self) -> bool:
        return bool(self.browsers)

    def add_consumer(self, consumer: Consumer) -> None:
        if consumer.seen is not None:
            browsing.add(self, consumer)
        elif reading.LEASE in consumer.arguments:
            consumer.apart = True
            reading.add(self, consumer)
        else:
            if self.unused is not None:
                self.broker.timers.cancel(self.unused)
            if self.dispatcher.add(consumer):
                self._serve()

    def remove_consumer(self, consumer: Consumer) -> None:
        dispatcher = self.dispatcher
        if consumer.seen is not None:
            browsing.remove(self, consumer)
        elif consumer.apart:
            reading.remove(self, consumer)
        elif consumer in dispatcher.consumers:
            successor = dispatcher.remove(consumer)
            if dispatcher.selective:
                dispatcher.update_selective(self)
            if successor is not None:
                self._serve()
                successor.activated()
            if not dispatcher.consumers:
                expiry.touch(self)
                if self.auto_delete and not self.deleted:
                    self.vhost.remove_queue(self)

    def leave_ring(self, consumer: Consumer) -> None:
        self.dispatcher.leave(consumer)

    def unpark(self, consumer: Consumer) -> None:
        if self.dispatcher.unpark(consumer):
            self._serve()

    def _serve(self) -> None:
        """Hand out entries at the end of this turn, to a consumer that takes them from now on or again."""
        if self.dispatcher.selective:
            self.dispatcher.offer_again(self)
        if not self.active:
            self.active = True
            self.broker.active.append(self)

    def become_selective(self, consumer: Consumer) -> None:
        super().become_selective(consumer)
        if consumer in self.dispatcher.consumers:
            self.dispatcher.selective_consumers += 1
            self.dispatcher.update_selective(self)

    def make_leases(self) -> Leases:
        self.check_supports(capabilities.LEASE)
        leases = self.leases
        if leases is None:
            leases = self.leases = Leases(self)
        return leases

    # The end

    def purge(self) -> int:
        self.check_supports(capabilities.PURGE)
        count = removal.purge(self)
        if self.watch is not None:
            self.watch.removed("purged", count)
        return count

    def detach(self) -> None:
        """Detach consumers and timers from the deleted queue, and settle its acquired entries."""
        consumers = [*self.dispatcher.clear(), *self.browsers]
        self.browsers = {}
        removal.detach(self, consumers)
        self.end_overflow()
        # The timers may remember theirs for a while, and must not keep the queue.
        if self.expiry is not None:
            self.broker.timers.cancel(self.expiry)
            self.expiry.queue = None
            self.expiry = None
        if self.unused is not None:
            self.broker.timers.cancel(self.unused)
            self.unused.queue = None
            self.unused = None

    def delete(self, keep_pending: bool = False) -> int:
        if keep_pending:
            return pending_dead_letters.delete(self)
        held = self.unacked + self.leased_count
        count = removal.delete(self)
        if self.watch is not None:
            self.watch.removed("deleted", held + count)
        return count
