"""Queues that deliver nothing while entries are returned to them in steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue


def thaw(queue: Queue) -> None:
    """Undo one `freeze` of the consumers of a queue, which delivers again after the last one."""
    if queue.consumers.thaw():
        queue.activate()


class FrozenQueues:
    """The queues that one operation has frozen, until the order of their entries is right again."""

    def __init__(self) -> None:
        self.queues: dict[Queue, None] = {}

    def freeze(self, queue: Queue) -> None:
        """Freeze a queue unless it is already frozen by this operation."""
        if queue not in self.queues:
            self.queues[queue] = None
            queue.consumers.freeze()

    def thaw(self) -> None:
        """Thaw all frozen queues."""
        queues = self.queues
        self.queues = {}
        for queue in queues:
            thaw(queue)
