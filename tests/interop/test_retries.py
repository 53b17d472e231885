"""Retries of rejected messages with real clients of both protocols, across starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.cli.program import Program
from tests.interop.helpers import get
from tests.support.broker import LeveretProcess, leveret_only

proton = pytest.importorskip("proton")

from proton.utils import BlockingConnection  # noqa: E402

PERSISTENT = pika.BasicProperties(delivery_mode=2)
DEAD_LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


@pytest.fixture(autouse=True)
def only_leveret() -> None:
    leveret_only("RabbitMQ has no x-retry-delays")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LeveretProcess]:
    process = LeveretProcess(tmp_path)
    with process.start():
        yield process
        process.check_log()


def connect(process: LeveretProcess) -> BlockingChannel:
    return pika.BlockingConnection(pika.ConnectionParameters(process.host, process.port)).channel()


def reject(channel: BlockingChannel, queue: str) -> object:
    """Reject the next message without requeue; return its number of retries."""
    method, properties, _ = get(channel, queue, auto_ack=False)
    channel.basic_reject(method.delivery_tag, requeue=False)
    return (properties.headers or {}).get("x-retry-count")


def test_a_waiting_message_survives_and_is_dead_lettered(process: LeveretProcess) -> None:
    """pika rejects before a kill, then Proton, then pika in a transaction after a stop."""
    channel = connect(process)
    channel.confirm_delivery()
    channel.queue_declare("dead", durable=True)
    channel.queue_declare("work", durable=True, arguments={"x-retry-delays": "1s,1s", **DEAD_LETTERS})
    channel.basic_publish("", "work", b"task", PERSISTENT)
    assert reject(channel, "work") is None
    channel.basic_publish("", "dead", b"confirmed after the rejection", PERSISTENT)
    process.kill()
    process.start()
    connection = BlockingConnection(f"amqp://{process.host}:{process.port}", timeout=60)
    receiver = connection.create_receiver("/queues/work", credit=1)
    message = receiver.receive(timeout=60)
    assert (bytes(message.body), message.delivery_count >= 0) == (b"task", True)
    assert {**(message.properties or {}), **(message.annotations or {})}["x-retry-count"] == 1
    receiver.reject()
    connection.close()
    process.stop()
    process.start()
    channel = connect(process)
    channel.tx_select()
    assert reject(channel, "work") == 2
    assert channel.queue_declare("dead", passive=True).method.message_count == 1
    channel.tx_commit()
    assert get(channel, "dead")[2] == b"confirmed after the rejection"
    _, properties, body = get(channel, "dead")
    assert (body, properties.headers["x-retry-count"], properties.headers["x-death"][0]["count"]) == (b"task", 2, 1)
    channel.tx_commit()


def test_the_list_of_queues_counts_waiting_messages(process: LeveretProcess) -> None:
    channel = connect(process)
    channel.queue_declare("work", arguments={"x-retry-delays": "1h"})
    channel.basic_publish("", "work", b"task")
    reject(channel, "work")
    channel.queue_declare("work", passive=True)
    listed = json.loads(Program(process).ok("queues", "--data-dir", str(process.data_dir), "--json"))
    (queue,) = [queue for queue in listed if queue["name"] == "work"]
    assert (queue["ready"], queue["delayed"], queue["retrying"]) == (0, 1, 1)
    assert queue["arguments"]["x-retry-delays"] == "1h"
