"""The limits of a queue: what a full one refuses, what it drops (`x-max-length`, `x-max-length-bytes`, `x-overflow`)."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from leveret.broker.arguments import REJECT_PUBLISH_DLX
from leveret.broker.content_policy import DROP_FIRST, DROP_NEVER
from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import ENTRY_OVERHEAD, Entry, Message
from leveret.broker.queues.classic import paging
from leveret.broker.queues.classic.backlog import SEQ, Backlog

if TYPE_CHECKING:
    from leveret.broker.queues.classic.queue import ClassicQueue

MAXLEN: Final = "maxlen"
# So many levels of priority, as a power of two, are added up or sorted in 1 µs.
LEVELS_SHIFT: Final = 4
# Higher than any level of priority.
ANY_LEVEL: Final = 256


def turns_away(queue: ClassicQueue, message: Message, due: int = 0) -> bool:
    """Whether the queue refuses a publish now; where its arguments say so, the message becomes a dead letter."""
    if not queue.rejects_publish:
        return False
    rule = queue.broker.overflow_rule(message)
    if rule == DROP_NEVER or not refuses(queue, message, due):
        return False
    if queue.droppable:
        below = queue.priority_of(message.priority) if rule == DROP_FIRST else ANY_LEVEL
        while drop_first(queue, below):
            if not refuses_publish(queue, message.size):
                return False
    if queue.settings.overflow == REJECT_PUBLISH_DLX:
        queue.vhost.dead_letters.publish(Entry(queue, message, 0), MAXLEN)
    return True


def drop_first(queue: ClassicQueue, below: int = ANY_LEVEL) -> bool:
    """Drop the message of the rule DROP_FIRST that is worth least: of the lowest level of priority, if that is lower than
    `below`, the oldest in memory. False if there is none."""
    for backlog in reversed(queue.all_levels()):
        if below != ANY_LEVEL and queue.priority_of(backlog.priority) >= below:
            return False
        entry = _take_droppable(queue, backlog)
        if entry is not None:
            queue.memory -= entry.message.size + ENTRY_OVERHEAD
            queue.dead_letter(entry, MAXLEN)
            return True
    if below == ANY_LEVEL:
        queue.droppable = False
    return False


def drop_droppable(queue: ClassicQueue) -> None:
    """Drop messages of the rule DROP_FIRST while the queue holds more than one with such messages may."""
    most = queue.broker.droppable_backlog
    begun = queue.broker.work
    while queue.droppable and queue.ready_bytes > most:
        if queue.broker.work - begun > STEP_WORK:
            queue.broker.jobs.again.add(queue)
            return
        if not drop_first(queue):
            return


def is_over(queue: ClassicQueue) -> bool:
    """Whether the queue holds more than its limits allow."""
    if queue.levels is not None:
        queue.broker.work += len(queue.levels) >> LEVELS_SHIFT
    return (0 <= queue.max_length < queue.ready_count) or (0 <= queue.max_bytes < queue.ready_bytes)


def refuses(queue: ClassicQueue, message: Message, due: int = 0) -> bool:
    """Return whether the queue would refuse a message now, unless the message replaces another one. A message that becomes
    visible later, at `due`, does not."""
    return refuses_publish(queue, message.size) and (due != 0 or not replaces(queue, message))


def replaces(queue: ClassicQueue, message: Message) -> bool:
    """Return whether a message takes the room of the one that it replaces, so that a full queue keeps to its limits."""
    before = queue.replaced_by(message)
    if before is None:
        return False
    growth = message.size - before.message.size
    return growth <= 0 or queue.max_bytes < 0 or queue.ready_bytes + growth <= queue.max_bytes


def refuses_publish(queue: ClassicQueue, size: int) -> bool:
    """Whether the queue would refuse a message of `size` bytes now."""
    return queue.rejects_publish and _is_full(queue, size)


def _is_full(queue: ClassicQueue, size: int) -> bool:
    """Whether one more message of `size` bytes would exceed a limit, even after consumers had their share."""
    if not exceeds(queue, size):
        return False
    if queue.vhost.dead_letters.publishing:
        return True  # handing out may drop what has expired, to queues without end
    queue.drain()
    return exceeds(queue, size)


def exceeds(queue: ClassicQueue, size: int, count: int = 1) -> bool:
    """Whether so many more messages, with so many bytes, would exceed a limit."""
    delays = queue.delays
    later = 0 if delays is None else delays.bytes
    return ((0 <= queue.max_length < queue.ready_count + queue.delayed_count + len(queue.hidden) + count)
            or (0 <= queue.max_bytes < queue.ready_bytes + later + queue.hidden.bytes + size))


def shorten(queue: ClassicQueue) -> None:
    """Drop from the head until the limits hold again; consumers with credit come first. A queue that refuses what is too
    much drops nothing.

    What is too much for a turn is dropped in the next ones. So is what a dead letter of another queue makes too much, at
    the end of the turn: it may cause more dead letters, through any number of queues.
    """
    if queue.rejects_publish:
        return
    if queue.vhost.dead_letters.publishing:
        queue.overfull = True
        return
    broker = queue.broker
    begun = broker.work
    drained = False
    while is_over(queue):
        if broker.work - begun > STEP_WORK:
            queue.overfull = True
            broker.jobs.again.add(queue)
            return
        if not drained:
            drained = True
            if queue.dispatcher.ring:
                queue.drain()
                continue
        if queue.droppable and drop_first(queue):
            continue
        backlog = _next_level(queue)
        if not backlog.head:
            if backlog.chunks:
                if not backlog.loading:
                    paging.load(queue, backlog)  # dropped once it is in memory
                return
            backlog.settle_young()
            if not backlog.head:
                return
        entry = backlog.head[0]
        if broker.overflow_rule(entry.message) == DROP_NEVER:
            found = _take_in_order(queue, backlog)
            if found is None:
                break
            entry = found
        else:
            backlog.head.popleft()
        queue.memory -= entry.message.size + ENTRY_OVERHEAD
        queue.dead_letter(entry, MAXLEN)
    queue.end_overflow()


def _take_droppable(queue: ClassicQueue, backlog: Backlog) -> Entry | None:
    """Take the first entry in memory of the rule DROP_FIRST."""
    for entries in (backlog.head, backlog.young):
        if entries is None:
            continue
        position = bisect_left(entries, backlog.not_droppable, key=SEQ)
        while position < len(entries):
            entry = entries[position]
            backlog.not_droppable = entry.seq + 1
            if queue.broker.overflow_rule(entry.message) == DROP_FIRST:
                del entries[position]
                return entry
            position += 1
    return None


def _take_in_order(queue: ClassicQueue, backlog: Backlog) -> Entry | None:
    """Take the first entry in memory that may be dropped."""
    for entry in backlog.head:
        if queue.broker.overflow_rule(entry.message) != DROP_NEVER:
            backlog.head.remove(entry)
            return entry
    young = backlog.young
    if young is not None:
        for entry in young:
            if queue.broker.overflow_rule(entry.message) != DROP_NEVER:
                young.remove(entry)
                return entry
    return None


def _next_level(queue: ClassicQueue) -> Backlog:
    """The backlog that overflow drops from: as in RabbitMQ the one whose head is next to be delivered."""
    levels = queue.levels
    if levels is None:
        return queue.backlog
    queue.broker.work += len(levels) >> LEVELS_SHIFT
    for priority in sorted(levels, reverse=True):
        if len(levels[priority]):
            return levels[priority]
    return queue.backlog
