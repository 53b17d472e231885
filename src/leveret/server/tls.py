"""TLS between a socket and its protocol, with less memory per connection than asyncio's TLS."""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from math import ceil
from typing import Final

# The header of a TLS record: type, version and size of the rest (RFC 8446 section 5.1).
RECORD_HEADER: Final = 5
MAX_RECORD: Final = 16384
HANDSHAKE: Final = 0x16

INCOMPLETE: Final = 0
COMPLETE: Final = 1
WRONG: Final = 2


def hello_state(data: bytes) -> int:
    """Return whether `data` starts with a complete handshake record, which contains the ClientHello."""
    if data[:1] and data[0] != HANDSHAKE:
        return WRONG
    if len(data) < RECORD_HEADER:
        return INCOMPLETE
    size = int.from_bytes(data[3:RECORD_HEADER], "big")
    if size > MAX_RECORD:
        return WRONG
    return COMPLETE if len(data) >= RECORD_HEADER + size else INCOMPLETE


class TlsProtocol(SSLProtocol):
    """asyncio's TLS protocol with a read buffer shared by all sockets, which resumes writing in the next turn.

    The base class has a buffer of `max_size` bytes per connection, although it is empty between reads. It writes when it
    resumes, and asyncio's transport closes a socket twice if a write within `resume_writing` loses it.

    Args:
        loop: The event loop.
        protocol: The protocol above TLS.
        context: The certificates.
        handshake: Set when the handshake has ended.
        timeout: Seconds for the handshake.
        host: The name that the certificate of the server must have; None at the server.
    """

    max_size = 0

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.BufferedProtocol,
        context: ssl.SSLContext,
        handshake: asyncio.Future[None],
        timeout: float,
        host: str | None = None,
    ) -> None:
        super().__init__(
            loop,
            protocol,
            context,
            handshake,
            server_side=host is None,
            server_hostname=host,
            ssl_handshake_timeout=ceil(timeout),
        )

    def get_buffer(self, n: int) -> memoryview:
        """Return the shared buffer."""
        view: memoryview = self._app_protocol_get_buffer(n)  # type: ignore[attr-defined]
        self._ssl_buffer_view = view
        return view

    def resume_writing(self) -> None:
        """Resume in the next turn. There are no writes until then, so `pause_writing` cannot come first."""
        self._loop.call_soon(self._resume_writing)

    def _resume_writing(self) -> None:
        if self._transport is not None:
            super().resume_writing()

    def feed(self, data: bytes) -> None:
        """Process data read before TLS started."""
        while data and self._transport is not None and not self._transport.is_closing():
            room = self.get_buffer(-1)
            size = min(len(room), len(data))
            room[:size] = data[:size]
            self.buffer_updated(size)
            data = data[size:]
