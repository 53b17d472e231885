"""Deduplication with real clients of both protocols, and after kills of the broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.helpers import count, drain
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.polling import wait_until
from tests.support.postgres import postgres_settings, require_postgres, shared_server

proton = pytest.importorskip("proton")

from proton import Message  # noqa: E402
from proton.utils import BlockingConnection  # noqa: E402

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


def publish(channel: BlockingChannel, number: int) -> None:
    headers = {KEY: f"key {number}"}
    channel.basic_publish("", "orders", b"%d" % number, pika.BasicProperties(delivery_mode=2, headers=headers))


@pytest.mark.parametrize("process", ["sqlite", "postgresql"], indirect=True)
def test_a_kill_leaves_each_message_with_its_key(process: LeveretProcess) -> None:
    """The publisher repeats everything: a key without a message would lose one, a message without a key repeats one."""
    numbers = range(2000)
    channel = connect(process)
    channel.queue_declare("orders", durable=True, arguments=WINDOW)
    for number in numbers[:1000]:
        publish(channel, number)
    wait_until(lambda: count(channel, "orders") > 0, "the first message")
    for number in numbers[1000:]:
        publish(channel, number)
    process.kill()
    process.start()
    channel = connect(process)
    assert count(channel, "orders") > 0
    for number in numbers:
        publish(channel, number)
    wait_until(lambda: count(channel, "orders") >= 2000, "all messages")
    assert sorted(map(int, drain(channel, "orders"))) == list(numbers)
    # The keys outlive the messages, and another kill.
    channel.confirm_delivery()
    publish(channel, 2000)  # after the settlements
    process.kill()
    process.start()
    channel = connect(process)
    channel.confirm_delivery()
    for number in (*numbers[::100], 2000):
        publish(channel, number)
    assert drain(channel, "orders") == [b"2000"]


def test_duplicates_over_both_protocols(process: LeveretProcess) -> None:
    """The declaration is that of users of RabbitMQ's plugin."""
    channel = connect(process)
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True, arguments={"x-message-deduplication": True})
    publish(channel, 1)
    connection = BlockingConnection(f"amqp://{process.host}:{process.port}", timeout=60)
    sender = connection.create_sender("/queues/orders")
    for key in ("key 1", "key 2"):
        sender.send(Message(body=key, durable=True, properties={KEY: key}))
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
