"""Parts of stored bodies. Not compiled, because the base class is not."""

from __future__ import annotations

from leveret.broker.bodies import StoredBody


class Part(StoredBody):
    """A part of a stored body."""

    __slots__ = ("_begin", "_body")

    def __init__(self, body: StoredBody, begin: int, size: int) -> None:
        super().__init__()
        self._body = body
        self._begin = begin
        self.size = size

    def read(self, at: int, length: int) -> bytes:
        return self._body.read(self._begin + at, max(min(length, self.size - at), 0))
