"""Message bodies: in one piece, in several pieces, or stored outside memory.

No code may assume that a body fits in memory. A log engine stores large bodies in a `Spool`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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
