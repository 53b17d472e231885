"""Large messages: their headers and bodies stand in chunk rows of their own, which the batch being filled collects here."""

from __future__ import annotations

from leveret.broker.bodies import StoredBody
from leveret.broker.message import Message
from leveret.storage.batch import CHUNK_BYTES, BodyPart, ChunkPart, Commit


class Spills:
    """The chunks of the next commit. `next` is the id of the next one; ids are given in order, and never again."""

    def __init__(self) -> None:
        self.next = 1
        self._chunks: list[tuple[int, list[ChunkPart]]] = []

    def add(self, message: Message) -> tuple[int, int]:
        """Put header and body into chunks; returns the ids of the first and the last."""
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
        """Have a commit write the new chunks and delete the dead ones, ranges of ids; those that are both, neither."""
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
