"""Streams after a start: what the metadata has of all of them, looked at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.broker import metadata
from leveret.broker.queues.stream_tracking import Progress
from leveret.broker.segments import Segment

if TYPE_CHECKING:
    from leveret.broker.log import Recovery
    from leveret.broker.queues.stream import StreamQueue

_KINDS: Final = frozenset((metadata.STREAM_CHUNK, metadata.STREAM_OFFSET, metadata.STREAM_PUBLISHER))


class StreamRecords:
    """One start: the records of streams by the id of their queue, then by kind, then by the rest of their key; segments
    apart from the others."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery
        self._found: dict[int, dict[str, dict[str, dict[str, Any]]]] = {}
        self._segments: dict[int, list[Segment]] = {}
        for (kind, key), value in recovery.metadata.items():
            if kind == metadata.STREAM_SEGMENT:
                self._segments.setdefault(int(metadata.split_key(key)[0]), []).append(Segment.unpack(value))
            elif kind in _KINDS:
                stream, name = metadata.split_key(key)
                self._found.setdefault(int(stream), {}).setdefault(kind, {})[name] = metadata.unpack(value)

    def restore(self, stream: StreamQueue) -> None:
        """Give a stream its segments, its chunks, and what it knows of consumers and publishers."""
        found = self._found.get(stream.id, {})
        stream.recover_segments(sorted(self._segments.get(stream.id, []), key=_first_offset))
        recovered = self._recovery.queues.get(stream.id)
        if recovered is not None:
            stream.recover_chunks(recovered, {
                int(first): value["time"] for first, value in found.get(metadata.STREAM_CHUNK, {}).items()})
        tracking = stream.tracking
        for name, value in found.get(metadata.STREAM_OFFSET, {}).items():
            tracking.progress[name] = Progress(value.get("next", -1), value.get("start", -1))
        tracking.sequences = {
            name: value["sequence"] for name, value in found.get(metadata.STREAM_PUBLISHER, {}).items()}


def _first_offset(segment: Segment) -> int:
    return segment.first
