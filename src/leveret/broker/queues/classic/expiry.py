"""Expiry of entries at the head of a classic queue.

The part has no reference to its queue, so that a deleted queue is freed without a garbage collection; the timer has one
until the queue is detached.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import AT_ONCE, Entry, expires_at, own_overlay
from leveret.broker.queues.classic.backlog import Backlog
from leveret.broker.queues.frozen import thaw
from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.broker.queues.classic.queue import ClassicQueue

EXPIRED: Final = "expired"


class _HeadTimer(Timed):
    """Timer for the expiry of the head of a queue."""

    def __init__(self, queue: ClassicQueue) -> None:
        super().__init__()
        self.queue: ClassicQueue | None = queue

    def fire(self, now: int) -> None:
        if self.queue is not None:
            self.queue.expiry.expire(self.queue, now)


class Expiry:
    """The expiry of the entries of one classic queue.

    message_ttl    `x-message-ttl`, -1 for none
    expiring       there may be entries in memory that expire
    has_expiring   the log records that there may be messages with a TTL of their own, so a start reads the head
    offered_until  entries below this sequence number were offered to consumers: those with a TTL of 0 expire now
    """

    def __init__(self, message_ttl: int) -> None:
        self.message_ttl = message_ttl
        self.expiring = False
        self.has_expiring = False
        self.offered_until = 0
        self.timer: _HeadTimer | None = None

    @property
    def is_set(self) -> bool:
        """Whether entries that are paged out may expire."""
        return self.message_ttl >= 0 or self.has_expiring

    def configure(self, queue: ClassicQueue, message_ttl: int) -> None:
        """Change the TTL. Entries keep the expiry that they got when they were published."""
        if message_ttl < 0 <= self.message_ttl and not self.has_expiring:
            self.has_expiring = True
            if queue.stored:
                queue.vhost.keep_queue(queue)
        self.message_ttl = message_ttl

    def note(self, entry: Entry) -> None:
        """Note an entry that is now in memory."""
        if entry.message.expires_at or entry.overlay is not None:
            self.expiring = True

    def note_stored(self, queue: ClassicQueue) -> None:
        """Note that the log has messages of the queue with a TTL of their own."""
        if not self.has_expiring:
            self.has_expiring = True
            queue.vhost.keep_queue(queue)

    def add_ttl(self, queue: ClassicQueue, entry: Entry) -> None:
        """Give a new entry the TTL of the queue, if that is shorter than its own."""
        overlay = entry.overlay
        due = expires_at(entry)
        begin = queue.broker.timers.now()
        if overlay is not None and overlay.visible_at > begin:
            begin = overlay.visible_at
        expires = begin + self.message_ttl if self.message_ttl else AT_ONCE
        if not due or expires < due:
            own_overlay(entry).expires_at = expires

    def drop_expired(self, queue: ClassicQueue, backlog: Backlog, entry: Entry) -> bool:
        """Drop the head if it has expired."""
        due = expires_at(entry)
        if due <= AT_ONCE:
            if not due or entry.seq >= self.offered_until:
                return False
        elif due > queue.broker.timers.now():
            return False
        queue.ready.take_head(backlog)
        queue.dead_letter(entry, EXPIRED)
        return True

    def drop_in_steps(self, queue: ClassicQueue) -> None:
        """Drop many expired entries in steps. The queue delivers nothing until all of them are dropped."""
        queue.broker.jobs.run_steps(self._dropping(queue))

    def _dropping(self, queue: ClassicQueue) -> Iterator[int]:
        queue.dispatcher.freeze()
        try:
            epoch = queue.ready.epoch
            for backlog in queue.ready.all_levels():
                while backlog.head and self.drop_expired(queue, backlog, backlog.head[0]):
                    yield 0
                    if queue.ready.epoch != epoch or queue.deleted:
                        return  # purged or deleted meanwhile, which drops the entries
        finally:
            thaw(queue)

    def expire(self, queue: ClassicQueue, now: int) -> None:
        """Drop the expired entries at the heads. Drops that exceed the work of a turn continue in the next ones."""
        broker = queue.broker
        begun = broker.work
        for backlog in queue.ready.all_levels():
            head = backlog.head
            while head:
                if broker.work - begun > STEP_WORK:
                    if self.timer is None:
                        self.timer = _HeadTimer(queue)
                    broker.timers.at(now + 1, self.timer)
                    return
                due = expires_at(head[0])
                if not due or due > now:
                    break
                queue.dead_letter(queue.ready.take_head(backlog), EXPIRED)
            if backlog.chunks and not backlog.loading:
                queue.ready.load_more(queue, backlog)
            elif not head:
                backlog.settle_young()
        queue.activate()

    def schedule(self, queue: ClassicQueue) -> None:
        """Set the timer to the expiry of the first head."""
        due = 0
        for backlog in queue.ready.all_levels():
            if not backlog.head:
                backlog.settle_young()
            if backlog.head:
                at = expires_at(backlog.head[0])
                if at and (not due or at < due):
                    due = at
        if due == AT_ONCE:
            self.expire(queue, queue.broker.timers.now())
        elif due:
            if self.timer is None:
                self.timer = _HeadTimer(queue)
            queue.broker.timers.at(due, self.timer)
        elif not queue.ready_count:
            self.expiring = self.message_ttl >= 0

    def detach(self, queue: ClassicQueue) -> None:
        """Cancel the timer, and remove its reference to the deleted queue."""
        if self.timer is not None:
            queue.broker.timers.cancel(self.timer)
            self.timer.queue = None
            self.timer = None
