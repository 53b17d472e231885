"""Recovery of branches: separate their entries from the recovered queues."""

from __future__ import annotations

from bisect import bisect_left

from leveret.broker import metadata
from leveret.broker.leases.recovery import without
from leveret.broker.log import RecoveredQueue, Recovery
from leveret.broker.metadata import Record


class Taken:
    """The entries of one prepared branch in the log.

    store        number of the queue of its publishes, 0 for none
    targets      pairs of a number of consecutive publishes and their queues
    settlements  queue, outcome, and the positions of the entries
    """

    def __init__(self, value: Record, recovery: Recovery) -> None:
        self.store: int = value["store"]
        self.targets: list[tuple[int, list[int]]] = [(count, ids) for count, ids in value["publishes"]]
        self.publishes = recovery.queues.pop(self.store, RecoveredQueue())
        self.settlements: list[tuple[int, int, RecoveredQueue]] = []
        for queue_id, outcome, runs in value["settlements"]:
            self.settlements.append((queue_id, outcome, _take(queue_id, runs, recovery)))


def _take(queue_id: int, runs: list[int], recovery: Recovery) -> RecoveredQueue:
    """Remove and return the entries of a queue at these sequence numbers."""
    taken = RecoveredQueue()
    recovered = recovery.queues.get(queue_id)
    if recovered is None:
        return taken
    spans: list[tuple[int, int]] = []
    for first, count in zip(runs[::2], runs[1::2], strict=True):
        at = bisect_left(recovered.seqs, first)
        end = bisect_left(recovered.seqs, first + count)
        if end > at:
            spans.append((at, end))
            taken.seqs.extend(recovered.seqs[at:end])
            taken.rows.extend(recovered.rows[at:end])
            taken.slots.extend(recovered.slots[at:end])
            taken.priorities.extend(recovered.priorities[at:end])
            taken.sizes.extend(recovered.sizes[at:end])
    if spans:
        recovery.queues[queue_id] = without(recovered, spans)
    return taken


def take(recovery: Recovery) -> dict[str, Taken]:
    """Remove and return the entries of prepared branches, by the keys of their records."""
    found: dict[str, Taken] = {}
    for (kind, key), data in recovery.metadata.items():
        if kind == metadata.BRANCH:
            value = metadata.unpack(data)
            if "store" in value:
                found[key] = Taken(value, recovery)
    return found
