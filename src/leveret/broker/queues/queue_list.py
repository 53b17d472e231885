"""A set of queues that is walked in steps; queues may be added and removed between two of them.

Copying a list of a million queues takes longer than a turn, and so does finding the place where an iterator over a changed
dict left off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue

Q = TypeVar("Q", bound="Queue")


class _Walk(Generic[Q]):
    """A walk in progress: queues from index `at` to `end` (exclusive) are still to come, and so are `moved` ones."""

    __slots__ = ("at", "end", "moved")

    def __init__(self, end: int) -> None:
        self.at = 0
        self.end = end
        self.moved: dict[int, Q] = {}


class QueueList(Generic[Q]):
    """Queues, each once, in the order of their addition, except that the last one takes the place of a removed one."""

    __slots__ = ("_places", "_queues", "_walks")

    def __init__(self) -> None:
        self._queues: list[Q] = []
        # Indices by the ids of the queues.
        self._places: dict[int, int] = {}
        self._walks: list[_Walk[Q]] = []

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, queue_id: int) -> bool:
        return queue_id in self._places

    def get(self, queue_id: int) -> Q | None:
        """Return the queue with this id, None if it is not in the list."""
        place = self._places.get(queue_id)
        return None if place is None else self._queues[place]

    def add(self, queue: Q) -> None:
        """Add a queue unless it is in the list."""
        if queue.id not in self._places:
            self._places[queue.id] = len(self._queues)
            self._queues.append(queue)

    def discard(self, queue: Q) -> None:
        """Remove a queue if it is in the list."""
        place = self._places.pop(queue.id, None)
        if place is None:
            return
        for walk in self._walks:
            walk.moved.pop(queue.id, None)
        last = self._queues.pop()
        if last is queue:
            return
        old = self._places[last.id]
        self._queues[place] = last
        self._places[last.id] = place
        for walk in self._walks:
            if place < walk.at <= old < walk.end:
                walk.moved[last.id] = last

    def walk(self) -> Iterator[Q]:
        """Yield each queue that is in the list during the whole walk once."""
        walk: _Walk[Q] = _Walk(len(self._queues))
        self._walks.append(walk)
        try:
            while True:
                if walk.at < walk.end and walk.at < len(self._queues):
                    walk.at += 1
                    yield self._queues[walk.at - 1]
                elif walk.moved:
                    yield walk.moved.popitem()[1]
                else:
                    return
        finally:
            self._walks.remove(walk)
