"""Comparison of the counters of many queues with those that a reader was sent before."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.broker.queues.queue import Queue


class QueueSamples:
    """The last samples of queues that a reader was sent, by their ids.

    Only integers and tuples of them are kept for each queue, which the garbage collector does not examine.
    """

    def __init__(self) -> None:
        self._samples: dict[int, tuple[int, ...]] = {}
        # The number of the pass that found each queue last.
        self._passes: dict[int, int] = {}
        # The number of the pass in progress, and of queues that it has found.
        self._number = 0
        self._found = 0

    def begin(self, number: int) -> None:
        """Begin a pass over all queues."""
        self._number = number
        self._found = 0

    def changed(self, queues: list[Queue]) -> list[tuple[Queue, tuple[int, ...], tuple[int, ...] | None]]:
        """Note the samples of queues in a pass.

        Return those that have changed, with the samples of now and before; None for a new queue. Queues with a single
        active or an exclusive consumer are always returned, since their samples do not tell which consumer it is.
        """
        number = self._number
        samples = self._samples
        passes = self._passes
        found: list[tuple[Queue, tuple[int, ...], tuple[int, ...] | None]] = []
        for queue in queues:
            queue_id = queue.id
            if passes.get(queue_id) != number:
                passes[queue_id] = number
                self._found += 1
            sample = queue.sample()
            before = samples.get(queue_id)
            if sample != before:
                samples[queue_id] = sample
                found.append((queue, sample, before))
            elif queue.consumers.single_active or queue.consumers.exclusive_consumer is not None:
                found.append((queue, sample, before))
        return found

    def is_complete(self) -> bool:
        """Return whether the pass has found all queues."""
        return self._found == len(self._passes)

    def ids(self) -> list[int]:
        """Return the ids of all queues, also of those that the pass has not found."""
        return list(self._passes)

    def forget_missing(self, ids: list[int]) -> list[int]:
        """Forget those of some queues that the pass has not found, and return their ids."""
        number = self._number
        missing = [queue_id for queue_id in ids if self._passes[queue_id] != number]
        for queue_id in missing:
            del self._passes[queue_id]
            del self._samples[queue_id]
        return missing
