"""Removals of deleted queues that a crash interrupted: the next start completes them.

The log has a record of each deleted queue with unsettled entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leveret.broker import metadata
from leveret.broker.log import RecoveredQueue
from leveret.broker.queues.classic.backlog import PIECE

if TYPE_CHECKING:
    from leveret.broker.jobs import Removals
    from leveret.broker.log import Log, Recovery


def removal_key(vhost: str, queue_id: int) -> str:
    """Return the key of the record of a removal."""
    return metadata.make_key(vhost, str(queue_id))


class Leftovers:
    """The recovered entries of deleted queues, by the keys of the records of their removal."""

    def __init__(self) -> None:
        self._by_key: dict[str, RecoveredQueue] = {}

    def recover(self, recovery: Recovery) -> None:
        """Take over the entries of queues whose removal was interrupted."""
        for kind, key in recovery.metadata:
            if kind == metadata.REMOVAL:
                self._by_key[key] = recovery.queues.pop(_id_of(key), RecoveredQueue())

    def add(self, vhost: str, queue_id: int, recovered: RecoveredQueue) -> None:
        """Add the entries of a queue whose definition was dropped."""
        self._by_key[removal_key(vhost, queue_id)] = recovered

    def remove(self, log: Log, removals: Removals) -> None:
        """Remove the entries, in steps."""
        for key, left in self._by_key.items():
            removals.add(_removing(log, key, left))
        self._by_key = {}


def _removing(log: Log, key: str, left: RecoveredQueue) -> Iterator[int]:
    queue_id = _id_of(key)
    seqs = left.seqs
    for at in range(0, len(seqs), PIECE):
        end = min(at + PIECE, len(seqs))
        log.settle_range(queue_id, seqs[at], seqs[end - 1], (), left.rows[at:end], left.slots[at:end])
        yield end - at
    log.forget(queue_id)
    log.put(metadata.REMOVAL, key, None)
    yield 1


def _id_of(key: str) -> int:
    return int(metadata.split_key(key)[1])
