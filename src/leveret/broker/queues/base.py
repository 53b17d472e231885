"""A queue: entries in, entries out to consumers.

The theory. Ready entries stand in one `Backlog` a priority level; most queues only ever have one, `self.backlog`, and
`self.levels` stays None. A push appends and marks the queue active; at the end of the turn `drain` hands entries to the
consumers in `self.ring`, those that took an entry last time they were asked. What a queue does not use costs nothing:
`guarded` is set only where limits, a TTL or a delivery limit need a look at each push, `selective` only where some
consumer does not take every entry.

An entry is AVAILABLE (in a backlog), ACQUIRED (held by a consumer or a `get`) or ARCHIVED (gone); `settle`, `requeue` and
`dead_letter` are the transitions that end an acquisition.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.arguments import DROP_HEAD, QUORUM, REJECT_PUBLISH_DLX, QueueSettings
from leveret.broker.consumer import Consumer
from leveret.broker.log import Loaded, RecoveredQueue
from leveret.broker.message import ACQUIRED, ARCHIVED, AT_ONCE, AVAILABLE, DEFAULT_PRIORITY, Entry, Message, Overlay
from leveret.broker.queues.backlog import Backlog, Chunk
from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.broker.log import Log
    from leveret.broker.vhost import Vhost

# What an entry costs in memory beside its body: objects, header, address.
ENTRY_OVERHEAD: Final = 700
# A head shorter than this asks for the next chunk, if the queue's share of memory allows.
LOW_HEAD: Final = 2048

MAXLEN: Final = "maxlen"
EXPIRED: Final = "expired"
REJECTED: Final = "rejected"
DELIVERY_LIMIT: Final = "delivery_limit"


class Waiting:
    """Someone who waits until the head of a queue is in memory."""

    def loaded(self) -> None:
        raise NotImplementedError


class _Load:
    """A chunk on its way back into memory."""

    def __init__(self, queue: Queue, backlog: Backlog, chunk: Chunk, epoch: int) -> None:
        self.queue = queue
        self.backlog = backlog
        self.chunk = chunk
        self.epoch = epoch

    def done(self, loaded: list[Loaded]) -> None:
        self.queue.chunk_loaded(self.backlog, loaded, self.epoch)


class Expiry(Timed):
    """When the head of a queue expires."""

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        self.queue = queue

    def fire(self, now: int) -> None:
        self.queue.expire(now)


class Unused(Timed):
    """When a queue with `x-expires` has been without use for long enough."""

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        self.queue = queue

    def fire(self, now: int) -> None:
        queue = self.queue
        if not queue.consumers and not queue.deleted:
            queue.vhost.remove_queue(queue)


class Queue:
    """One queue of one vhost. `id` is its identity in the log; names may be used again, ids are not."""

    def __init__(self, vhost: Vhost, id: int, name: str, durable: bool, exclusive_owner: object | None, auto_delete: bool,
                 arguments: dict[str, Any], settings: QueueSettings) -> None:
        self.vhost = vhost
        self.broker = vhost.broker
        self.log: Log = vhost.broker.log
        self.id = id
        self.name = name
        self.durable = durable
        # Whether the log has a definition of this queue; an exclusive one goes with its connection.
        self.stored = False
        self.exclusive_owner = exclusive_owner
        self.auto_delete = auto_delete
        self.arguments = arguments
        self.settings = settings
        self.next_seq = 1
        self.backlog = Backlog(-1)
        self.levels: dict[int, Backlog] | None = None
        self.memory = 0
        self.unacked = 0
        self.consumers: list[Consumer] = []
        self.ring: deque[Consumer] = deque()
        self.rings: list[tuple[int, deque[Consumer]]] = []
        self.active = False
        self.deleted = False
        self.selective = False
        self.expiring = False
        # Whether the log knows that there may be messages that expire by themselves: after a start their head is read.
        self.has_expiring = False
        self.had_consumer = False
        self.epoch = 0
        self.handed_out_until = 0
        # Entries below this have been offered to consumers once: what expires AT_ONCE does so now.
        self.offered_until = 0
        self.waiting: list[Waiting] = []
        # Sequence numbers and octets of entries that wait for the commit of their transaction.
        self.hidden: dict[int, int] = {}
        self.expiry: Expiry | None = None
        self.unused: Unused | None = None
        self.max_priority = -1 if settings.max_priority is None else settings.max_priority
        self.message_ttl = -1 if settings.message_ttl is None else settings.message_ttl
        self.max_length = -1 if settings.max_length is None else settings.max_length
        self.max_bytes = -1 if settings.max_length_bytes is None else settings.max_length_bytes
        self.delivery_limit = -1 if settings.delivery_limit is None else settings.delivery_limit
        self.rejects_publish = settings.overflow != DROP_HEAD
        self.guarded = (self.message_ttl >= 0 or self.max_length >= 0 or self.max_bytes >= 0
                        or settings.type == QUORUM)
        # Statistics
        self.published = 0
        self.delivered = 0
        self.settled = 0

    # Figures

    @property
    def ready_count(self) -> int:
        """Entries that wait for a consumer, in memory or not."""
        levels = self.levels
        if levels is None:
            return len(self.backlog)
        return sum(len(level) for level in levels.values())

    @property
    def ready_bytes(self) -> int:
        """Octets of the bodies of the ready entries."""
        in_memory = 0
        paged = 0
        for level in self.all_levels():
            in_memory += len(level) - level.paged
            paged += level.paged_bytes
        return self.memory - in_memory * ENTRY_OVERHEAD + paged

    def all_levels(self) -> list[Backlog]:
        levels = self.levels
        return [self.backlog] if levels is None else [levels[p] for p in sorted(levels, reverse=True)]

    # In

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
            backlog = self._level_of(message)
        young = backlog.young
        if young is None:
            backlog.head.append(entry)
        else:
            young.append(entry)
        self.published += 1
        memory = self.memory + message.size + ENTRY_OVERHEAD
        self.memory = memory
        if memory > self.broker.page_above:
            self.page_out(backlog)
        if message.expires_at:
            self.expiring = True
            if self.stored and not self.has_expiring and message.persistent:
                self._note_expiring()
        if not self.active:
            self.active = True
            self.broker.active.append(self)
        return True

    def _push_guarded(self, message: Message) -> bool:
        if self.rejects_publish and self.turns_away(message):
            return False
        entry = self.prepare(message)
        self.insert_new(entry)
        return True

    def turns_away(self, message: Message) -> bool:
        """Whether the queue refuses a publish now; where its arguments say so, the message becomes a dead letter."""
        if not self.refuses_publish(message.size):
            return False
        if self.settings.overflow == REJECT_PUBLISH_DLX:
            self.vhost.dead_letters.publish(Entry(self, message, 0), MAXLEN)
        return True

    def prepare(self, message: Message, overlay: Overlay | None = None) -> Entry:
        """Make an entry, in the log but not visible yet (transactions, dead letters)."""
        seq = self.next_seq
        self.next_seq = seq + 1
        entry = Entry(self, message, seq)
        entry.overlay = overlay
        if self.settings.type == QUORUM:
            self._show_deliveries(entry)
        if self.message_ttl >= 0:
            due = self.expires_at(entry)
            expires = self.broker.timers.now() + self.message_ttl if self.message_ttl else AT_ONCE
            if not due or expires < due:
                if overlay is None:
                    entry.overlay = Overlay(None, None, False, expires)
                else:
                    overlay.expires_at = expires
        if self.stored and message.persistent:
            self.log.store(entry)
            if message.expires_at and not self.has_expiring:
                self._note_expiring()
        return entry

    def _note_expiring(self) -> None:
        self.has_expiring = True
        self.vhost.keep_queue(self)

    def insert_new(self, entry: Entry) -> None:
        """Make a prepared entry visible."""
        if self.deleted:
            self._forget(entry)
            return
        message = entry.message
        backlog = self._level_of(message)
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
            self.page_out(backlog)
        self.offered_until = min(self.offered_until, entry.seq)
        if message.expires_at or entry.overlay is not None:
            self.expiring = True
        if self.max_length >= 0 or self.max_bytes >= 0:
            self._shorten()
        self.activate()

    def refuses_publish(self, size: int) -> bool:
        """Whether the queue would refuse a message of `size` octets now."""
        return self.rejects_publish and self._is_full(size)

    def _is_full(self, size: int) -> bool:
        """Whether one more message of `size` octets would exceed a limit, even after consumers had their share."""
        if not self._exceeds(size):
            return False
        self.drain()
        return self._exceeds(size)

    def _exceeds(self, size: int) -> bool:
        hidden = self.hidden
        return ((0 <= self.max_length <= self.ready_count + len(hidden))
                or (0 <= self.max_bytes < self.ready_bytes + sum(hidden.values()) + size))

    def _shorten(self) -> None:
        """Drop from the head until the limits hold again; consumers with credit come first. A queue that refuses what
        is too much drops nothing."""
        if self.rejects_publish:
            return
        drained = False
        while ((0 <= self.max_length < self.ready_count) or (0 <= self.max_bytes < self.ready_bytes)):
            if not drained:
                drained = True
                if self.ring:
                    self.drain()
                    continue
            backlog = self._next_level()
            if not backlog.head:
                if backlog.chunks:
                    if not backlog.loading:
                        self._load(backlog)  # dropped once it is in memory
                    return
                backlog.settle_young()
                if not backlog.head:
                    return
            entry = backlog.head.popleft()
            self.memory -= entry.message.size + ENTRY_OVERHEAD
            self.dead_letter(entry, MAXLEN)

    def _next_level(self) -> Backlog:
        """The backlog that overflow drops from: as in RabbitMQ the one whose head is next to be delivered."""
        levels = self.levels
        if levels is None:
            return self.backlog
        for priority in sorted(levels, reverse=True):
            if len(levels[priority]):
                return levels[priority]
        return self.backlog

    def _priority(self, raw: int) -> int:
        """The effective level of a raw priority (-1 for none); DESIGN of priorities: see docs/queues.md."""
        highest = self.max_priority
        if highest >= 0:
            return min(max(raw, 0), highest)
        return DEFAULT_PRIORITY if raw < 0 else min(raw, 9)

    def _level_of(self, message: Message) -> Backlog:
        raw = message.priority
        levels = self.levels
        backlog = self.backlog
        if levels is None:
            if raw == backlog.priority or self._priority(raw) == self._priority(backlog.priority):
                return backlog
            if not len(backlog) and not backlog.loading:
                backlog.priority = raw
                return backlog
            levels = {self._priority(backlog.priority): backlog}
            self.levels = levels
        priority = self._priority(raw)
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
        if self.selective:
            self._drain_selective()
        elif self.levels is not None:
            self._drain_levels()
        else:
            self._drain_backlog(self.backlog)
        self.offered_until = self.next_seq
        if self.expiring:
            self.schedule_expiry()

    def _drain_levels(self) -> None:
        levels = self.levels
        assert levels is not None
        for priority in sorted(levels, reverse=True):
            level = levels[priority]
            if len(level):
                self._drain_backlog(level)
                if len(level):
                    return  # no credit left, or the next entries are being loaded
        # Everything was handed out: go back to the cheap form.
        if not any(level.loading or len(level) for level in levels.values()):
            self.levels = None
            self.backlog = Backlog(-1)

    def _drain_backlog(self, backlog: Backlog) -> None:
        head = backlog.head
        ring = self.ring
        delivered = 0
        freed = 0
        while ring:
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
                self.memory -= freed
                freed = 0
                if self._drop_expired(backlog, entry):
                    continue
            consumer = ring[0]
            if entry.acquired_count and entry.holder is consumer and len(ring) > 1:
                ring.rotate(-1)  # a requeued message prefers another consumer
                consumer = ring[0]
            if not consumer.can_take(message.size):
                consumer.parked = True
                ring.popleft()
                if not ring and len(self.rings) > 1:
                    self._choose_ring()
                    ring = self.ring
                continue
            if len(ring) > 1:
                ring.rotate(-1)
            head.popleft()
            freed += message.size + ENTRY_OVERHEAD
            delivered += 1
            entry.state = ACQUIRED
            entry.holder = consumer
            entry.acquired_count += 1
            if not consumer.no_ack:
                consumer.unacked += 1
                self.unacked += 1
                consumer.deliver(entry)
            else:
                consumer.deliver(entry)
                entry.state = ARCHIVED
                entry.holder = None
                row = entry.row
                if row is not None:
                    row.log.settle(entry)
                self.settled += 1
        self.memory -= freed
        self.delivered += delivered
        if backlog.chunks and not backlog.loading:
            self._load_more(backlog)

    def _drain_selective(self) -> None:
        """The same where some consumers do not take every entry: each entry is offered to each consumer with credit."""
        for backlog in self.all_levels():
            position = 0
            while self.ring:
                if position == len(backlog.head):
                    backlog.settle_young()
                    if position == len(backlog.head):
                        break
                entry = backlog.head[position]
                if position == 0 and self._drop_expired(backlog, entry):
                    continue
                taker = self._taker(entry)
                if taker is None:
                    position += 1
                    continue
                del backlog.head[position]
                self._hand_out(entry, taker)
            if backlog.chunks and not backlog.loading:
                self._load_more(backlog)
            elif not backlog.head:
                backlog.settle_young()

    def _taker(self, entry: Entry) -> Consumer | None:
        """Who gets an entry: of the highest priority at which somebody has credit and wants it."""
        message = entry.message
        overlay = entry.overlay
        for _, ring in self.rings:
            fallback: Consumer | None = None
            for _ in range(len(ring)):
                consumer = ring[0]
                if not consumer.can_take(message.size):
                    consumer.parked = True
                    ring.popleft()
                    self._choose_ring()
                    continue
                ring.rotate(-1)
                if not consumer.wants(message) or (overlay is not None and consumer.scope in overlay.refused):
                    continue
                if entry.acquired_count and entry.holder is consumer:
                    fallback = consumer
                    continue
                return consumer
            if fallback is not None:
                return fallback
        return None

    def _hand_out(self, entry: Entry, consumer: Consumer) -> None:
        self.memory -= entry.message.size + ENTRY_OVERHEAD
        self.delivered += 1
        entry.state = ACQUIRED
        entry.holder = consumer
        entry.acquired_count += 1
        if consumer.no_ack:
            consumer.deliver(entry)
            entry.holder = None
            self._archive(entry)
        else:
            consumer.unacked += 1
            self.unacked += 1
            consumer.deliver(entry)

    def get(self, no_ack: bool) -> Entry | None:
        """Acquire the next entry for `basic.get`, None where there is none in memory."""
        if self.active and self.expiring:
            self.drain()  # what expires at once is for consumers only
        for backlog in self.all_levels():
            while True:
                if not backlog.head:
                    backlog.settle_young()
                    if not backlog.head:
                        break
                entry = backlog.head[0]
                if (entry.message.expires_at or entry.overlay is not None) and self._drop_expired(backlog, entry):
                    continue
                backlog.head.popleft()
                if backlog.chunks and not backlog.loading:
                    self._load_more(backlog)
                self.memory -= entry.message.size + ENTRY_OVERHEAD
                self.delivered += 1
                entry.state = ACQUIRED
                entry.holder = None
                entry.acquired_count += 1
                if self.expiring:
                    self.activate()  # the next one may expire sooner
                if no_ack:
                    self._archive(entry)
                else:
                    self.unacked += 1
                return entry
            if backlog.chunks:
                if not backlog.loading:
                    self._load(backlog)
                return None
        return None

    def needs_loading(self) -> bool:
        """Whether the next entry exists but is not in memory: `wait_loaded`, then ask again."""
        for backlog in self.all_levels():
            if backlog.head:
                return False
            if backlog.chunks:
                return True
        return False

    def wait_loaded(self, waiting: Waiting) -> None:
        self.waiting.append(waiting)

    def can_deliver_now(self, message: Message) -> bool:
        """Whether a message published now would reach a consumer at once (0-9-1 basic.publish.immediate)."""
        if self.ready_count:
            self.drain()
            if self.ready_count:
                return False
        return any(consumer.can_take(message.size) and consumer.wants(message)
                   for _, ring in self.rings for consumer in list(ring))

    # Settlement

    def settle(self, entry: Entry) -> None:
        """An acquired entry was accepted, or its delivery needs no answer: it is gone."""
        holder = entry.holder
        if holder is not None:
            holder.unacked -= 1
            entry.holder = None
        self.unacked -= 1
        entry.state = ARCHIVED
        row = entry.row
        if row is not None:
            row.log.settle(entry)
        self.settled += 1

    def _archive(self, entry: Entry) -> None:
        entry.state = ARCHIVED
        row = entry.row
        if row is not None:
            row.log.settle(entry)
        self.settled += 1

    def _forget(self, entry: Entry) -> None:
        entry.state = ARCHIVED
        row = entry.row
        if row is not None:
            row.log.settle(entry)

    def requeue(self, entry: Entry, failed: bool = True) -> None:
        """Give an acquired entry back: to its old place, or to the dead letters past the delivery limit."""
        holder = entry.holder
        if holder is not None:
            holder.unacked -= 1
            if not holder.active:
                entry.holder = None  # the entry may wait here for long after its channel and connection are gone
        self.unacked -= 1
        if self.deleted:
            return
        if failed:
            entry.delivery_count += 1
            if 0 <= self.delivery_limit < entry.delivery_count:
                entry.holder = None
                self.dead_letter(entry, DELIVERY_LIMIT)
                return
            if self.settings.type == QUORUM:
                self._show_deliveries(entry)
        if entry.row is not None:
            entry.row.log.update(entry)  # so that it is redelivered after a restart, too
        entry.state = AVAILABLE
        message = entry.message
        self._level_of(message).insert(entry)
        self.memory += message.size + ENTRY_OVERHEAD
        if message.expires_at or entry.overlay is not None:
            self.expiring = True
        if self.max_length >= 0 or self.max_bytes >= 0:
            self._shorten()
        self.activate()

    def _show_deliveries(self, entry: Entry) -> None:
        """RabbitMQ's quorum queues tell consumers how often a message has come back."""
        overlay = entry.overlay
        if overlay is None:
            overlay = entry.overlay = Overlay()
        overlay.headers["x-delivery-count"] = entry.delivery_count
        overlay.rendered = None

    def requeue_elsewhere(self, entry: Entry, scope: object) -> None:
        """Give an acquired entry back, but never again to consumers of this scope."""
        self.refuse(entry, scope)
        self.requeue(entry)

    def refuse(self, entry: Entry, scope: object) -> None:
        """Consumers of this scope must not get the entry again (0-9-1 basic.reject.requeue.01)."""
        overlay = entry.overlay
        if overlay is None:
            overlay = entry.overlay = Overlay()
        overlay.refused.append(scope)
        self.selective = True

    def reject(self, entry: Entry, reason: str = REJECTED) -> None:
        """An acquired entry was rejected without requeue: dead-lettered where the queue says so, dropped otherwise."""
        holder = entry.holder
        if holder is not None:
            holder.unacked -= 1
            entry.holder = None
        self.unacked -= 1
        if not self.deleted:
            self.dead_letter(entry, reason)

    def dead_letter(self, entry: Entry, reason: str) -> None:
        """The entry leaves this queue; the copy for the dead-letter exchange and the settle are one unit of a batch."""
        if self.settings.dead_letter_exchange is not None:
            self.vhost.dead_letters.publish(entry, reason)
        self._archive(entry)

    # Expiry

    def expires_at(self, entry: Entry) -> int:
        """When the entry expires, 0 for never."""
        overlay = entry.overlay
        if overlay is not None and overlay.expires_at >= 0:
            return overlay.expires_at
        return entry.message.expires_at

    def _drop_expired(self, backlog: Backlog, entry: Entry) -> bool:
        """Drop the head where its time is over."""
        due = self.expires_at(entry)
        if due <= AT_ONCE:
            if not due or entry.seq >= self.offered_until:
                return False
        elif due > self.broker.timers.now():
            return False
        backlog.head.popleft()
        self.memory -= entry.message.size + ENTRY_OVERHEAD
        self.dead_letter(entry, EXPIRED)
        return True

    def expire(self, now: int) -> None:
        """Drop everything at the heads whose time is over."""
        for backlog in self.all_levels():
            head = backlog.head
            while head:
                due = self.expires_at(head[0])
                if not due or due > now:
                    break
                entry = head.popleft()
                self.memory -= entry.message.size + ENTRY_OVERHEAD
                self.dead_letter(entry, EXPIRED)
            if backlog.chunks and not backlog.loading:
                self._load_more(backlog)
            elif not head:
                backlog.settle_young()
        self.activate()

    def schedule_expiry(self) -> None:
        """Set the timer to when the first head expires."""
        due = 0
        for backlog in self.all_levels():
            if not backlog.head:
                backlog.settle_young()
            if backlog.head:
                at = self.expires_at(backlog.head[0])
                if at and (not due or at < due):
                    due = at
        if due == AT_ONCE:
            self.expire(self.broker.timers.now())
        elif due:
            if self.expiry is None:
                self.expiry = Expiry(self)
            self.broker.timers.at(due, self.expiry)
        elif not self.ready_count:
            self.expiring = self.message_ttl >= 0

    def touch(self) -> None:
        """The queue was used: its `x-expires` starts again."""
        expires = self.settings.expires
        if expires is not None:
            if self.unused is None:
                self.unused = Unused(self)
            self.broker.timers.at(self.broker.timers.now() + expires, self.unused)

    # Paging

    def page_out(self, backlog: Backlog) -> None:
        """The queue is over its share of memory: what comes from now on keeps only its position, once committed."""
        broker = self.broker
        if backlog.young is None:
            backlog.young = deque()
            broker.paging[self.id] = self
        elif len(backlog.young) > 1024:
            self.page_young(backlog)

    def page_young(self, backlog: Backlog) -> None:
        """Turn young entries into positions, oldest first, as far as they are committed."""
        young = backlog.young
        if young is None:
            return
        overflow = self.broker.overflow
        while young:
            entry = young[0]
            row = entry.row
            if row is None:
                if overflow is None:
                    break
                for other in young:
                    if other.row is None:
                        overflow.store(other)
                break
            if row.batch > row.log.committed:
                break
            young.popleft()
            size = entry.message.size
            self.memory -= size + ENTRY_OVERHEAD
            backlog.page(row.id, entry.slot, entry.seq, size, row.log is overflow)
        if not young and not backlog.chunks and not backlog.loading:
            backlog.young = None

    def page_more(self) -> bool:
        """Page out what has been committed in the meantime; False where nothing is paged any more."""
        paging = False
        for backlog in self.all_levels():
            if backlog.young is not None:
                self.page_young(backlog)
                paging = paging or backlog.young is not None
        return paging

    def page_down(self, keep: int) -> None:
        """Page out what stands in memory beyond `keep` octets, from the end of the lowest level."""
        overflow = self.broker.overflow
        for backlog in reversed(self.all_levels()):
            if backlog.chunks or backlog.young:
                self.page_young(backlog)
                continue
            head = backlog.head
            kept = 0
            count = 0
            for entry in head:
                kept += entry.message.size + ENTRY_OVERHEAD
                if kept > keep and count:
                    break  # the head itself stays, for its expiry is what the timer knows
                count += 1
            if count < len(head):
                young: deque[Entry] = deque()
                while len(head) > count:
                    young.appendleft(head.pop())
                backlog.young = young
                self.broker.paging[self.id] = self
                if overflow is not None or self.stored:
                    self.page_young(backlog)

    def _load_more(self, backlog: Backlog) -> None:
        """Read on where the head is short and the queue has room in its share of memory, or where the head is empty."""
        length = len(backlog.head)
        if not length or (length < LOW_HEAD and self.memory < self.broker.page_above // 2):
            self._load(backlog)

    def _load(self, backlog: Backlog) -> None:
        """Have the next chunk read back."""
        backlog.loading = True
        chunk = backlog.chunks[0]
        load = _Load(self, backlog, chunk, self.epoch)
        log = self.log
        if chunk.overflow:
            overflow = self.broker.overflow
            assert overflow is not None
            log = overflow
        log.load(chunk.rows, chunk.slots, load.done)

    def chunk_loaded(self, backlog: Backlog, loaded: list[Loaded], epoch: int) -> None:
        """A chunk is back in memory: it follows the head."""
        if epoch != self.epoch:
            return
        backlog.loading = False
        backlog.take_chunk()
        head = backlog.head
        memory = 0
        suspects = self.handed_out_until
        for item in loaded:
            entry = Entry(self, item.message, item.seq)
            entry.row = item.row
            entry.slot = item.slot
            entry.overlay = item.overlay
            entry.acquired_count = item.acquired_count
            if item.seq <= suspects and not entry.acquired_count:
                entry.acquired_count = 1
            entry.delivery_count = item.delivery_count
            if item.message.expires_at or item.overlay is not None:
                self.expiring = True
            memory += item.message.size + ENTRY_OVERHEAD
            head.append(entry)
        self.memory += memory
        if not backlog.chunks:
            backlog.settle_young()
        if self.max_length >= 0 or self.max_bytes >= 0:
            self._shorten()
        self._tell_waiting()
        self.activate()
        self.broker.end_turn()

    def _tell_waiting(self) -> None:
        """What somebody waited for is in memory, or gone."""
        waiting = self.waiting
        if waiting:
            self.waiting = []
            for waiter in waiting:
                waiter.loaded()

    # Consumers

    def add_consumer(self, consumer: Consumer) -> None:
        """A consumer joins; with a single active consumer it may have to wait for its turn."""
        self.consumers.append(consumer)
        self.had_consumer = True
        if self.unused is not None:
            self.broker.timers.cancel(self.unused)
        if consumer.selective:
            self.selective = True
        if self.settings.single_active_consumer and len(self.consumers) > 1:
            consumer.active = False
            consumer.parked = True
            return
        self._enter_ring(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """A consumer leaves; its unsettled entries stay with its channel."""
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        self.leave_ring(consumer)
        self.selective = self.selective and (self.vhost.strict or any(other.selective for other in self.consumers))
        if (self.settings.single_active_consumer and self.consumers
                and not any(other.active for other in self.consumers)):
            successor = max(self.consumers, key=lambda other: other.priority)
            successor.active = True
            successor.parked = False
            self._enter_ring(successor)
        consumer.active = False
        if not self.consumers:
            self.touch()
            if self.auto_delete and not self.deleted:
                self.vhost.remove_queue(self)

    def leave_ring(self, consumer: Consumer) -> None:
        """Hand nothing more to this consumer, which is about to be removed."""
        for _, ring in self.rings:
            if consumer in ring:
                ring.remove(consumer)
        consumer.parked = True
        self._choose_ring()

    def _enter_ring(self, consumer: Consumer) -> None:
        for priority, ring in self.rings:
            if priority == consumer.priority:
                ring.append(consumer)
                break
        else:
            self.rings.append((consumer.priority, deque((consumer,))))
            self.rings.sort(key=lambda item: -item[0])
        self._choose_ring()
        self.activate()

    def _choose_ring(self) -> None:
        """The ring of the highest priority in which somebody takes entries."""
        for _, ring in self.rings:
            if ring:
                self.ring = ring
                return
        if self.rings:
            self.ring = self.rings[0][1]

    def unpark(self, consumer: Consumer) -> None:
        """A parked consumer has credit again."""
        if not consumer.active:
            consumer.parked = True
            return
        rings = self.rings
        if len(rings) == 1:
            self.ring.append(consumer)
        else:
            for priority, ring in rings:
                if priority == consumer.priority:
                    ring.append(consumer)
            self._choose_ring()
        if not self.active:
            self.active = True
            self.broker.active.append(self)

    # The end

    def purge(self) -> int:
        """Drop all ready entries; those with consumers stay (0-9-1 queue.purge.02). Returns how many."""
        count = self.ready_count
        rows: array[int] = array("Q")
        slots: array[int] = array("I")
        highest = 0
        overflow = self.broker.overflow
        for backlog in self.all_levels():
            for group in (backlog.head, backlog.young or ()):
                for entry in group:
                    entry.state = ARCHIVED
                    row = entry.row
                    if row is None:
                        continue
                    if row.log is overflow:
                        overflow.settle(entry)
                    else:
                        rows.append(row.id)
                        slots.append(entry.slot)
                        highest = max(highest, entry.seq)
            for chunk in backlog.chunks:
                if chunk.overflow:
                    if overflow is not None:
                        overflow.settle_range(self.id, chunk.seqs[0], chunk.seqs[-1], (), chunk.rows, chunk.slots)
                else:
                    rows.extend(chunk.rows)
                    slots.extend(chunk.slots)
                    highest = max(highest, chunk.seqs[-1])
        if rows:
            self.log.settle_range(self.id, 0, highest, self._held(), rows, slots)
        self.epoch += 1
        self.levels = None
        self.backlog = Backlog(-1)
        self.memory = 0
        self._tell_waiting()
        return count

    def _held(self) -> list[int]:
        """Sequence numbers of the entries that consumers hold, and of those that nobody may see yet."""
        return [*self.hidden, *(entry.seq for entry in self.broker.held_entries(self))]

    def delete(self) -> int:
        """The queue is gone, with everything in it. Returns how many ready entries it had."""
        count = self.purge()
        self.deleted = True
        for entry in self.broker.held_entries(self):
            row = entry.row
            if row is not None:
                row.log.settle(entry)
                entry.row = None
        consumers = self.consumers
        self.consumers = []
        self.ring = deque()
        self.rings = []
        for consumer in consumers:
            consumer.queue_gone()
        if self.expiry is not None:
            self.broker.timers.cancel(self.expiry)
        if self.unused is not None:
            self.broker.timers.cancel(self.unused)
        self.broker.paging.pop(self.id, None)
        return count

    # Recovery

    def recover(self, recovered: RecoveredQueue, handed_out: bool) -> None:
        """Take over what the log held for this queue: only positions, nothing is read yet.

        With `handed_out` every entry counts as redelivered: after an unclean stop nobody knows who had it.
        """
        seqs = recovered.seqs
        if not seqs:
            return
        priorities = recovered.priorities
        count = len(seqs)
        if priorities.count(priorities[0]) == count:
            self.backlog.priority = priorities[0]
            self.backlog.recover(recovered, 0, count)
        else:
            levels: dict[int, Backlog] = {}
            for index in range(count):
                priority = self._priority(priorities[index])
                level = levels.get(priority)
                if level is None:
                    level = Backlog(priority)
                    levels[priority] = level
                level.page(recovered.rows[index], recovered.slots[index], seqs[index], recovered.sizes[index], False)
            self.levels = levels
        for level in self.all_levels():
            if level.chunks:
                level.young = deque()
        self.broker.paging[self.id] = self
        self.next_seq = max(self.next_seq, seqs[count - 1] + 1)
        if handed_out:
            self.handed_out_until = self.next_seq - 1

    def start(self) -> None:
        """After recovery: read the heads of queues whose entries expire, start the life-time timer."""
        self.touch()
        if self.message_ttl >= 0 or self.has_expiring:
            for backlog in self.all_levels():
                if backlog.chunks and not backlog.loading:
                    self._load_more(backlog)
