"""The limits of a queue: what a full one refuses, what it drops (`x-max-length`, `x-max-length-bytes`, `x-overflow`)."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from leveret.broker.arguments import REJECT_PUBLISH_DLX
from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import ENTRY_OVERHEAD, FORMAT_CLASS_AMQP09, Entry, Message
from leveret.broker.queues.classic import paging
from leveret.broker.queues.classic.backlog import SEQ, Backlog

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue

MAXLEN: Final = "maxlen"
# The classes of contents of 0-9, in the second byte of their headers.
FILE: Final = 70
STREAM: Final = 80
# So many levels of priority, as a power of two, are added up or sorted in 1 µs.
LEVELS_SHIFT: Final = 4
# Higher than any level of priority.
ANY_LEVEL: Final = 256


def turns_away(queue: Queue, message: Message, due: int = 0) -> bool:
    """Whether the queue refuses a publish now; where its arguments say so, the message becomes a dead letter."""
    if is_file(message):
        return False
    if not refuses(queue, message, due):
        return False
    if queue.streams:
        below = queue.priority_of(message.priority) if is_stream(message) else ANY_LEVEL
        while drop_stream(queue, below):
            if not refuses_publish(queue, message.size):
                return False
    if queue.settings.overflow == REJECT_PUBLISH_DLX:
        queue.vhost.dead_letters.publish(Entry(queue, message, 0), MAXLEN)
    return True


def is_file(message: Message) -> bool:
    """Whether it is a content of class file of 0-9, which overflow never discards: its publishers are slowed down."""
    return message.format == FORMAT_CLASS_AMQP09 and message.header[1] == FILE


def is_stream(message: Message) -> bool:
    """Whether it is a content of class stream of 0-9, which is the first to go, by its priority."""
    return message.format == FORMAT_CLASS_AMQP09 and message.header[1] == STREAM


def drop_stream(queue: Queue, below: int = ANY_LEVEL) -> bool:
    """Drop the message of class stream that is worth least: of the lowest level of priority, if that is lower than `below`,
    the oldest in memory. False where there is none."""
    for backlog in reversed(queue.all_levels()):
        if below != ANY_LEVEL and queue.priority_of(backlog.priority) >= below:
            return False
        entry = _take_stream(backlog)
        if entry is not None:
            queue.memory -= entry.message.size + ENTRY_OVERHEAD
            queue.dead_letter(entry, MAXLEN)
            return True
    if below == ANY_LEVEL:
        queue.streams = False
    return False


def drop_streams(queue: Queue) -> None:
    """Drop messages of class stream while the queue holds more than one with such messages may."""
    most = queue.broker.stream_backlog
    begun = queue.broker.work
    while queue.streams and queue.ready_bytes > most:
        if queue.broker.work - begun > STEP_WORK:
            queue.broker.jobs.again.add(queue)
            return
        if not drop_stream(queue):
            return


def is_over(queue: Queue) -> bool:
    """Whether the queue holds more than its limits allow."""
    if queue.levels is not None:
        queue.broker.work += len(queue.levels) >> LEVELS_SHIFT
    return (0 <= queue.max_length < queue.ready_count) or (0 <= queue.max_bytes < queue.ready_bytes)


def is_overflowing(queue: Queue) -> bool:
    """Whether the queue is about to drop what exceeds its limits."""
    return queue.overfull and is_over(queue)


def refuses(queue: Queue, message: Message, due: int = 0) -> bool:
    """Return whether the queue would refuse a message now, unless the message replaces another one. A message that becomes
    visible later, at `due`, does not."""
    return refuses_publish(queue, message.size) and (due != 0 or not replaces(queue, message))


def replaces(queue: Queue, message: Message) -> bool:
    """Return whether a message takes the room of the one that it replaces, so that a full queue keeps to its limits."""
    before = queue.replaced_by(message)
    if before is None:
        return False
    growth = message.size - before.message.size
    return growth <= 0 or queue.max_bytes < 0 or queue.ready_bytes + growth <= queue.max_bytes


def refuses_publish(queue: Queue, size: int) -> bool:
    """Whether the queue would refuse a message of `size` bytes now."""
    return queue.rejects_publish and _is_full(queue, size)


def _is_full(queue: Queue, size: int) -> bool:
    """Whether one more message of `size` bytes would exceed a limit, even after consumers had their share."""
    if not _exceeds(queue, size):
        return False
    if queue.vhost.dead_letters.publishing:
        return True  # handing out may drop what has expired, to queues without end
    queue.drain()
    return _exceeds(queue, size)


def _exceeds(queue: Queue, size: int) -> bool:
    delays = queue.delays
    later = 0 if delays is None else delays.bytes
    return ((0 <= queue.max_length <= queue.ready_count + queue.delayed_count + len(queue.hidden))
            or (0 <= queue.max_bytes < queue.ready_bytes + later + queue.hidden.bytes + size))


def shorten(queue: Queue) -> None:
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
            if queue.ring:
                queue.drain()
                continue
        if queue.streams and drop_stream(queue):
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
        if is_file(entry.message):
            found = _take_what_may_go(backlog)
            if found is None:
                break
            entry = found
        else:
            backlog.head.popleft()
        queue.memory -= entry.message.size + ENTRY_OVERHEAD
        queue.dead_letter(entry, MAXLEN)
    if queue.overflow:
        queue.vhost.dead_letters.let_go(queue)


def _take_stream(backlog: Backlog) -> Entry | None:
    """Take the first entry in memory that is of class stream."""
    for entries in (backlog.head, backlog.young):
        if entries is None:
            continue
        position = bisect_left(entries, backlog.no_streams, key=SEQ)
        while position < len(entries):
            entry = entries[position]
            backlog.no_streams = entry.seq + 1
            if is_stream(entry.message):
                del entries[position]
                return entry
            position += 1
    return None


def _take_what_may_go(backlog: Backlog) -> Entry | None:
    """Take the first entry in memory that is no file."""
    for entry in backlog.head:
        if not is_file(entry.message):
            backlog.head.remove(entry)
            return entry
    young = backlog.young
    if young is not None:
        for entry in young:
            if not is_file(entry.message):
                young.remove(entry)
                return entry
    return None


def _next_level(queue: Queue) -> Backlog:
    """The backlog that overflow drops from: as in RabbitMQ the one whose head is next to be delivered."""
    levels = queue.levels
    if levels is None:
        return queue.backlog
    queue.broker.work += len(levels) >> LEVELS_SHIFT
    for priority in sorted(levels, reverse=True):
        if len(levels[priority]):
            return levels[priority]
    return queue.backlog
