"""Entries of deleted queues that are still to be dead-lettered (strict mode, 0-9-1 queue.delete.01).

Paged-out entries must be read back for this, a chunk at a time, which takes longer than a turn. Meanwhile their queue no
longer exists for clients, and the log records it for a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker import metadata

if TYPE_CHECKING:
    from leveret.broker.queues.classic.queue import ClassicQueue

logger = logging.getLogger("leveret.broker")

DELETED: Final = "deleted"


class PendingDeadLetters:
    """The deleted queues of a vhost with such entries.

    queues  by id
    moving  the ids of those whose entries in memory are being dead-lettered
    """

    def __init__(self) -> None:
        self.queues: dict[int, ClassicQueue] = {}
        self.moving: set[int] = set()

    def add(self, queue: ClassicQueue) -> None:
        """Dead-letter the ready entries of a queue that is being deleted, in steps."""
        self.queues[queue.id] = queue
        self.move(queue)
        if queue.stored and queue.id in self.queues:
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

    def restore(self, queue: ClassicQueue) -> None:
        """Add a recovered queue, whose record is in the log."""
        self.queues[queue.id] = queue

    def start(self) -> None:
        """Continue with the recovered queues."""
        for queue in list(self.queues.values()):
            self.move(queue)

    def move(self, queue: ClassicQueue) -> None:
        """Dead-letter the entries of a queue that are in memory, then read more."""
        if queue.id in self.queues and queue.id not in self.moving:
            queue.broker.jobs.run_steps(self._moving(queue))

    def _moving(self, queue: ClassicQueue) -> Iterator[int]:
        self.moving.add(queue.id)
        try:
            yield from self._move_levels(queue)
        finally:
            self.moving.discard(queue.id)

    def _move_levels(self, queue: ClassicQueue) -> Iterator[int]:
        for backlog in queue.ready.all_levels():
            while True:
                while backlog.head:
                    entry = queue.ready.take_head(backlog)
                    try:
                        queue.dead_letter(entry, DELETED)
                    except Exception:  # the others are still dead-lettered
                        logger.exception("cannot dead-letter an entry of the deleted queue '%s'", queue.name)
                    yield 0
                    if queue.id not in self.queues:
                        return  # dropped meanwhile, with its vhost
                if backlog.chunks:
                    if not backlog.loading:
                        queue.ready.load(queue, backlog)
                    return
                backlog.settle_young()
                if not backlog.head:
                    break
        self._end(queue)

    def drop(self) -> None:
        """Drop all entries, because the vhost is deleted too."""
        for queue in list(self.queues.values()):
            queue.discard()
            self._end(queue)

    def _end(self, queue: ClassicQueue) -> None:
        del self.queues[queue.id]
        queue.broker.forget_queue(queue)
        if queue.stored:
            queue.log.put(metadata.PENDING_DEAD_LETTERS, _key(queue), None)


def _key(queue: ClassicQueue) -> str:
    return metadata.make_key(queue.vhost.name, str(queue.id))
