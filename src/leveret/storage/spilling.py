"""Chunk rows: the headers and bodies of large messages, collected here for the next commit."""

from __future__ import annotations

from leveret.broker.bodies import StoredBody
from leveret.broker.message import Message
from leveret.storage.batch import CHUNK_BYTES, BodyPart, ChunkPart, Commit


class Spills:
    """The chunks of the next commit. `next` is the next chunk id; ids ascend and are never reused."""

    def __init__(self) -> None:
        self.next = 1
        self._chunks: list[tuple[int, list[ChunkPart]]] = []

    def add(self, message: Message) -> tuple[int, int]:
        """Split header and body into chunks. Returns the ids of the first and the last chunk."""
        body = message.body
        sources: list[bytes | StoredBody] = [message.header]
        if isinstance(body, list):
            sources.extend(body)
        else:
            sources.append(body)
        first = self.next
        chunk: list[ChunkPart] = []
        room = CHUNK_BYTES
        for source in sources:
            size = len(source) if isinstance(source, bytes) else source.size
            at = 0
            while at < size:
                length = min(room, size - at)
                if isinstance(source, bytes):
                    chunk.append(memoryview(source)[at : at + length])
                else:
                    chunk.append(BodyPart(source, at, length))
                at += length
                room -= length
                if not room:
                    self._end(chunk)
                    chunk = []
                    room = CHUNK_BYTES
        if chunk:
            self._end(chunk)
        return first, self.next - 1

    def _end(self, chunk: list[ChunkPart]) -> None:
        self._chunks.append((self.next, chunk))
        self.next += 1

    def take(self, commit: Commit, dead: list[tuple[int, int]]) -> None:
        """Add the new chunks and the deletion of dead ones (ranges of ids) to a commit, omitting chunks that are both."""
        chunks = self._chunks
        self._chunks = []
        if chunks and dead:
            first_new = chunks[0][0]
            unwritten: set[int] = set()
            for first, last in dead:
                if first >= first_new:
                    unwritten.update(range(first, last + 1))
            if unwritten:
                chunks = [chunk for chunk in chunks if chunk[0] not in unwritten]
                dead = [chunk for chunk in dead if chunk[0] < first_new]
        commit.chunks = chunks
        commit.dead_chunks = dead
