"""Durability: objects and messages that survive a restart of the broker."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from tests.conformance.conftest import CONFIG, MODES
from tests.conformance.restarted import in_turn
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.peers.amqp091 import Basic, Channel, Confirm, Connection, Exchange, Peer, Queue, Tx
from tests.support.polling import wait_until

Open = Callable[[], Channel]


@pytest.fixture(scope="module")
def module_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    leveret_only("it is restarted")
    process = LeveretProcess(tmp_path_factory.mktemp("restarted"), config=CONFIG)
    yield process
    process.kill()


@pytest.fixture
def own_broker(module_broker: LeveretProcess) -> Iterator[LeveretProcess]:
    """A broker for the tests of this module, to stop, kill and start again."""
    yield from in_turn(module_broker)


@pytest.fixture
def peers() -> Iterator[list[Peer]]:
    """The open connections."""
    opened: list[Peer] = []
    yield opened
    for peer in opened:
        peer.drop()


@pytest.fixture
def fresh(own_broker: LeveretProcess, mode: str, peers: list[Peer]) -> Open:
    """Return channel 1 of a new connection to the running broker."""

    def make() -> Channel:
        peer = Peer(own_broker.host, own_broker.port)
        peers.append(peer)
        peer.handshake(MODES[mode])
        return peer.channel()

    return make


def stop(broker: LeveretProcess, peers: list[Peer]) -> None:
    """Stop the broker cleanly: every client receives a close and replies."""
    assert broker.process is not None
    broker.process.send_signal(signal.SIGTERM)
    for peer in peers:
        peer.read_connection_close(320)
        peer.send(0, Connection.CloseOk())
    assert broker.process.wait(60) == 0
    broker.process = None


@pytest.fixture(params=["stop", "kill"])
def restart(own_broker: LeveretProcess, peers: list[Peer], request: pytest.FixtureRequest) -> Callable[[], None]:
    """A clean restart, and one after kill -9."""

    def do() -> None:
        if request.param == "stop":
            stop(own_broker, peers)
        else:
            own_broker.kill()
        for peer in peers:
            peer.drop()
        peers.clear()
        own_broker.start()

    return do


def confirmed(channel: Channel, queue: str, bodies: list[bytes]) -> None:
    """Publish persistent messages and wait until they are confirmed."""
    channel.call(Confirm.Select, Confirm.SelectOk)
    for body in bodies:
        channel.publish(body, queue, delivery_mode=2)
    last = 0
    while last < len(bodies):
        last = max(last, int(channel.expect(Basic.Ack).delivery_tag or 0))


@pytest.mark.rule("0-9-1", "queue.declare.durable.persistence")
@pytest.mark.rule("0-9-1", "queue.declare.durable.text.survives")
@pytest.mark.rule("0-9-1", "queue.declare.durable.text.transient")
def test_durable_queues_survive(fresh: Open, restart: Callable[[], None]) -> None:
    channel = fresh()
    channel.queue("kept", exclusive=False, durable=True, arguments={"x-max-length": 10})
    channel.queue("transient", exclusive=False)
    restart()
    channel = fresh()
    assert channel.exists("kept")
    assert not channel.exists("transient")
    channel.publish(b"x", "kept")
    assert channel.drain("kept") == [b"x"]
    channel.queue("kept", exclusive=False, durable=True, arguments={"x-max-length": 10})
    channel.call(Queue.Delete, Queue.DeleteOk, queue="kept")
    restart()
    assert not fresh().exists("kept")


@pytest.mark.rule("0-9-1", "queue.bind.durable-exchange")
@pytest.mark.rule("0-9-1", "exchange.declare.durable.text.marks")
@pytest.mark.rule("0-9-1", "exchange.declare.durable.text.survives")
@pytest.mark.rule("0-9-1", "exchange.declare.durable.text.transient")
def test_bindings_of_durable_queues_to_durable_exchanges_survive(fresh: Open, restart: Callable[[], None]) -> None:
    channel = fresh()
    channel.exchange("kept", "topic", durable=True, arguments={"alternate-exchange": "amq.fanout"})
    channel.exchange("transient", "topic")
    channel.queue("q", exclusive=False, durable=True)
    channel.bind("q", "kept", "a.#", {"x": 1})
    channel.bind("q", "kept", "unbound")
    channel.bind("q", "transient", "#")
    channel.bind("q", "amq.headers", "", {"x-match": "any", "a": 1})
    channel.call(Queue.Unbind, Queue.UnbindOk, queue="q", exchange="kept", routing_key="unbound")
    restart()
    channel = fresh()
    channel.publish(b"1", "a.b", "kept")
    channel.publish(b"2", "unbound", "kept")
    channel.publish(b"3", "", "amq.headers", headers={"a": 1})
    assert channel.drain("q") == [b"1", b"3"]
    channel.exchange("kept", "topic", durable=True, arguments={"alternate-exchange": "amq.fanout"})
    channel.send(Exchange.Declare, exchange="transient", passive=True)
    channel.expect_close(404)


@pytest.mark.rule("0-9-1", "basic.01")
def test_persistent_messages_survive_unchanged(fresh: Open, restart: Callable[[], None]) -> None:
    channel = fresh()
    channel.queue("q", exclusive=False, durable=True)
    large = bytes(range(256)) * 8192
    channel.publish(b"transient", "q", delivery_mode=1)
    channel.publish(b"with properties", "q", "", delivery_mode=2, message_id="m", headers={"a": [1, "ü"]}, priority=4)
    confirmed(channel, "q", [b"%d" % number for number in range(100)] + [large, b""])
    restart()
    channel = fresh()
    content = channel.get("q")
    assert content is not None
    if content.body == b"transient":  # it may survive
        content = channel.get("q")
        assert content is not None
    assert (content.body, content.properties.message_id, content.properties.headers, content.properties.priority) == (
        b"with properties",
        "m",
        {"a": [1, "ü"]},
        4,
    )
    assert channel.drain("q") == [*(b"%d" % number for number in range(100)), large, b""]


@pytest.mark.rule("0-9-1", "basic.01")
def test_settled_messages_stay_settled_and_unacked_ones_are_redelivered(fresh: Open, restart: Callable[[], None]) -> None:
    channel = fresh()
    channel.queue("q", exclusive=False, durable=True)
    confirmed(channel, "q", [b"%d" % number for number in range(10)])
    second = channel.peer.channel(2)
    second.call(Tx.Select, Tx.SelectOk)
    contents = [second.get("q", no_ack=False) for _ in range(6)]
    for content in contents[:4]:
        assert content is not None
        second.ack(content.tag)
    second.call(Tx.Commit, Tx.CommitOk)
    restart()
    channel = fresh()
    again = [channel.get("q") for _ in range(6)]
    assert [content.body for content in again if content] == [b"%d" % number for number in range(4, 10)]
    assert [content.redelivered for content in again[:2] if content] == [True, True]
    assert channel.get("q") is None


@pytest.mark.rule("0-9-1", "basic.01")
def test_priorities_are_kept(fresh: Open, restart: Callable[[], None]) -> None:
    channel = fresh()
    channel.queue("q", exclusive=False, durable=True)
    channel.confirm_select()
    for level in (2, 9, 5, 0):
        channel.publish(b"%d" % level, "q", delivery_mode=2, priority=level)
    last = 0
    while last < 4:
        last = max(last, int(channel.expect(Basic.Ack).delivery_tag or 0))
    restart()
    assert fresh().drain("q") == [b"9", b"5", b"2", b"0"]


@pytest.mark.rule("0-9-1", "queue.purge.03")
def test_purged_messages_stay_purged(fresh: Open, restart: Callable[[], None]) -> None:
    channel = fresh()
    channel.queue("q", exclusive=False, durable=True)
    confirmed(channel, "q", [b"x" * 1000] * 500)
    assert channel.call(Queue.Purge, Queue.PurgeOk, queue="q").message_count == 500
    confirmed(channel.peer.channel(2), "q", [b"later"])
    restart()
    assert fresh().drain("q") == [b"later"]


@pytest.mark.rule("0-9-1", "queue.purge.03")
@pytest.mark.mode("rabbitmq")
def test_purged_messages_free_their_space(own_broker: LeveretProcess, fresh: Open) -> None:
    channel = fresh()
    channel.queue("q", exclusive=False, durable=True)
    confirmed(channel, "q", [b"x" * 100_000] * 300)
    assert stored(own_broker) > 30_000_000
    channel.call(Queue.Purge, Queue.PurgeOk, queue="q")
    confirmed(channel.peer.channel(2), "q", [b"later"])
    wait_until(
        lambda: stored(own_broker) <= 15_000_000, lambda: f"{stored(own_broker)} bytes on disk after 30 MB were purged"
    )
    assert channel.drain("q") == [b"later"]


def stored(broker: LeveretProcess) -> int:
    """Bytes of the store's files."""
    return sum(path.stat().st_size for path in broker.data_dir.glob("*.sqlite*"))


