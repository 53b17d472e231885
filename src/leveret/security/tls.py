"""TLS for the listeners and between nodes: contexts from settings, and reloading of certificates without a restart."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class TlsError(Exception):
    """Unusable certificates or keys. The message names the file and the reason."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Files in PEM.

    verify       client certificates: "none", "optional" (verified if present) or "required"
    min_version  "1.2" or "1.3"
    """

    cert: Path
    key: Path | None = None
    key_password: bytes | None = None
    ca: Path | None = None
    verify: str = "none"
    min_version: str = "1.2"


class ServerTls:
    """The context of a TLS listener.

    `context` stays the same object for the life of the listener. `reload` changes the certificate, the key and the
    trusted client authorities of new connections together. Raises `TlsError` if the files cannot be used.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._current = _context(settings)
        self._settings = settings
        # Connections start in `context` and are moved to the current one at the client's hello, with or without a server
        # name. The two differ only in the settings that `reload` may change.
        self.context = _context(settings)
        self.context.sni_callback = self._choose

    def reload(self, settings: TlsSettings) -> None:
        """Load other files, or the same ones again. If it raises `TlsError`, nothing changes.

        Certificate verification and minimum version are fixed for a listener: changes need a restart.
        """
        if (settings.verify, settings.min_version) != (self._settings.verify, self._settings.min_version):
            raise TlsError("verify and min_version cannot change while the listener is open")
        self._current = _context(settings)
        self._settings = settings

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._current


class MutualTls:
    """The contexts of connections whose two ends verify each other's certificate.

    Args:
        settings: The certificate, which is for both ends, and the authorities of the others. `verify` is "required".

    Attributes:
        server: The context of the end that accepts a connection.
        client: The context of the end that connects. It also verifies that the certificate has the host's name.

    Raises:
        TlsError: The files cannot be used.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self.server = _context(settings)
        self.client = _context(settings, ssl.PROTOCOL_TLS_CLIENT)

    def reload(self, settings: TlsSettings) -> None:
        """Load the files again, for new connections. If it raises `TlsError`, nothing changes."""
        self.server, self.client = _context(settings), _context(settings, ssl.PROTOCOL_TLS_CLIENT)


def _context(settings: TlsSettings, protocol: ssl._SSLMethod = ssl.PROTOCOL_TLS_SERVER) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = _VERSIONS[settings.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    # Connections live long, so session resumption would save little, and sessions would survive a certificate change.
    context.options |= ssl.OP_NO_TICKET
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    key = settings.key or settings.cert
    _check_pem(settings.cert, b"CERTIFICATE")
    _check_pem(key, b"PRIVATE KEY")
    password = _Password(settings.key_password)
    try:
        context.load_cert_chain(settings.cert, key, password.get)
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = "the key's password is missing or wrong" if password.asked else _reason(error)
        raise TlsError(f"certificate {settings.cert} and key {key} cannot be used: {reason}") from None
    context.verify_mode = _VERIFY[settings.verify]
    if settings.ca is not None:
        _check_pem(settings.ca, b"CERTIFICATE")
        try:
            context.load_verify_locations(settings.ca)
        except (ssl.SSLError, OSError) as error:
            raise TlsError(f"CA certificates {settings.ca} cannot be used: {_reason(error)}") from None
    return context


class _Password:
    """Supplies the password of a key to OpenSSL, which would otherwise prompt on the terminal."""

    def __init__(self, password: bytes | None) -> None:
        self._password = password
        self.asked = False

    def get(self) -> bytes:
        self.asked = True
        return self._password or b"\0"


def _check_pem(path: Path, kind: bytes) -> None:
    """Check that a file has PEM data. OpenSSL's own errors do not name the file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TlsError(f"{path} cannot be read: {error.strerror}") from None
    if not any(line.startswith(b"-----BEGIN ") and kind in line for line in content.splitlines()):
        raise TlsError(f"{path} does not contain a {kind.decode()} in PEM")


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return "the key does not match the certificate"
    return str(reason or error)
