"""A classic queue: entries in, entries out to consumers.

A push appends to the ready list and marks the queue active. At the end of the turn, `drain` has the dispatcher deliver
entries to the consumers in its ring. Unused features cost nothing: `guarded` is set only if limits, a TTL or a delivery
limit require a check of each push.

The state is in the parts, and each part is the only writer of its own: `ready` (levels, paging, bytes in memory),
`dispatcher` (consumers, callers that wait for entries), `expiry`, `lifetime`, `limits`, `browsing` and `delays`. A part
that only the queue calls gets it as an argument. `limits` and `paging`, which other modules call, have a reference to it. A
deleted queue replaces them, so that it is freed without a garbage collection.

An entry is AVAILABLE (in a backlog), ACQUIRED (unacked) or ARCHIVED (removed); `settle`, `requeue` and `dead_letter` end an
acquisition. The module `settlement` has the transitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Final

from leveret.broker import metadata, settlement
from leveret.broker.arguments import CLASSIC, DEDUPLICATION_WINDOW, QueueSettings
from leveret.broker.consumer import Consumer, Scope
from leveret.broker.errors import AccessRefused, PreconditionFailed, Undelivered
from leveret.broker.indexing import check_indexed
from leveret.broker.jobs import STEP_WORK
from leveret.broker.leases.leases import Leases
from leveret.broker.leases.reading import LEASE
from leveret.broker.message import Entry, Message, Overlay, own_overlay
from leveret.broker.outcomes import ACCEPTED, DELIVERY_LIMIT, REJECTED, RELEASED, protocol_of
from leveret.broker.queues import capabilities
from leveret.broker.queues.classic.backlog import Backlog, Chunk, in_order
from leveret.broker.queues.classic.browsing import Browsing
from leveret.broker.queues.classic.delayed import Delays
from leveret.broker.queues.classic.dispatcher import Dispatcher
from leveret.broker.queues.classic.expiry import Expiry
from leveret.broker.queues.classic.inspection import ClassicInspection
from leveret.broker.queues.classic.limits import ClassicLimits
from leveret.broker.queues.classic.paging import ClassicPaging
from leveret.broker.queues.classic.ready_list import ReadyList
from leveret.broker.queues.deduplication import Deduplication
from leveret.broker.queues.deduplication_settings import queue_deduplication
from leveret.broker.queues.frozen import thaw
from leveret.broker.queues.lifetime import UnusedTimer
from leveret.broker.queues.limits import NO_LIMITS
from leveret.broker.queues.paging import NO_PAGING
from leveret.broker.queues.queue import Queue
from leveret.broker.queues.queue_type import QueueType
from leveret.broker.queues.removal import removal_key
from leveret.broker.values import FieldTable
from leveret.broker.watches import watch_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leveret.broker.leases.recovery import Restoring
    from leveret.broker.log import RecoveredQueue, Recovery
    from leveret.broker.metadata import Record
    from leveret.broker.queues.definition import QueueDefinition
    from leveret.broker.queues.rings import Rings
    from leveret.broker.streams.recovery import StreamRecords
    from leveret.broker.watches import QueueWatch


# Ready messages from which on the pace of consumers without credit matters.
PACED_MESSAGES: Final = 1000
# Units of work of a dead letter: its headers are decoded, and it is routed.
DEAD_LETTER_WORK: Final = 25
# Units of work of a push that limits, a TTL or a watch check, in addition to that of any other.
GUARDED_WORK: Final = 1
# Scopes (as a power of two) that have refused a message, and of which those that have ended are removed in 1 µs.
REFUSED_SHIFT: Final = 3


# The header with the number of retries.
RETRY_COUNT: Final = "x-retry-count"


class ClassicQueue(Queue):
    """One classic queue of one vhost.

    pageable           entries may be paged out
    counts_deliveries  deliveries after failed ones carry their number in `x-delivery-count`
    """

    pageable: ClassVar[bool] = True
    counts_deliveries: ClassVar[bool] = False

    def __init__(self, definition: QueueDefinition) -> None:
        super().__init__(definition)
        settings = definition.settings
        ttl = settings.message_ttl
        self.ready = ReadyList(self.vhost, -1 if settings.max_priority is None else settings.max_priority, self.pageable)
        self.dispatcher = Dispatcher(self.broker, settings.single_active_consumer)
        self.expiry = Expiry(-1 if ttl is None else ttl)
        self.limits = ClassicLimits(self, settings)
        self.paging = ClassicPaging(self)
        if settings.expires:
            self.lifetime.expire_unused(UnusedTimer(self, settings.expires))
        self.browsing = Browsing()
        # Delayed entries; None while there are none.
        self.delays: Delays | None = None
        # Whether the log records that there may be delayed messages.
        self.has_delayed = False
        # Whether the log has a record of a deleted queue with entries.
        self.leftover = False
        deduplication = queue_deduplication(settings.known)
        if deduplication is not None:
            self.deduplication = Deduplication(self.broker, self.id, deduplication)
            watch_keys(self)
        # Whether each push must be checked: limits, a TTL, duplicates, a watch.
        self.guarded = self.watch is not None or self._has_guards()

    def _has_guards(self) -> bool:
        return self.expiry.message_ttl >= 0 or self.limits.is_set or self.deduplication is not None

    # Definition

    def record(self) -> Record:
        return {
            **super().record(),
            "has_expiring": self.expiry.has_expiring,
            "has_delayed": self.has_delayed,
            "handed_out_until": self.ready.delivered_until,
        }

    def recover(self, record: Record, recovery: Recovery, leases: Restoring, streams: StreamRecords) -> None:
        super().recover(record, recovery, leases, streams)
        self.expiry.has_expiring = record.get("has_expiring", False)
        self.has_delayed = record.get("has_delayed", False)
        delivered_until = self.ready.delivered_until = record.get("handed_out_until", 0)
        self.leases = leases.restore(self)
        if recovery.index is not None:
            if self.id in recovery.last_seq and self.broker.indexing.add(self):
                self.ready.await_index()
                self.dispatcher.freeze()
            return
        recovered = recovery.queues.get(self.id)
        if recovered is not None and recovered.seqs:
            self.next_seq = max(self.next_seq, self.ready.recover(self, recovered) + 1)
            if not recovery.clean:  # the deliveries before the stop are unknown
                self.ready.delivered_until = self.next_seq - 1
        if self.ready.delivered_until != delivered_until:
            self.vhost.keep_queue(self)  # its entries must survive the next clean stop, too

    def recover_deleted(self, recovery: Recovery, leases: Restoring, streams: StreamRecords) -> None:
        """Recover the entries of a queue that was deleted: they are still to be dead-lettered."""
        self.deleted = True
        self.recover({}, recovery, leases, streams)

    def start(self) -> None:
        self.lifetime.touch()
        if self.leases is not None:
            self.leases.start()
        self.ready.read_heads(self)
        if self.limits.overfull:
            self.activate()

    def is_unindexed(self) -> bool:
        return self.ready.unindexed and not self.deleted

    def taking_over(self, recovered: RecoveredQueue, clean: bool) -> Iterator[int]:
        """Put its recovered entries before those that were published since the start, in steps, and deliver.

        `clean` says whether the log was closed properly. A deletion in between leaves the other entries to the caller.
        """
        last_seq = recovered.seqs[-1] if recovered.seqs else 0
        levels: dict[int, Backlog] = {}
        yield from self.ready.recovering(recovered, levels)
        if self.deleted:
            self.broker.jobs.removals.add(self._settling(list(levels.values()), None, {}))
            return
        was_unindexed = self.ready.unindexed
        self.ready.end_index(levels)
        self.broker.indexing.discard(self)
        if len(self.ready):
            self.broker.paging.add(self)
        if not clean:
            self.mark_delivered(last_seq)
        self.ready.read_heads(self)
        if was_unindexed:
            thaw(self)
        self.activate()
        if self.limits.is_set:
            self.limits.enforce()

    def configure(self, settings: QueueSettings) -> None:
        super().configure(settings)
        ttl = settings.message_ttl
        self.expiry.configure(self, -1 if ttl is None else ttl)
        unused = self.lifetime.unused
        if settings.expires != (None if unused is None else unused.expires):
            self.lifetime.expire_unused(UnusedTimer(self, settings.expires) if settings.expires else None)
        self.limits.configure(settings)
        self.guarded = self.watch is not None or self._has_guards()

    def reconfigured(self) -> None:
        self.lifetime.touch()
        self.activate()

    def set_watch(self, watch: QueueWatch | None) -> None:
        self.watch = watch
        self.guarded = watch is not None or self._has_guards()
        self.dispatcher.update_selective(self)
        self.dispatcher.offer_again(self)

    # Statistics

    @property
    def ready_count(self) -> int:
        return len(self.ready)

    @property
    def delayed_count(self) -> int:
        return 0 if self.delays is None else len(self.delays)

    @property
    def retrying_count(self) -> int:
        return 0 if self.delays is None else self.delays.retrying

    @property
    def ready_bytes(self) -> int:
        delays = 0 if self.delays is None else self.delays.memory
        return self.ready.body_bytes - delays

    @property
    def delayed_bytes(self) -> int:
        return 0 if self.delays is None else self.delays.bytes

    def is_stored(self, entry: Entry) -> bool:
        """Return whether the log keeps an entry, which a restart restores."""
        row = entry.row
        return row is not None and row.log is self.log

    def note_transient(self, entry: Entry) -> None:
        """Count an entry that enters the queue, if the queue is on disk and the entry is not."""
        if self.stored and not self.is_stored(entry):
            self.counters.count_transient(entry.message.size)

    def forget_transient(self, entry: Entry) -> None:
        """Count an entry that leaves the queue, or that the log keeps from now on, after `note_transient`."""
        transient = self.counters.transient
        if transient is not None and not self.is_stored(entry):
            transient.remove(entry.message.size)

    def count_undone(self, entry: Entry, accepted: bool) -> None:
        super().count_undone(entry, accepted)
        self.note_transient(entry)
        transient = self.counters.transient
        if transient is not None and not self.is_stored(entry):
            transient.acquire(entry.message.size)

    def _count_returned(self, entry: Entry) -> None:
        """Count an entry that is not acquired any more."""
        counters, size = self.counters, entry.message.size
        counters.count_returned(size)
        transient = counters.transient
        if transient is not None and not self.is_stored(entry):
            transient.release(size)

    # Publishing

    def replaced_by(self, message: Message) -> Entry | None:
        """Return the ready entry that a new message would replace."""
        return None

    def push(self, message: Message) -> bool:
        if self.guarded:
            return self._push_guarded(message)
        seq = self.next_seq
        self.next_seq = seq + 1
        entry = Entry(self, message, seq)
        if self.stored:
            if message.persistent:
                self.log.store(entry)
            else:
                self.counters.count_transient(message.size)
        self.ready.append(self, entry)
        self.counters.count_published(1)
        if message.expires_at:
            self._note_expiring(message)
        if not self.active:
            self.active = True
            self.broker.active.append(self)
        return True

    def push_run(self, messages: list[Message], first: int, stop: int) -> int:
        if self.guarded:
            return first
        seq = self.next_seq
        self.next_seq = seq + stop - first
        log = self.log
        stored = self.stored
        entries: list[Entry] = []
        for index in range(first, stop):
            message = messages[index]
            entry = Entry(self, message, seq)
            seq += 1
            if stored:
                if message.persistent:
                    log.store(entry)
                else:
                    self.counters.count_transient(message.size)
            if message.expires_at:
                self._note_expiring(message)
            entries.append(entry)
        self.ready.append_run(self, entries)
        self.counters.count_published(stop - first)
        if not self.active:
            self.active = True
            self.broker.active.append(self)
        return stop

    def _note_expiring(self, message: Message) -> None:
        """Note that an entry with this message expires."""
        self.broker.work += GUARDED_WORK
        self.expiry.expiring = True
        if self.stored and message.persistent:
            self.expiry.note_stored(self)

    def delay(self, message: Message, due: int, overlay: Overlay | None = None) -> bool:
        if self.limits.reject_publish(message, due):
            return False
        if overlay is None:
            overlay = Overlay()
            overlay.visible_at = due
        entry = self.prepare_publish(message, overlay)
        if entry is not None:
            self.insert_new(entry)
        return True

    def _push_guarded(self, message: Message) -> bool:
        self.broker.work += GUARDED_WORK
        if self.limits.reject_publish(message):
            return False
        entry = self.prepare_publish(message)
        if entry is not None:
            self.insert_new(entry)
        return True

    def prepare_publish(self, message: Message, overlay: Overlay | None = None) -> Entry | None:
        deduplication = self.deduplication
        if deduplication is None:
            return self.prepare(message, overlay)
        stored = self.stored and message.persistent
        if deduplication.drop(message, stored):
            return None
        entry = self.prepare(message, overlay)
        deduplication.note(entry, stored)
        return entry

    def retract(self, entry: Entry) -> None:
        super().retract(entry)
        if self.deduplication is not None:
            self.deduplication.forget(entry)

    def prepare(self, message: Message, overlay: Overlay | None = None) -> Entry:
        seq = self.next_seq
        self.next_seq = seq + 1
        entry = Entry(self, message, seq)
        entry.overlay = overlay
        if self.expiry.message_ttl >= 0:
            self.expiry.add_ttl(self, entry)
        if self.stored and message.persistent:
            self.log.store(entry)
            if message.expires_at:
                self.expiry.note_stored(self)
            if overlay is not None and overlay.visible_at:
                self._note_delayed()
        if self.watch is not None:
            self.watch.routed(entry)
        return entry

    def _note_delayed(self) -> None:
        """Have the log record that it may have delayed entries."""
        if not self.has_delayed:
            self.has_delayed = True
            self.vhost.keep_queue(self)

    def hold(self, entry: Entry, due: int) -> None:
        """Keep an entry, which is in no level, until it becomes visible at `due`."""
        delays = self.delays
        if delays is None:
            delays = self.delays = Delays(self)
        delays.hold(self, entry, due)

    def insert_new(self, entry: Entry) -> None:
        if self.deleted:
            settlement.settle(entry)
            return
        self.note_transient(entry)
        overlay = entry.overlay
        if overlay is not None and overlay.visible_at and overlay.visible_at > self.broker.timers.now():
            self.hold(entry, overlay.visible_at)
            return
        self.ready.insert_new(self, entry)
        if overlay is None or not overlay.retries:
            self.counters.count_published(1)
        self._note_inserted(entry)
        self._end_insertion()

    def insert_many(self, entries: list[Entry]) -> None:
        """Insert entries as `insert_new` does, with much less work if younger entries are already there."""
        if self.deleted:
            for entry in entries:
                settlement.settle(entry)
            return
        run: list[Entry] = []
        priority = -2
        for entry in entries:
            self.note_transient(entry)
            overlay = entry.overlay
            if overlay is not None and overlay.visible_at and overlay.visible_at > self.broker.timers.now():
                self.hold(entry, overlay.visible_at)
                continue
            if entry.message.priority != priority:
                self._insert_run(run)
                run = []
                priority = entry.message.priority
            run.append(entry)
        self._insert_run(run)
        self._end_insertion()

    def _insert_run(self, run: list[Entry]) -> None:
        """Insert entries of one level."""
        if run:
            self.ready.insert_run(self, run)
            self.counters.count_published(len(run))
            for entry in run:
                self._note_inserted(entry)

    def _note_inserted(self, entry: Entry) -> None:
        expiry = self.expiry
        expiry.offered_until = min(expiry.offered_until, entry.seq)
        expiry.note(entry)
        self.limits.note(entry)
        if self.browsing.browsers:
            self.browsing.note_late(self, entry)

    def _end_insertion(self) -> None:
        if self.limits.is_set:
            self.limits.enforce()
        self.activate()

    # Delivery

    def drain(self) -> None:
        dispatcher = self.dispatcher
        if dispatcher.frozen:
            return
        limits = self.limits
        if limits.overfull:
            limits.enforce()
        if not self.paused:
            if self.browsing.browsers:
                self.browsing.serve(self)
            if self.leases is not None:
                self.leases.serve()
            dispatcher.drain(self)
        expiry = self.expiry
        expiry.offered_until = self.next_seq
        if limits.droppable:
            limits.drop_droppable()
        if expiry.expiring:
            expiry.schedule(self)

    def catch_up(self) -> None:
        if self.active and self.dispatcher.ring:
            self.drain()

    def serve_consumers(self) -> None:
        """Deliver to consumers before entries are removed otherwise: entries with a TTL of 0 are for consumers only."""
        if self.active and (self.expiry.expiring or self.dispatcher.ring):
            self.drain()

    def deliver(self, entry: Entry, consumer: Consumer) -> None:
        """Acquire an entry, which was removed from its backlog, for a consumer."""
        self.ready.count_out(entry)
        counters = self.counters
        no_ack = consumer.no_ack
        size = entry.message.size
        redelivered = 1 if entry.acquired_count else 0
        if no_ack:
            counters.count_deliveries(1, 0, 0, 0, redelivered)
            settlement.acquire(entry, consumer)
        else:
            counters.count_deliveries(1, 1, size, 0, redelivered)
            if counters.transient is not None and not self.is_stored(entry):
                counters.transient.acquire(size)
            settlement.acquire_unacked(entry, consumer)
        watch = self.watch
        if watch is not None:
            watch.delivered(entry, consumer)
        try:
            consumer.deliver(entry)
        except Undelivered as undelivered:
            self.take_back(undelivered)
            return
        if no_ack:
            settlement.forget_holder(entry)
            self.forget_transient(entry)
            settlement.settle(entry)
            counters.count_settled_no_ack()
            if watch is not None:
                watch.settled(entry, ACCEPTED, consumer.protocol())

    def get(self, no_ack: bool, audience: int = 0, scope: object | None = None) -> Entry | None:
        return None if self.paused else self.dispatcher.get(self, no_ack, audience, scope)

    def is_behind(self) -> bool:
        if not self.ready_count or self.ready.unindexed:
            return False
        dispatcher = self.dispatcher
        return (
            dispatcher.is_behind()
            or self.broker.jobs.deferred.has(self)
            or self.is_starving()
            or (self.ready_count >= PACED_MESSAGES and dispatcher.is_delayed(self.counters.delivered))
        )

    def is_starving(self) -> bool:
        return self.ready.is_read_first() and not self.ready.unindexed and self.dispatcher.has_taker()

    def can_deliver_now(self, message: Message) -> bool:
        if self.paused or self.ready.unindexed:
            return False
        if self.ready_count:
            self.drain()
            # No consumer with credit wants the rest of a selective queue, unless it is being read.
            if self.ready_count and not (self.dispatcher.selective and not self.ready.is_loading()):
                return False
        return self.has_taker(message)

    def has_taker(self, message: Message) -> bool:
        """Return whether a consumer has credit for a message, and wants it."""
        lines = self.dispatcher.lines()
        begun = self.broker.work
        for ring in lines:
            for consumer in ring:
                self.broker.work += 1
                if self.broker.work - begun > STEP_WORK:
                    return False  # no more can be asked in one turn
                if not consumer.left and consumer.has_credit_for(message.size) and consumer.wants(message, None):
                    return True
        return False

    # Settlement

    def settle(self, entry: Entry) -> None:
        if self.watch is not None:
            self.watch.settled(entry, ACCEPTED, protocol_of(entry.holder))
        counters = self.counters
        size = entry.message.size
        counters.count_returned(size)
        transient = counters.transient
        if transient is not None and not self.is_stored(entry):
            transient.release(size)
            transient.remove(size)
        settlement.settle_unacked(entry)
        counters.count_accepted(1)

    def settle_got(self, entry: Entry) -> None:
        """Settle an entry that was got without acknowledgement."""
        self.forget_transient(entry)
        settlement.settle(entry)
        self.counters.count_settled_no_ack()

    def archive(self, entry: Entry) -> None:
        """Settle an entry that no consumer has accepted."""
        self.forget_transient(entry)
        settlement.settle(entry)
        self.counters.count_removed()

    def requeue(self, entry: Entry, failed: bool = True) -> None:
        if self.watch is not None:
            self.watch.settled(entry, RELEASED, protocol_of(entry.holder))
        settlement.release(entry)
        self._count_returned(entry)
        if self.deleted:
            settlement.settle(entry)
            return
        if failed:
            settlement.count_failure(entry)
            limit = self.settings.delivery_limit
            if limit is not None and limit < entry.delivery_count:
                settlement.forget_holder(entry)
                self.dead_letter(entry, DELIVERY_LIMIT)
                return
            if self.counts_deliveries:
                self.show_deliveries(entry)
        settlement.requeue(entry)
        self.ready.put_back(entry)
        self._note_returned(entry)
        self._end_insertion()

    def _note_returned(self, entry: Entry) -> None:
        """Note that a requeued entry is ready again."""
        self.expiry.note(entry)
        self.limits.note(entry)

    def show_deliveries(self, entry: Entry) -> None:
        """Set the header with the number of failed deliveries."""
        overlay = own_overlay(entry)
        overlay.headers["x-delivery-count"] = entry.delivery_count
        overlay.rendered = None

    def refuse(self, entry: Entry, scope: object) -> None:
        overlay = own_overlay(entry)
        count = len(overlay.refused)
        if not count & (count - 1):
            # Whenever their number has doubled, remove scopes that have ended, which an unwanted message would collect.
            left = [other for other in overlay.refused if not (isinstance(other, Scope) and other.departed)]
            overlay.refused = dict.fromkeys(left)
            self.broker.work += count >> REFUSED_SHIFT
        overlay.refused[scope] = None
        self.dispatcher.note_refusal(self)

    def reject(self, entry: Entry, reason: str = REJECTED) -> None:
        if self.watch is not None:
            self.watch.settled(entry, REJECTED, protocol_of(entry.holder))
        settlement.detach(entry)
        self._count_returned(entry)
        if self.deleted:
            settlement.settle(entry)
        elif self.retries(entry):
            self._retry(entry)
        else:
            self.dead_letter(entry, reason)

    def retries(self, entry: Entry) -> bool:
        delays = self.settings.retry_delays
        return bool(delays) and not self.deleted and _retries_of(entry) < len(delays)

    def _retry(self, entry: Entry) -> None:
        """Keep a rejected entry until the delay of its next delivery has passed."""
        count = _retries_of(entry)
        overlay = own_overlay(entry)
        overlay.visible_at = self.broker.timers.now() + self.settings.retry_delays[count]
        overlay.retries = count + 1
        overlay.headers[RETRY_COUNT] = count + 1
        overlay.rendered = None
        self.broker.work += GUARDED_WORK
        if entry.row is not None:
            self._note_delayed()
        settlement.requeue(entry)
        self.hold(entry, overlay.visible_at)

    def dead_letter(self, entry: Entry, reason: str) -> None:
        """Remove an entry; the copy for the dead-letter exchange and the settlement are one unit of a log batch."""
        if self.watch is not None:
            self.watch.left(entry, reason)
        if self.settings.dead_letter_exchange is not None:
            self.broker.work += DEAD_LETTER_WORK
            self.vhost.dead_letters.publish(entry, reason)
        self.broker.work += 1
        self.archive(entry)

    # Operators

    def set_paused(self, paused: bool) -> None:
        super().set_paused(paused)
        if not paused:
            self.dispatcher.notify_waiting()

    def inspect(self) -> ClassicInspection:
        return ClassicInspection(self)

    # Consumers

    @property
    def consumers(self) -> Rings:
        return self.dispatcher

    def check_consumer(self, arguments: FieldTable, no_ack: bool) -> None:
        if LEASE in arguments:
            Leases.check_reader(self, arguments, no_ack)

    def add_consumer(self, consumer: Consumer) -> None:
        if consumer.seen is not None:
            self.browsing.add(self, consumer)
        elif LEASE in consumer.arguments:
            consumer.set_apart()
            Leases.of(self, str(consumer.arguments[LEASE])).add_reader(consumer)
        else:
            self.lifetime.begin_use()
            if consumer.no_ack:
                self.no_ack_consumers += 1
            if self.dispatcher.add(consumer):
                self._serve()

    def remove_consumer(self, consumer: Consumer) -> None:
        dispatcher = self.dispatcher
        if consumer.seen is not None:
            self.browsing.remove(self, consumer)
        elif consumer.apart:
            if self.leases is not None:
                self.leases.remove_reader(consumer)
        elif consumer in dispatcher:
            successor = dispatcher.remove(consumer)
            self.lifetime.end_use()
            if consumer.no_ack:
                self.no_ack_consumers -= 1
            if dispatcher.selective:
                dispatcher.update_selective(self)
            if successor is not None:
                self._serve()
                successor.activated()
            if self.lifetime.auto_delete and not len(dispatcher) and not self.deleted:
                self.vhost.remove_queue(self)

    def unpark(self, consumer: Consumer) -> None:
        if self.dispatcher.unpark(consumer):
            self._serve()

    def _serve(self) -> None:
        """Deliver at the end of this turn, to a consumer that was added or has credit again."""
        if self.dispatcher.selective:
            self.dispatcher.offer_again(self)
        if not self.active:
            self.active = True
            self.broker.active.append(self)

    # Leases

    def make_leases(self) -> Leases:
        reason = self.unsupported.get(capabilities.LEASE, "")
        if reason:
            pass
        elif not self.durable:
            reason = "not durable, and leased messages must survive a restart"
        elif self.lifetime.exclusive_owner is not None:
            reason = "exclusive, and deleted with its connection"
        elif self.lifetime.auto_delete:
            reason = "auto-delete, and deleted with its last consumer"
        elif self.settings.single_active_consumer:
            reason = "restricted to a single active consumer"
        elif self.deduplication is not None and self.deduplication.follows_entries:
            reason = f"one that keeps each key until its message leaves, without '{DEDUPLICATION_WINDOW}'"
        if reason:
            raise PreconditionFailed(f"{self} does not support leases: it is {reason}")
        if self.dispatcher.is_exclusive():
            raise AccessRefused(f"{self} in exclusive use")
        leases = self.leases
        if leases is None:
            leases = self.leases = Leases(self)
        return leases

    def may_withhold_paged(self) -> bool:
        """Return whether a paged-out entry may have to be loaded to find out whether it has expired or is delayed."""
        return self.expiry.is_set or self.has_delayed

    def ensure_stored(self, entry: Entry) -> None:
        """Store an entry in the log of the queue unless the log has it; a transient entry may be missing."""
        if self.is_stored(entry):
            return
        self.forget_transient(entry)
        row = entry.row
        if row is not None:
            row.log.settle(entry)
            entry.row = None
        self.log.store(entry)
        if entry.message.expires_at:
            self.expiry.note_stored(self)

    def note_committed(self, count: int) -> None:
        """Note that `count` leased entries were settled."""
        self.counters.count_accepted(count)
        if self.watch is not None:
            self.watch.committed(count)

    def mark_delivered(self, seq: int) -> None:
        """Count entries up to this sequence number as delivered before."""
        if self.ready.mark_delivered(seq):
            self.vhost.keep_queue(self)

    def return_leased(self, pieces: list[tuple[int, Chunk]]) -> None:
        """Return leased entries, given by their priorities and positions, to their old places."""
        for priority in {priority for priority, _ in pieces}:
            self.ready.return_chunks(priority, in_order([piece for other, piece in pieces if other == priority]))
        self.broker.paging.add(self)
        self.ready.read_heads(self)
        # Other operations may wait for entries that were paged out here.
        self.dispatcher.notify_waiting()
        if self.limits.is_set:
            self.limits.enforce()
        self.activate()

    # Deletion

    def purge(self) -> int:
        capabilities.check_supported(self, capabilities.PURGE)
        check_indexed(self)
        count = self.discard()
        if self.deduplication is not None:
            self.broker.jobs.removals.add(self.deduplication.clear())
        if self.watch is not None:
            self.watch.removed("purged", count)
        return count

    def discard(self) -> int:
        """Drop all ready and delayed entries; return their number.

        Clients see the effect at once; the log and the memory follow in steps.
        """
        count = self.ready_count + self.delayed_count
        delays = self.delays
        if delays is not None:
            delays.clear(self)
            self.delays = None
        self.vhost.dead_letters.end_overflow(self)
        refusals = self.ready.refusals
        backlogs = self.ready.reset()
        if self.counters.transient is not None:
            self.counters.transient.keep_unacked()
        self.broker.jobs.removals.add(self._settling(backlogs, delays, refusals))
        self.dispatcher.notify_waiting()
        return count

    def _settling(
        self, backlogs: list[Backlog], delays: Delays | None, refusals: dict[int, dict[object, None]]
    ) -> Iterator[int]:
        """Settle entries that the queue has dropped, and release their memory."""
        overflow = self.broker.overflow
        for backlog in backlogs:
            yield from backlog.settling(self.id, self.log, overflow)
        if delays is not None:
            yield from delays.settling(self.id, self.log, overflow)
        while refusals:
            refusals.popitem()
            yield 1

    def delete(self, keep_pending: bool = False) -> int:
        if keep_pending:
            return self._delete_later()
        acquired = self.unacked + self.leased_count
        self._forget_leases()  # before a waiting lease sees the queue empty
        count = self.discard()
        self._detach_all()
        removals = self.broker.jobs.removals
        removals.add(self._forgetting())
        if self.ready.unindexed:
            self.broker.indexing.delete(self)
            self.dispatcher.notify_waiting()
        elif self.stored and removals.pending:
            self.leftover = True
            self.log.put(metadata.REMOVAL, removal_key(self.vhost.name, self.id), b"")
        if self.watch is not None:
            self.watch.removed("deleted", acquired + count)
        return count

    def _forgetting(self) -> Iterator[int]:
        self.broker.forget_queue(self)
        if self.leftover:
            self.log.put(metadata.REMOVAL, removal_key(self.vhost.name, self.id), None)
        yield 1

    def _delete_later(self) -> int:
        """Delete the queue for clients, and dead-letter its ready entries in steps."""
        count = self.ready_count
        delays = self.delays
        if delays is not None:
            delays.drop(self)
            self.delays = None
        self._detach_all()
        self.vhost.pending_dead_letters.add(self)
        self.dispatcher.notify_waiting()
        return count

    def _forget_leases(self) -> None:
        leases = self.leases
        if leases is not None:
            leases.forget()
            self.leases = None

    def _detach_all(self) -> None:
        """Detach consumers and timers from the deleted queue, and settle its acquired and leased entries."""
        if self.deduplication is not None:
            self.broker.jobs.removals.add(self.deduplication.clear())
        self.detach([*self.dispatcher.clear(), *self.browsing.clear()])
        self._forget_leases()
        self.vhost.dead_letters.end_overflow(self)
        self.expiry.detach(self)
        # Without these references to itself, the queue is freed at once.
        self.limits = NO_LIMITS
        self.paging = NO_PAGING


def _retries_of(entry: Entry) -> int:
    return 0 if entry.overlay is None else entry.overlay.retries


TYPE: Final[QueueType] = QueueType(CLASSIC, ClassicQueue, apply_to="classic_queues", serves_unindexed=True)
