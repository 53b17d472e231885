"""Clients of the wrong node: every protocol, management, and the freeze and the death of the owner."""

from __future__ import annotations

import contextlib
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from leveret.management.control_client import call
from leveret.wire.amqp10.transport import Close
from tests.cluster.sharded import running
from tests.cluster.test_nodes import Node, dsn, owners
from tests.support.peers import amqp09, amqp091, amqp10
from tests.support.peers.amqp091 import Connection
from tests.support.polling import wait_until

__all__ = ["dsn"]

LARGE = b"0123456789abcdef" * (2 << 16)  # 2 MiB


def exchange(peer: amqp091.Peer) -> None:
    channel = peer.channel()
    channel.queue("large", exclusive=False)
    channel.publish(LARGE, "large")
    content = channel.get("large")
    assert content is not None and content.body == LARGE


def is_ready(node: Node) -> bool:
    """Return whether a node knows the owners of all shards that are in use."""
    return {shard["state"] for shard in node.ask("shards.list")} == {"ready", "idle"}


def reopened(node: Node, vhost: str) -> amqp091.Peer:
    """Return a client that comes back until the vhost is open. The node holds each attempt while the shard moves."""

    def attempt() -> amqp091.Peer | None:
        peer = amqp091.Peer("127.0.0.1", node.port)
        try:
            peer.handshake(vhost, "guest", "guest")
        except AssertionError:
            peer.drop()
            return None
        return peer

    found = wait_until(attempt, node.log)
    assert found is not None
    return found


@pytest.mark.slow
def test_clients_of_the_wrong_node(tmp_path: Path, dsn: str) -> None:
    first = Node(tmp_path / "first", dsn, "a")
    second = Node(tmp_path / "second", dsn, "a", "b")
    with running(first), running(second):
        for node in (first, second):
            wait_until(partial(is_ready, node), lambda: f"{first.log()}\n{second.log()}")
        places = second.placed()
        by_name = {"first": first, "second": second}
        owner = by_name[str(owners(dsn)[places["a"]])]
        wrong = second if owner is first else first
        with (
            amqp091.Peer("127.0.0.1", wrong.port) as peer,
            amqp09.Peer("127.0.0.1", wrong.port) as older,
            amqp10.Peer("127.0.0.1", wrong.port) as newer,
        ):
            wrong.publish("a", b"kept")
            peer.handshake("a", "guest", "guest")
            exchange(peer)
            older.connect("a", "guest", "guest")
            opened = older.open()
            opened.queue("q09")
            opened.publish(LARGE, "q09")
            content = opened.get("q09")
            assert content is not None and content.body == LARGE
            newer.login("PLAIN", b"\0guest\0guest")
            newer.open("box", hostname="vhost:a")
            newer.begin().sender("/queues/large").deliver(amqp10.message(b"by 1.0"))
            # Management at any node.
            for node in (first, second):
                assert {"large", "q09"} <= {queue["name"] for queue in call(node.data_dir, "queues.list", {"vhost": "a"})}
                shown = [one for one in call(node.data_dir, "connections.list", {}) if one["vhost"] == "a"]
                assert len(shown) == 3
                assert {one["name"] for one in shown} >= {f"127.0.0.1:{peer.local_port} -> 127.0.0.1:{wrong.port}"}
            (number,) = [one["number"] for one in shown if str(older.local_port) in one["name"]]
            wrong.ask("connections.close", number=number, reason="enough")
            older.expect_end(320)
            # The shard's process is frozen: the other node takes it over, and the relays are closed at once.
            frozen = owner.shard_pid(places["a"])
            os.kill(frozen, signal.SIGSTOP)
            assert peer.read_connection_close(320).reply_text
            closed = newer.read()
            assert isinstance(closed, Close) and closed.error is not None
            assert closed.error.condition == "amqp:connection:forced"
            with reopened(wrong, "a"):
                assert wrong.bodies("a") == [b"kept"]
            with contextlib.suppress(ProcessLookupError):  # its node may have killed it
                os.kill(frozen, signal.SIGCONT)
        # The owner of a shard dies in the middle of a message.
        owner = by_name[str(owners(dsn)[places["a"]])]
        wrong = second if owner is first else first
        with reopened(wrong, "a") as peer:
            channel = peer.channel()
            channel.queue("many", exclusive=False)
            for _ in range(8):
                channel.publish(LARGE, "many")
            channel.consume("many", no_ack=True)
            peer.read(1)
            owner.kill()
            while not isinstance(value := peer.read(None), Connection.Close):
                pass
            assert value.reply_code == 320
        with reopened(wrong, "a") as again:
            exchange(again)
        # The node of a client is frozen: what the client has not acknowledged is delivered to others.
        owner.start()
        wait_until(partial(is_ready, owner), lambda: f"{first.log()}\n{second.log()}")
        owner, wrong = wrong, owner
        owner.publish("a", b"unacked")
        with reopened(wrong, "a") as peer:
            unacked = peer.channel().get("q", no_ack=False)
            assert unacked is not None and unacked.body == b"unacked"
            os.kill(wrong.pid, signal.SIGSTOP)
            wait_until(lambda: owner.bodies("a") == [b"unacked"], lambda: f"{first.log()}\n{second.log()}")
            os.kill(wrong.pid, signal.SIGCONT)
