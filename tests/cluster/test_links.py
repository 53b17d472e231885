"""Clients whose shard is in another node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pamqp.commands import Basic, Queue

from leveret.cluster import links, node_handshake
from leveret.cluster.links import NodeClient, NodeInfo, is_deserted
from leveret.wire.amqp0.engine import CLIENT, Engine
from leveret.wire.amqp0.properties import encode_header
from leveret.wire.amqp0.specs import V0_9_1
from leveret.wire.amqp10.transport import Begin, Close, Open
from tests.cluster.linked import EPOCH, Linked, RemoteShard, linked, owner_process
from tests.security.certificates import Authority
from tests.support.peers import amqp09, amqp091, amqp10
from tests.support.peers.amqp091 import Connection, method
from tests.support.polling import wait_until

LARGE = b"0123456789abcdef" * (4 << 16)  # 4 MiB


@pytest.fixture
def nodes() -> Iterator[Linked]:
    with linked() as running:
        yield running


def tuned(port: int) -> amqp091.Peer:
    """Return a client that has done everything before connection.open."""
    peer = amqp091.Peer("127.0.0.1", port)
    peer.start()
    peer.start_ok("user", "user")
    peer.expect(0, Connection.Tune)
    peer.tune_ok()
    return peer


def opening(peer: amqp091.Peer, vhost: str = "b") -> None:
    peer.send(0, method(Connection.Open, virtual_host=vhost))


def exchange(peer: amqp091.Peer) -> None:
    """Publish and get messages of all sizes."""
    channel = peer.channel()
    channel.queue("q")
    bodies = [b"", b"x", b"y" * 100_000, LARGE, b"z"]
    for body in bodies:
        channel.publish(body, "q")
    for body in bodies:
        content = channel.get("q")
        assert content is not None and content.body == body


def test_0_9_1(nodes: Linked) -> None:
    with amqp091.Peer("127.0.0.1", nodes.other.port) as peer:
        peer.handshake("b", "user", "user")
        exchange(peer)
        described = nodes.cluster.session("b").describe()
        assert described.name == f"127.0.0.1:{peer.local_port} -> 127.0.0.1:{nodes.other.port}"
        assert (described.user, described.vhost) == ("user", "b")
        assert nodes.epochs == [EPOCH]
        assert nodes.cluster.call(lambda: len(nodes.other.front.admission)) == 0
        assert nodes.cluster.call(lambda: len(nodes.other.front.services.sessions)) == 0
        peer.close()
    wait_until(lambda: nodes.cluster.shards["b"].ended == [1])
    nodes.wait_empty()


def test_0_9_and_1_0(nodes: Linked) -> None:
    with amqp09.Peer("127.0.0.1", nodes.other.port) as older:
        older.connect("b", "user", "user")
        channel = older.open()
        channel.queue("q")
        channel.publish(LARGE, "q")
        content = channel.get("q")
        assert content is not None and content.body == LARGE
        older.close()
    with amqp10.Peer("127.0.0.1", nodes.other.port) as newer:
        assert newer.login("PLAIN", b"\0user\0user") == 0
        newer.open("box", hostname="vhost:b")
        newer.begin().sender("r").deliver(amqp10.message(LARGE[: 100 << 10]))
        newer.send(Close())
        newer.take(Close)
        newer.expect_eof()
    nodes.wait_empty()


def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.issue("server"))
    client = ssl.create_default_context(cafile=str(authority.path))
    with linked(tls=server) as nodes, amqp091.Peer("127.0.0.1", nodes.other.port) as peer:
        peer.adopt(client.wrap_socket(peer.socket, server_hostname="localhost"))
        peer.handshake("b", "user", "user")
        exchange(peer)
        assert nodes.cluster.session("b").describe().tls


def test_a_megabyte_behind_the_open(nodes: Linked) -> None:
    bodies = [bytes((number % 256,)) * 1000 for number in range(1000)]
    with tuned(nodes.other.port) as peer:
        engine = Engine(CLIENT, V0_9_1)
        engine.begin_tuned(131072, 10, 0)
        engine.send(0, "connection.open", {"virtual_host": "b"})
        engine.send(1, "channel.open", {})
        engine.send(1, "queue.declare", {"queue": "q"})
        for body in bodies:
            engine.send_publish(1, b"\0\x01q", 0, encode_header(60, len(body), {}), body, len(body))
        peer.send_bytes(engine.to_send())
        peer.expect(0, Connection.OpenOk)
        peer.expect(1, amqp091.ChannelClass.OpenOk)
        channel = amqp091.Channel(peer, 1)
        channel.expect(Queue.DeclareOk)
        received: list[bytes] = []
        while len(received) < len(bodies):
            channel.send(Basic.Get, queue="q", no_ack=True)
            value = peer.read(1)
            if isinstance(value, Basic.GetOk):
                received.append(peer.rest_of_content(1, value).body)
        assert received == bodies


def test_a_pipelined_open_of_1_0(nodes: Linked) -> None:
    with amqp10.Peer("127.0.0.1", nodes.other.port) as peer:
        for item in (Open("box", hostname="vhost:b"), Begin(0, 10, 10)):
            peer.output.send(item)
        peer.send_bytes(amqp10.AMQP + peer.output.to_send())
        assert peer.read_bytes(8) == amqp10.AMQP
        peer.take(Open)
        peer.take(Begin)


def test_a_client_that_does_not_read_is_not_buffered(nodes: Linked) -> None:
    with amqp091.Peer("127.0.0.1", nodes.other.port) as peer:
        peer.handshake("b", "user", "user")
        channel = peer.channel()
        channel.queue("q")
        for _ in range(16):
            channel.publish(LARGE, "q")
        channel.consume("q", no_ack=True)
        session = nodes.cluster.session("b")
        wait_until(lambda: session.output.paused)
        (protocol,) = nodes.other.front.accepted
        transport = protocol._transport
        assert transport is not None
        assert nodes.cluster.call(transport.get_write_buffer_size) < 2 << 20
        for _ in range(16):
            assert peer.expect_content(1, Basic.Deliver).body == LARGE


def test_a_client_that_breaks_off(nodes: Linked) -> None:
    with amqp091.Peer("127.0.0.1", nodes.other.port) as peer:
        peer.handshake("b", "user", "user")
        peer.reset()
    wait_until(lambda: nodes.cluster.shards["b"].ended)
    nodes.wait_empty()


def test_refusals(nodes: Linked) -> None:
    """The node of the client knows the vhosts; the shard checks the permissions."""
    with tuned(nodes.other.port) as peer:
        opening(peer, "c")
        assert "vhost c not found" in peer.expect_connection_close(530).reply_text
    with amqp091.Peer("127.0.0.1", nodes.other.port) as peer:
        peer.start()
        peer.start_ok("limited", "limited")
        peer.expect(0, Connection.Tune)
        peer.tune_ok()
        opening(peer)
        assert "access to vhost 'b' refused for user 'limited'" in peer.expect_connection_close(530).reply_text
    nodes.wait_empty()
    assert nodes.epochs == [EPOCH]


def test_the_death_of_the_shard(nodes: Linked) -> None:
    with amqp10.Peer("127.0.0.1", nodes.other.port) as newer, amqp09.Peer("127.0.0.1", nodes.other.port) as older:
        newer.header()
        newer.open("box", hostname="vhost:b")
        older.connect("b", "user", "user")
        nodes.cluster.call(nodes.cluster.shards["b"].die)
        closed = newer.read()
        assert isinstance(closed, Close) and closed.error is not None
        assert closed.error.condition == "amqp:connection:forced"
        older.expect_end(320)
        newer.send(Close())
        newer.expect_eof()
    nodes.wait_empty()


def check_bounded(nodes: Linked, peer: amqp091.Peer) -> None:
    """Send as much as a relay takes for a shard that reads nothing, and check that it does not keep it."""

    def found() -> tuple[Any, Any]:
        (protocol,) = (
            one
            for one in nodes.other.front.accepted
            if one._transport is not None and one._transport.get_extra_info("peername")[1] == peer.local_port
        )
        return protocol._transport, protocol.session._shard  # type: ignore[union-attr]

    client, shard = nodes.cluster.call(found)
    peer.socket.setblocking(False)

    def is_full() -> bool:
        with contextlib.suppress(BlockingIOError):
            while True:
                peer.socket.send(bytes(1 << 16))
        return nodes.cluster.call(lambda: not client.is_reading())

    wait_until(is_full)
    peer.socket.setblocking(True)
    assert 0 < nodes.cluster.call(shard.get_write_buffer_size) < 1 << 20


def test_a_frozen_owner_and_its_death_within_a_message(nodes: Linked) -> None:
    """Clients of a frozen owner are closed, and those that wait for its answer find the new one.

    A client of an owner that dies gets complete frames only, then connection.close.
    """
    port = nodes.other.port
    with (
        owner_process() as (process, node),
        amqp091.Peer("127.0.0.1", port) as reader,
        amqp091.Peer("127.0.0.1", port) as idle,
        tuned(port) as waiting,
    ):
        remote = nodes.remote("b")
        former, remote.node = remote.node, node
        nodes.remote("/").node = node
        idle.handshake("/", "user", "user")
        reader.handshake("b", "user", "user")
        channel = reader.channel()
        channel.queue("q")
        for _ in range(8):
            channel.publish(LARGE, "q")
        channel.consume("q", no_ack=True)
        reader.read(1)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        check_bounded(nodes, idle)
        attempts = nodes.remote("/").attempts
        opening(waiting, "/")
        wait_until(lambda: nodes.remote("/").attempts > attempts)
        nodes.remote("/").node = former
        nodes.cluster.call(lambda: nodes.other.client.close_relays(0, "third"))
        idle.read_connection_close(320)
        waiting.expect(0, Connection.OpenOk)
        exchange(waiting)
        process.kill()
        received = 0
        while not isinstance(value := reader.read(None), Connection.Close):
            received += 1
        assert (value.reply_code, value.reply_text) == (320, "CONNECTION_FORCED - the shard of the connection has stopped")
        assert 0 < received < 8 * len(LARGE) // 131072
        reader.send(0, Connection.CloseOk())
        reader.expect_eof(reset=False)
    nodes.wait_empty()


def test_a_new_owner(nodes: Linked) -> None:
    """Relays to the former owner end, those to the present owner do not."""
    with (
        amqp091.Peer("127.0.0.1", nodes.other.port) as first,
        amqp091.Peer("127.0.0.1", nodes.other.port) as second,
    ):
        first.handshake("/", "user", "user")
        second.handshake("b", "user", "user")
        nodes.cluster.call(lambda: nodes.other.client.close_relays(0, "owner"))
        nodes.cluster.call(lambda: nodes.other.client.close_relays(1, "third"))
        closed = second.read_connection_close(320)
        assert closed.reply_text == "CONNECTION_FORCED - node 'owner' does not own shard 1 any more"
        exchange(first)


def test_clients_of_a_node_that_is_gone(nodes: Linked) -> None:
    """The shard closes their sockets, and no others."""
    with (
        amqp091.Peer("127.0.0.1", nodes.other.port) as relayed,
        amqp091.Peer("127.0.0.1", nodes.cluster.port) as direct,
    ):
        relayed.handshake("b", "user", "user")
        direct.handshake("b", "user", "user")
        nodes.cluster.call(lambda: nodes.cluster.shards["b"].server.disown("third"))
        nodes.cluster.call(lambda: nodes.cluster.shards["b"].server.disown("other"))
        relayed.read_connection_close(320)
        exchange(direct)


def test_whether_a_node_listens(nodes: Linked) -> None:
    assert not nodes.cluster.run(is_deserted(nodes.address))
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert nodes.cluster.run(is_deserted(f"127.0.0.1:{bound.getsockname()[1]}"))
    # The question is no failed handshake, but this is one.
    host, _, port = nodes.address.partition(":")
    with socket.create_connection((host, int(port)), 10) as peer:
        peer.sendall(bytes(64))
    wait_until(lambda: nodes.server.refused)
    assert nodes.server.refused == 1


def test_a_node_that_stops(nodes: Linked) -> None:
    with amqp091.Peer("127.0.0.1", nodes.other.port) as peer:
        peer.handshake("b", "user", "user")
        nodes.cluster.call(lambda: nodes.other.client.stop("the node stops"))
        assert peer.read_connection_close(320).reply_text.endswith("the node stops")
        peer.send(0, Connection.CloseOk())
        peer.expect_eof(reset=False)
    wait_until(lambda: nodes.cluster.shards["b"].ended)


def test_waiting_for_an_owner(nodes: Linked) -> None:
    """The client is served by the owner that is found while it waits, here or in another node."""
    remote = nodes.remote("b")
    nodes.owns = False
    with tuned(nodes.other.port) as first, tuned(nodes.other.port) as second, tuned(nodes.other.port) as third:
        opening(first)
        wait_until(lambda: remote.attempts > 1)  # the owner has refused
        remote.unavailable = "shard 1 has no owner"
        opening(second)
        remote.unavailable = ""
        nodes.owns = True
        first.expect(0, Connection.OpenOk)
        second.expect(0, Connection.OpenOk)
        remote.unavailable = "shard 1 has no owner"
        opening(third)
        nodes.other.shards["b"] = nodes.cluster.shards["b"]
        third.expect(0, Connection.OpenOk)
        exchange(third)
        assert len(nodes.cluster.call(lambda: nodes.other.front.accepted)) == 2


def test_no_owner() -> None:
    with linked(patience=0.1) as nodes:
        nodes.remote("b").unavailable = "shard 1 has no owner"
        with tuned(nodes.other.port) as peer:
            opening(peer)
            assert peer.read_connection_close(320).reply_text == "CONNECTION_FORCED - shard 1 has no owner"
        with amqp10.Peer("127.0.0.1", nodes.other.port) as newer:
            newer.header()
            newer.send(Open("box", hostname="vhost:b"))
            newer.take(Open)
            closed = newer.read()
            assert isinstance(closed, Close) and closed.error is not None
            assert closed.error.condition == "amqp:connection:forced"
        nodes.remote("b").unavailable = ""
        nodes.owns = False
        with tuned(nodes.other.port) as peer:
            opening(peer)
            text = peer.read_connection_close(320).reply_text
            assert text.endswith("node 'owner' refuses the connection: it does not own the shard")
        nodes.wait_empty()


def test_many_clients_at_once(nodes: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the death of their node: none is refused, and the owner has few handshakes at a time."""
    monkeypatch.setattr(links, "MAX_UNAUTHENTICATED", links.MAX_CALLS)
    # No attempt of a busy machine is repeated.
    monkeypatch.setattr(links, "CONNECT_TIMEOUT", 60)
    remote = nodes.remote("b")
    remote.unavailable = "shard 1 has no owner"
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(tuned(nodes.other.port)) for _ in range(100)]
        for peer in peers:
            opening(peer)
        remote.unavailable = ""
        for peer in peers:
            peer.expect(0, Connection.OpenOk)
    assert not nodes.server.refused
    assert remote.attempts == len(peers)


