"""Output of a connection. Bodies of large contents are read and encoded as the socket accepts them.

Nothing else may be sent on a channel between the header of a content and the end of its body. Output encoded meanwhile, on
any channel, waits in order until the body has been sent.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from leveret.broker.bodies import Body
from leveret.protocols.ingress_throttle import OUTPUT
from leveret.wire.amqp0.engine import Engine

if TYPE_CHECKING:
    from leveret.protocols.amqp091.connection.base import BaseConnection

logger = logging.getLogger("leveret.connection")

# Bytes of unread replies above which the broker stops reading a client's socket.
MAX_UNWRITTEN: Final = 4 << 20
# Body bytes that one connection writes per turn, and encodes at a time if the socket has not taken all earlier output.
TURN: Final = 1 << 20
PIECE: Final = 256 << 10


class Sending:
    """A body being sent. `at` is the current position: in bytes, or in parts of a list."""

    __slots__ = ("_end", "at", "body", "number")

    def __init__(self, number: int, body: Body, size: int) -> None:
        self.number = number
        self.body = body
        self.at = 0
        self._end = len(body) if isinstance(body, list) else size

    def take(self, limit: int) -> list[bytes | memoryview]:
        """Return the next bytes, about `limit` of them. Those of a body in memory are not copied.

        Raises:
            OSError: the body cannot be read.
        """
        body = self.body
        at = self.at
        if isinstance(body, list):
            pieces: list[bytes | memoryview] = []
            size = 0
            while self.at < self._end and size < limit:
                size += len(body[self.at])
                pieces.append(body[self.at])
                self.at += 1
            return pieces
        self.at = at + limit
        if isinstance(body, bytes):
            return [memoryview(body)[at : self.at]]
        return [body.read(at, limit)]

    def is_done(self) -> bool:
        return self.at >= self._end

    def encode(self, engine: Engine, pieces: list[bytes | memoryview]) -> None:
        """Pass bytes returned by `take` to the engine."""
        for piece in pieces:
            engine.send_body(self.number, piece)


class ConnectionOutput:
    """Output of one connection: from the engine to the socket, in order.

    Attributes:
        paused: whether deliveries stop because the socket's buffer is full or a large content is being sent.
        bytes: bytes of output so far.
        writes: number of pieces of output so far.
    """

    def __init__(self, connection: BaseConnection) -> None:
        # None once the connection is lost.
        self._connection: BaseConnection | None = connection
        self._engine = connection.engine
        self._peer = connection.peer
        self._ingress = connection.ingress
        self.paused = False
        self.bytes = 0
        self.writes = 0
        self._full = False
        # Whether a consumer was parked because of `paused` or the quantum.
        self._starved = False
        self._sent_any = False
        self._unread_answers = 0
        # Output from a large content on; None if there is none.
        self._queued: deque[bytes | Sending] | None = None
        self._due = False

    def is_writable(self) -> bool:
        """Return whether the socket has taken all output so far."""
        return not self.paused and self._peer.is_writable()

    def starve(self) -> None:
        """Note that a consumer was parked. The consumers are woken when deliveries may resume."""
        self._starved = True

    def flush(self) -> None:
        """Write the encoded output, and as much queued output as the socket accepts."""
        connection = self._connection
        size = self._engine.pending
        if size and connection is not None:
            self._count(size)
            if self.paused:
                # Deliveries stop while the socket is full, so these are replies that the client leaves unread.
                self._unread_answers += size
                if self._unread_answers > MAX_UNWRITTEN:
                    self._ingress.pause(OUTPUT)
            if self._queued is None:
                self._write_encoded()
            else:
                self._queued.append(self._engine.to_send())
        elif size:
            self._engine.to_send()
        if self._queued is not None:
            self._write()
        if self._starved and not self.paused and connection is not None:
            self._starved = False
            connection.wake_later()

    def _count(self, size: int) -> None:
        self._sent_any = True
        self.bytes += size
        self.writes += 1

    def _write_encoded(self) -> None:
        """Write the encoded output."""
        size = self._engine.pending
        pieces = self._engine.take_pieces()
        if pieces:
            self._peer.write_pieces(pieces, size)
        else:
            self._peer.write(self._engine.to_send())

    def send_later(self, sending: Sending) -> None:
        """Send a large content as the socket accepts it, between the output encoded so far and later output."""
        queued = self._queued
        if queued is None:
            queued = deque()
            self._queued = queued
        data = self._engine.to_send()
        self.bytes += len(data)
        queued.append(data)
        queued.append(sending)
        self.paused = True

    def _write(self) -> None:
        """Write queued output until the socket is full or the limit per turn is reached."""
        queued = self._queued
        if queued is None:
            return
        engine = self._engine
        payload_max = engine.payload_max
        room = TURN
        counted = 0
        while queued and not self._full and self._connection is not None:
            item = queued[0]
            if isinstance(item, bytes):
                queued.popleft()
                engine.send_encoded(item)
                counted += len(item)
                if queued:
                    continue  # one write with what follows
            elif room <= 0:
                break
            else:
                limit = room + payload_max if self._peer.is_writable() else PIECE
                try:
                    taken = item.take(max(limit // payload_max, 1) * payload_max)
                except OSError as error:
                    logger.error("%s: connection aborted, cannot read a message body: %s", self._peer.subject, error)
                    queued.clear()
                    engine.to_send()
                    self._peer.abort()
                    return
                if item.is_done():
                    queued.popleft()
                item.encode(engine, taken)
                size = engine.pending - counted
                room -= size
                self._count(size)
            counted = 0
            self._write_encoded()
        if counted:
            self._write_encoded()
        if queued and room <= 0 and not self._full and self._connection is not None:
            self._continue_later()
            return
        if not queued:
            # The last large content and the output after it have been written.
            self._queued = None
            if not self._full:
                self._resume_deliveries()

    def _continue_later(self) -> None:
        if not self._due:
            self._due = True
            self._peer.call_soon(self._continue)

    def _continue(self) -> None:
        self._due = False
        self.flush()

    def _resume_deliveries(self) -> None:
        self.paused = False
        self._unread_answers = 0
        self._ingress.release(OUTPUT)

    def socket_full(self) -> None:
        """Pause deliveries: the socket's buffer is full."""
        self.paused = True
        self._full = True

    def socket_drained(self) -> bool:
        """Resume output. Return whether consumers may be woken: no large content is being sent."""
        self._full = False
        if self._queued is not None:
            self.flush()
            return False
        self._starved = False
        self._resume_deliveries()
        return True

    def stop_deliveries(self) -> None:
        """Pause deliveries, because the connection is closing."""
        self.paused = True

    def drop(self) -> None:
        """Drop the rest of a large content and the output after it: the connection is closing."""
        if self._queued is not None:
            self._queued = None
            self.paused = self._full
            self._engine.to_send()

    def detach(self) -> None:
        """Drop the connection, because it is lost. Output is discarded from now on."""
        self._connection = None

    def take_sent(self) -> bool:
        """Return whether anything was sent since the last call."""
        sent = self._sent_any
        self._sent_any = False
        return sent
