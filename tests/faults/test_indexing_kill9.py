"""Starts with a large log: the broker serves while it indexes the messages, and is killed or stopped meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pamqp.commands import Basic, Queue

import leveret.sync
from leveret.management.control_client import call
from leveret.wire.amqp10.transport import Flow
from tests.cli.runner import Commands
from tests.support.broker import LeveretProcess
from tests.support.large_log import add_messages, body_of
from tests.support.peers import amqp091, amqp10
from tests.support.polling import wait_until
from tests.support.requests import ask

pytestmark = pytest.mark.slow

# Enough rows for seconds of indexing.
COUNT = 120_000
FEW = 10
# A slow client may be late for the indexing.
ATTEMPTS = 5


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[LeveretProcess]:
    """A stopped broker: the queue `deep` has COUNT messages, `few` has FEW, and `idle` is empty."""
    with LeveretProcess(tmp_path) as process:
        process.start()
        with amqp091.Peer(process.host, process.port) as peer:
            peer.handshake()
            channel = peer.channel()
            for name in ("deep", "few", "idle"):
                channel.queue(name, exclusive=False, durable=True)
        process.stop()
        add_messages(process.data_dir, "few", FEW)
        add_messages(process.data_dir, "deep", COUNT)
        yield process
    process.check_log()


def use_unindexed(process: LeveretProcess, body: bytes) -> bool:
    """Publish to an unindexed queue, with a confirm, and use two others. Return whether the first is still unindexed."""
    with amqp091.Peer(process.host, process.port) as peer:
        peer.handshake()
        waiting, channel = peer.channel(1), peer.channel(2)
        waiting.send(Queue.Declare, queue="few", passive=True)
        waiting.send(Basic.Get, queue="few")
        channel.confirm_select()
        channel.publish(body, "few", delivery_mode=2)
        channel.expect(Basic.Ack)
        for name in ("idle", channel.queue()):
            channel.publish(b"m", name, delivery_mode=2)
            channel.expect(Basic.Ack)
            content = channel.get(name)
            assert content is not None and content.body == b"m"
        found = Commands(process.data_dir).run("health", "--indexed")
        return found.exit_code == 1 and "are being indexed" in found.output


def test_it_serves_while_it_indexes_and_loses_nothing_if_it_is_killed_or_stopped(deep: LeveretProcess) -> None:
    bodies: list[bytes] = []
    for end in (deep.stop, deep.kill):
        for _ in range(ATTEMPTS):
            deep.start()
            bodies.append(b"new%05d" % len(bodies))
            if use_unindexed(deep, bodies[-1]):
                end()
                break
            deep.stop()
        else:
            pytest.fail(f"the indexing of {COUNT} messages was complete before a client could use another queue")
    deep.start()
    with amqp091.Peer(deep.host, deep.port) as peer:
        peer.handshake()
        channel = peer.channel()
        channel.qos(3)
        channel.consume("deep")
        assert [item.body for item in channel.deliveries(3)] == [body_of(seq) for seq in (1, 2, 3)]
        assert Commands(deep.data_dir).ok("health", "--indexed") == "ok\n"
        other = peer.channel(2)
        assert other.depth("few") == FEW + len(bodies)
        assert other.drain("few") == [*(body_of(seq) for seq in range(1, FEW + 1)), *bodies]
        channel.close()
        assert other.call(Queue.Purge, Queue.PurgeOk, queue="deep").message_count == COUNT


def test_requests_during_the_indexing_get_exact_answers(deep: LeveretProcess) -> None:
    deep.start()
    with amqp091.Peer(deep.host, deep.port) as peer:
        peer.handshake()
        channel = peer.channel()
        # Pipelined: each waits for the ones before.
        channel.send(Queue.Declare, queue="deep", passive=True)
        channel.send(Basic.Get, queue="deep", no_ack=True)
        channel.send(Queue.Purge, queue="deep")
        channel.send(Queue.Delete, queue="deep", if_empty=True)
        assert channel.expect(Queue.DeclareOk).message_count == COUNT
        content = channel.expect_content(Basic.GetOk)
        assert content.body == body_of(1) and content.method.message_count == COUNT - 1
        assert channel.expect(Queue.PurgeOk).message_count == COUNT - 1
        assert channel.expect(Queue.DeleteOk).message_count == 0


def test_a_drain_during_the_indexing_delivers_recovered_messages(deep: LeveretProcess) -> None:
    deep.start()
    with amqp10.Peer(deep.host, deep.port) as peer:
        peer.login()
        peer.open()
        receiver = peer.begin().receiver("/queues/few")
        receiver.flow(FEW + 1, drain=True)
        for seq in range(1, FEW + 1):
            assert receiver.get().payload.endswith(body_of(seq))
        assert receiver.session.take(Flow, lambda flow: flow.handle is not None and flow.link_credit == 0)


def test_management_waits_for_the_indexing(deep: LeveretProcess) -> None:
    deep.start()
    queues = call(deep.data_dir, "queues.list", {"vhost": "/"})
    assert {queue["name"]: queue["ready"] for queue in queues} == {"deep": COUNT, "few": FEW, "idle": 0}
    deep.kill()
    deep.start()
    with leveret.sync.connect(deep.url()) as connection:
        assert ask(connection.channel(), "queue.describe", queue="deep")["messages"] == COUNT


def test_damage_that_the_indexing_finds_stops_the_broker(deep: LeveretProcess) -> None:
    with closing(sqlite3.connect(deep.data_dir / "log-0.sqlite")) as connection:
        connection.execute("UPDATE log SET entries = zeroblob(length(entries)) WHERE id = (SELECT max(id) FROM log)")
        connection.commit()
    deep.start()
    assert deep.process is not None
    process = deep.process
    assert wait_until(process.poll, "the broker has exited") == 1
    deep.process = None
    assert "--drop-damaged" in deep.log()
