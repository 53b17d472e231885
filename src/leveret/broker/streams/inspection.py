"""The messages of a stream for operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.broker.errors import ResourceError
from leveret.broker.message import Entry
from leveret.broker.queues.inspection import Inspection, Walk

if TYPE_CHECKING:
    from leveret.broker.streams.queue import StreamQueue

# Reads of one chunk that may fail, since it may grow, or be sealed, while it is read.
MAX_ATTEMPTS: Final = 5


class StreamWalk(Walk):
    """A walk over a stream. Its chunks are read into the cache, as for consumers."""

    def __init__(self, stream: StreamQueue) -> None:
        super().__init__(stream)
        self._stream = stream
        self._attempts = 0

    def find(self, seq: int) -> bool:
        self.start_after(0, seq - 1, seq)
        self.ended = False
        return self._stream.find_chunk(seq) is not None

    def next(self, count: int, size: int) -> list[Entry]:
        self.must_read = False
        stream = self._stream
        found: list[Entry] = []
        chunk = stream.find_chunk(self.seq + 1)
        if chunk is None or chunk.first > self.until:
            self.ended = True
            return found
        messages = chunk.messages
        if messages is None:
            if self._attempts == MAX_ATTEMPTS:
                raise ResourceError(
                    f"offsets from {chunk.first - 1} of {stream} cannot be read; see the broker's log, and skip them"
                )
            self._attempts += 1
            self.must_read = True
            return found
        self._attempts = 0
        self.seq = max(self.seq, chunk.first - 1)
        first = chunk.first
        end = min(first + len(messages), self.until + 1)
        while self.seq + 1 < end and count > 0 and size > 0:
            self.seq += 1
            count -= 1
            message = messages[self.seq - first]
            if message is not None:  # else it was erased
                entry = Entry(stream, message, self.seq)
                entry.overlay = chunk.overlays.get(self.seq)
                found.append(entry)
                size -= message.size
        stream.broker.work += len(found)
        return found

    def read(self, done: Callable[[], None]) -> None:
        stream = self._stream
        chunk = stream.find_chunk(self.seq + 1)
        if chunk is None or chunk.messages is not None:
            done()
            return
        stream.when_loaded(done)
        stream.load_chunk(chunk)


class StreamInspection(Inspection):
    """Access to a stream, whose messages stay until its retention removes them."""

    def __init__(self, stream: StreamQueue) -> None:
        super().__init__(stream)
        self._stream = stream

    def walk(self) -> StreamWalk:
        return StreamWalk(self._stream)
