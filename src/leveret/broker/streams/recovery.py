"""Recovery of streams from the metadata in the log, read once for all streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker import metadata
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

    def restore(self, stream: StreamQueue) -> None:
        """Restore the segments and chunks of a stream, and its tracked consumers and publishers."""
        found = self._found.get(stream.id, {})
        stream.restore_segments(sorted(self._segments.get(stream.id, []), key=_first_offset))
        recovered = self._recovery.queues.get(stream.id)
        if recovered is not None:
            times = {int(first): value["time"] for first, value in found.get(metadata.STREAM_CHUNK, {}).items()}
            stream.restore_chunks(recovered, times)
        tracking = stream.tracking
        for name, value in found.get(metadata.STREAM_OFFSET, {}).items():
            tracking.progress[name] = Progress(value.get("next", -1), value.get("start", -1))
        tracking.sequences = {name: value["sequence"] for name, value in found.get(metadata.STREAM_PUBLISHER, {}).items()}


def _first_offset(segment: Segment) -> int:
    return segment.first
