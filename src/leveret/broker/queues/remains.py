"""What was pending on a deleted queue goes to its dead letters (strict mode, 0-9-1 queue.delete.01).

What is paged out must be read back for it, a chunk at a time, and that takes longer than a turn. Meanwhile the queue is
gone for everybody; its vhost keeps it among its `remains`, and so does the log, for a start that comes too soon.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker import metadata
from leveret.broker.message import ENTRY_OVERHEAD
from leveret.broker.queues import delayed, paging, removal

if TYPE_CHECKING:
    from leveret.broker.queues.base import Queue

logger = logging.getLogger("leveret.broker")

DELETED: Final = "deleted"


def delete(queue: Queue) -> int:
    """The queue is gone; what was ready in it becomes dead letters, now or soon. Returns how many entries that are."""
    count = queue.ready_count
    delayed.drop(queue)
    removal.detach(queue)
    queue.vhost.remains[queue.id] = queue
    move(queue)
    if queue.stored and queue.id in queue.vhost.remains:
        queue.log.put(metadata.REMAINS, _key(queue), metadata.pack({
            "id": queue.id, "name": queue.name, "arguments": queue.arguments,
            "exchange": queue.settings.dead_letter_exchange, "routing_key": queue.settings.dead_letter_routing_key}))
    paging.tell_waiting(queue)
    return count


def move(queue: Queue) -> None:
    """Make dead letters of what is in memory, and have more read back."""
    if queue.id in queue.vhost.remains and not queue.moving:
        queue.broker.jobs.carry_out(_moving(queue))


def _moving(queue: Queue) -> Iterator[int]:
    queue.moving = True
    try:
        yield from _move_levels(queue)
    finally:
        queue.moving = False


def _move_levels(queue: Queue) -> Iterator[int]:
    pending = queue.vhost.remains
    for backlog in queue.all_levels():
        while True:
            while backlog.head:
                entry = backlog.head.popleft()
                queue.memory -= entry.message.size + ENTRY_OVERHEAD
                try:
                    queue.dead_letter(entry, DELETED)
                except Exception:  # the others still become dead letters
                    logger.exception("a dead letter of the deleted queue '%s' failed", queue.name)
                yield 0
                if queue.id not in pending:
                    return  # dropped meanwhile, with its vhost
            if backlog.chunks:
                if not backlog.loading:
                    paging.load(queue, backlog)
                return
            backlog.settle_young()
            if not backlog.head:
                break
    _end(queue)


def drop(queue: Queue) -> None:
    """Its vhost is gone, too: nobody wants these dead letters."""
    removal.purge(queue)
    _end(queue)


def _end(queue: Queue) -> None:
    del queue.vhost.remains[queue.id]
    removal.forget(queue)
    if queue.stored:
        queue.log.put(metadata.REMAINS, _key(queue), None)


def _key(queue: Queue) -> str:
    return metadata.make_key(queue.vhost.name, str(queue.id))
