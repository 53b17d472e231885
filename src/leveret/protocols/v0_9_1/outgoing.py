"""Large contents on their way out: their bodies are read and encoded as the socket takes them.

Between the header of a content and the end of its body nothing else may go out on its channel, and what is encoded
meanwhile stays in order: it waits behind the body, whatever its channel.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from leveret.broker.bodies import Body
from leveret.wire.amqp0.engine import Engine

if TYPE_CHECKING:
    from leveret.protocols.v0_9_1.connection import Connection

log = logging.getLogger("leveret.connection")

# Bytes of bodies that one connection encodes at a time, and writes in one turn.
PIECE: Final = 256 << 10
TURN: Final = 1 << 20


class Sending:
    """A body that has gone out as far as `at`: bytes of it, or pieces of a list."""

    __slots__ = ("_end", "at", "body", "number")

    def __init__(self, number: int, body: Body, size: int) -> None:
        self.number = number
        self.body = body
        self.at = 0
        self._end = len(body) if isinstance(body, list) else size

    def take(self, limit: int) -> bytes:
        """The next bytes, about as many as `limit`. Raises `OSError` where the body cannot be read."""
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
        """Have bytes that `take` has returned sent."""
        engine.send_body(self.number, data)


class Outgoing:
    """What a connection sends from a large content on, in order. The connection drops it once everything is written."""

    __slots__ = ("_due", "connection", "items")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.items: deque[bytes | Sending] = deque()
        self._due = False

    def write(self) -> None:
        """Write until the socket is full, or others should have a turn."""
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
                log.error("%s: closed, a body cannot be read back: %s", connection.peer.name, error)
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
