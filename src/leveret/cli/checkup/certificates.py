"""Checks of TLS certificates: key, dates, chain and names, by handshakes in memory."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from leveret.cli.checkup.finding import ERROR, OK, WARNING, Finding
from leveret.config import Config, ConfigError
from leveret.node.composition import tls_settings
from leveret.security.tls import ServerTls, TlsError, TlsSettings

_PEM: Final = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
# Seconds before the end of a certificate at which it should be renewed.
_RENEWAL: Final = 30 * 86400
_DAY: Final = 86400
_WILDCARDS: Final = ("", "0.0.0.0", "::")


def check_tls(config: Config) -> Iterator[Finding]:
    """Check the certificates of the AMQP listener and of the HTTP API."""
    management = config.management
    try:
        settings = tls_settings(config.tls)
    except ConfigError as error:
        yield Finding("TLS", ERROR, str(error), "the password of the key", "change 'tls.key_password_file'")
        settings = None
    host = config.server.host if config.tls.host is None else config.tls.host
    if settings is not None:
        # Without verification of clients, which these handshakes do not need.
        server = TlsSettings(settings.cert, settings.key, settings.key_password)
        yield from _check(server, "tls.cert", host)
    if settings is not None and settings.ca is not None:
        yield from _check_authorities(settings.ca)
    if management.enabled and management.tls_cert is not None:
        key = Path(management.tls_key) if management.tls_key else None
        yield from _check(TlsSettings(Path(management.tls_cert), key), "management.tls_cert", management.host)


def _check(settings: TlsSettings, setting: str, host: str) -> Iterator[Finding]:
    name, change = f"TLS ('{setting}')", f"replace the certificate of '{setting}'"
    try:
        context = ServerTls(settings).context
    except TlsError as error:
        yield Finding(name, ERROR, str(error), "a certificate and its key", f"{change}, or its key")
        return
    leaf, *others = _PEM.findall(settings.cert.read_text("latin-1"))
    try:
        certificate = _handshake(context, leaf)
    except ssl.SSLCertVerificationError as error:
        found = f"the certificate cannot be used: {error.verify_message}"
        yield Finding(name, ERROR, found, "a certificate that is valid now", change)
        return
    left = ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time()
    found = f"the certificate expires in {int(left / _DAY)} days, on {certificate['notAfter']}"
    if left < _RENEWAL:
        yield Finding(name, WARNING, found, f"more than {_RENEWAL // _DAY} days", f"{change}, then send SIGHUP")
    else:
        yield Finding(name, OK, found)
    if others:
        try:
            _handshake(context, "\n".join(others))
        except ssl.SSLCertVerificationError as error:
            found = f"the other certificates of the file do not sign the first one: {error.verify_message}"
            yield Finding(name, ERROR, found, "the server's certificate first, then those that sign it", change)
    yield from _check_names(context, leaf, certificate, name, host, change)


def _check_names(
    context: ssl.SSLContext, leaf: str, certificate: dict[str, Any], name: str, host: str, change: str
) -> Iterator[Finding]:
    names = [value for _, value in certificate.get("subjectAltName", ())]
    if not names:
        yield Finding(name, ERROR, "the certificate has no names", "subjectAltName, which clients check", change)
        return
    wanted = socket.gethostname() if host in _WILDCARDS else host
    try:
        _handshake(context, leaf, wanted)
    except ssl.SSLCertVerificationError:
        found = f"the certificate is for {', '.join(names)}"
        expected = f"also {wanted}, unless clients use one of these names"
        yield Finding(name, WARNING, found, expected, change)


def _check_authorities(path: Path) -> Iterator[Finding]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as error:
        yield Finding("TLS ('tls.ca')", ERROR, f"{path}: {error}", "certificates in PEM", "change 'tls.ca'")
        return
    for authority in context.get_ca_certs():
        end = str(authority["notAfter"])
        if ssl.cert_time_to_seconds(end) < time.time():
            found = f"an authority of {path} expired on {end}; its clients are refused"
            yield Finding("TLS ('tls.ca')", ERROR, found, "authorities that are valid now", "change 'tls.ca'")


def _handshake(server_context: ssl.SSLContext, trusted: str, name: str = "") -> dict[str, Any]:
    """Return the server's certificate after a handshake with a client that trusts these certificates.

    Raises:
        ssl.SSLCertVerificationError: The client does not accept the certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(name)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=trusted)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname=name or None)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    while True:
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            try:
                server.do_handshake()
            except ssl.SSLWantReadError:
                pass
        else:
            return client.getpeercert() or {}
