"""A large message that is being received: its application data goes to the spool, frame by frame."""

from __future__ import annotations

from leveret.broker.bodies import Spool, StoredBody
from leveret.wire.amqp10.sections import split
from leveret.wire.amqp10.walking import Walk


class SpooledMessage:
    """One message. Its space in the spool is released with this object.

    Attributes:
        body: None until the application data begins.
    """

    __slots__ = ("_spool", "_walk", "body")

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._walk = Walk()
        self.body: StoredBody | None = None

    def held(self) -> int:
        """Return the number of its bytes in memory."""
        return self._walk.buffered()

    def sections(self) -> int:
        """Return the number of sections that have begun."""
        return self._walk.sections

    def feed(self, data: bytes) -> None:
        """Append received bytes.

        Raises:
            DecodeError: the bytes are not a message.
            ContentTooLarge: the spool is full.
        """
        walk = self._walk
        for piece in walk.feed(data):
            body = self.body
            if body is None:
                # The header is complete. It shows whether the log will need space, too.
                body = self.body = self._spool.begin(walk.body_size, split(bytes(walk.head)).durable)
            body.append(piece)

    def finish(self) -> bytes:
        """Return the sections around the application data.

        Raises:
            DecodeError: the message is truncated.
        """
        self._walk.finish()
        return bytes(self._walk.head + self._walk.tail)

    def data(self) -> bytes:
        """Return all received bytes, read back into memory.

        Raises:
            OSError: the spool cannot be read.
        """
        walk = self._walk
        body = b"" if self.body is None else self.body.read(0, self.body.size)
        return bytes(walk.head) + body + bytes(walk.tail) + walk.pending
