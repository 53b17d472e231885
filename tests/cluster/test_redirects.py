"""Redirects of clients to the node that has their vhost, and known hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leveret.cluster.watch import Announcement, known_hosts
from leveret.protocols.amqp09.settings import Amqp09Settings
from leveret.wire.amqp10.transport import Close, Open
from leveret.wire.amqp10.values import UShort
from tests.cluster.linked import Linked, linked
from tests.cluster.test_links import exchange, opening, tuned
from tests.support.peers import amqp09, amqp10
from tests.support.peers.amqp091 import Connection
from tests.support.polling import wait_until


@pytest.fixture
def nodes() -> Iterator[Linked]:
    with linked() as running:
        running.remote("b").client_addresses = (f"127.0.0.1:{running.cluster.port}", "tls:1")
        protocols = running.other.front.protocols
        protocols.amqp09.settings = Amqp09Settings(known_hosts="one:5672", redirect_to_owner=True)
        protocols.amqp10.settings.redirect = True
        yield running


def open_0_9(nodes: Linked, *, insist: bool = False, user: str = "user") -> amqp09.Peer:
    peer = amqp09.Peer("127.0.0.1", nodes.other.port)
    peer.reach_open(user, user)
    peer.send_method(0, "connection.open", virtual_host="b", insist=insist)
    return peer


def test_0_9(nodes: Linked) -> None:
    with open_0_9(nodes) as peer:
        redirect = peer.expect_method(0, "connection.redirect")
        assert (redirect.host, redirect.known_hosts) == (f"127.0.0.1:{nodes.cluster.port}", "one:5672")
    with amqp09.Peer("127.0.0.1", int(redirect.host.rpartition(":")[2])) as peer:
        peer.connect("b", "user", "user")
    assert not nodes.epochs


def test_0_9_that_insists(nodes: Linked) -> None:
    with open_0_9(nodes, insist=True) as peer:
        peer.expect_method(0, "connection.open-ok")
    assert nodes.epochs


def test_0_9_without_permission(nodes: Linked) -> None:
    with open_0_9(nodes, user="limited") as peer:
        peer.read_end(530)


def test_0_9_1_is_never_redirected(nodes: Linked) -> None:
    with tuned(nodes.other.port) as peer:
        opening(peer)
        peer.expect(0, Connection.OpenOk)
        exchange(peer)


def test_1_0(nodes: Linked) -> None:
    with amqp10.Peer("127.0.0.1", nodes.other.port) as peer:
        assert peer.login("PLAIN", b"\0user\0user") == 0
        peer.send(Open("box", hostname="vhost:b"))
        peer.take(Open)
        closed = peer.take(Close)
        assert closed.error is not None and closed.error.condition == "amqp:connection:redirect"
        info = dict(closed.error.info)
        assert info == {"hostname": "vhost:b", "network-host": "127.0.0.1", "port": nodes.cluster.port}
        assert isinstance(info["port"], UShort)
        peer.send(Close())
        peer.expect_eof()
    with amqp10.Peer(info["network-host"], info["port"]) as peer:
        assert peer.login("PLAIN", b"\0user\0user") == 0
        peer.open("box", hostname=info["hostname"])
    assert not nodes.epochs


def test_owners_without_an_address_and_those_here(nodes: Linked) -> None:
    """Clients are relayed, or served."""
    nodes.remote("b").client_addresses = ("", "")
    nodes.other.shards["/"] = nodes.cluster.shards["/"]
    for vhost in ("b", "/"):
        with amqp10.Peer("127.0.0.1", nodes.other.port) as newer, amqp09.Peer("127.0.0.1", nodes.other.port) as older:
            assert newer.login("PLAIN", b"\0user\0user") == 0
            newer.open("box", hostname=f"vhost:{vhost}")
            older.connect(vhost, "user", "user")


def test_without_the_settings(nodes: Linked) -> None:
    protocols = nodes.other.front.protocols
    protocols.amqp09.settings = Amqp09Settings()
    protocols.amqp10.settings.redirect = False
    with amqp10.Peer("127.0.0.1", nodes.other.port) as newer, amqp09.Peer("127.0.0.1", nodes.other.port) as older:
        assert newer.login("PLAIN", b"\0user\0user") == 0
        newer.open("box", hostname="vhost:b")
        older.connect("b", "user", "user")


def test_referrals(nodes: Linked) -> None:
    """Clients that are not redirected are refused for a while, with the node that they should use."""
    remote = nodes.remote("b")
    remote.refers = True
    with tuned(nodes.other.port) as peer:
        opening(peer)
        assert f"connect to {remote.client_addresses[0]}, or here after" in peer.read_connection_close(320).reply_text
    with open_0_9(nodes) as older:
        older.expect_method(0, "connection.redirect")
    nodes.other.front.protocols.amqp10.settings.redirect = False
    with amqp10.Peer("127.0.0.1", nodes.other.port) as newer:
        assert newer.login("PLAIN", b"\0user\0user") == 0
        newer.send(Open("box", hostname="vhost:b"))
        newer.take(Open)
        closed = newer.take(Close)
        assert closed.error is not None and closed.error.condition == "amqp:connection:forced"
    assert not nodes.epochs
    with open_0_9(nodes, user="limited") as older:
        older.read_end(530)
    remote.refers = False
    with tuned(nodes.other.port) as peer:
        opening(peer)
        peer.expect(0, Connection.OpenOk)


def test_a_client_that_has_waited_for_its_shard_is_redirected(nodes: Linked) -> None:
    remote = nodes.remote("b")
    remote.unavailable = "shard 1 has no owner"
    with open_0_9(nodes) as older, amqp10.Peer("127.0.0.1", nodes.other.port) as newer, tuned(nodes.other.port) as peer:
        assert newer.login("PLAIN", b"\0user\0user") == 0
        newer.send(Open("box", hostname="vhost:b"))
        opening(peer)
        wait_until(
            lambda: nodes.cluster.call(lambda: sum(one.is_waiting_for_broker() for one in nodes.other.front.accepted)) == 3
        )
        remote.refers = True
        remote.unavailable = ""
        older.expect_method(0, "connection.redirect")
        newer.take(Open)
        closed = newer.take(Close)
        assert closed.error is not None and closed.error.condition == "amqp:connection:redirect"
        peer.read_connection_close(320)
    assert not nodes.epochs


def test_known_hosts() -> None:
    nodes = [Announcement("b", ("b:1", "b:2")), Announcement("c"), Announcement("a", ("", "a:2"))]
    assert known_hosts(nodes) == "a:2,b:1"
    many = [Announcement(f"node{number:03}", (f"node{number:03}.example.com:5672", "")) for number in range(100)]
    assert known_hosts(many).count(",") == 9 and len(known_hosts(many)) <= 255
