"""Durability: objects and messages that survive a restart of the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conformance.amqp09 import kinds
from tests.conformance.amqp09.conftest import CONFIG_AMQP09, Connect
from tests.conformance.restarted import in_turn
from tests.support.broker import LeveretProcess
from tests.support.peers.amqp09 import Channel
from tests.support.polling import wait_until

Open = Callable[[], Channel]
Restart = Callable[[], None]
STORED = ("basic", "file", "message")


@pytest.fixture(scope="module")
def module_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    # The peers do not answer the close of a stop.
    process = LeveretProcess(
        tmp_path_factory.mktemp("restarted"),
        config=CONFIG_AMQP09,
        environment={"LEVERET_SERVER__SHUTDOWN_TIMEOUT": "0.2"},
    )
    yield process
    process.kill()


@pytest.fixture
def own_broker(module_broker: LeveretProcess) -> Iterator[LeveretProcess]:
    """A broker for the tests of this module, to stop, kill and start again."""
    yield from in_turn(module_broker)


@pytest.fixture
def fresh(own_broker: LeveretProcess, connect: Connect) -> Open:
    """Return channel 1 of a new connection to the running broker."""
    return lambda: connect(at=own_broker).open()


@pytest.fixture(params=["stop", "kill"])
def restart(own_broker: LeveretProcess, request: pytest.FixtureRequest) -> Restart:
    """A clean restart, and one after kill -9."""

    def do() -> None:
        if request.param == "stop":
            own_broker.stop()
        else:
            own_broker.kill()
        own_broker.start()

    return do


def publish_kept(channel: Channel, kind: str, queue: str, bodies: list[bytes]) -> None:
    """Publish persistent messages in a transaction: the reply to the commit follows when they are on disk."""
    channel.call("tx.select")
    for body in bodies:
        kinds.publish(channel, kind, body, queue, **kinds.persistent(kind))
    channel.call("tx.commit")


def contents(channel: Channel, kind: str, queue: str, count: int) -> list[bytes]:
    kinds.consume(channel, kind, queue, "reader", no_ack=True)
    bodies = kinds.receive_all(channel, kind, count)
    channel.quiet()
    return bodies


@pytest.mark.rule("0-9", "queue.declare.durable.persistence")
@pytest.mark.rule("0-9", "queue.declare.durable.text.survives")
@pytest.mark.rule("0-9", "queue.declare.durable.text.transient")
def test_durable_queues_survive(fresh: Open, restart: Restart) -> None:
    channel = fresh()
    channel.queue("kept", durable=True)
    channel.queue("transient")
    restart()
    channel = fresh()
    assert not channel.exists("transient")
    assert channel.exists("kept")
    channel.publish(b"x", "kept")
    assert channel.drain("kept") == [b"x"]
    channel.call("queue.delete", queue="kept")
    restart()
    assert not fresh().exists("kept")


@pytest.mark.rule("0-9", "queue.bind.durable-exchange")
@pytest.mark.rule("0-9", "exchange.declare.durable.text.survives")
@pytest.mark.rule("0-9", "exchange.declare.durable.text.transient")
def test_bindings_of_durable_queues_survive(fresh: Open, restart: Restart) -> None:
    channel = fresh()
    channel.exchange("kept", "topic", durable=True)
    channel.queue("q", durable=True)
    channel.bind("q", "kept", "a.#", {"x": 1})
    channel.bind("q", "kept", "unbound")
    channel.bind("q", "amq.headers", "", {"x-match": "any", "a": 1})
    channel.bind("q", "", "another name")
    channel.call("queue.unbind", queue="q", exchange="kept", routing_key="unbound")
    restart()
    channel = fresh()
    channel.publish(b"1", "a.b", "kept")
    channel.publish(b"2", "unbound", "kept")
    channel.publish(b"3", "", "amq.headers", headers={"a": 1})
    channel.publish(b"4", "another name", "")
    assert channel.drain("q") == [b"1", b"3", b"4"]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.rule("0-9", f"{kind}.01")) for kind in STORED])
def test_persistent_messages_survive(fresh: Open, restart: Restart, kind: str) -> None:
    channel = fresh()
    channel.queue("q", durable=True)
    bodies = [b"%d" % number for number in range(50)] + [bytes(range(256)) * 100, b"last"]
    publish_kept(channel, kind, "q", bodies)
    restart()
    assert contents(fresh(), kind, "q", len(bodies)) == bodies


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.rule("0-9", f"{kind}.01")) for kind in STORED])
def test_settled_messages_stay_settled_and_unacked_ones_are_redelivered(fresh: Open, restart: Restart, kind: str) -> None:
    channel = fresh()
    channel.queue("q", durable=True)
    publish_kept(channel, kind, "q", [b"%d" % number for number in range(4)])
    second = channel.peer.open(2)
    second.call("tx.select")
    kinds.consume(second, kind, "q", "c")
    held = [kinds.receive(second, kind) for _ in range(4)]
    for got in held[:2]:
        kinds.ack(second, kind, got)
    second.call("tx.commit")
    restart()
    channel = fresh()
    kinds.consume(channel, kind, "q", "c", no_ack=True)
    again = [kinds.receive(channel, kind) for _ in range(2)]
    assert [(got.body, got.redelivered) for got in again] == [(b"2", True), (b"3", True)]
    channel.quiet()


@pytest.mark.rule("0-9", "message.transfer.01")
def test_a_transfer_is_answered_when_it_is_safe(own_broker: LeveretProcess, fresh: Open) -> None:
    channel = fresh()
    channel.queue("q", durable=True)
    for number in range(20):
        kinds.publish(channel, "message", b"%d" % number, "q", delivery_mode=2)
    own_broker.kill()  # right after the ok
    own_broker.start()
    assert contents(fresh(), "message", "q", 20) == [b"%d" % number for number in range(20)]


@pytest.mark.rule("0-9", "queue.purge.03")
def test_purged_messages_stay_purged(fresh: Open, restart: Restart) -> None:
    channel = fresh()
    channel.queue("q", durable=True)
    publish_kept(channel, "basic", "q", [b"x" * 1000] * 300)
    assert channel.call("queue.purge", queue="q").message_count == 300
    publish_kept(channel.peer.open(2), "basic", "q", [b"later"])
    restart()
    assert fresh().drain("q") == [b"later"]


def stored(broker: LeveretProcess) -> int:
    """Bytes of the store's files."""
    return sum(path.stat().st_size for path in broker.data_dir.glob("*.sqlite*"))


