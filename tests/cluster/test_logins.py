"""Logins at the front with every mechanism, and the rights of the users in the shards."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pamqp.commands import Channel, Queue

from leveret.protocols.amqp10.settings import Amqp10Settings
from leveret.protocols.services import Services
from leveret.security.accounts import Account, TokenRefused
from leveret.security.oauth.account import TokenAccount
from leveret.security.oauth.scopes import Scopes
from leveret.wire.amqp10.transport import Close, Open
from tests.cluster.joined import Cluster, joined
from tests.security.certificates import Authority
from tests.support.broker import Broker
from tests.support.peers import amqp091, amqp10
from tests.support.peers.amqp091 import Connection, method
from tests.support.polling import wait_until
from tests.support.scram import log_in_1_0, log_in_amqp091

SCRAM = "SCRAM-SHA-256"


class Tokens:
    """Logins with tokens that are the names of their accounts, which are verified in a later turn."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.accounts: dict[bytes, TokenAccount] = {}

    def is_token(self, password: bytes) -> bool:
        return password in self.accounts

    def known(self, token: bytes) -> Account | TokenRefused | None:
        return None

    def submit(self, token: bytes, host: str, done: Callable[[Account | TokenRefused], None]) -> None:
        assert self.services.call_soon is not None
        self.services.call_soon(lambda: done(self.accounts.get(token) or TokenRefused("unknown token")))


def accept_tokens(accounts: dict[bytes, TokenAccount]) -> Callable[[Services], None]:
    def prepare(services: Services) -> None:
        tokens = Tokens(services)
        tokens.accounts = accounts
        services.tokens = tokens

    return prepare


def account(*scopes: str, expires_at: float = 0.0) -> TokenAccount:
    return TokenAccount("alice", Scopes(scopes, {"team": "red", "unused": "value"}), expires_at)


@pytest.mark.parametrize("log_in", [log_in_amqp091, log_in_1_0], ids=["0-9-1", "1.0"])
def test_scram(log_in: Callable[[Broker, str, str, str], list[str] | None]) -> None:
    with joined(mechanisms=[SCRAM, "PLAIN"]) as cluster:
        broker = Broker("127.0.0.1", cluster.port)
        assert log_in(broker, SCRAM, "user", "wrong") is None
        assert log_in(broker, SCRAM, "user", "user") == [SCRAM, "PLAIN"]
        wait_until(lambda: cluster.shards["/"].ended == [2])
        assert cluster.shards["/"].adopted[0].account.name == "user"


def test_amqplain() -> None:
    import amqp

    with joined(mechanisms=["AMQPLAIN"]) as cluster:
        connection = amqp.Connection(
            f"127.0.0.1:{cluster.port}", userid="user", password="user", login_method="AMQPLAIN", virtual_host="b"
        )
        connection.connect()
        assert cluster.session("b").user == "user"
        connection.close()


def test_external(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.issue("server"))
    server.load_verify_locations(authority.path)
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=str(authority.path))
    client.load_cert_chain(*authority.issue("user"))
    with joined(tls=server, mechanisms=["EXTERNAL"]) as cluster:
        with amqp091.Peer("127.0.0.1", cluster.port) as peer:
            peer.adopt(client.wrap_socket(peer.socket, server_hostname="localhost"))
            peer.start()
            peer.send(
                0, method(Connection.StartOk, client_properties={}, mechanism="EXTERNAL", response="", locale="en_US")
            )
            peer.expect(0, Connection.Tune)
            peer.tune_ok()
            peer.send(0, method(Connection.Open, virtual_host="b"))
            peer.expect(0, Connection.OpenOk)
            assert cluster.session("b").user == "user"
        with amqp10.Peer("127.0.0.1", cluster.port) as newer:
            newer.adopt(client.wrap_socket(newer.socket, server_hostname="localhost"))
            assert newer.login("EXTERNAL", b"") == 0
            newer.open("box")
            described = cluster.session("/").describe()
            assert described.user == "user" and described.tls


def test_anonymous() -> None:
    settings = Amqp10Settings(anonymous_user="user")
    with joined(mechanisms=["ANONYMOUS"], anonymous_user="limited", amqp10=settings) as cluster:
        with amqp091.Peer("127.0.0.1", cluster.port) as peer:
            peer.start()
            peer.start_ok("", "", "ANONYMOUS")
            peer.expect(0, Connection.Tune)
            peer.tune_ok()
            peer.send(0, method(Connection.Open, virtual_host="/"))
            peer.expect(0, Connection.OpenOk)
            assert cluster.session("/").user == "limited"
        with amqp10.Peer("127.0.0.1", cluster.port) as newer:
            assert newer.login("ANONYMOUS", b"") == 0
            newer.open("box", hostname="vhost:b")
            assert cluster.session("b").user == "user"


