"""Events about activity over 0-9-1 and AMQP 1.0, received by real clients over both."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from tests.interop.conftest import Connect
from tests.interop.helpers import count, get
from tests.support.broker import Broker, LeveretProcess, basic_config
from tests.support.polling import wait_until

EVENTS = "amq.leveret.events"
Event = dict[str, Any]
LASTING = pika.BasicProperties(delivery_mode=2)


@pytest.fixture(autouse=True)
def only_leveret(broker: Broker) -> None:
    if broker.kind != "leveret":
        pytest.skip("other brokers have no such exchange")


class Listener:
    """A queue for events, and the received events of each type."""

    def __init__(self, channel: BlockingChannel, *patterns: str) -> None:
        self.channel = channel
        self.queue = channel.queue_declare("", exclusive=True).method.queue
        for pattern in patterns:
            channel.queue_bind(self.queue, EVENTS, pattern)
        self.events: list[Event] = []

    def total(self, event: str, **wanted: Any) -> int:
        """Return how many messages the events with these fields represent."""
        while True:
            method, properties, body = self.channel.basic_get(self.queue, auto_ack=True)
            if method is None:
                break
            assert properties.content_type == "application/json"
            assert method.exchange == EVENTS
            self.events.append(json.loads(body))
        return sum(
            item["sample"]
            for item in self.events
            if item["event"] == event and all(item.get(name) == value for name, value in wanted.items())
        )

    def wait(self, expected: int, event: str, **wanted: Any) -> None:
        """Wait until events represent this many messages, and check that they do not represent more."""
        wait_until(lambda: self.total(event, **wanted) >= expected, f"{expected} x {event}")
        assert self.total(event, **wanted) == expected


@pytest.fixture
def listener(connect: Connect, name: str) -> Listener:
    """Receives events about the queues and exchanges whose names begin with the test's."""
    return Listener(connect().channel(), f"*.{name}.#")


def test_counts_add_up(connect: Connect, listener: Listener, channel: BlockingChannel, name: str) -> None:
    exchange = f"{name}.x"
    channel.exchange_declare(exchange, "topic", auto_delete=True)
    for number in range(3):
        channel.queue_declare(
            f"{name}.{number}",
            arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.dead"} if number == 0 else {},
        )
        channel.queue_bind(f"{name}.{number}", exchange, f"all.#.{number}.#" if number else "all.#")
    channel.queue_declare(f"{name}.dead")
    channel.confirm_delivery()
    for number in range(40):
        channel.basic_publish(exchange, "all.1.2" if number % 2 else "all", b"x" * number)
    for _ in range(5):
        channel.basic_publish(exchange, "none", b"")
    with pytest.raises(UnroutableError):
        channel.basic_publish(exchange, "none", b"back", mandatory=True)
    listener.wait(46, "published", exchange=exchange, protocol="0-9-1")
    listener.wait(6, "unroutable", exchange=exchange, routing_key="none")
    listener.wait(40, "routed", queue=f"{name}.0")
    listener.wait(20, "routed", queue=f"{name}.1")
    listener.wait(20, "routed", queue=f"{name}.2")
    consuming = connect().channel()
    for number in range(40):
        tag = get(consuming, f"{name}.0", auto_ack=False).method.delivery_tag
        if number % 4:
            consuming.basic_ack(tag)
        else:
            consuming.basic_reject(tag, requeue=False)
    consuming.queue_purge(f"{name}.1")
    consuming.queue_delete(f"{name}.2")
    listener.wait(40, "delivered", queue=f"{name}.0")
    listener.wait(30, "settled", queue=f"{name}.0", outcome="accepted")
    listener.wait(10, "settled", queue=f"{name}.0", outcome="rejected")
    listener.wait(10, "dead-lettered", queue=f"{name}.0", outcome="routed", reason="rejected")
    listener.wait(10, "routed", queue=f"{name}.dead", routing_key=f"{name}.dead")
    listener.wait(20, "settled", queue=f"{name}.1", outcome="dropped", reason="purged")
    listener.wait(20, "settled", queue=f"{name}.2", outcome="dropped", reason="deleted")
    sizes = [item["size"] for item in listener.events if item["event"] == "delivered"]
    assert sizes == list(range(40))
    assert all(item["age_ms"] >= 0 for item in listener.events if item["event"] == "delivered")
    for number in range(2):
        channel.queue_delete(f"{name}.{number}")
    channel.queue_delete(f"{name}.dead")