@pytest.mark.rule("0-9-1", "tx.not-multiple-queues")
def test_a_committed_transaction_survives_completely(fresh: Open, restart: Callable[[], None]) -> None:
    channel = fresh()
    for queue in ("a", "b", "c"):
        channel.queue(queue, exclusive=False, durable=True)
    confirmed(channel, "a", [b"work"])
    second = channel.peer.channel(2)
    second.call(Tx.Select, Tx.SelectOk)
    content = second.get("a", no_ack=False)
    assert content is not None
    second.publish(b"done", "b", delivery_mode=2)
    second.publish(b"audit", "c", delivery_mode=2)
    second.ack(content.tag)
    second.call(Tx.Commit, Tx.CommitOk)
    second.publish(b"not committed", "b", delivery_mode=2)
    second.quiet()
    restart()
    channel = fresh()
    assert [channel.drain(queue) for queue in ("a", "b", "c")] == [[], [b"done"], [b"audit"]]


@pytest.mark.rule("0-9-1", "basic.deliver.01")
@pytest.mark.mode("strict")
def test_the_strict_limit_applies_after_a_restart(fresh: Open, restart: Callable[[], None], peers: list[Peer]) -> None:
    channel = fresh()
    channel.queue("q", exclusive=False, durable=True)
    confirmed(channel, "q", [b"poison"])
    restart()
    deliveries = 0
    while (content := (channel := fresh()).get("q", no_ack=False)) is not None:
        deliveries += 1
        assert deliveries <= 7, "the limit was forgotten"
        channel.reject(content.tag, requeue=True)
        channel.quiet()
        channel.peer.close()
        peers.remove(channel.peer)
    assert fresh().drain("amq.dead") == [b"poison"]


@pytest.mark.rule("0-9-1", "basic.02")
@pytest.mark.mode("strict")
def test_the_dead_letter_queue_survives_with_its_messages(fresh: Open, restart: Callable[[], None]) -> None:
    channel = fresh()
    channel.queue("q", exclusive=False, durable=True, arguments={"x-max-length": 1})
    confirmed(channel, "q", [b"1", b"2", b"3"])
    restart()
    channel = fresh()
    assert channel.drain("q") == [b"3"]
    assert channel.drain("amq.dead") == [b"1", b"2"]
    restart()
    assert fresh().exists("amq.dead")
