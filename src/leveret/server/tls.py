"""TLS between a socket and its protocol, with less memory per connection than asyncio's TLS."""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from datetime import UTC, datetime
from functools import lru_cache
from math import ceil
from typing import Final

from leveret.management.descriptions import TlsInfo
from leveret.security.mechanisms.base import Certificate
from leveret.security.mechanisms.external import distinguished_name

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


def describe_tls(session: ssl.SSLObject, certificate: Certificate | None) -> TlsInfo | None:
    """Describe a TLS session and the certificate of its client; None before the end of the handshake."""
    cipher = session.cipher()
    if cipher is None:
        return None
    key_exchange, encryption, digest = _cipher_parts(cipher[0], session.context)
    protocol = (session.version() or "").lower()
    if not certificate:
        return TlsInfo(protocol=protocol, key_exchange=key_exchange, cipher=encryption, hash=digest)
    return TlsInfo(
        protocol=protocol,
        key_exchange=key_exchange,
        cipher=encryption,
        hash=digest,
        subject=distinguished_name(certificate.get("subject", ())),
        issuer=distinguished_name(certificate.get("issuer", ())),
        validity=" - ".join(_moment(certificate[key]) for key in ("notBefore", "notAfter")),
    )


@lru_cache(maxsize=64)
def _cipher_parts(name: str, context: ssl.SSLContext) -> tuple[str, str, str]:
    """Return the key exchange, encryption and digest of a cipher suite in RabbitMQ's names, which are Erlang's."""
    for suite in context.get_ciphers():
        if suite["name"] == name:
            exchange, authentication = (suite[key].partition("-")[2].lower() for key in ("kea", "auth"))
            digest = "aead" if suite["aead"] else str(suite["digest"])
            return (
                exchange if exchange == authentication else f"{exchange}_{authentication}",
                suite["symmetric"].replace("-", "_"),
                "sha" if digest == "sha1" else digest,
            )
    return "", name, ""


def _moment(text: str) -> str:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


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
