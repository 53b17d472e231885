"""A client of a WebSocket that can send anything."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from wsproto import ConnectionType, WSConnection
from wsproto.connection import Connection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, RejectConnection, Request

MASK = bytes(4)
# Operation codes of frames.
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


def frame(code: int, payload: bytes = b"", *, ends: bool = True, size: int | None = None) -> bytes:
    """Return a frame of a client. `size` is the announced size of the payload, if that is another one."""
    size = len(payload) if size is None else size
    head = bytes((0x80 * ends | code,))
    if size < 126:
        head += bytes((0x80 | size,))
    elif size < 1 << 16:
        head += b"\xfe" + size.to_bytes(2, "big")
    else:
        head += b"\xff" + size.to_bytes(8, "big")
    return head + MASK + payload


def request(path: str = "/ws", subprotocols: Sequence[str] = ("amqp",), origin: str = "", host: str = "localhost") -> bytes:
    """Return a request for a WebSocket."""
    headers = [(b"Origin", origin.encode())] if origin else []
    connection = WSConnection(ConnectionType.CLIENT)
    return connection.send(Request(host=host, target=path, subprotocols=list(subprotocols), extra_headers=headers))


class WebSocketPeer:
    """The client's end.

    Attributes:
        subprotocol: The subprotocol that the server has chosen.
        closed: The close that was received.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.subprotocol: str | None = None
        self.closed: CloseConnection | None = None
        self._connection = Connection(ConnectionType.CLIENT)
        self._events: list[Event] = []
        self._data = b""

    async def upgrade(
        self,
        subprotocols: Sequence[str] = ("amqp",),
        *,
        path: str = "/ws",
        origin: str = "",
        forwarded_for: Sequence[str] = (),
    ) -> None:
        """Open the WebSocket. `forwarded_for` are headers X-Forwarded-For, which a proxy sends."""
        headers = [(b"Origin", origin.encode())] if origin else []
        headers += [(b"X-Forwarded-For", value.encode()) for value in forwarded_for]
        opening = WSConnection(ConnectionType.CLIENT)
        asked = Request(host="localhost", target=path, subprotocols=list(subprotocols), extra_headers=headers)
        self.writer.write(opening.send(asked))
        opening.receive_data(await self.reader.readuntil(b"\r\n\r\n"))
        accepted = next(opening.events())
        assert not isinstance(accepted, RejectConnection), accepted.status_code
        assert isinstance(accepted, AcceptConnection)
        self.subprotocol = accepted.subprotocol

    def send(self, event: Event) -> None:
        self.writer.write(self._connection.send(event))

    def write(self, data: bytes) -> None:
        """Send data as one message."""
        self.send(BytesMessage(data))

    async def drain(self) -> None:
        await self.writer.drain()

    async def event(self) -> Event | None:
        """Return the next event; None at the end of the socket."""
        while not self._events:
            data = await self.reader.read(65536)
            if not data:
                return None
            self._connection.receive_data(data)
            self._events += self._connection.events()
        event = self._events.pop(0)
        if isinstance(event, CloseConnection):
            self.closed = event
        return event

    async def read(self, size: int) -> bytes:
        """Return data of messages, or nothing at the end. Replies to a close."""
        while (event := await self.event()) is not None:
            if isinstance(event, BytesMessage):
                return bytes(event.data)
            if isinstance(event, CloseConnection) and self._connection.state.name == "REMOTE_CLOSING":
                self.send(event.response())
        return b""


async def connect(host: str, port: int, context: ssl.SSLContext | None = None) -> WebSocketPeer:
    """Connect to a listener. The WebSocket is not open yet."""
    reader, writer = await asyncio.open_connection(
        host, port, ssl=context, server_hostname=None if context is None else "localhost"
    )
    return WebSocketPeer(reader, writer)
