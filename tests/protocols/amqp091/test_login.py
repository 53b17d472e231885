"""SASL of several steps over 0-9-1 (section 2.2.4)."""

from __future__ import annotations

import pytest

from leveret.protocols.login_queue import FREE_FAILURES
from leveret.security.permissions import Permission
from leveret.security.scram import Keyring
from tests.protocols.support import Client, Site
from tests.support.scram import ScramClient

BOTH = ["SCRAM-SHA-512", "SCRAM-SHA-256"]


def make_site() -> Site:
    site = Site()
    site.services.mechanisms = [*BOTH, "PLAIN"]
    site.users.keyring = Keyring(BOTH, 4096)
    return site


def start_ok(client: Client, mechanism: str, response: bytes) -> None:
    client.engine.send(
        0,
        "connection.start-ok",
        {
            "client_properties": {"capabilities": client.capabilities},
            "mechanism": mechanism,
            "response": response,
            "locale": "en_US",
        },
    )
    client.run()


def challenge(client: Client) -> bytes:
    found = client.take("connection.secure")
    assert found is not None
    data = found.arguments["challenge"]
    return data if isinstance(data, bytes) else data.encode("utf-8", "surrogateescape")


def secure_ok(client: Client, response: bytes) -> None:
    client.engine.send(0, "connection.secure-ok", {"response": response})
    client.run()


def begin(site: Site, mechanism: str = "SCRAM-SHA-256", password: str = "user") -> tuple[Client, ScramClient]:
    """Return a client that has sent its final message."""
    client, scram = Client(site), ScramClient(mechanism, "user", password)
    client.run()
    start = client.take("connection.start")
    assert start is not None
    assert str(start.arguments["mechanisms"]).split() == [*BOTH, "PLAIN"]
    start_ok(client, mechanism, scram.first())
    secure_ok(client, scram.final(challenge(client)))
    return client, scram


@pytest.mark.parametrize("mechanism", BOTH)
def test_scram(mechanism: str) -> None:
    client, scram = begin(make_site(), mechanism)
    # The server's proof is an additional challenge.
    scram.check(challenge(client))
    assert client.take("connection.tune") is None
    secure_ok(client, b"")
    assert client.take("connection.tune") is not None
    assert client.session.user == "user"
    assert client.session.handshake.login is None


def test_scram_with_a_wrong_password() -> None:
    client, _ = begin(make_site(), password="wrong")
    assert client.refusal()[0] == 403
    assert not client.session.user


def test_replies_to_repeated_wrong_scram_passwords_are_delayed() -> None:
    """They count together with wrong passwords of PLAIN, and a correct password resets the count."""
    site = make_site()
    for _ in range(FREE_FAILURES - 1):
        assert begin(site, password="wrong")[0].refusal()[0] == 403
    plain(site, "wrong")
    late, _ = begin(site, password="wrong")
    assert late.take("connection.close") is None and not late.peer.closed
    assert [seconds for seconds, _ in site.later if seconds < 1] == [0.1]
    plain(site, "wrong too")
    assert [seconds for seconds, _ in site.later if seconds < 1] == [0.1, 0.2]
    answer = next(callback for seconds, callback in site.later if seconds == 0.1)
    answer()
    late.run()
    assert late.refusal()[0] == 403
    right, scram = begin(site)
    scram.check(challenge(right))
    assert begin(site, password="wrong")[0].refusal()[0] == 403
    assert [seconds for seconds, _ in site.later if seconds < 1] == [0.1, 0.2]


def test_a_client_that_disconnects_before_the_delayed_reply() -> None:
    site = make_site()
    for _ in range(FREE_FAILURES):
        begin(site, password="wrong")
    late, _ = begin(site, password="wrong")
    late.session.connection_lost()
    late.peer.written.clear()
    [answer] = [callback for seconds, callback in site.later if seconds < 1]
    answer()
    site.run()
    assert not late.peer.written


def test_a_broken_scram_exchange_without_a_user_is_not_counted() -> None:
    site = make_site()
    for _ in range(FREE_FAILURES + 1):
        client = Client(site)
        client.run()
        start_ok(client, "SCRAM-SHA-256", b"nonsense")
        assert client.refusal()[0] == 403
    assert not [seconds for seconds, _ in site.later if seconds < 1]


def plain(site: Site, password: str) -> None:
    client = Client(site)
    client.run()
    start_ok(client, "PLAIN", f"\0user\0{password}".encode())


def test_a_response_to_the_servers_proof() -> None:
    client, scram = begin(make_site())
    scram.check(challenge(client))
    secure_ok(client, b"more")
    assert client.refusal()[0] == 403
    assert not client.session.user


def test_a_user_who_is_deleted_between_the_steps() -> None:
    site = make_site()
    client, scram = Client(site), ScramClient("SCRAM-SHA-256", "user", "user")
    client.run()
    start_ok(client, "SCRAM-SHA-256", scram.first())
    first = challenge(client)
    site.users.declare({})
    site.allow("other", "/", Permission())
    del site.declared["user"]
    site.users.declare(site.declared)
    secure_ok(client, scram.final(first))
    assert client.refusal()[0] == 403


def test_no_scram_while_a_user_would_be_locked_out() -> None:
    """A user with a hash and no keys: a PLAIN login creates them."""
    site = make_site()
    site.allow("hashed", "/", Permission(), password_hash="$argon2id$not checked here")
    client = Client(site)
    client.run()
    start = client.take("connection.start")
    assert start is not None and str(start.arguments["mechanisms"]) == "PLAIN"
    start_ok(client, "SCRAM-SHA-256", b"n,,n=user,r=nonce")
    assert client.peer.closed


def test_a_client_that_disconnects_during_the_login() -> None:
    site = make_site()
    client = Client(site)
    client.run()
    client.engine.send(
        0,
        "connection.start-ok",
        {"client_properties": {}, "mechanism": "SCRAM-SHA-256", "response": b"n,,n=user,r=nonce", "locale": "en_US"},
    )
    client.flush()
    client.session.connection_lost()
    site.run()
    assert client.session.handshake.login is None
    assert not client.peer.written