@pytest.mark.embedded("measures the database file")
@pytest.mark.rule("0-9", "queue.purge.03")
def test_purged_messages_free_their_space(own_broker: LeveretProcess, fresh: Open) -> None:
    channel = fresh()
    channel.queue("q", durable=True)
    publish_kept(channel, "basic", "q", [b"x" * 100_000] * 300)
    assert stored(own_broker) > 30_000_000
    channel.call("queue.purge", queue="q")
    publish_kept(channel.peer.open(2), "basic", "q", [b"later"])
    wait_until(
        lambda: stored(own_broker) <= 15_000_000, lambda: f"{stored(own_broker)} bytes on disk after 30 MB were purged"
    )
    assert channel.drain("q") == [b"later"]


@pytest.mark.rule("0-9", "file.open-ok.staged-size.02")
def test_a_partly_staged_file_outlives_its_connection_and_the_broker(fresh: Open, restart: Restart) -> None:
    channel = fresh()
    body = bytes(range(256)) * 1000
    channel.queue("q", durable=True)
    assert channel.call("file.open", identifier="f", content_size=len(body)).staged_size == 0
    channel.stage_bytes(body[:100_000])
    channel.peer.close()
    channel = fresh()
    assert channel.call("file.open", identifier="f", content_size=len(body)).staged_size == 100_000
    channel.close()
    restart()
    channel = fresh()
    at = channel.call("file.open", identifier="f", content_size=len(body)).staged_size
    assert at == 100_000
    channel.stage_bytes(body[at:])
    channel.send("file.publish", routing_key="q", identifier="f")
    channel.consume("q", kind="file", no_ack=True)
    assert channel.file().body == body
