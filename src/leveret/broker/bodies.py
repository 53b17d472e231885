"""Message bodies: in one piece, in several pieces, or stored outside memory.

No code may assume that a body fits in memory. A log engine stores large bodies in a `Spool`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from io import UnsupportedOperation
from typing import Union


class StoredBody:
    """A body outside memory, written once from start to end. Its bytes live as long as the object.

    A subclass is readable, writable or both. Any thread may read it.

    Attributes:
        size: Bytes written so far.
    """

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0

    def append(self, data: bytes) -> None:
        """Append data. Raises `ContentTooLarge` if there is no room left."""
        raise UnsupportedOperation(f"a body of type {type(self).__name__} is read-only")

    def read(self, at: int, length: int) -> bytes:
        """Return up to `length` bytes from position `at`; fewer at the end. Raises `OSError`."""
        raise UnsupportedOperation(f"a body of type {type(self).__name__} is write-only")

    def is_written(self) -> bool:
        """Return whether a log has written the body ahead."""
        return False

    def claim(self, owner: object, header: bytes) -> tuple[int, int] | None:
        """Take the first and the last chunk that a log has written ahead for a message with this header.

        `owner` is the part of the log that owns the chunks. Returns None if it has none, or another message has taken them.
        """
        return None


class WrittenBody(StoredBody):
    """A body that a log has written ahead, in chunks that also contain the header of its message.

    If no message takes the chunks, `dropped` is called with them when the object is released, in any thread.
    """

    __slots__ = ("_body", "_chunks", "_dropped", "_header", "_owner")

    def __init__(
        self,
        body: StoredBody,
        header: bytes,
        owner: object,
        chunks: tuple[int, int],
        dropped: Callable[[tuple[int, int]], None],
    ) -> None:
        super().__init__()
        self.size = body.size
        self._owner = owner
        self._body = body
        self._header = header
        self._chunks: tuple[int, int] | None = chunks
        self._dropped = dropped

    def read(self, at: int, length: int) -> bytes:
        return self._body.read(at, length)

    def is_written(self) -> bool:
        return True

    def claim(self, owner: object, header: bytes) -> tuple[int, int] | None:
        if owner is not self._owner or header != self._header:
            return None
        chunks = self._chunks
        self._chunks = None
        return chunks

    def __del__(self) -> None:
        if self._chunks is not None:
            self._dropped(self._chunks)


# In one piece, in several pieces in order, or outside memory.
Body = Union[bytes, list[bytes], StoredBody]


class Spool(ABC):
    """Storage for bodies while they arrive and while they are not needed in memory."""

    @abstractmethod
    def begin(self, size: int, persistent: bool) -> StoredBody:
        """Begin a body of `size` bytes. A `persistent` one needs more room, because the log stores it again.

        Raises:
            ContentTooLarge: there is no room at present.
        """

    @abstractmethod
    def leave_free(self, size: int) -> None:
        """Keep `size` bytes of disk space free (`limits.disk_free`), or more if the spool requires it."""

    @abstractmethod
    def close(self) -> None:
        """Close the spool for writing; existing bodies remain readable."""


def whole(body: Body) -> bytes:
    """Return a small body in one piece."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, list):
        return b"".join(body)
    return body.read(0, body.size)


def size_of(body: Body) -> int:
    """Return the size of a body in bytes."""
    if isinstance(body, StoredBody):
        return body.size
    if isinstance(body, bytes):
        return len(body)
    return sum([len(part) for part in body])


class Preceded(StoredBody):
    """Bytes in memory followed by a stored body."""

    __slots__ = ("_before", "_body")

    def __init__(self, before: bytes, body: StoredBody) -> None:
        super().__init__()
        self._before = before
        self._body = body
        self.size = len(before) + body.size

    def read(self, at: int, length: int) -> bytes:
        before = self._before
        if at >= len(before):
            return self._body.read(at - len(before), length)
        piece = before[at : at + length]
        if len(piece) < length:
            piece += self._body.read(0, length - len(piece))
        return piece
