"""AMQP over WebSocket (RFC 6455): the upgrade of a connection, and the layer between its socket and its protocol.

A WebSocket carries the bytes of AMQP in binary messages, whose boundaries mean nothing (AMQP WebSocket binding 1.0 section
2). Text messages close it. There are no extensions, so that no client can send compressed data that expands.

Nothing is kept of a message: its data are passed on as they arrive, whatever the sizes of frames and messages are.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from http import HTTPStatus
from typing import Any, Final

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage
from wsproto.frame_protocol import CloseReason

from leveret.protocols.detect import TLS_RECORD
from leveret.server.transport import SocketProtocol, Sockets, address_of, close_once, finish, shown_address
from leveret.server.websocket_request import Refused, WebSocketSettings, accept_request, refusal

logger = logging.getLogger("leveret.server")

# Maximum bytes of a request for a WebSocket, and of a read before the WebSocket is open.
MAX_REQUEST: Final = 8 << 10
# Bytes of data per read afterwards.
READ_SIZE: Final = 64 << 10
# Bytes that are parsed at a time, at first and at most, if each has few frames; and the number of frames after which the
# rest of a read waits for the next turn. A frame takes 10 microseconds, and a slice that is within a large one not more.
MIN_SLICE: Final = 1 << 10
MAX_SLICE: Final = 4 << 10
FEW_FRAMES: Final = 2
MAX_FRAMES: Final = 256
# Seconds for the client to answer a close, or to read a refusal.
CLOSE_TIMEOUT: Final = 5.0

_START: Final = b"GET "
_END: Final = b"\r\n\r\n"


def _break_cycle(connection: Any) -> None:
    """Break the reference cycle of a closed WebSocket of wsproto, whose parser is a generator of its own."""
    parser = getattr(getattr(connection, "_proto", None), "_parse_more", None)
    if parser is not None:
        parser.close()


class WebSocket(asyncio.Transport, asyncio.BufferedProtocol):
    """A WebSocket: the protocol of the transport of a socket or of TLS, and the transport of the protocol of AMQP.

    It buffers no output; that of its transport counts. It keeps at most one read of input, and reads no more until that
    is parsed and the session wants more. Of the pings in a read, it answers the last one (RFC 6455 section 5.5.3), when the
    transport takes output.

    Args:
        below: The transport.
        above: The protocol.
        sockets: The state shared by all sockets.
        settings: The requests that are accepted.
    """

    __slots__ = (
        "_above",
        "_below",
        "_client",
        "_closing",
        "_connection",
        "_deaf",
        "_full",
        "_input",
        "_paused",
        "_pong",
        "_scheduled",
        "_settings",
        "_slice",
        "_sockets",
        "_timer",
    )

    def __init__(
        self, below: asyncio.Transport, above: SocketProtocol, sockets: Sockets, settings: WebSocketSettings
    ) -> None:
        super().__init__()
        self._below = below
        self._above = above
        self._sockets = sockets
        self._settings = settings
        self._input = b""
        # Bytes to parse next.
        self._slice = MIN_SLICE
        # None until the client's request is accepted.
        self._connection: Connection | None = None
        # Whether the session wants no input, and whether the transport wants no output.
        self._paused = False
        self._full = False
        self._scheduled = False
        # Whether a close was sent or received, after which the session's output is dropped, and whether all input is.
        self._closing = False
        self._deaf = False
        self._pong: bytes | None = None
        # The address and port of the client that a trusted proxy names.
        self._client: tuple[str, int] | None = None
        self._timer: asyncio.TimerHandle | None = None

    # Input

    def feed(self, data: bytes) -> None:
        """Handle the first input."""
        self._below.set_protocol(self)
        self._received(data)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._connection is None:
            return self._sockets.part(MAX_REQUEST)
        size = min(READ_SIZE, len(self._above.get_buffer(-1)))
        # With room for headers, so that a full read is one for the session, too.
        return self._sockets.part(size + (size >> 3))

    def buffer_updated(self, nbytes: int) -> None:
        if not self._deaf:
            self._received(bytes(self._sockets.room[:nbytes]))

    def _received(self, data: bytes) -> None:
        self._input += data
        if self._connection is None:
            self._open()
        if self._connection is not None and not self._scheduled:
            self._proceed()

    def _open(self) -> None:
        """Answer the client's request when it is complete."""
        head, end, rest = self._input.partition(_END)
        try:
            if head[: len(_START)] != _START[: len(head)]:
                raise Refused(
                    HTTPStatus.BAD_REQUEST,
                    f"not a request for a WebSocket: {head[:8]!r}; expected {_START!r}, since 'websocket.port' has no"
                    " other protocol",
                )
            if len(head) > MAX_REQUEST:
                raise Refused(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the request is too large; expected {MAX_REQUEST} bytes"
                )
            if not end:
                return
            accepted = accept_request(head + end, address_of(self._below)[0], self._settings)
            self._client = accepted.client
            if accepted.client is not None and not self._above.count_for(accepted.client[0]):
                raise Refused(
                    HTTPStatus.TOO_MANY_REQUESTS,
                    f"too many sockets of {accepted.client[0]} have not opened a connection"
                    " ('limits.unauthenticated_per_address')",
                )
        except Refused as refused:
            self._refuse(refused)
            return
        self._connection = Connection(ConnectionType.SERVER)
        self._input = rest
        self._below.write(accepted.response)
        self._above.connection_made(self)

    def _refuse(self, refused: Refused) -> None:
        name = self._name()
        logger.info("%s: refused a WebSocket with %d: %s", name, refused.status, refused, extra={"peer": name})
        self._below.write(refusal(refused))
        self._finish()

    def _name(self) -> str:
        return shown_address(address_of(self))

    def _proceed(self) -> None:
        """Parse input, and pass its data on. The rest of too many frames waits for the next turn."""
        self._scheduled = False
        if self._paused or self._deaf:
            return
        connection = self._connection
        assert connection is not None
        data: list[bytes | bytearray] = []
        closed: CloseConnection | None = None
        has_text = False
        frames = pos = 0
        received = self._input
        while pos < len(received) and frames < MAX_FRAMES and closed is None and not has_text:
            connection.receive_data(received[pos : pos + self._slice])
            pos += self._slice
            before = frames
            for event in connection.events():
                frames += 1
                if isinstance(event, BytesMessage):
                    data.append(event.data)
                elif isinstance(event, Ping):
                    self._pong = bytes(event.payload)
                elif isinstance(event, TextMessage):
                    has_text = not self._closing
                elif isinstance(event, CloseConnection):
                    closed = event
            self._slice = min(2 * self._slice, MAX_SLICE) if frames - before <= FEW_FRAMES else MIN_SLICE
        self._input = received[pos:]
        if data and not self._closing:
            self._above.received(b"".join(data))
        self._send_pong()
        if closed is not None:
            self._end(connection, closed)
        elif has_text and not self._closing:
            self._fail(CloseReason.UNSUPPORTED_DATA, "text messages are not supported; expected binary messages")
        elif self._input:
            self._below.pause_reading()
            self._proceed_soon()

    def _proceed_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._sockets.loop.call_soon(self._proceed_later)

    def _proceed_later(self) -> None:
        self._proceed()
        if not self._input and not self._paused:
            self._below.resume_reading()

    def _send_pong(self) -> None:
        if self._pong is not None and not self._full:
            self._send(Pong(self._pong))
            self._pong = None

    def _send(self, event: BytesMessage | Pong) -> None:
        """Send a message or a pong, unless one side has closed the WebSocket."""
        connection = self._connection
        if connection is not None and connection.state is ConnectionState.OPEN and not self.is_closing():
            self._below.write(connection.send(event))

    # The end

    def _end(self, connection: Connection, closed: CloseConnection) -> None:
        """Handle a close of the client, or one that wsproto reports for invalid frames, with the connection still open."""
        state = connection.state
        if state is ConnectionState.OPEN:
            self._fail(closed.code, closed.reason or "")
            return
        if state is ConnectionState.REMOTE_CLOSING:
            self._below.write(connection.send(closed.response()))
        self._close_below()

    def _fail(self, code: int, reason: str) -> None:
        """Close the WebSocket because of its input, and ignore the rest of that."""
        name = self._name()
        logger.info("%s: closed the WebSocket with %d: %s", name, code, reason, extra={"peer": name})
        self._send_close(code, reason)
        self._finish()

    def _send_close(self, code: int, reason: str) -> None:
        """Send a close. The socket closes when the client replies, or after a while."""
        connection = self._connection
        assert connection is not None
        self._closing = True
        self._below.write(connection.send(CloseConnection(code, reason)))
        self._limit_time()

    def _finish(self) -> None:
        """End the output, and ignore input until the client ends that, since a reset would overtake the output."""
        self._closing = self._deaf = True
        self._input = b""
        self._below.resume_reading()
        finish(self._below)
        self._limit_time()

    def _close_below(self) -> None:
        """Close the socket when it has taken the output, or after a while."""
        self._closing = self._deaf = True
        close_once(self._below)
        self._limit_time()

    def _limit_time(self) -> None:
        if self._timer is None:
            self._timer = self._sockets.loop.call_later(CLOSE_TIMEOUT, self._below.abort)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._closing = self._deaf = True
        if self._connection is not None:
            _break_cycle(self._connection)
        # The transport of TLS would refer to this object for good.
        self._below.set_protocol(self._above)
        self._above.connection_lost(exc)

    # Output

    def pause_writing(self) -> None:
        self._full = True
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._full = False
        # In the next turn: asyncio's transport closes a socket twice if a write within this call loses it.
        self._sockets.loop.call_soon(self._send_pong)
        self._above.resume_writing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data as one message."""
        if data:
            self._send(BytesMessage(bytes(data)))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the limits of the transport."""
        self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the bytes of output in the transport."""
        return self._below.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        """Return whether output can end before input."""
        return False

    # The interface of a transport

    def is_closing(self) -> bool:
        """Return whether output is dropped."""
        return self._closing or self._below.is_closing()

    def close(self) -> None:
        """Begin the closing handshake."""
        if self._closing:
            return
        if self._sockets.protocols.services.stopping:
            self._send_close(CloseReason.GOING_AWAY, "the broker stops")
        else:
            self._send_close(CloseReason.NORMAL_CLOSURE, "")
        # The client's reply is input.
        self._paused = False
        self._below.resume_reading()
        if self._input:
            self._proceed_soon()

    def abort(self) -> None:
        """Close the socket at once, but let the client know when the broker stops."""
        if self._sockets.protocols.services.stopping and not self._closing:
            self._send_close(CloseReason.GOING_AWAY, "the broker stops")
        self._below.abort()

    def pause_reading(self) -> None:
        """Pass on no more input."""
        self._paused = True
        self._below.pause_reading()

    def resume_reading(self) -> None:
        """Pass on input again."""
        self._paused = False
        if self._input:
            self._proceed_soon()
        else:
            self._below.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return facts of the transport.

        Returns:
            The transport as `below`, the path of the WebSocket as `websocket`. If a trusted proxy names its client, the
            address of that as `peername`, and that of the proxy as `proxy`.
        """
        if name == "below":
            return self._below
        if name == "websocket":
            return self._settings.path
        if self._client is not None:
            if name == "peername":
                return self._client
            if name == "proxy":
                return address_of(self._below)
        return self._below.get_extra_info(name, default)


