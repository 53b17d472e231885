"""AMQP over WebSocket (RFC 6455): the upgrade of a connection, and the layer between its socket and its protocol.

A WebSocket carries the bytes of AMQP in binary messages, whose boundaries mean nothing (AMQP WebSocket binding 1.0 section
2). Text messages close it. There are no extensions, so that no client can send compressed data that expands.

Nothing is kept of a message: its data are passed on as they arrive, whatever the sizes of frames and messages are.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import h11
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    Pong,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.frame_protocol import CloseReason
from wsproto.handshake import H11Handshake
from wsproto.utilities import RemoteProtocolError

from leveret.protocols.detect import TLS_RECORD
from leveret.server.transport import SocketProtocol, Sockets, close_once, finish, shown_address

logger = logging.getLogger("leveret.server")

SUBPROTOCOL: Final = "amqp"
ANY_ORIGIN: Final = "*"
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

# Characters of a client's value in a message.
MAX_SHOWN: Final = 100

_START: Final = b"GET "
_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class WebSocketSettings:
    """Settings of a listener.

    Attributes:
        path: The path of the WebSocket.
        origins: The origins of pages that may connect, in lower case; "*" means every origin.
    """

    path: str
    origins: frozenset[str]


class Refused(Exception):
    """A request for a WebSocket is refused.

    Attributes:
        status: The status of the response.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def _shown(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}...")


def check_request(request: Request, settings: WebSocketSettings) -> None:
    """Raise `Refused` if a request is for another path, from a page that may not connect, or for another protocol."""
    path = request.target.partition("?")[0]
    if path != settings.path:
        raise Refused(
            HTTPStatus.NOT_FOUND, f"no WebSocket at {_shown(path)}; expected {settings.path!r} ('websocket.path')"
        )
    for name, value in request.extra_headers:
        origin = value.decode("ascii", "backslashreplace")
        if name == b"origin" and ANY_ORIGIN not in settings.origins and origin.lower() not in settings.origins:
            raise Refused(
                HTTPStatus.FORBIDDEN,
                f"pages of the origin {_shown(origin)} may not connect; expected one of 'websocket.allowed_origins'",
            )
    if request.subprotocols and SUBPROTOCOL not in request.subprotocols:
        offered = ", ".join(request.subprotocols)
        raise Refused(
            HTTPStatus.BAD_REQUEST,
            f"the subprotocol is {_shown(offered)}; expected {SUBPROTOCOL!r} (Sec-WebSocket-Protocol)",
        )


def accept_request(head: bytes, settings: WebSocketSettings) -> tuple[Connection, bytes]:
    """Return the WebSocket that a request opens, and the response.

    Args:
        head: The request line and the headers.
        settings: The requests that are accepted.

    Raises:
        Refused: The request is not accepted.
    """
    handshake = H11Handshake(ConnectionType.SERVER)
    try:
        handshake.receive_data(head)
        request = next(handshake.events())
        assert isinstance(request, Request)
        check_request(request, settings)
        response = handshake.send(AcceptConnection(subprotocol=SUBPROTOCOL if request.subprotocols else None))
    except RemoteProtocolError as error:
        hint = error.event_hint
        status = hint.status_code if isinstance(hint, RejectConnection) else HTTPStatus.BAD_REQUEST
        raise Refused(status, f"not a request for a WebSocket: {error}") from None
    except (UnicodeError, h11.ProtocolError) as error:
        raise Refused(HTTPStatus.BAD_REQUEST, f"not a request for a WebSocket: {error}") from None
    assert handshake.connection is not None
    return handshake.connection, response


def refusal(refused: Refused) -> bytes:
    """Return the response that refuses a request."""
    body = f"{refused}\n".encode()
    status = HTTPStatus(refused.status)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"X-Content-Type-Options: nosniff\r\nSec-WebSocket-Version: 13\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


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
            self._connection, response = accept_request(head + end, self._settings)
        except Refused as refused:
            self._refuse(refused)
            return
        self._input = rest
        self._below.write(response)
        self._above.connection_made(self)

    def _refuse(self, refused: Refused) -> None:
        name = self._name()
        logger.info("%s: refused a WebSocket with %d: %s", name, refused.status, refused, extra={"peer": name})
        self._below.write(refusal(refused))
        self._finish()

    def _name(self) -> str:
        return shown_address(self._below.get_extra_info("peername"))

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
        view = memoryview(self._input)
        while pos < len(view) and frames < MAX_FRAMES and closed is None and not has_text:
            connection.receive_data(view[pos : pos + self._slice])  # type: ignore[arg-type]
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
        self._input = bytes(view[pos:])
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
        self._send_pong()
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
        """Return the transport as `below`, True as `websocket`, and other facts of the transport."""
        if name == "below":
            return self._below
        return True if name == "websocket" else self._below.get_extra_info(name, default)


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
