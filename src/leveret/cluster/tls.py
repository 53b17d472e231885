"""TLS between nodes. It ends in the front, from where a socket pair leads to the user of the connection.

A socket with TLS cannot be handed over to a shard, and the handshake of nodes reads from a socket. So both get one end of
the pair.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Final

from leveret.server.tls import HANDSHAKE, TlsProtocol
from leveret.server.transport import break_cycle

# Seconds for the handshake, unless the caller stops it earlier.
_TIMEOUT: Final = 10.0
# Bytes per read, into one buffer for all connections. TLS keeps as much memory as its largest read.
_ROOM: Final = memoryview(bytearray(64 << 10))
# OpenSSL's names of an answer without TLS, by version.
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE", "PACKET_LENGTH_TOO_LONG")


async def begins_with_tls(sock: socket.socket) -> bool:
    """Wait for input, leave it in the socket, and return whether it is TLS. Raises `EOFError` or `OSError`."""
    loop = asyncio.get_running_loop()
    while True:
        with contextlib.suppress(BlockingIOError):
            first = sock.recv(1, socket.MSG_PEEK)
            if not first:
                raise EOFError
            return first[0] == HANDSHAKE
        readable = loop.create_future()
        loop.add_reader(sock, _finish, readable)
        try:
            await readable
        finally:
            loop.remove_reader(sock)


def _finish(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


def tls_failure(error: Exception) -> str:
    """Return what a failed handshake means; "" if TLS is not the reason."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}; see 'cluster.tls.ca' and 'cluster.advertised'"
    if isinstance(error, ssl.SSLError):
        if error.reason in _NOT_TLS:
            return "it does not answer with TLS; expected 'cluster.tls.cert' in all nodes or in none"
        return f"TLS failed: {error.reason or error}"
    return ""


async def encrypt(sock: socket.socket, context: ssl.SSLContext, host: str | None = None) -> socket.socket:
    """Begin TLS.

    Args:
        sock: The connection, which belongs to this function from now on.
        context: The certificates.
        host: The name that the certificate of the other end must have; None at the end that has accepted the connection.

    Returns:
        The plain end.

    Raises:
        OSError: TLS has failed (`ssl.SSLError`), or the connection is lost.
    """
    loop = asyncio.get_running_loop()
    plain, encrypted = _End(), _End()
    plain.other, encrypted.other = encrypted, plain
    with contextlib.ExitStack() as failed:
        failed.callback(sock.close)
        near, far = socket.socketpair()
        failed.callback(far.close)
        failed.callback(near.close)
        far.setblocking(False)
        inner, _ = await loop.connect_accepted_socket(lambda: plain, near)
        failed.callback(inner.abort)
        handshake: asyncio.Future[None] = loop.create_future()
        tls = TlsProtocol(loop, encrypted, context, handshake, _TIMEOUT, host)
        outer, _ = await loop.connect_accepted_socket(lambda: tls, sock)
        failed.callback(outer.abort)
        failed.callback(handshake.cancel)
        await handshake
        failed.pop_all()
        return far


class _End(asyncio.BufferedProtocol):
    """One end of a relay, which passes what it receives to the other end.

    Attributes:
        other: The other end.
    """

    def __init__(self) -> None:
        self.other: _End | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return _ROOM

    def buffer_updated(self, nbytes: int) -> None:
        assert self.other is not None
        self.other.write(bytes(_ROOM[:nbytes]))

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.read(False)

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.read(True)

    def connection_lost(self, exc: Exception | None) -> None:
        other, self.other = self.other, None
        break_cycle(self._transport)
        self._transport = None
        if other is not None:
            other.end()

    # For the other end

    def write(self, data: bytes) -> None:
        """Send data that the other end has received."""
        if self._transport is not None:
            self._transport.write(data)

    def read(self, on: bool) -> None:
        """Read, or wait until the other end has sent what it has."""
        if self._transport is None or self._transport.is_closing():
            return
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def end(self) -> None:
        """Close this end when it has sent what it has."""
        self.other = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