class WebSocketProtocol(SocketProtocol):
    """asyncio protocol of an accepted socket that becomes a WebSocket, which then carries AMQP.

    Args:
        settings: The requests that are accepted.
        sockets: The state shared by all sockets.
        tls: The TLS context for clients that begin with TLS; None refuses them.
        tls_only: Whether the listener accepts only TLS.
    """

    __slots__ = ("_settings", "_upgraded")

    def __init__(self, settings: WebSocketSettings, sockets: Sockets, tls: ssl.SSLContext | None, tls_only: bool) -> None:
        super().__init__(sockets, tls, tls_only)
        self._settings = settings
        self._upgraded = False

    def _detect(self) -> None:
        if self._upgraded or self._tls_only or self._first.startswith(TLS_RECORD[:1]):
            super()._detect()
            return
        self._upgraded = True
        # AMQP's own request for TLS is refused.
        self._tls = None
        data = self._first
        self._first = b""
        assert self._transport is not None
        WebSocket(self._transport, self, self._sockets, self._settings).feed(data)

    def _not_tls(self) -> None:
        if self._first.startswith(_START):
            assert self._transport is not None
            reason = "the listener accepts only TLS (wss://); set 'websocket.plain' to accept ws://, too"
            self._transport.write(refusal(Refused(HTTPStatus.BAD_REQUEST, reason)))
        super()._not_tls()
