"""Deduplication with real clients of both protocols, and after kills of the broker."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.helpers import count, drain
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.polling import wait_until
from tests.support.postgres import postgres_settings, require_postgres, shared_server

proton = pytest.importorskip("proton")
proton_utils = pytest.importorskip("proton.utils")

KEY = "x-deduplication-header"
WINDOW = {"x-deduplication-window": 3_600_000}


@pytest.fixture(autouse=True)
def only_leveret() -> None:
    leveret_only("RabbitMQ's plugin is not part of it")


@pytest.fixture
def process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LeveretProcess]:
    """A broker over SQLite, or over the engine that the test names."""
    environment: dict[str, str] = {}
    if getattr(request, "param", "sqlite") == "postgresql":
        require_postgres()
        environment = postgres_settings(shared_server().database())
    process = LeveretProcess(tmp_path, environment=environment)
    with process.start():
        yield process
        process.check_log()


def connect(process: LeveretProcess) -> BlockingChannel:
    return pika.BlockingConnection(pika.ConnectionParameters(process.host, process.port)).channel()


def publish(channel: BlockingChannel, number: int, exchange: str = "", key: str = "orders") -> None:
    headers = {KEY: f"key {number}"}
    channel.basic_publish(exchange, key, b"%d" % number, pika.BasicProperties(delivery_mode=2, headers=headers))


def has(channel: BlockingChannel, queue: str, messages: int) -> bool:
    return count(channel, queue) >= messages


def publish_both(channel: BlockingChannel, number: int) -> None:
    """Publish a message to a queue that deduplicates, and one to an exchange that does."""
    publish(channel, number)
    publish(channel, number, "events", "any")


@pytest.mark.parametrize("process", ["sqlite", "postgresql"], indirect=True)
def test_a_kill_leaves_each_message_with_its_key(process: LeveretProcess) -> None:
    """The publisher repeats everything: a key without a message would lose one, a message without a key repeats one."""
    numbers = range(1000)
    channel = connect(process)
    channel.queue_declare("orders", durable=True, arguments=WINDOW)
    channel.exchange_declare("events", "fanout", durable=True, arguments=WINDOW)
    channel.queue_declare("log", durable=True)
    channel.queue_bind("log", "events")
    for number in numbers[:500]:
        publish_both(channel, number)
    wait_until(partial(has, channel, "log", 1), "the first message")
    for number in numbers[500:]:
        publish_both(channel, number)
    process.kill()
    process.start()
    channel = connect(process)
    assert count(channel, "log") > 0
    for number in numbers:
        publish_both(channel, number)
    for queue in ("orders", "log"):
        wait_until(partial(has, channel, queue, 1000), "all messages")
        assert sorted(map(int, drain(channel, queue))) == list(numbers)
    # The keys outlive the messages, and another kill.
    channel.confirm_delivery()
    publish_both(channel, 1000)  # after the settlements
    process.kill()
    process.start()
    channel = connect(process)
    channel.confirm_delivery()
    for number in (*numbers[::100], 1000):
        publish_both(channel, number)
    for queue in ("orders", "log"):
        assert drain(channel, queue) == [b"1000"]


def test_duplicates_over_both_protocols(process: LeveretProcess) -> None:
    """The declaration is that of users of RabbitMQ's plugin."""
    channel = connect(process)
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True, arguments={"x-message-deduplication": True})
    publish(channel, 1)
    connection = proton_utils.BlockingConnection(f"amqp://{process.host}:{process.port}", timeout=60)
    sender = connection.create_sender("/queues/orders")
    for key in ("key 1", "key 2"):
        sender.send(proton.Message(body=key, durable=True, properties={KEY: key}))
    publish(channel, 2)
    assert count(channel, "orders") == 2
    receiver = connection.create_receiver("/queues/orders", credit=2)
    for _ in range(2):
        receiver.receive(timeout=60)
        receiver.accept()
    channel.queue_purge("orders")  # waits for the settlements
    connection.close()
    publish(channel, 1)
    assert count(channel, "orders") == 1


def test_an_exchange_of_the_plugin(process: LeveretProcess) -> None:
    """A duplicate is confirmed, and not returned."""
    channel = connect(process)
    channel.confirm_delivery()
    arguments = {"x-cache-size": 1000, "x-cache-ttl": 3_600_000, "x-cache-persistence": "memory"}
    channel.exchange_declare("events", "x-message-deduplication", durable=True, arguments=arguments)
    properties = pika.BasicProperties(delivery_mode=2, headers={KEY: "key 1"})
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("events", "", b"1", properties, mandatory=True)
    channel.queue_declare("log", durable=True)
    channel.queue_bind("log", "events")
    connection = proton_utils.BlockingConnection(f"amqp://{process.host}:{process.port}", timeout=60)
    sender = connection.create_sender("/exchanges/events/")
    for _ in range(2):
        channel.basic_publish("events", "", b"1", properties, mandatory=True)
        sender.send(proton.Message(body="1", durable=True, properties={KEY: "key 1"}))
    assert count(channel, "log") == 1
    connection.close()