def test_a_consumer(connection: BlockingConnection, listener: Listener, channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    for number in range(20):
        channel.basic_publish("", name, b"%d" % number)
    taken = []
    channel.basic_qos(prefetch_count=5)
    for method, _, body in channel.consume(name, inactivity_timeout=60):
        taken.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(taken) == 20:
            break
    assert taken == [b"%d" % number for number in range(20)]
    listener.wait(20, "routed", queue=name)
    listener.wait(20, "delivered", queue=name, protocol="0-9-1")
    listener.wait(20, "settled", queue=name, outcome="accepted", protocol="0-9-1")
    assert all("age_ms" in item for item in listener.events if item["event"] in ("delivered", "settled"))


def test_expired_and_alternate(listener: Listener, channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(f"{name}.other", "fanout", auto_delete=True)
    channel.exchange_declare(f"{name}.x", "direct", auto_delete=True, arguments={"alternate-exchange": f"{name}.other"})
    channel.queue_declare(name, exclusive=True)
    channel.queue_bind(name, f"{name}.other")
    channel.queue_bind(name, f"{name}.x", "bound")
    channel.basic_publish(f"{name}.x", "unbound", b"a", pika.BasicProperties(expiration="20"))
    listener.wait(1, "published", exchange=f"{name}.x")
    listener.wait(1, "routed", queue=name, exchange=f"{name}.x", routing_key="unbound")
    listener.wait(1, "expired", queue=name)
    assert listener.total("unroutable") == listener.total("published", exchange=f"{name}.other") == 0


def test_transactions(listener: Listener, channel: BlockingChannel, connect: Connect, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.tx_select()
    for end in (channel.tx_rollback, channel.tx_commit):
        for _ in range(10):
            channel.basic_publish("", name, b"in a transaction")
        end()
    assert count(channel, name) == 10
    listener.wait(10, "routed", queue=name)


def test_publishes_of_transactions_are_events_at_the_commit(connect: Connect, channel: BlockingChannel, name: str) -> None:
    exchange = f"{name}.x"
    listener = Listener(connect().channel(), f"published.{exchange}")
    channel.exchange_declare(exchange, "fanout", auto_delete=True)
    channel.queue_declare(name, exclusive=True)
    channel.queue_bind(name, exchange)
    channel.tx_select()
    for end in (channel.tx_rollback, channel.tx_commit):
        for _ in range(10):
            channel.basic_publish(exchange, "", b"in a transaction")
        end()
    listener.wait(10, "published", exchange=exchange)


def test_streams_and_a_stream_of_events(connect: Connect, channel: BlockingChannel, name: str) -> None:
    """A stream that stores the events of another one."""
    kept = f"kept.{name}"
    channel.queue_declare(kept, durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_bind(kept, EVENTS, f"*.{name}")
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    for number in range(10):
        channel.basic_publish("", name, b"%d" % number)
    for _ in range(2):
        reader = connect().channel()
        reader.basic_qos(prefetch_count=3)
        bodies = []
        for method, _, body in reader.consume(name, arguments={"x-stream-offset": "first"}, inactivity_timeout=60):
            bodies.append(body)
            reader.basic_ack(method.delivery_tag)
            if len(bodies) == 10:
                break
    wait_until(lambda: count(channel, kept) >= 50, "50 events")
    history = connect().channel()
    history.basic_qos(prefetch_count=100)
    told: list[Event] = []
    for method, properties, body in history.consume(kept, arguments={"x-stream-offset": "first"}, inactivity_timeout=60):
        assert properties.headers["x-stream-offset"] == len(told)
        told.append(json.loads(body))
        history.basic_ack(method.delivery_tag)
        if len(told) == 50:
            break
    assert Counter((event["event"], event.get("outcome")) for event in told) == {
        ("routed", None): 10,
        ("delivered", None): 20,
        ("settled", "accepted"): 20,
    }
    assert count(channel, kept) == 50
    channel.queue_delete(name)
    channel.queue_delete(kept)


def test_users_may_not_publish_to_it_or_change_it(connect: Connect) -> None:
    def refused(action: str, code: int, *arguments: Any, **options: Any) -> None:
        channel = connect().channel()
        with pytest.raises(ChannelClosedByBroker) as caught:
            getattr(channel, action)(*arguments, **options)
            channel.queue_declare("", exclusive=True)
        assert caught.value.reply_code == code

    refused("basic_publish", 403, EVENTS, "routed.q", b"{}")
    refused("exchange_delete", 403, EVENTS)
    refused("exchange_declare", 406, EVENTS, "fanout", durable=True, internal=True)


def test_users_without_read_permission_get_no_events(connect: Connect) -> None:
    channel = connect("limited", "secret", virtual_host="interop").channel()
    channel.queue_declare("mine-events", exclusive=True)
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_bind("mine-events", EVENTS, "#")
    assert caught.value.reply_code == 403


@pytest.fixture
def amqp10(broker: Broker) -> Iterator[Any]:
    utils = pytest.importorskip("proton.utils", reason="Qpid Proton is not installed")
    connection = utils.BlockingConnection(f"amqp://{broker.host}:{broker.port}", timeout=60)
    yield connection
    connection.close()


class TestOver10:
    def test_events_of_activity_over_1_0(
        self, amqp10: Any, listener: Listener, channel: BlockingChannel, name: str
    ) -> None:
        proton = pytest.importorskip("proton")
        channel.queue_declare(name)
        sender = amqp10.create_sender(name)
        for number in range(6):
            sender.send(proton.Message(b"x" * number, durable=True))
        receiver = amqp10.create_receiver(name, credit=6)
        for act in (receiver.accept, receiver.reject, lambda: receiver.release(delivered=False)):
            receiver.receive(timeout=60)
            act()
        receiver.close()
        listener.wait(6, "routed", queue=name, protocol="1.0")
        listener.wait(1, "settled", queue=name, outcome="accepted", protocol="1.0")
        listener.wait(1, "settled", queue=name, outcome="rejected", protocol="1.0")
        wait_until(lambda: listener.total("settled", outcome="released") >= 1)
        assert listener.total("delivered", protocol="1.0") == listener.total("settled", protocol="1.0")
        channel.queue_delete(name)

    def test_a_subscription_gets_events(self, amqp10: Any, channel: BlockingChannel, name: str) -> None:
        receiver = amqp10.create_receiver(f"/exchanges/{EVENTS}/routed.{name}", credit=10)
        channel.queue_declare(name, exclusive=True)
        channel.basic_publish("", name, b"four")
        message = receiver.receive(timeout=60)
        receiver.accept()
        assert message.content_type == "application/json"
        event = json.loads(bytes(message.body))
        assert (event["event"], event["queue"], event["size"], event["protocol"]) == ("routed", name, 4, "0-9-1")
        receiver.close()

    def test_users_may_not_publish_to_it(self, amqp10: Any) -> None:
        utils = pytest.importorskip("proton.utils")
        with pytest.raises(utils.LinkDetached) as caught:
            amqp10.create_sender(f"/exchanges/{EVENTS}")
        assert caught.value.condition == "amqp:unauthorized-access"


class TestOfABrokerOfItsOwn:
    @pytest.fixture
    def process(self, tmp_path: Path) -> Iterator[LeveretProcess]:
        broker = LeveretProcess(tmp_path, config=basic_config() + "[events]\nsample = 10\n")
        broker.start()
        yield broker
        broker.stop()
        broker.check_log()

    def test_samples_and_a_restart(self, process: LeveretProcess) -> None:
        """Bindings of durable queues apply after a restart, and one in ten events is published."""
        with BlockingConnection(pika.URLParameters(process.url())) as connection:
            channel = connection.channel()
            channel.queue_declare("kept", durable=True, arguments={"x-queue-type": "stream"})
            channel.queue_bind("kept", EVENTS, "routed.q")
            channel.queue_declare("q", durable=True)
        process.stop()
        process.start()
        with BlockingConnection(pika.URLParameters(process.url())) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for _ in range(500):
                channel.basic_publish("", "q", b"m", LASTING)
            wait_until(lambda: count(channel, "kept") >= 50, "50 events")
            assert count(channel, "kept") == 50
            channel.basic_qos(prefetch_count=10)
            method, _, body = next(channel.consume("kept", arguments={"x-stream-offset": "first"}, inactivity_timeout=60))
            assert json.loads(body)["sample"] == 10
            channel.basic_ack(method.delivery_tag)
