"""Bodies of uploads being received, and tails of bodies being sent."""

from __future__ import annotations

from leveret.broker.bodies import Body, StoredBody
from leveret.broker.errors import ResourceLocked
from leveret.broker.uploads import Upload


class Incoming(StoredBody):
    """Body of a content that the client is staging. Its data is appended to an upload."""

    __slots__ = ("staged", "turn")

    def __init__(self, staged: Upload) -> None:
        super().__init__()
        self.staged = staged
        self.turn = staged.turn

    def append(self, data: bytes) -> None:
        self.check()
        self.staged.append(data)

    def check(self) -> None:
        """Raise ResourceLocked if another connection has resumed the content."""
        if self.turn != self.staged.turn:
            raise ResourceLocked(
                f"staged content '{self.staged.key[3]}' was opened by another connection or discarded meanwhile"
            )


class Tail(StoredBody):
    """The rest of a body."""

    __slots__ = ("_at", "_body")

    def __init__(self, body: StoredBody, at: int) -> None:
        super().__init__()
        self._body = body
        self._at = at
        self.size = body.size - at

    def read(self, at: int, length: int) -> bytes:
        return self._body.read(self._at + at, length)


def tail(body: Body, at: int) -> Body:
    """Return the rest of a body from byte `at`."""
    if not at:
        return body
    if isinstance(body, bytes):
        return body[at:]
    if isinstance(body, StoredBody):
        return Tail(body, at)
    return b"".join(body)[at:]
