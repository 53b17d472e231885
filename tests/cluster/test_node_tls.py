"""TLS between nodes, with real certificates."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from functools import partial
from pathlib import Path

import pika
import pytest
from pamqp.commands import Basic

from leveret.cluster.links import split_address
from leveret.management.control_client import call
from leveret.security.tls import MutualTls, TlsError, TlsSettings
from leveret.wire.amqp10.transport import Close
from tests.cluster.linked import OWNER, Linked, linked
from tests.cluster.sharded import running
from tests.cluster.test_links import LARGE, exchange, opening, tuned
from tests.cluster.test_node_clients import is_ready
from tests.cluster.test_nodes import Node, dsn, owners
from tests.security.certificates import Authority
from tests.support.peers import amqp09, amqp091, amqp10
from tests.support.polling import wait_until

__all__ = ["dsn"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(directory: Path) -> Authority:
    return Authority(directory)


def certificates(authority: Authority, name: str, verified_by: Authority | None = None) -> MutualTls:
    cert, key = authority.issue(name)
    return MutualTls(TlsSettings(cert, key, ca=(verified_by or authority).path, verify="required"))


def refusal(nodes: Linked) -> str:
    """Return how a client of the other node is refused."""
    nodes.other.patience = 0.01
    with tuned(nodes.other.port) as peer:
        opening(peer)
        return peer.read_connection_close(320).reply_text


def test_all_protocols(authority: Authority) -> None:
    tls = certificates(authority, "owner"), certificates(authority, "other")
    with (
        linked(node_tls=tls) as nodes,
        amqp091.Peer("127.0.0.1", nodes.other.port) as peer,
        amqp09.Peer("127.0.0.1", nodes.other.port) as older,
        amqp10.Peer("127.0.0.1", nodes.other.port) as newer,
    ):
        peer.handshake("b", "user", "user")
        exchange(peer)
        # The description is that of the client, not of the link.
        described = nodes.cluster.session("b").describe()
        assert described.name == f"127.0.0.1:{peer.local_port} -> 127.0.0.1:{nodes.other.port}" and not described.tls
        older.connect("b", "user", "user")
        channel = older.open()
        channel.queue("q09")
        channel.publish(LARGE, "q09")
        content = channel.get("q09")
        assert content is not None and content.body == LARGE
        assert newer.login("PLAIN", b"\0user\0user") == 0
        newer.open("box", hostname="vhost:b")
        newer.begin().sender("r").deliver(amqp10.message(LARGE[: 100 << 10]))
        # The death of the shard.
        nodes.cluster.call(nodes.cluster.shards["b"].die)
        closed = newer.read()
        assert isinstance(closed, Close) and closed.error is not None
        assert closed.error.condition == "amqp:connection:forced"
        peer.read_connection_close(320)
        older.expect_end(320)


def test_the_end_of_a_client_ends_the_link(authority: Authority) -> None:
    with linked(node_tls=(certificates(authority, "owner"), certificates(authority, "other"))) as nodes:
        with amqp091.Peer("127.0.0.1", nodes.other.port) as peer:
            peer.handshake("b", "user", "user")
            peer.reset()
        wait_until(lambda: nodes.cluster.shards["b"].ended)
        nodes.wait_empty()


def test_a_client_that_does_not_read_is_not_buffered(authority: Authority) -> None:
    with (
        linked(node_tls=(certificates(authority, "owner"), certificates(authority, "other"))) as nodes,
        amqp091.Peer("127.0.0.1", nodes.other.port) as peer,
    ):
        peer.handshake("b", "user", "user")
        channel = peer.channel()
        channel.queue("q")
        for _ in range(16):
            channel.publish(LARGE, "q")
        channel.consume("q", no_ack=True)
        session = nodes.cluster.session("b")
        wait_until(lambda: session.output.paused)
        for _ in range(16):
            assert peer.expect_content(1, Basic.Deliver).body == LARGE


def test_one_node_without_tls(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    """Both logs say what is wrong, and the secret does not help."""
    with linked(node_tls=(certificates(authority, "owner"), None)) as nodes:
        assert "node 'owner' accepts TLS only; expected 'cluster.tls.cert' in all nodes or in none" in refusal(nodes)
        wait_until(lambda: nodes.server.refused)
        assert not nodes.epochs
    assert "refused a connection for nodes from node 'other' at 127.0.0.1: node 'owner' accepts TLS only" in caplog.text
    assert f"cannot connect to node 'owner' at {nodes.address}: node 'owner' accepts TLS only" in caplog.text
    caplog.clear()
    with linked(node_tls=(None, certificates(authority, "other"))) as nodes:
        refusal(nodes)
        wait_until(lambda: nodes.server.refused)
        assert not nodes.epochs
    assert "refused a connection for nodes from 127.0.0.1: it uses TLS, which node 'owner' does not" in caplog.text
    assert f"cannot connect to node 'owner' at {nodes.address}: it does not answer with TLS; expected" in caplog.text


def test_certificates_of_another_authority(authority: Authority, directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    stranger = Authority(directory, "stranger")
    # The caller does not accept the node.
    with linked(node_tls=(certificates(stranger, "owner", authority), certificates(authority, "other"))) as nodes:
        refusal(nodes)
        wait_until(lambda: nodes.server.refused)
        assert not nodes.epochs
    assert "cannot connect to node 'owner'" in caplog.text and "its certificate is not valid: unable to get" in caplog.text
    caplog.clear()
    # The node does not accept the caller.
    with linked(node_tls=(certificates(authority, "owner"), certificates(stranger, "other", authority))) as nodes:
        refusal(nodes)
        wait_until(lambda: nodes.server.refused)
        assert not nodes.epochs
    assert "refused a connection for nodes from 127.0.0.1: its certificate is not valid: unable to get" in caplog.text
    assert "; its log may say why" in caplog.text


def test_no_certificate_and_another_host(authority: Authority) -> None:
    with linked(node_tls=(certificates(authority, "owner"), certificates(authority, "other"))) as nodes:
        context = ssl.create_default_context(cafile=str(authority.path))
        with (
            socket.create_connection(split_address(nodes.address), 60) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as client,
            contextlib.suppress(ConnectionResetError, ssl.SSLError),
        ):
            assert client.recv(1) == b""
        wait_until(lambda: nodes.server.refused == 1)
        # The certificate is for localhost and 127.0.0.1.
        remote = nodes.remote("b")
        remote.node = type(remote.node)(OWNER, nodes.address.replace("127.0.0.1", "127.0.0.2"))
        refusal(nodes)
        assert not nodes.epochs


def test_a_hello_that_does_not_come(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leveret.cluster.links.HANDSHAKE_TIMEOUT", 0.05)
    with linked(node_tls=(certificates(authority, "owner"), certificates(authority, "other"))) as nodes:
        for begin in (b"\x16\x03\x01\x02\0", b"\x16" + os.urandom(100)):
            with socket.create_connection(split_address(nodes.address), 60) as client:
                client.sendall(begin)
                with contextlib.suppress(ConnectionResetError):
                    assert client.recv(1) == b""
        wait_until(lambda: nodes.server.refused == 2)


def test_reloaded_certificates(authority: Authority, directory: Path) -> None:
    """New connections use the new files; unusable files change nothing."""
    stranger = Authority(directory, "later")
    tls = certificates(authority, "owner"), certificates(authority, "other")
    with linked(node_tls=tls) as nodes:
        with tuned(nodes.other.port) as peer:
            opening(peer)
            peer.expect(0, amqp091.Connection.OpenOk)
            for one, name in zip(tls, ("owner", "other"), strict=True):
                cert, key = stranger.issue(name)
                one.reload(TlsSettings(cert, key, ca=stranger.path, verify="required"))
                with pytest.raises(TlsError, match="cannot be read"):
                    one.reload(TlsSettings(directory / "missing", ca=stranger.path, verify="required"))
            exchange(peer)
        with tuned(nodes.other.port) as peer:
            opening(peer)
            peer.expect(0, amqp091.Connection.OpenOk)


@pytest.mark.slow
def test_two_processes(tmp_path: Path, dsn: str, authority: Authority) -> None:
    """With pika through the wrong node, and with management."""
    nodes = []
    for name in ("first", "second"):
        cert, key = authority.issue(name)
        settings = {"CERT": str(cert), "KEY": str(key), "CA": str(authority.path)}
        node = Node(tmp_path / name, dsn, "a")
        node.environment |= {f"LEVERET_CLUSTER__TLS__{option}": value for option, value in settings.items()}
        nodes.append(node)
    first, second = nodes
    with running(first), running(second):
        for node in nodes:
            wait_until(partial(is_ready, node), lambda: f"{first.log()}\n{second.log()}")
        owner = str(owners(dsn)[first.placed()["a"]])
        wrong = second if owner == "first" else first
        connection = wrong.open("a")
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        for body in (b"x", LARGE):
            channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))
        assert [channel.basic_get("q", auto_ack=True)[2] for _ in range(2)] == [b"x", LARGE]
        assert [queue["name"] for queue in call(wrong.data_dir, "queues.list", {"vhost": "a"})] == ["q"]
        connection.close()
