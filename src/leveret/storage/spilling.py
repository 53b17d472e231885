"""Chunk rows: the headers and bodies of large messages, which are written and deleted in slices.

A commit of hundreds of megabytes would delay all confirms behind it. So the chunks of a large message are written before it
is published, and those of a removed message are deleted after its settlement, each slice in a commit of its own between
other commits. After a crash, chunks without a message may remain; recovery finds them, and they are deleted in slices too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from leveret.broker.bodies import StoredBody, WrittenBody
from leveret.broker.message import Message
from leveret.storage.batch import CHUNK_BYTES, BodyPart, ChunkPart, Commit

# Chunks that one commit deletes.
DELETED_CHUNKS: Final = 2
# Messages with more chunks are written ahead.
MAX_CHUNKS: Final = 2


class WrittenAhead:
    """A large message that is written before it is published.

    first, last  its chunks
    done         called with its body when all chunks are on disk
    wanted       whether it will still be published
    """

    __slots__ = ("body", "done", "first", "header", "last", "wanted")

    def __init__(
        self, header: bytes, body: StoredBody, done: Callable[[StoredBody], None], wanted: Callable[[], bool], first: int
    ) -> None:
        self.header = header
        self.body = body
        self.done = done
        self.wanted = wanted
        self.first = first
        self.last = first


class Slice:
    """A chunk of a message to write in a commit of its own."""

    __slots__ = ("ahead", "chunk", "id", "size")

    def __init__(self, ahead: WrittenAhead, id: int, chunk: list[ChunkPart], size: int) -> None:
        self.ahead = ahead
        self.id = id
        self.chunk = chunk
        self.size = size


class Spills:
    """The chunks of the next commit, and the slices of others.

    next    the next chunk id; ids ascend and are never reused
    queued  bytes of chunks to write in slices
    """

    def __init__(self) -> None:
        self.next = 1
        self.queued = 0
        self._chunks: list[tuple[int, list[ChunkPart]]] = []
        self._slices: deque[Slice] = deque()
        # The messages of the slices, in order.
        self._ahead: deque[WrittenAhead] = deque()
        # Ranges of chunks to delete, first and last. Other threads may append to it, too.
        self._dead: deque[tuple[int, int]] = deque()
        self._deletes_next = False

    def add(self, message: Message) -> tuple[int, int]:
        """Split header and body into chunks of the next commit. Returns the ids of the first and the last chunk."""
        body = message.body
        sources: list[bytes | StoredBody] = [message.header]
        if isinstance(body, list):
            sources.extend(body)
        else:
            sources.append(body)
        first = self.next
        for chunk, _ in split(sources):
            self._chunks.append((self.next, chunk))
            self.next += 1
        return first, self.next - 1

    def take(self, commit: Commit, dead: list[tuple[int, int]]) -> None:
        """Add the new chunks and the deletion of dead ones (ranges of ids) to a commit, omitting chunks that are both.

        If many chunks are dead, they are deleted in slices.
        """
        chunks = self._chunks
        self._chunks = []
        if chunks and dead:
            new = {chunk[0] for chunk in chunks}
            unwritten: set[int] = set()
            for first, last in dead:
                if first in new:
                    unwritten.update(range(first, last + 1))
            if unwritten:
                chunks = [chunk for chunk in chunks if chunk[0] not in unwritten]
                dead = [one for one in dead if one[0] not in unwritten]
        commit.chunks = chunks
        if sum([last - first + 1 for first, last in dead]) <= DELETED_CHUNKS:
            commit.dead_chunks = dead
        else:
            self._dead.extend(dead)

    # Messages that are written ahead

    def write_ahead(
        self, header: bytes, body: StoredBody, done: Callable[[StoredBody], None], wanted: Callable[[], bool]
    ) -> int:
        """Queue the slices of a message. Returns their bytes, 0 for a small message, or one that was written ahead."""
        size = len(header) + body.size
        if size <= MAX_CHUNKS * CHUNK_BYTES or body.is_written():
            return 0
        ahead = WrittenAhead(header, body, done, wanted, self.next)
        for chunk, length in split([header, body]):
            ahead.last = self.next
            self._slices.append(Slice(ahead, self.next, chunk, length))
            self.next += 1
        self._ahead.append(ahead)
        self.queued += size
        return size

    def written(self, commit: Commit) -> None:
        """Publish the message whose last slice a commit wrote."""
        ahead = self._ahead[0] if self._ahead else None
        if ahead is None or not commit.chunks or commit.chunks[0][0] != ahead.last:
            return
        self._ahead.popleft()
        body = WrittenBody(ahead.body, ahead.header, self, (ahead.first, ahead.last), self._dead.append)
        if ahead.wanted():
            ahead.done(body)

    def drop_unwanted(self) -> int:
        """Drop the remaining slices of the first messages that will not be published. Returns their bytes."""
        before = self.queued
        slices = self._slices
        while slices and not slices[0].ahead.wanted():
            ahead = slices[0].ahead
            if slices[0].id > ahead.first:
                self._dead.append((ahead.first, slices[0].id - 1))
            while slices and slices[0].ahead is ahead:
                self.queued -= slices.popleft().size
            self._ahead.remove(ahead)
        return before - self.queued

    def abandon(self) -> None:
        """Write no more messages ahead, and delete what was written of them: the log is about to be closed."""
        for ahead in self._ahead:
            self._dead.append((ahead.first, ahead.last))
        self._ahead.clear()
        self._slices.clear()
        self.queued = 0

    # Slices

    def delete(self, chunks: list[tuple[int, int]]) -> None:
        """Delete ranges of chunks in slices."""
        self._dead.extend(chunks)

    def has_slices(self) -> bool:
        return bool(self._slices or self._dead)

    def take_slice(self, commit: Commit) -> None:
        """Add the next slice to a commit: chunks to write and to delete in turn."""
        dead = self._dead
        if dead and (self._deletes_next or not self._slices):
            self._deletes_next = False
            first, last = dead.popleft()
            end = min(last, first + DELETED_CHUNKS - 1)
            commit.dead_chunks = [(first, end)]
            if end < last:
                dead.appendleft((end + 1, last))
            return
        self._deletes_next = True
        piece = self._slices.popleft()
        commit.chunks = [(piece.id, piece.chunk)]
        commit.pending_bytes = commit.spooled = piece.size
        self.queued -= piece.size


def split(sources: list[bytes | StoredBody]) -> list[tuple[list[ChunkPart], int]]:
    """Split a header and a body into the parts of each chunk, with its size."""
    chunks: list[tuple[list[ChunkPart], int]] = []
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
                chunks.append((chunk, CHUNK_BYTES))
                chunk = []
                room = CHUNK_BYTES
    if chunk:
        chunks.append((chunk, CHUNK_BYTES - room))
    return chunks
