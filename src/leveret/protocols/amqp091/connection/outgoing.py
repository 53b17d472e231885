"""Output of large contents: bodies are read and encoded as the socket accepts them.

Nothing else may be sent on a channel between the header of a content and the end of its body. Output encoded meanwhile, on
any channel, waits in order until the body has been sent.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from leveret.broker.bodies import Body
from leveret.wire.amqp0.engine import Engine

if TYPE_CHECKING:
    from leveret.protocols.amqp091.connection.base import BaseConnection

logger = logging.getLogger("leveret.connection")

# Body bytes that one connection encodes at a time, and writes per turn.
PIECE: Final = 256 << 10
TURN: Final = 1 << 20


class Sending:
    """A body being sent. `at` is the current position: in bytes, or in parts of a list."""

    __slots__ = ("_end", "at", "body", "number")

    def __init__(self, number: int, body: Body, size: int) -> None:
        self.number = number
        self.body = body
        self.at = 0
        self._end = len(body) if isinstance(body, list) else size

    def take(self, limit: int) -> bytes:
        """Return the next bytes, about `limit` of them.

        Raises:
            OSError: the body cannot be read.
        """
        body = self.body
        at = self.at
        if isinstance(body, list):
            size = 0
            while self.at < self._end and size < limit:
                size += len(body[self.at])
                self.at += 1
            return b"".join(body[at : self.at])
        self.at = at + limit
        if isinstance(body, bytes):
            return body[at : self.at]
        return body.read(at, limit)

    def is_done(self) -> bool:
        return self.at >= self._end

    def encode(self, engine: Engine, data: bytes) -> None:
        """Pass bytes returned by `take` to the engine."""
        engine.send_body(self.number, data)


class Outgoing:
    """Queued output of a connection, from a large content on. The connection drops it when it is empty."""

    __slots__ = ("_due", "connection", "items")

    def __init__(self, connection: BaseConnection) -> None:
        self.connection = connection
        self.items: deque[bytes | Sending] = deque()
        self._due = False

    def write(self) -> None:
        """Write until the socket is full or the limit per turn is reached."""
        connection = self.connection
        items = self.items
        engine = connection.engine
        piece = max(PIECE // engine.payload_max, 1) * engine.payload_max
        room = TURN
        while items and not connection.full and not connection.lost:
            item = items[0]
            if isinstance(item, bytes):
                items.popleft()
                connection.peer.write(item)
                continue
            if room <= 0:
                self._continue_later()
                return
            try:
                data = item.take(piece)
            except OSError as error:
                logger.error("%s: connection aborted, cannot read a message body: %s", connection.peer.name, error)
                items.clear()
                connection.peer.abort()
                return
            if item.is_done():
                items.popleft()
            item.encode(engine, data)
            encoded = engine.to_send()
            room -= len(encoded)
            connection.bytes_out += len(encoded)
            connection.sent_any = True
            connection.peer.write(encoded)
        if not items:
            connection.everything_written()

    def _continue_later(self) -> None:
        if not self._due:
            self._due = True
            self.connection.peer.call_soon(self._continue)

    def _continue(self) -> None:
        self._due = False
        self.connection.flush()
