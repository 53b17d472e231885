"""A large message while it comes in: its application data goes to the spool, frame by frame."""

from __future__ import annotations

from leveret.broker.bodies import Spool, StoredBody
from leveret.wire.amqp1.sections import split
from leveret.wire.amqp1.walking import Walk


class Arrival:
    """One message. What is in the spool is given back when this goes.

    body   None before its application data has begun
    """

    __slots__ = ("_spool", "_walk", "body")

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._walk = Walk()
        self.body: StoredBody | None = None

    def held(self) -> int:
        """Bytes of it that are in memory."""
        return self._walk.held()

    def sections(self) -> int:
        """How many sections have begun."""
        return self._walk.sections

    def feed(self, data: bytes) -> None:
        """Take what comes next. DecodeError for what is no message, ContentTooLarge where there is no room for it."""
        walk = self._walk
        for piece in walk.feed(data):
            body = self.body
            if body is None:
                # The header has come: it says whether the log will need room for it, too.
                body = self.body = self._spool.begin(walk.body_size, split(bytes(walk.head)).durable)
            body.append(piece)

    def finish(self) -> bytes:
        """The sections around the application data. DecodeError for a message that is cut off."""
        self._walk.finish()
        return bytes(self._walk.head + self._walk.tail)

    def data(self) -> bytes:
        """All that has come, read back into memory. Raises `OSError`."""
        walk = self._walk
        body = b"" if self.body is None else self.body.read(0, self.body.size)
        return bytes(walk.head) + body + bytes(walk.tail) + walk.pending
