"""The consumers of a queue, and whose turn it is.

Consumers of one priority stand in one ring: those that took an entry last time they were asked. One that refuses is
parked, outside of its ring, until it has credit again (`Queue.unpark`, which is hot and stands there). `queue.ring` is the
ring that is served now, the one of the highest priority in which anybody stands.

A client may have tens of thousands of consumers on a queue, so nothing here looks at all of them: a consumer that leaves
stays in its ring, marked `left`, until the queue comes to it or until such consumers are the greater part.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from leveret.broker.queues.classic import expiry, selective

if TYPE_CHECKING:
    from leveret.broker.consumer import Consumer
    from leveret.broker.queues.queue import Queue

# Fewer consumers that have left are not worth clearing away.
MIN_STRAYS: Final = 32


class Ring:
    """The consumers of one priority. `members` counts all of them, parked or not, that have not left."""

    __slots__ = ("line", "members", "priority", "queued", "resigned", "succession")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.line: deque[Consumer] = deque()
        self.members = 0
        # Stands in the heap of `queue.serving`.
        self.queued = False
        # Who waits to become the single active consumer, oldest first.
        self.succession: deque[Consumer] = deque()
        # How many of these have left.
        self.resigned = 0


def add(queue: Queue, consumer: Consumer) -> None:
    """A consumer joins; with a single active consumer it may have to wait for its turn."""
    queue.consumers[consumer] = None
    queue.had_consumer = True
    if queue.unused is not None:
        queue.broker.timers.cancel(queue.unused)
    if consumer.exclusive:
        queue.exclusive_consumer = consumer
    if consumer.selective:
        queue.selective_consumers += 1
        queue.selective = True
    ring = queue.rings.get(consumer.priority)
    if ring is None:
        ring = queue.rings[consumer.priority] = Ring(consumer.priority)
        if len(queue.rings) == 2:
            _fill_heap(queue)
    ring.members += 1
    if queue.settings.single_active_consumer:
        if queue.active_consumer is not None:
            consumer.active = False
            consumer.parked = True
            ring.succession.append(consumer)
            return
        queue.active_consumer = consumer
    _enter(queue, consumer)


def remove(queue: Queue, consumer: Consumer) -> None:
    """A consumer leaves; its unsettled entries stay with its channel."""
    if consumer not in queue.consumers:
        return
    del queue.consumers[consumer]
    if queue.exclusive_consumer is consumer:
        queue.exclusive_consumer = None
    leave(queue, consumer)
    ring = queue.rings[consumer.priority]
    ring.members -= 1
    if not ring.members:
        queue.strays -= len(ring.line)
        ring.line.clear()
        del queue.rings[consumer.priority]
        if len(queue.serving) > MIN_STRAYS + 2 * len(queue.rings) or len(queue.rings) == 1:
            _fill_heap(queue)
        choose(queue)
    elif queue.active_consumer is not None and queue.active_consumer is not consumer:
        ring.resigned += 1
        if ring.resigned > MIN_STRAYS and ring.resigned * 2 > len(ring.succession):
            ring.succession = deque([other for other in ring.succession if not other.left])
            ring.resigned = 0
    if consumer.selective:
        queue.selective_consumers -= 1
    if queue.selective:
        set_selective(queue)
    consumer.active = False
    if queue.active_consumer is consumer:
        queue.active_consumer = None
        _succeed(queue)
    if not queue.consumers:
        expiry.touch(queue)
        if queue.auto_delete and not queue.deleted:
            queue.vhost.remove_queue(queue)


def _succeed(queue: Queue) -> None:
    """The single active consumer has left: the oldest of the highest priority takes its place."""
    queue.broker.work += len(queue.rings) >> 2
    for priority in sorted(queue.rings, reverse=True):
        succession = queue.rings[priority].succession
        while succession:
            successor = succession.popleft()
            if successor.left:
                queue.rings[priority].resigned -= 1
                continue
            queue.active_consumer = successor
            successor.active = True
            successor.parked = False
            _enter(queue, successor)
            successor.activated()
            return


def leave(queue: Queue, consumer: Consumer) -> None:
    """Hand nothing more to this consumer, which is about to be removed."""
    if consumer.left:
        return
    consumer.left = True
    if consumer.parked:
        return
    consumer.parked = True
    queue.strays += 1
    if queue.strays > MIN_STRAYS and queue.strays * 2 > len(queue.consumers):
        for ring in queue.rings.values():
            line = [other for other in ring.line if not other.left]
            ring.line.clear()
            ring.line.extend(line)
        queue.strays = 0
        queue.asking = None
    choose(queue)


def step_out(queue: Queue, ring: deque[Consumer]) -> None:
    """The first of a ring takes nothing more: it is parked until it has credit, or has left."""
    consumer = ring.popleft()
    if consumer.left:
        queue.strays -= 1
    consumer.parked = True
    if not ring:
        choose(queue)


def stand(queue: Queue, consumer: Consumer) -> None:
    """A consumer takes entries, from now on or again."""
    ring = queue.rings.get(consumer.priority)
    if ring is None:
        return  # the queue was deleted
    ring.line.append(consumer)
    if not ring.queued and len(queue.rings) > 1:
        ring.queued = True
        heappush(queue.serving, -consumer.priority)
    choose(queue)


def _fill_heap(queue: Queue) -> None:
    """Put the rings that may be served into the heap, which is needed only where there are several."""
    queue.serving = []
    for ring in queue.rings.values():
        ring.queued = len(queue.rings) > 1 and bool(ring.line)
        if ring.queued:
            heappush(queue.serving, -ring.priority)


def _enter(queue: Queue, consumer: Consumer) -> None:
    stand(queue, consumer)
    if queue.selective:
        selective.offer_again(queue)
    queue.activate()


def choose(queue: Queue) -> None:
    """Serve the ring of the highest priority with a consumer that takes entries."""
    if len(queue.rings) == 1:
        for only in queue.rings.values():
            queue.ring = only.line
        return
    serving = queue.serving
    while serving:
        ring = queue.rings.get(-serving[0])
        if ring is not None and ring.line:
            queue.ring = ring.line
            return
        heappop(serving)
        if ring is not None:
            ring.queued = False
    if queue.ring:
        queue.ring = deque()


def lines(queue: Queue) -> list[deque[Consumer]]:
    """The consumers that take entries, by priority, the highest first."""
    if len(queue.rings) == 1:
        return [ring.line for ring in queue.rings.values()]
    queue.broker.work += len(queue.rings) >> 2
    return [queue.rings[priority].line for priority in sorted(queue.rings, reverse=True) if queue.rings[priority].line]


def set_selective(queue: Queue) -> None:
    """Find out whether each entry must be offered by itself: where a consumer does not take all, or has refused an entry,
    or somebody watches."""
    if queue.refusing and not queue.ready_count and not queue.unacked:
        queue.refusing = False
    watch = queue.watch
    queue.selective = queue.refusing or (watch is not None and watch.sees_out()) or queue.selective_consumers > 0
