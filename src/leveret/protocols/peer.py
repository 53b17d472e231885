"""Interface between a session and its socket. Not compiled, because the server subclasses it in plain Python."""

from __future__ import annotations

import ssl
import time
from abc import abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

from leveret.management.connection_names import client_of
from leveret.management.descriptions import TlsInfo
from leveret.security.mechanisms.base import Certificate
from leveret.security.mechanisms.external import distinguished_name

# Result of a function that runs in a thread, or the exception that it raised.
Result: TypeAlias = Any


class LogSubject:
    """A connection as an argument of log messages. It does not refer to the socket, since log records may live long.

    Attributes:
        name: The name of the connection, for the text of messages.
        number: Its number.
        user: The user once it is known.
        vhost: The vhost once it is open.
    """

    __slots__ = ("name", "number", "user", "vhost")

    def __init__(self) -> None:
        self.name = ""
        self.number = 0
        self.user = ""
        self.vhost = ""

    def __str__(self) -> str:
        return self.name

    @property
    def log_fields(self) -> dict[str, str | int]:
        """The fields of JSON log messages about the connection."""
        fields: dict[str, str | int] = {"connection": self.number, "peer": client_of(self.name)}
        if self.user:
            fields["user"] = self.user
        if self.vhost:
            fields["vhost"] = self.vhost
        return fields


class Receiver(Protocol):
    """Receiver of the input and the states of a socket: a session, or an object between the two."""

    def data_received(self, data: bytes | memoryview) -> None:
        """Handle data from the client. A memoryview is not used after the call."""

    def pause_writing(self) -> None:
        """Handle that the buffer of the socket is full."""

    def resume_writing(self) -> None:
        """Handle that the buffer of the socket has room again."""

    def connection_lost(self) -> None:
        """Handle the end of the connection, once."""


class Peer:
    """The socket under a session."""

    __slots__ = (
        "certificate",
        "checking",
        "connected_at",
        "host",
        "local",
        "mechanism",
        "name",
        "subject",
        "tls",
        "tls_info",
        "websocket_path",
    )

    # address:port of both ends, and that of a proxy; the client's address, and whether the client is on this machine
    name: str
    host: str
    local: bool
    # the client certificate as returned by `ssl`; None without TLS or without a certificate
    certificate: Certificate | None
    tls: bool
    # the TLS session; None without TLS
    tls_info: TlsInfo | None
    # the SASL mechanism that the client has chosen; "" before
    mechanism: str
    # the path of the WebSocket that carries the connection; "" without one
    websocket_path: str
    # whether a login is waiting for its password check
    checking: bool

    # milliseconds of Unix time
    connected_at: int
    # the connection in log messages
    subject: LogSubject

    def __init__(self) -> None:
        self.connected_at = time.time_ns() // 1_000_000
        self.name = ""
        self.host = ""
        self.local = False
        self.certificate = None
        self.tls = False
        self.tls_info = None
        self.mechanism = ""
        self.websocket_path = ""
        self.checking = False
        self.subject = LogSubject()

    def choose_mechanism(self, name: str) -> None:
        """Note the SASL mechanism that the client has chosen."""
        self.mechanism = name

    def opened(self) -> None:
        """Lift the limits that apply until the client has opened a connection."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Write data; the transport buffers what the socket does not take."""

    def write_pieces(self, pieces: list[bytes | memoryview], size: int) -> None:
        """Write `size` bytes of data in pieces, some of them large."""
        self.write(b"".join(pieces))

    @abstractmethod
    def close(self) -> None:
        """Close after all output has been sent."""

    def finish(self) -> None:
        """Shut down output, and discard input until the client closes.

        Closing with unread input would cause a reset, which could overtake a refusal (1.0 security section 5.1). The
        handshake timeout applies.
        """
        self.close()

    @abstractmethod
    def abort(self) -> None:
        """Close at once."""

    @abstractmethod
    def pause_reading(self) -> None:
        """Stop reading from the socket."""

    @abstractmethod
    def resume_reading(self) -> None:
        """Continue reading from the socket."""

    @abstractmethod
    def limit_reads(self, size: int, slowed: bool) -> None:
        """Read at most `size` bytes per turn, a power of two. `slowed`: the client is to send less, too."""

    def is_writable(self) -> bool:
        """Return whether the socket has taken all output so far."""
        return True

    def unwritten(self) -> int:
        """Return the bytes of output that the socket has not taken yet."""
        return 0

    def hung_up(self) -> bool:
        """Return whether the client is known to have disconnected, without reading."""
        return False

    @abstractmethod
    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back in a later turn of the event loop."""

    @abstractmethod
    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call a function on the event loop after a delay."""

    @abstractmethod
    def run_blocking(self, function: Callable[[], Result], done: Callable[[Result], None]) -> None:
        """Run a blocking function in a thread, then call `done` on the event loop with its result or exception."""


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