def test_clients_in_the_queue_for_a_node_are_not_refused(nodes: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout is that of one attempt, not that of all clients of a node that was killed."""
    begun: list[float] = []

    async def slow_call(*arguments: Any) -> None:
        begun.append(0.0)
        await asyncio.sleep(1)
        await node_handshake.call(*arguments)

    monkeypatch.setattr(links, "call", slow_call)
    # Less than all clients take, and long enough for those of one attempt on a busy machine.
    monkeypatch.setattr(links, "CONNECT_TIMEOUT", 3.5)
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(tuned(nodes.other.port)) for _ in range(4 * links.MAX_CALLS)]
        for peer in peers:
            opening(peer)
        for peer in peers:
            peer.expect(0, Connection.OpenOk)
    assert len(begun) == nodes.remote("b").attempts == len(peers)


def test_a_vhost_deleted_while_a_client_waits(nodes: Linked) -> None:
    nodes.remote("b").unavailable = "shard 1 has no owner"
    with tuned(nodes.other.port) as peer:
        opening(peer)
        wait_until(lambda: nodes.cluster.call(lambda: any(one.session is not None for one in nodes.other.front.accepted)))
        del nodes.other.shards["b"]
        assert "vhost b not found" in peer.expect_connection_close(530).reply_text


def test_clients_that_leave_while_they_wait(nodes: Linked) -> None:
    nodes.remote("b").unavailable = "shard 1 has no owner"
    with tuned(nodes.other.port) as peer:
        opening(peer)
        peer.reset()
    nodes.wait_empty()


@pytest.mark.parametrize(
    ("secret", "name", "reason"),
    [(bytes(32), "owner", "does not know the secret"), (None, "another", "this is node 'owner', not 'another'")],
)
def test_the_wrong_node(nodes: Linked, secret: bytes | None, name: str, reason: str) -> None:
    client = nodes.other.client if secret is None else NodeClient(secret, "other")
    nodes.other.shards["b"] = RemoteShard(client, 1, NodeInfo(name, nodes.address))
    nodes.other.patience = 0.01
    with tuned(nodes.other.port) as peer:
        opening(peer)
        assert reason in peer.read_connection_close(320).reply_text
    wait_until(lambda: nodes.server.refused)
    assert not nodes.epochs
