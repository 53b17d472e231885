"""Connections handed over from a front to shards, with clients of all protocols."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leveret.protocols.amqp10.settings import Amqp10Settings
from leveret.wire.amqp10.security import SaslInit, SaslMechanisms, SaslOutcome
from leveret.wire.amqp10.transport import Begin, Close, Open
from tests.cluster.joined import Cluster, joined
from tests.support.peers import amqp09, amqp091, amqp10
from tests.support.polling import wait_until


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with joined(amqp10=Amqp10Settings(anonymous_user="user")) as running:
        yield running


def test_0_9_1(cluster: Cluster) -> None:
    with amqp091.Peer("127.0.0.1", cluster.port) as peer:
        properties = {"product": "test", "capabilities": {"basic.nack": True}, "size": 1 << 40}
        peer.handshake("b", "user", "user", channel_max=7, frame_max=8192, properties=properties)
        channel = peer.channel()
        channel.queue("q")
        channel.publish(b"x" * 50_000, "q")
        content = channel.get("q")
        assert content is not None and content.body == b"x" * 50_000
        described = cluster.session("b").describe()
        assert described.number == 2
        assert described.name == f"127.0.0.1:{peer.local_port} -> 127.0.0.1:{cluster.port}"
        assert (described.user, described.vhost, described.protocol) == ("user", "b", "AMQP 0-9-1")
        assert described.client_properties.fields == properties
        assert (described.channel_max, described.frame_max, described.heartbeat) == (7, 8192, 0)
        cluster.call(lambda: None)
        assert cluster.call(lambda: len(cluster.front.admission)) == 0
        cluster.wait_empty()
        assert cluster.shards["b"].ended == []
        peer.close()
    wait_until(lambda: cluster.shards["b"].ended == [1])


def test_0_9(cluster: Cluster) -> None:
    with amqp09.Peer("127.0.0.1", cluster.port) as peer:
        peer.connect("/b", "user", "user", properties={"product": "test"})
        channel = peer.open()
        channel.queue("q")
        channel.publish(b"x" * 50_000, "q")
        content = channel.get("q")
        assert content is not None and content.body == b"x" * 50_000
        assert cluster.session("b").describe().client_properties.fields == {"product": "test"}
        peer.close()


@pytest.mark.parametrize("sasl", [True, False])
def test_1_0(cluster: Cluster, sasl: bool) -> None:
    with amqp10.Peer("127.0.0.1", cluster.port) as peer:
        if sasl:
            assert peer.login("PLAIN", b"\0user\0user") == 0
        else:
            peer.header()
        peer.open("box", hostname="vhost:b", properties={"product": "test"})
        session = peer.begin()
        sender = session.sender("q")
        assert sender is not None
        described = cluster.session("b").describe()
        assert (described.user, described.vhost, described.protocol) == ("user", "b", "AMQP 1.0")
        assert described.client_properties.fields == {"product": "test"}


def test_a_pipelined_handshake_of_1_0(cluster: Cluster) -> None:
    """Everything up to begin is sent before the password of the login has been checked."""
    with amqp10.Peer("127.0.0.1", cluster.port) as peer:
        peer.output.send(SaslInit("PLAIN", b"\0user\0user"))
        start = amqp10.SASL + peer.output.to_send() + amqp10.AMQP
        for item in (Open("box", hostname="vhost:b"), Begin(0, 10, 10)):
            peer.output.send(item)
        peer.send_bytes(start + peer.output.to_send())
        assert peer.read_bytes(8) == amqp10.SASL
        peer.take(SaslMechanisms)
        assert peer.take(SaslOutcome).code == 0
        assert peer.read_bytes(8) == amqp10.AMQP
        peer.take(Open)
        peer.take(Begin)


def test_unknown_vhosts(cluster: Cluster) -> None:
    with amqp091.Peer("127.0.0.1", cluster.port) as peer:
        peer.start()
        peer.start_ok("user", "user")
        peer.expect(0, amqp091.Connection.Tune)
        peer.tune_ok()
        peer.send(0, amqp091.method(amqp091.Connection.Open, virtual_host="c"))
        assert "vhost c not found" in peer.expect_connection_close(530).reply_text
    with amqp09.Peer("127.0.0.1", cluster.port) as older:
        older.reach_open("user", "user")
        older.send_method(0, "connection.open", virtual_host="/c")
        assert "vhost 'c' not found" in older.expect_end(402).reply_text
    with amqp10.Peer("127.0.0.1", cluster.port) as newer:
        newer.login("PLAIN", b"\0user\0user")
        newer.send(Open("box", hostname="vhost:c"))
        newer.take(Open)
        closed = newer.read()
        assert isinstance(closed, Close) and closed.error is not None
        assert closed.error.condition == "amqp:unauthorized-access"


def test_a_vhost_that_the_user_may_not_open_is_refused_by_its_shard(cluster: Cluster) -> None:
    with amqp091.Peer("127.0.0.1", cluster.port) as peer:
        peer.start()
        peer.start_ok("limited", "limited")
        peer.expect(0, amqp091.Connection.Tune)
        peer.tune_ok()
        peer.send(0, amqp091.method(amqp091.Connection.Open, virtual_host="b"))
        assert "access to vhost 'b' refused for user 'limited'" in peer.expect_connection_close(530).reply_text
    wait_until(lambda: cluster.shards["b"].ended == [1])
