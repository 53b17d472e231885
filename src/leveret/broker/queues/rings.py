"""The consumers of a queue, and whose turn it is.

Consumers of one priority stand in one ring: those that took an entry last time they were asked. One that refuses is
parked, outside of its ring, until it has credit again (`Queue.unpark`, which is hot and stands there). `queue.ring` is the
ring that is served now, the one of the highest priority in which anybody stands.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from leveret.broker.queues import expiry, selective

if TYPE_CHECKING:
    from leveret.broker.consumer import Consumer
    from leveret.broker.queues.base import Queue


def add(queue: Queue, consumer: Consumer) -> None:
    """A consumer joins; with a single active consumer it may have to wait for its turn."""
    queue.consumers.append(consumer)
    queue.had_consumer = True
    if queue.unused is not None:
        queue.broker.timers.cancel(queue.unused)
    if consumer.selective:
        queue.selective = True
    if queue.settings.single_active_consumer and len(queue.consumers) > 1:
        consumer.active = False
        consumer.parked = True
        return
    _enter(queue, consumer)


def remove(queue: Queue, consumer: Consumer) -> None:
    """A consumer leaves; its unsettled entries stay with its channel."""
    if consumer not in queue.consumers:
        return
    queue.consumers.remove(consumer)
    leave(queue, consumer)
    if queue.selective:
        set_selective(queue)
    if (queue.settings.single_active_consumer and queue.consumers
            and not any(other.active for other in queue.consumers)):
        successor = max(queue.consumers, key=lambda other: other.priority)
        successor.active = True
        successor.parked = False
        _enter(queue, successor)
        successor.activated()
    consumer.active = False
    priority = consumer.priority
    if not any(other.priority == priority for other in queue.consumers):
        queue.rings = [item for item in queue.rings if item[0] != priority]
        queue.ring = deque()
        choose(queue)
    if not queue.consumers:
        expiry.touch(queue)
        if queue.auto_delete and not queue.deleted:
            queue.vhost.remove_queue(queue)


def leave(queue: Queue, consumer: Consumer) -> None:
    """Hand nothing more to this consumer, which is about to be removed."""
    for _, ring in queue.rings:
        if consumer in ring:
            ring.remove(consumer)
    consumer.parked = True
    choose(queue)


def _enter(queue: Queue, consumer: Consumer) -> None:
    for priority, ring in queue.rings:
        if priority == consumer.priority:
            ring.append(consumer)
            break
    else:
        queue.rings.append((consumer.priority, deque((consumer,))))
        queue.rings.sort(key=lambda item: -item[0])
    choose(queue)
    if queue.selective:
        selective.offer_again(queue)
    queue.activate()


def choose(queue: Queue) -> None:
    """Serve the ring of the highest priority in which somebody takes entries."""
    for _, ring in queue.rings:
        if ring:
            queue.ring = ring
            return
    if queue.rings:
        queue.ring = queue.rings[0][1]


def set_selective(queue: Queue) -> None:
    """Find out whether each entry must be offered by itself: where a consumer does not take all, or has refused an entry,
    or somebody watches."""
    if queue.refusing and not queue.ready_count and not queue.unacked:
        queue.refusing = False
    watch = queue.watch
    queue.selective = queue.refusing or (watch is not None and watch.sees_out()) or any(
        consumer.selective for consumer in queue.consumers)
