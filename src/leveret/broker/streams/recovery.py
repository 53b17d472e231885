"""Recovery of streams from the metadata in the log, read once for all streams."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from leveret.broker import metadata
from leveret.broker.segments import Segment
from leveret.broker.streams.chunks import CHUNK_TIME, StreamChunk
from leveret.broker.streams.tracking import Progress

if TYPE_CHECKING:
    from leveret.broker.log import RecoveredQueue, Recovery
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
        _recover_segments(stream, sorted(self._segments.get(stream.id, []), key=_first_offset))
        recovered = self._recovery.queues.get(stream.id)
        if recovered is not None:
            _recover_chunks(
                stream,
                recovered,
                {int(first): value["time"] for first, value in found.get(metadata.STREAM_CHUNK, {}).items()},
            )
        tracking = stream.tracking
        for name, value in found.get(metadata.STREAM_OFFSET, {}).items():
            tracking.progress[name] = Progress(value.get("next", -1), value.get("start", -1))
        tracking.sequences = {name: value["sequence"] for name, value in found.get(metadata.STREAM_PUBLISHER, {}).items()}


def _first_offset(segment: Segment) -> int:
    return segment.first


def _recover_segments(stream: StreamQueue, segments: list[Segment]) -> None:
    """Restore the segments of the manifest, oldest first."""
    for segment in segments:
        stream.sealed.add(segment)
        stream.next_seq = segment.last + 2
        stream.newest_time = segment.last_time


def _recover_chunks(stream: StreamQueue, recovered: RecoveredQueue, times: dict[int, int]) -> None:
    """Restore the chunks of the log, after the segments.

    `times` has the start time of each chunk by the sequence number of its first message. Sealed messages whose trim was
    interrupted are trimmed now.
    """
    segments = stream.sealed.segments
    sealed = segments[len(segments) - 1].last + 1 if segments else 0
    seqs = recovered.seqs
    begin = bisect_right(seqs, sealed)
    if begin:
        stream.log.settle_range(stream.id, seqs[0], seqs[begin - 1], (), recovered.rows[:begin], recovered.slots[:begin])
    for first in times:
        if first <= sealed:
            stream.log.put(metadata.STREAM_CHUNK, metadata.make_key(str(stream.id), str(first)), None)
    if begin == len(seqs):
        return
    stream.next_seq = seqs[len(seqs) - 1] + 1
    now = stream.broker.timers.unix()
    chunk: StreamChunk | None = None
    for index in range(begin, len(seqs)):
        seq = seqs[index]
        begun = times.get(seq, -1)
        if chunk is None or begun >= 0 or chunk.end != seq:
            # After a crash, the time of a new chunk may be missing: no message may appear older than it is.
            following = StreamChunk(seq, begun if begun >= 0 else now if chunk is None else chunk.time)
            # The time of the last append is unknown, but no later than this limit of a chunk.
            following.last = max(min(following.time + CHUNK_TIME, now), following.time)
            if chunk is not None:
                chunk.last = max(min(chunk.last, following.time), chunk.time)
                chunk.following = following
            chunk = following
            stream.chunks.append(chunk)
        size = recovered.sizes[index]
        chunk.rows.append(recovered.rows[index])
        chunk.slots.append(recovered.slots[index])
        chunk.sizes.append(size)
        chunk.count += 1
        chunk.bytes += size
        stream.bytes += size
    stream.count += len(seqs) - begin
    if chunk is not None:
        stream.newest_time = max(stream.newest_time, chunk.time)
