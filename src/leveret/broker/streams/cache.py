"""The chunks of a stream whose messages are in memory."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from leveret.broker.message import ENTRY_OVERHEAD
from leveret.broker.queues.paging import Paging

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.streams.chunks import StreamChunk


class ChunkCache(Paging):
    """The chunks of one stream whose messages are in memory.

    A stream pages out whenever it loads or appends a chunk, so the broker has nothing to page out for it.

    chunks    in the order of loading
    messages  number of their messages
    bytes     of these
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.chunks: deque[StreamChunk] = deque()
        self.messages = 0
        self.bytes = 0

    def memory(self) -> int:
        return self.bytes

    def add(self, chunk: StreamChunk) -> None:
        """Add a chunk whose messages are now in memory."""
        self.chunks.append(chunk)
        if chunk.messages:
            self.grow(len(chunk.messages), chunk.bytes)

    def grow(self, count: int, size: int) -> None:
        """Count messages, with bodies of `size` bytes in total, that were added to a chunk."""
        self.messages += count
        self.bytes += size + ENTRY_OVERHEAD * count

    def evict(self, keep: StreamChunk | None) -> list[StreamChunk]:
        """Drop messages from memory, oldest load first, down to the share of the stream. Return their chunks."""
        chunks = self.chunks
        evicted: list[StreamChunk] = []
        while self.bytes > self.broker.page_above and chunks and chunks[0] is not keep:
            chunk = chunks.popleft()
            self._release(chunk)
            evicted.append(chunk)
        return evicted

    def discard(self, chunk: StreamChunk) -> None:
        """Drop the messages of a chunk from memory, if they are there."""
        if chunk.messages is not None:
            self._release(chunk)
            self.chunks.remove(chunk)

    def _release(self, chunk: StreamChunk) -> None:
        messages = chunk.messages
        if messages is not None:
            chunk.messages = None
            chunk.overlays = {}
            self.messages -= len(messages)
            self.bytes -= chunk.bytes + ENTRY_OVERHEAD * len(messages)
