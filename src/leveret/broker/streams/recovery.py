"""Recovery of streams from the metadata in the log, read once for all streams."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from leveret.broker import metadata
from leveret.broker.leases.recovery import without
from leveret.broker.log import RecoveredQueue
from leveret.broker.segments import Segment
from leveret.broker.streams.tracking import Progress

if TYPE_CHECKING:
    from leveret.broker.log import Recovery
    from leveret.broker.streams.queue import StreamQueue

_KINDS: Final = frozenset((metadata.STREAM_CHUNK, metadata.STREAM_OFFSET, metadata.STREAM_PUBLISHER))


class StreamRecords:
    """Records of streams at one start, by the id of their queue, kind and rest of their key; segments separately."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery
        self._found: dict[int, dict[str, dict[str, metadata.Record]]] = {}
        self._segments: dict[int, list[Segment]] = {}
        for (kind, key), value in recovery.metadata.items():
            if kind == metadata.STREAM_SEGMENT:
                self._segments.setdefault(int(metadata.split_key(key)[0]), []).append(Segment.unpack(value))
            elif kind in _KINDS:
                stream, name = metadata.split_key(key)
                self._found.setdefault(int(stream), {}).setdefault(kind, {})[name] = metadata.unpack(value)
        self._take_moved()

    def _take_moved(self) -> None:
        """Give the streams the messages that sink transactions moved to them, which the log has under other queue ids."""
        queues = self._recovery.queues
        taken: dict[int, list[tuple[int, int]]] = {}
        for stream, found in self._found.items():
            records = found.get(metadata.STREAM_CHUNK, {})
            moved = sorted((int(first), value) for first, value in records.items() if "queue" in value)
            if not moved:
                continue
            own = queues.get(stream, RecoveredQueue())
            merged = RecoveredQueue()
            at = 0
            for first, value in moved:
                source = queues.get(value["queue"], RecoveredQueue())
                begin = bisect_left(source.seqs, value["first"])
                end = bisect_left(source.seqs, value["first"] + value["count"])
                until = bisect_left(own.seqs, first)
                _append(merged, own, at, until, 0)
                _append(merged, source, begin, end, first - value["first"])
                at = until
                taken.setdefault(value["queue"], []).append((begin, end))
            _append(merged, own, at, len(own.seqs), 0)
            queues[stream] = merged
        for source_id, spans in taken.items():
            left = without(queues.pop(source_id, RecoveredQueue()), spans)
            if left.seqs:
                queues[source_id] = left

    def restore(self, stream: StreamQueue) -> None:
        """Restore the segments and chunks of a stream, and its tracked consumers and publishers."""
        found = self._found.get(stream.id, {})
        stream.restore_segments(sorted(self._segments.get(stream.id, []), key=_first_offset))
        recovered = self._recovery.queues.get(stream.id)
        if recovered is not None:
            records = {int(first): value for first, value in found.get(metadata.STREAM_CHUNK, {}).items()}
            stream.restore_chunks(recovered, records)
        tracking = stream.tracking
        for name, value in found.get(metadata.STREAM_OFFSET, {}).items():
            tracking.progress[name] = Progress(value.get("next", -1), value.get("start", -1))
        tracking.sequences = {name: value["sequence"] for name, value in found.get(metadata.STREAM_PUBLISHER, {}).items()}


def _append(queue: RecoveredQueue, source: RecoveredQueue, begin: int, end: int, shift: int) -> None:
    """Append positions of another queue, whose sequence numbers are shifted by a number."""
    seqs = source.seqs[begin:end]
    queue.seqs.extend(array("Q", [seq + shift for seq in seqs]) if shift else seqs)
    queue.rows.extend(source.rows[begin:end])
    queue.slots.extend(source.slots[begin:end])
    queue.sizes.extend(source.sizes[begin:end])
    queue.priorities.extend(source.priorities[begin:end])


def _first_offset(segment: Segment) -> int:
    return segment.first
