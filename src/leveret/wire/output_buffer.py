"""Output of an engine, buffered until it is sent. Both wire protocols use it."""

from __future__ import annotations

from typing import Final

# Size in bytes of a payload from which it is not copied together with others: a copy costs more than handling it by itself.
LARGE_PAYLOAD: Final = 8192


class OutputBuffer:
    """Pieces of output in order.

    Subclasses append to `_pieces`, and large payloads with `_add_large`.

    Attributes:
        pending: size of the buffered output in bytes.
        pending_large: bytes of large payloads in it.
    """

    __slots__ = ("_large", "_pieces", "pending", "pending_large")

    def __init__(self) -> None:
        # Output up to the last large payload, and after it.
        self._large: list[bytes | memoryview] = []
        self._pieces: list[bytes | memoryview] = []
        self.pending = 0
        self.pending_large = 0

    def to_send(self) -> bytes:
        """Return and clear all pending data."""
        pieces = self._pieces
        if self._large:
            pieces = self.take_pieces()
        data: bytes = b"".join(pieces)
        self._pieces = []
        self.pending = 0
        return data

    def take_pieces(self) -> list[bytes | memoryview]:
        """Return and clear all pending data in pieces if it has large payloads, which are not copied; otherwise nothing."""
        pieces = self._large
        if pieces:
            pieces.append(b"".join(self._pieces))
            self._pieces = []
            self._large = []
            self.pending = 0
            self.pending_large = 0
        return pieces

    def _add_large(self, payload: bytes | memoryview) -> None:
        """Append a large payload."""
        pieces = self._pieces
        self._large.append(b"".join(pieces))
        self._large.append(payload)
        self.pending_large += len(payload)
        pieces.clear()