def test_clients_without_sasl_need_the_anonymous_user() -> None:
    with (
        joined(amqp10=Amqp10Settings(anonymous_user="")) as cluster,
        amqp10.Peer("127.0.0.1", cluster.port) as peer,
    ):
        peer.send_bytes(amqp10.AMQP)
        assert peer.read_bytes(8) == amqp10.SASL
        peer.expect_eof()


def test_the_rights_of_a_token() -> None:
    """The shard knows the scopes of the token, with the values of their variables."""
    accounts = {b"token": account("configure:b/{team}-*", "write:b/*", "read:b/*", "tag:administrator")}
    with (
        joined(prepare=accept_tokens(accounts)) as cluster,
        amqp091.Peer("127.0.0.1", cluster.port) as peer,
    ):
        peer.handshake("b", "", "token")
        session = cluster.session("b")
        assert (session.user, session.account.tags) == ("alice", ("administrator",))
        assert cluster.shards["b"].adopted[0].account.variables == {"team": "red"}
        channel = peer.channel()
        channel.queue("red-q")
        channel.send(Queue.Declare, queue="blue-q")
        assert channel.expect(Channel.Close).reply_code == 403


def test_a_token_for_another_vhost() -> None:
    accounts = {b"token": account("read:b/*")}
    with (
        joined(prepare=accept_tokens(accounts)) as cluster,
        amqp10.Peer("127.0.0.1", cluster.port) as peer,
    ):
        peer.login("PLAIN", b"\0\0token")
        peer.send(Open("box"))
        peer.take(Open)
        closed = peer.read()
        assert isinstance(closed, Close) and closed.error is not None
        assert closed.error.condition == "amqp:unauthorized-access"
        assert len(cluster.shards["/"].adopted) == 1


def test_a_token_is_renewed_in_the_shard() -> None:
    accounts = {
        b"token": account("read:b/*", expires_at=time.time() + 600),
        b"renewed": account("read:b/*", expires_at=time.time() + 900),
    }
    with (
        joined(prepare=accept_tokens(accounts)) as cluster,
        amqp091.Peer("127.0.0.1", cluster.port) as peer,
    ):
        peer.handshake("b", "", "token")
        session = cluster.session("b")
        assert session.account.expires_at == accounts[b"token"].expires_at
        # The shard will look whether the token has expired.
        assert time.time() < session.expiry_check <= accounts[b"token"].expires_at + 1
        peer.send(0, Connection.UpdateSecret(new_secret="renewed", reason="expires"))
        peer.expect(0, Connection.UpdateSecretOk)
        assert session.account.expires_at == accounts[b"renewed"].expires_at


def test_scopes_that_are_no_unicode_grant_nothing() -> None:
    accounts = {b"token": account("read:b/*", "read:\udc80/*")}
    with (
        joined(prepare=accept_tokens(accounts)) as cluster,
        amqp091.Peer("127.0.0.1", cluster.port) as peer,
    ):
        peer.handshake("b", "", "token")
        assert cluster.shards["b"].adopted[0].account.scopes == ("read:b/*",)


def test_limits_count_the_connections_elsewhere() -> None:
    def refused(cluster: Cluster, code: int) -> str:
        with amqp091.Peer("127.0.0.1", cluster.port) as peer:
            peer.start()
            peer.start_ok("user", "user")
            peer.expect(0, Connection.Tune)
            peer.tune_ok()
            peer.send(0, method(Connection.Open, virtual_host="b"))
            return peer.expect_connection_close(code).reply_text

    with joined(settings={"connections": 5, "connections_per_user": 3}) as cluster:
        shard = cluster.shards["b"]
        with amqp091.Peer("127.0.0.1", cluster.port) as peer:
            shard.elsewhere = (4, 2)
            peer.handshake("b", "user", "user")
            assert "user 'user' has 3 connections, the maximum" in refused(cluster, 530)
            shard.elsewhere = (4, 1)
            assert "the broker has 5 connections, the maximum" in refused(cluster, 506)
            services = shard.server.services
            assert (services.elsewhere, services.elsewhere_of_user) == (0, 0)


def test_a_user_who_was_deleted_after_the_login() -> None:
    """The shard learns of the deletion before the client is handed over."""
    with (
        joined() as cluster,
        amqp091.Peer("127.0.0.1", cluster.port) as peer,
    ):
        cluster.call(lambda: cluster.shards["b"].server.services.users.declare({}))
        peer.start()
        peer.start_ok("user", "user")
        peer.expect(0, Connection.Tune)
        peer.tune_ok()
        peer.send(0, method(Connection.Open, virtual_host="b"))
        assert "refused for user 'user'" in peer.expect_connection_close(530).reply_text
