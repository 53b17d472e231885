"""TLS contexts in memory: one server, clients with and without certificates, and replaced files."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from leveret.security.tls import ServerTls, TlsError, TlsSettings
from tests.security.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def settings(authority: Authority, name: str = "server") -> TlsSettings:
    return TlsSettings(*authority.issue(name))


def client_context(trusted: Authority, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(trusted.path))
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


def handshake(
    server: ServerTls, client: ssl.SSLContext, name: str | None = "localhost"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return both ends of a connection in memory after the handshake, or the error of either end."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    if name is None:
        client.check_hostname = False
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.context.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = set(ends)
    for _ in range(20):
        for end in ends:
            try:
                end.do_handshake()
                waiting.discard(end)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    return ends[0], ends[1]


def test_a_server_shows_its_certificate(authority: Authority) -> None:
    client, server = handshake(ServerTls(settings(authority)), client_context(authority))
    certificate = client.getpeercert()
    assert certificate is not None
    assert certificate["subject"] == ((("commonName", "server"),),)
    assert client.version() == "TLSv1.3"
    assert not server.getpeercert()


@pytest.mark.parametrize(
    ("minimum", "offered", "accepted"),
    [
        ("1.2", ssl.TLSVersion.TLSv1_2, True),
        ("1.3", ssl.TLSVersion.TLSv1_2, False),
        ("1.3", ssl.TLSVersion.TLSv1_3, True),
    ],
)
def test_old_versions_are_refused(authority: Authority, minimum: str, offered: ssl.TLSVersion, accepted: bool) -> None:
    server = ServerTls(replace(settings(authority), min_version=minimum))
    client = client_context(authority)
    client.maximum_version = offered
    if accepted:
        handshake(server, client)
    else:
        with pytest.raises(ssl.SSLError):
            handshake(server, client)


def test_nothing_below_1_2_is_ever_accepted(authority: Authority) -> None:
    assert ServerTls(settings(authority)).context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("verify", "without", "known", "stranger"),
    [
        ("none", True, True, True),
        ("optional", True, True, False),
        ("required", False, True, False),
    ],
)
def test_client_certificates(
    authority: Authority, tmp_path: Path, verify: str, without: bool, known: bool, stranger: bool
) -> None:
    server = ServerTls(replace(settings(authority), ca=authority.path, verify=verify))
    other = Authority(tmp_path, "other")
    clients = {None: without, authority.issue("shop"): known, other.issue("stranger"): stranger}
    for certificate, accepted in clients.items():
        client = client_context(authority, certificate)
        if not accepted:
            with pytest.raises(ssl.SSLError):
                handshake(server, client)
            continue
        _, end = handshake(server, client)
        shown = end.getpeercert()
        if certificate is not None and verify != "none":
            assert shown is not None
            assert shown["subject"] == ((("commonName", "shop"),),)
        else:
            assert not shown


@pytest.mark.parametrize("name", ["localhost", None])
def test_reload_changes_the_certificate_of_new_connections(authority: Authority, name: str | None) -> None:
    server = ServerTls(settings(authority))
    old, _ = handshake(server, client_context(authority), name)
    server.reload(settings(authority, "renewed"))
    new, _ = handshake(server, client_context(authority), name)
    certificates = [end.getpeercert() or {} for end in (old, new)]
    assert [certificate["subject"] for certificate in certificates] == [
        ((("commonName", "server"),),),
        ((("commonName", "renewed"),),),
    ]


def test_reload_changes_trusted_authorities(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    first = replace(settings(authority), ca=authority.path, verify="required")
    server = ServerTls(first)
    known = client_context(authority, authority.issue("known"))
    newcomer = client_context(authority, other.issue("new"))
    handshake(server, known)
    server.reload(TlsSettings(first.cert, first.key, ca=other.path, verify="required"))
    handshake(server, newcomer)
    with pytest.raises(ssl.SSLError):
        handshake(server, known)


def test_a_failed_reload_changes_nothing(authority: Authority, tmp_path: Path) -> None:
    first = settings(authority)
    server = ServerTls(first)
    with pytest.raises(TlsError, match=r"gone\.crt cannot be read: No such file"):
        server.reload(TlsSettings(tmp_path / "gone.crt", first.key))
    with pytest.raises(TlsError, match="cannot change"):
        server.reload(TlsSettings(first.cert, first.key, ca=authority.path, verify="required"))
    handshake(server, client_context(authority))


def test_unusable_files_are_refused(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.issue("server")
    _, other_key = authority.issue("other")
    _, locked_key = authority.issue("locked", password=b"secret")
    empty = tmp_path / "empty"
    empty.write_text("")
    garbage = tmp_path / "garbage"
    garbage.write_text("-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n")
    for broken, words in (
        (TlsSettings(cert, other_key), "the key does not match the certificate"),
        (TlsSettings(empty, key), "empty does not contain a CERTIFICATE in PEM"),
        (TlsSettings(cert, tmp_path / "gone"), "gone cannot be read"),
        (TlsSettings(cert), r"server\.crt does not contain a PRIVATE KEY in PEM"),
        (TlsSettings(cert, locked_key), "the key's password is missing or wrong"),
        (TlsSettings(cert, locked_key, b"wrong"), "the key's password is missing or wrong"),
        (TlsSettings(cert, key, ca=empty), "empty does not contain a CERTIFICATE in PEM"),
        (TlsSettings(garbage, key), r"garbage and key .*server\.key cannot be used"),
        (TlsSettings(cert, key, ca=garbage), "CA certificates .*garbage cannot be used"),
    ):
        with pytest.raises(TlsError, match=words):
            ServerTls(broken)


def test_an_encrypted_key(authority: Authority) -> None:
    cert, key = authority.issue("locked", password=b"secret")
    handshake(ServerTls(TlsSettings(cert, key, b"secret")), client_context(authority))
