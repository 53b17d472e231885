"""The sealed part of a stream: its segments, oldest first, and their chunks in use.

In memory, a segment is one object with the time and offset of each of its chunks. A chunk object is created when a reader
reaches it, and removed together with its messages.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from leveret._build import installation
from leveret.broker import metadata
from leveret.broker.log import CommitWaiter, Loaded
from leveret.broker.message import Message
from leveret.broker.segments import FAILED, MISSING, Segment
from leveret.broker.streams.chunks import StreamChunk
from leveret.broker.streams.unread import Unread

if TYPE_CHECKING:
    from leveret.broker.streams.queue import StreamQueue

logger = logging.getLogger("leveret.broker")

NO_STORE: Final = (
    f"this broker cannot read sealed segments: it needs the extra `segments` ({installation('segments')}),"
    " the storage engine that wrote them, and the 'streams.directory' of that time"
)


class _Unregistered(CommitWaiter):
    """Removes files once their removal from the manifest is on disk."""

    def __init__(self, stream: StreamQueue, paths: list[str]) -> None:
        self.stream = stream
        self.paths = paths

    def committed(self, batch: int) -> None:
        segments = self.stream.broker.segments
        if segments is not None:
            segments.leases.retire(self.paths)
            segments.changed(self.stream)


class _Replaced(CommitWaiter):
    """Replaces segments once that is on disk."""

    def __init__(self, sealed: SealedPart, old: list[Segment], new: list[Segment]) -> None:
        self.sealed = sealed
        self.old = old
        self.new = new

    def committed(self, batch: int) -> None:
        self.sealed.replaced(self.old, self.new)


class _Read:
    """Reads a chunk of a segment into memory."""

    def __init__(self, sealed: SealedPart, chunk: StreamChunk, segment: Segment) -> None:
        self.sealed = sealed
        self.chunk = chunk
        self.segment = segment

    def done(self, loaded: list[Loaded], kind: str, text: str) -> None:
        if kind:
            self.sealed.read_failed(self.chunk, self.segment, kind, text)
        else:
            self.sealed.stream.loaded(self.chunk, loaded)


class _Refused(CommitWaiter):
    """Fails the readers of an unreadable chunk in a later turn."""

    def __init__(self, read: _Read) -> None:
        self.read = read

    def committed(self, batch: int) -> None:
        self.read.done([], FAILED, NO_STORE)


class SealedPart:
    """The sealed part of one stream.

    segments  the segments in the manifest, by offset
    count, bytes  of their messages, and of the bodies
    chunks    those in use, by the sequence number of the first message
    locked    ids of segments that are being replaced, and must stay until then
    reported  ids of unreadable segments that were logged
    ends      bytes of the bodies up to the end of each segment, empty until they are needed
    """

    def __init__(self, stream: StreamQueue) -> None:
        self.stream = stream
        self.segments: list[Segment] = []
        self.count = 0
        self.bytes = 0
        self.chunks: dict[int, StreamChunk] = {}
        self.locked: set[str] = set()
        self.reported: set[str] = set()
        self.ends: list[int] = []

    # The manifest

    def add(self, segment: Segment) -> None:
        """Add a segment that is in the manifest, on disk, after the others."""
        self.segments.append(segment)
        self.count += segment.count
        self.bytes += segment.body_bytes
        self.ends.clear()

    def register(self, segment: Segment) -> None:
        """Put a segment into the manifest."""
        self.stream.log.put(metadata.STREAM_SEGMENT, self._key(segment), segment.pack())

    def drop_first(self) -> None:
        """Drop the oldest segment for retention."""
        segment = self.segments.pop(0)
        self._forget(segment)
        self.unregister([segment])

    def drop_all(self) -> None:
        """Release the segments of a deleted stream."""
        segments = self.segments
        self.segments = []
        for segment in segments:
            self._forget(segment)
        if segments:
            self.unregister(segments)

    def unregister(self, segments: list[Segment]) -> None:
        """Remove segments from the manifest; their files are removed after the grace time."""
        stream = self.stream
        for segment in segments:
            stream.log.put(metadata.STREAM_SEGMENT, self._key(segment), None)
        stream.log.wait(_Unregistered(stream, [segment.path for segment in segments]))

    def _key(self, segment: Segment) -> str:
        return metadata.make_key(str(self.stream.id), segment.id)

    def _forget(self, segment: Segment) -> None:
        self.count -= segment.count
        self.bytes -= segment.body_bytes
        self.ends.clear()
        self.reported.discard(segment.id)
        for first in [first for first, chunk in self.chunks.items() if chunk.segment is segment]:
            chunk = self.chunks.pop(first)
            chunk.dropped = True
            self.stream.cache.discard(chunk)

    def swap(self, old: list[Segment], new: list[Segment]) -> bool:
        """Replace segments in one commit; their files are removed after the grace time.

        Returns False, without any change, if some of them no longer exist.
        """
        ids = {segment.id for segment in old}
        if self.stream.deleted or ids & self.locked or len([one for one in self.segments if one.id in ids]) < len(ids):
            return False
        self.locked |= ids
        for segment in old:
            self.stream.log.put(metadata.STREAM_SEGMENT, self._key(segment), None)
        for segment in new:
            self.register(segment)
        self.stream.log.wait(_Replaced(self, old, new))
        return True

    def replaced(self, old: list[Segment], new: list[Segment]) -> None:
        """Complete a `swap` that is on disk."""
        stream = self.stream
        ids = {segment.id for segment in old}
        self.locked -= ids
        if stream.deleted:
            # Only the old segments were removed from the manifest.
            self.unregister(new)
        else:
            for segment in old:
                self._forget(segment)
            self.segments = sorted([one for one in self.segments if one.id not in ids] + new, key=_first)
            for segment in new:
                self.count += segment.count
                self.bytes += segment.body_bytes
        segments = stream.broker.segments
        if segments is not None:
            segments.leases.retire([segment.path for segment in old])
            segments.changed(stream)
        if not stream.deleted:
            stream.retain(stream.broker.timers.now())
            stream.activate()

    # Reading

    def find(self, seq: int) -> StreamChunk | None:
        """Return the first chunk that ends after a sequence number; None if all segments end before it."""
        segments = self.segments
        if not segments or seq > segments[len(segments) - 1].last + 1:
            return None
        segment = segments[bisect_left(segments, seq - 1, key=_last)]
        number = segment.chunk_at(max(seq - 1, segment.first))
        first = segment.starts[number] + 1
        chunk = self.chunks.get(first)
        if chunk is None:
            chunk = StreamChunk(first, segment.times[number])
            chunk.last = segment.chunk_last(number)
            chunk.count = segment.chunk_end(number) + 1 - first
            chunk.segment = segment
            self.chunks[first] = chunk
        return chunk

    def find_time(self, time: int) -> int:
        """Return the first offset of the first chunk with messages appended at or after a time; -1 for none."""
        for segment in self.segments:
            if segment.last_time >= time:
                for number in range(len(segment.starts)):
                    if segment.chunk_last(number) >= time:
                        return segment.starts[number]
        return -1

    def unread(self, offset: int) -> Unread:
        """Return the sealed messages from an offset on, which is not after the last segment.

        Inside the segment, bytes are in proportion to the offsets, and the time is that of the chunk.
        """
        segments = self.segments
        index = bisect_left(segments, offset, key=_last)
        segment = segments[index]
        if not self.ends:
            self.ends = list(accumulate([one.body_bytes for one in segments]))
        count = segment.last + 1 - max(offset, segment.first)
        n_bytes = segment.body_bytes * count // (segment.last + 1 - segment.first) + self.bytes - self.ends[index]
        return Unread(segments[len(segments) - 1].last + 1 - offset, n_bytes, segment.times[segment.chunk_at(offset)])

    def load(self, chunk: StreamChunk) -> None:
        """Read a chunk."""
        segment = chunk.segment
        assert segment is not None
        read = _Read(self, chunk, segment)
        segments = self.stream.broker.segments
        if segments is None:
            self.stream.log.wait(_Refused(read))
            return
        segments.store.read(segment, chunk.first - 1, chunk.end - 2, read.done)

    def messages_of(self, chunk: StreamChunk, loaded: list[Loaded]) -> list[Message | None]:
        """Return the messages of a chunk that was read, with None for erased ones. Sets its overlays and bytes."""
        messages: list[Message | None] = [None] * chunk.count
        times: array[int] = array("Q", [0]) * chunk.count
        n_bytes = 0
        for item in loaded:
            messages[item.seq - chunk.first] = item.message
            times[item.seq - chunk.first] = item.time
            n_bytes += item.message.size
            if item.overlay is not None:
                chunk.overlays[item.seq] = item.overlay
        chunk.bytes = n_bytes
        chunk.times = times
        return messages

    def read_failed(self, chunk: StreamChunk, segment: Segment, kind: str, text: str) -> None:
        """Fail the readers that have reached an unreadable chunk, and no others."""
        stream = self.stream
        chunk.loading = False
        if stream.deleted or chunk.dropped:
            stream.activate()
            return
        self.chunks.pop(chunk.first, None)
        chunk.dropped = True
        if segment.id not in self.reported:
            self.reported.add(segment.id)
            logger.error(
                "stream '%s' in vhost '%s': offsets %d to %d cannot be read from %s: %s",
                stream.name,
                stream.vhost.name,
                segment.first,
                segment.last,
                segment.path,
                text,
            )
        what = "is missing" if kind == MISSING else "cannot be read"
        stream.fail_readers(
            chunk,
            f"offsets {segment.first} to {segment.last} of stream '{stream.name}' in vhost"
            f" '{stream.vhost.name}' cannot be read: the file of their segment {what}; see the"
            " broker's log, and skip them with 'x-stream-offset'",
        )


def _first(segment: Segment) -> int:
    return segment.first


def _last(segment: Segment) -> int:
    return segment.last
