"""The limits of a classic queue: `x-max-length`, `x-max-length-bytes`, `x-overflow` and `x-delivery-limit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.arguments import DROP_HEAD, REJECT_PUBLISH_DLX, QueueSettings
from leveret.broker.content_policy import DROP_FIRST, DROP_NEVER
from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import Entry, Message
from leveret.broker.queues.classic.backlog import MOVED_SHIFT, Backlog, entries_from, first_above, skip_work
from leveret.broker.queues.limits import QueueLimits

if TYPE_CHECKING:
    from leveret.broker.queues.classic.queue import ClassicQueue

MAXLEN: Final = "maxlen"
# Priority levels, as a power of two, that are summed or sorted in 1 µs.
LEVELS_SHIFT: Final = 4
# Higher than any level of priority.
ANY_LEVEL: Final = 256


class ClassicLimits(QueueLimits):
    """The limits of one classic queue.

    is_searching  the search for a message to drop was longer than a turn
    """

    def __init__(self, queue: ClassicQueue, settings: QueueSettings) -> None:
        super().__init__()
        self.queue = queue
        self.is_searching = False
        self._read(settings)

    def _read(self, settings: QueueSettings) -> None:
        self.max_length = -1 if settings.max_length is None else settings.max_length
        self.max_bytes = -1 if settings.max_length_bytes is None else settings.max_length_bytes
        self.rejects_when_full = settings.overflow != DROP_HEAD

    def configure(self, settings: QueueSettings) -> None:
        self._read(settings)
        self.overfull = self.is_set

    def exceeds_deliveries(self, entry: Entry) -> bool:
        limit = self.queue.settings.delivery_limit
        return limit is not None and limit <= entry.delivery_count and not self.queue.deleted

    @property
    def is_set(self) -> bool:
        return self.max_length >= 0 or self.max_bytes >= 0

    def note(self, entry: Entry) -> None:
        if self.queue.broker.overflow_rule(entry.message) == DROP_FIRST:
            self.droppable = True

    def reject_publish(self, message: Message, due: int = 0) -> bool:
        if not self.rejects_when_full:
            return False
        queue = self.queue
        rule = queue.broker.overflow_rule(message)
        if rule == DROP_NEVER or not self.would_reject(message, due):
            return False
        if self.droppable:
            below = queue.ready.priority_of(message.priority) if rule == DROP_FIRST else ANY_LEVEL
            while self.drop_first(below):
                if not self.would_reject_size(message.size):
                    return False
        if queue.settings.overflow == REJECT_PUBLISH_DLX:
            queue.vhost.dead_letters.publish(Entry(queue, message, 0), MAXLEN)
        return True

    def drop_first(self, below: int = ANY_LEVEL) -> bool:
        """Drop the least valuable message with the rule DROP_FIRST: the oldest in memory of the lowest priority level.

        Only levels below `below` count. Returns False if there is none, or none yet if `is_searching` is set.
        """
        queue = self.queue
        for backlog in reversed(queue.ready.all_levels()):
            if below != ANY_LEVEL and queue.ready.priority_of(backlog.priority) >= below:
                return False
            entry = self._take(backlog, first=True)
            if entry is not None:
                queue.ready.count_out(entry)
                queue.dead_letter(entry, MAXLEN)
                return True
            if self.is_searching:
                return False
        if below == ANY_LEVEL:
            self.droppable = False
        return False

    def drop_droppable(self) -> None:
        queue = self.queue
        most = queue.broker.droppable_backlog
        begun = queue.broker.work
        while self.droppable and queue.ready_bytes > most:
            if queue.broker.work - begun > STEP_WORK:
                queue.broker.jobs.deferred.add(queue)
                return
            if not self.drop_first():
                if self.is_searching:
                    queue.broker.jobs.deferred.add(queue)
                return

    def is_exceeded(self) -> bool:
        if not self.is_set:
            return False
        queue = self.queue
        if queue.ready.levels is not None:
            queue.broker.work += len(queue.ready.levels) >> LEVELS_SHIFT
        return (0 <= self.max_length < len(queue.ready)) or (0 <= self.max_bytes < queue.ready_bytes)

    def would_reject(self, message: Message, due: int = 0) -> bool:
        # A message that becomes visible later replaces no other one.
        return self.would_reject_size(message.size) and (due != 0 or not self._replaces(message))

    def _replaces(self, message: Message) -> bool:
        """Return whether a message replaces another one and needs no more room than the limits leave."""
        queue = self.queue
        before = queue.replaced_by(message)
        if before is None:
            return False
        growth = message.size - before.message.size
        return growth <= 0 or self.max_bytes < 0 or queue.ready_bytes + growth <= self.max_bytes

    def would_reject_size(self, size: int) -> bool:
        return self.rejects_when_full and self._is_full(size)

    def always_accepts(self, message: Message, due: int) -> bool:
        return not self.rejects_when_full or (not due and self._replaces(message))

    def _is_full(self, size: int) -> bool:
        """Return whether one more message of `size` bytes would exceed a limit after all possible deliveries."""
        if not self.would_exceed(size):
            return False
        queue = self.queue
        if queue.vhost.dead_letters.publishing:
            return True  # a delivery may dead-letter expired entries, through any number of queues
        queue.drain()
        return self.would_exceed(size)

    def would_exceed(self, size: int, count: int = 1) -> bool:
        queue = self.queue
        delays = queue.delays
        later = 0 if delays is None else delays.bytes
        return (0 <= self.max_length < len(queue.ready) + queue.delayed_count + len(queue.hidden) + count) or (
            0 <= self.max_bytes < queue.ready_bytes + later + queue.hidden.bytes + size
        )

    def is_overflowing(self) -> bool:
        return self.overfull and self.is_exceeded()

    def note_droppable(self) -> None:
        self.droppable = True

    def enforce(self) -> None:
        """Drop from the head until the queue is within its limits, after delivering to consumers with credit.

        A queue that rejects publishes drops nothing. Drops that exceed the work of a turn continue in the next ones. Drops
        because of a dead letter from another queue start at the end of the turn, since they may cause dead letters
        through any number of queues.
        """
        queue = self.queue
        self.overfull = False
        if self.rejects_when_full or queue.ready.unindexed:
            return
        if queue.vhost.dead_letters.publishing:
            self.overfull = True
            return
        broker = queue.broker
        begun = broker.work
        drained = False
        while self.is_exceeded():
            if broker.work - begun > STEP_WORK:
                self._continue_later()
                return
            if not drained:
                drained = True
                if queue.dispatcher.ring:
                    queue.drain()
                    continue
            if self.droppable:
                if self.drop_first():
                    continue
                if self.is_searching:
                    self._continue_later()
                    return
            backlog = self._next_level()
            if not backlog.head:
                if backlog.chunks:
                    self.overfull = True
                    if not backlog.loading:
                        queue.ready.load(queue, backlog)  # dropped once it is in memory
                    return
                backlog.settle_young()
                if not backlog.head:
                    return
            entry = backlog.head[0]
            if broker.overflow_rule(entry.message) == DROP_NEVER:
                found = self._take(backlog, first=False)
                if self.is_searching:
                    self._continue_later()
                    return
                if found is None:
                    break
                entry = found
            else:
                backlog.head.popleft()
            queue.ready.count_out(entry)
            queue.dead_letter(entry, MAXLEN)
        queue.vhost.dead_letters.end_overflow(queue)

    def _continue_later(self) -> None:
        """Drop more messages in the next turn."""
        self.overfull = True
        self.queue.broker.jobs.deferred.add(self.queue)

    def _take(self, backlog: Backlog, *, first: bool) -> Entry | None:
        """Remove and return the oldest entry in memory that may be dropped, or has the rule DROP_FIRST with `first`.

        Returns None if there is none, or none yet if `is_searching` is set.
        """
        broker = self.queue.broker
        self.is_searching = False
        looked = False
        for entries in (backlog.head, backlog.young):
            if not entries:
                continue
            position = first_above(entries, (backlog.not_droppable if first else backlog.never_dropped) - 1)
            broker.work += skip_work(entries, position)
            for entry in entries_from(entries, position):
                if looked and broker.work > STEP_WORK:
                    self.is_searching = True
                    return None
                looked = True
                broker.work += 1
                rule = broker.overflow_rule(entry.message)
                if rule == DROP_FIRST if first else rule != DROP_NEVER:
                    broker.work += min(position, len(entries) - position) >> MOVED_SHIFT
                    del entries[position]
                    return entry
                position += 1
                if first:
                    backlog.not_droppable = entry.seq + 1
                else:
                    backlog.never_dropped = entry.seq + 1
        return None

    def _next_level(self) -> Backlog:
        """Return the backlog that overflow drops from: as in RabbitMQ, the one whose head is delivered next."""
        queue = self.queue
        levels = queue.ready.levels
        if levels is None:
            return queue.ready.backlog
        queue.broker.work += len(levels) >> LEVELS_SHIFT
        for priority in sorted(levels, reverse=True):
            if len(levels[priority]):
                return levels[priority]
        return queue.ready.backlog
