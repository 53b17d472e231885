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
    """Deleted queues with recovered entries, by the keys of the records of their removal."""

    def __init__(self) -> None:
        self._keys: dict[str, None] = {}

    def recover(self, recovery: Recovery) -> None:
        """Add the queues whose removal was interrupted."""
        for kind, key in recovery.metadata:
            if kind == metadata.REMOVAL:
                self._keys[key] = None

    def add(self, vhost: str, queue_id: int) -> str:
        """Add a queue that has no definition any more. Return the key of its removal."""
        key = removal_key(vhost, queue_id)
        self._keys[key] = None
        return key

    def remove(self, recovered: dict[int, RecoveredQueue], log: Log, removals: Removals) -> None:
        """Remove the entries, in steps, from the recovered ones by queue id, and from the log."""
        for key in self._keys:
            removals.add(_removing(log, key, recovered.pop(_id_of(key), RecoveredQueue())))
        self._keys = {}


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
