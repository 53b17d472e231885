"""Entries of a deleted queue that are still to be dead-lettered (strict mode, 0-9-1 queue.delete.01).

Paged-out entries must be read back for this, a chunk at a time, which takes longer than a turn. Meanwhile the queue no
longer exists for clients. Its vhost keeps it in `pending_dead_letters`, and the log records it for a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker import metadata
from leveret.broker.queues import removal

if TYPE_CHECKING:
    from leveret.broker.queues.classic.queue import ClassicQueue

logger = logging.getLogger("leveret.broker")

DELETED: Final = "deleted"


def delete(queue: ClassicQueue) -> int:
    """Delete a queue and dead-letter its ready entries, in steps. Return the number of these entries."""
    count = queue.ready_count
    delays = queue.delays
    if delays is not None:
        delays.drop(queue)
        queue.delays = None
    queue.detach()
    queue.vhost.pending_dead_letters[queue.id] = queue
    move(queue)
    if queue.stored and queue.id in queue.vhost.pending_dead_letters:
        queue.log.put(
            metadata.PENDING_DEAD_LETTERS,
            _key(queue),
            metadata.pack(
                {
                    "id": queue.id,
                    "name": queue.name,
                    "arguments": queue.arguments,
                    "exchange": queue.settings.dead_letter_exchange,
                    "routing_key": queue.settings.dead_letter_routing_key,
                }
            ),
        )
    queue.ready.notify_waiting()
    return count


def move(queue: ClassicQueue) -> None:
    """Dead-letter the entries in memory, then read more."""
    if queue.id in queue.vhost.pending_dead_letters and not queue.moving:
        queue.broker.jobs.run_steps(_moving(queue))


def _moving(queue: ClassicQueue) -> Iterator[int]:
    queue.moving = True
    try:
        yield from _move_levels(queue)
    finally:
        queue.moving = False


def _move_levels(queue: ClassicQueue) -> Iterator[int]:
    pending = queue.vhost.pending_dead_letters
    for backlog in queue.ready.all_levels():
        while True:
            while backlog.head:
                entry = queue.ready.take_head(backlog)
                try:
                    queue.dead_letter(entry, DELETED)
                except Exception:  # the others are still dead-lettered
                    logger.exception("cannot dead-letter an entry of the deleted queue '%s'", queue.name)
                yield 0
                if queue.id not in pending:
                    return  # dropped meanwhile, with its vhost
            if backlog.chunks:
                if not backlog.loading:
                    queue.ready.load(queue, backlog)
                return
            backlog.settle_young()
            if not backlog.head:
                break
    _end(queue)


def drop(queue: ClassicQueue) -> None:
    """Drop the pending entries, because the vhost is deleted too."""
    removal.purge(queue)
    _end(queue)


def _end(queue: ClassicQueue) -> None:
    del queue.vhost.pending_dead_letters[queue.id]
    removal.forget(queue)
    if queue.stored:
        queue.log.put(metadata.PENDING_DEAD_LETTERS, _key(queue), None)


def _key(queue: ClassicQueue) -> str:
    return metadata.make_key(queue.vhost.name, str(queue.id))
