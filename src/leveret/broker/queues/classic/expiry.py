"""Expiry of entries at the head of a queue, and of unused queues (`x-expires`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import AT_ONCE, ENTRY_OVERHEAD, Entry
from leveret.broker.queues.classic import paging
from leveret.broker.queues.classic.backlog import Backlog
from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.broker.queues.classic.queue import ClassicQueue

EXPIRED: Final = "expired"


class Expiry(Timed):
    """When the head of a queue expires."""

    def __init__(self, queue: ClassicQueue) -> None:
        super().__init__()
        self.queue: ClassicQueue | None = queue

    def fire(self, now: int) -> None:
        if self.queue is not None:
            expire(self.queue, now)


class Unused(Timed):
    """When a queue with `x-expires` has been without use for long enough."""

    def __init__(self, queue: ClassicQueue) -> None:
        super().__init__()
        self.queue: ClassicQueue | None = queue

    def fire(self, now: int) -> None:
        queue = self.queue
        if queue is None or queue.consumers or queue.browsers or queue.deleted:
            return
        if queue.leased_count:
            touch(queue)
        else:
            queue.vhost.remove_queue(queue)


def expires_at(entry: Entry) -> int:
    """When the entry expires, 0 for never."""
    overlay = entry.overlay
    if overlay is not None and overlay.expires_at >= 0:
        return overlay.expires_at
    return entry.message.expires_at


def drop_expired(queue: ClassicQueue, backlog: Backlog, entry: Entry) -> bool:
    """Drop the head where its time is over."""
    due = expires_at(entry)
    if due <= AT_ONCE:
        if not due or entry.seq >= queue.offered_until:
            return False
    elif due > queue.broker.timers.now():
        return False
    backlog.head.popleft()
    queue.memory -= entry.message.size + ENTRY_OVERHEAD
    queue.dead_letter(entry, EXPIRED)
    return True


def drop_in_steps(queue: ClassicQueue) -> None:
    """Many entries have expired: the queue hands out nothing until all of them are dropped."""
    queue.broker.jobs.run_steps(_dropping(queue))


def _dropping(queue: ClassicQueue) -> Iterator[int]:
    queue.freeze()
    try:
        epoch = queue.epoch
        for backlog in queue.all_levels():
            while backlog.head and drop_expired(queue, backlog, backlog.head[0]):
                yield 0
                if queue.epoch != epoch or queue.deleted:
                    return  # purged or deleted meanwhile: the entries belong to the removal
    finally:
        queue.thaw()


def expire(queue: ClassicQueue, now: int) -> None:
    """Drop everything at the heads whose time is over; what is too much for a turn, in the next ones."""
    broker = queue.broker
    begun = broker.work
    for backlog in queue.all_levels():
        head = backlog.head
        while head:
            if broker.work - begun > STEP_WORK:
                if queue.expiry is None:
                    queue.expiry = Expiry(queue)
                broker.timers.at(now + 1, queue.expiry)
                return
            due = expires_at(head[0])
            if not due or due > now:
                break
            entry = head.popleft()
            queue.memory -= entry.message.size + ENTRY_OVERHEAD
            queue.dead_letter(entry, EXPIRED)
        if backlog.chunks and not backlog.loading:
            paging.load_more(queue, backlog)
        elif not head:
            backlog.settle_young()
    queue.activate()


def schedule(queue: ClassicQueue) -> None:
    """Set the timer to when the first head expires."""
    due = 0
    for backlog in queue.all_levels():
        if not backlog.head:
            backlog.settle_young()
        if backlog.head:
            at = expires_at(backlog.head[0])
            if at and (not due or at < due):
                due = at
    if due == AT_ONCE:
        expire(queue, queue.broker.timers.now())
    elif due:
        if queue.expiry is None:
            queue.expiry = Expiry(queue)
        queue.broker.timers.at(due, queue.expiry)
    elif not queue.ready_count:
        queue.expiring = queue.message_ttl >= 0


def touch(queue: ClassicQueue) -> None:
    """The queue was used: its `x-expires` starts again."""
    expires = queue.settings.expires
    if expires is not None:
        if queue.unused is None:
            queue.unused = Unused(queue)
        queue.broker.timers.at(queue.broker.timers.now() + expires, queue.unused)
