"""Clients of both protocols get the same deliveries of a stream before sealing, after it, and after a start on segments."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pika
import pytest

from leveret.management.control_client import call
from tests.support.broker import LeveretProcess, basic_config, leveret_only
from tests.support.polling import wait_until

proton = pytest.importorskip("proton")

from proton import Message, symbol  # noqa: E402
from proton.reactor import Copy  # noqa: E402
from proton.utils import BlockingConnection  # noqa: E402

TIMEOUT = 120
LONG = 10**9  # milliseconds

PROPERTIES = [
    pika.BasicProperties(),
    pika.BasicProperties(delivery_mode=2, priority=3, content_type="text/plain", message_id="m", app_id="a"),
    pika.BasicProperties(
        headers={
            "n": 1,
            "text": "ü",
            "list": [1, {"a": None}],
            "when": datetime(2026, 1, 2, tzinfo=UTC),
            "price": Decimal("1.25"),
            "raw": b"\x00\xff",
        },
        delivery_mode=1,
    ),
    pika.BasicProperties(expiration=str(LONG), headers={"x-stream-filter-value": "f"}, correlation_id="c"),
    pika.BasicProperties(headers={}, timestamp=1_700_000_000, type="t", user_id="guest", reply_to="r"),
]
MESSAGES: list[dict[str, Any]] = [
    {"body": "text"},
    {"body": b"octets", "durable": True, "priority": 7},
    {"body": None, "id": 7, "subject": "s"},
    {"body": {"a": [1, 2.5, True]}, "properties": {"n": 1, "ü": None}, "annotations": {symbol("x-opt-a"): "b"}},
    {"body": b"x" * 300_000, "ttl": LONG / 1000, "group_id": "g", "reply_to": "r"},
    {"body": b"", "durable": True},
]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LeveretProcess]:
    leveret_only("sealing is requested")
    process = LeveretProcess(tmp_path, config=basic_config())
    process.start()
    yield process
    process.stop()
    process.check_log()


def publish(process: LeveretProcess) -> int:
    """Publish messages of both protocols, and dead letters of both. Returns their number."""
    with pika.BlockingConnection(pika.ConnectionParameters(process.host, process.port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_declare(
            "short",
            durable=True,
            arguments={"x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "s"},
        )
        for queue in ("s", "short"):
            for properties in PROPERTIES:
                channel.basic_publish("", queue, b"body of " + queue.encode(), properties)
            channel.basic_publish("", queue, b"large" * 500_000, PROPERTIES[1])
            for binding in ("a.b", "c.\u00fc"):
                channel.queue_bind(queue, "amq.topic", f"{queue}.{binding}")
                channel.basic_publish("amq.topic", f"{queue}.{binding}", b"", PROPERTIES[1])
    sender_connection = BlockingConnection(f"amqp://{process.host}:{process.port}", timeout=TIMEOUT)
    for queue in ("s", "short"):
        sender = sender_connection.create_sender(queue)
        for fields in MESSAGES:
            sender.send(Message(**fields))
    sender_connection.close()
    return 2 * (len(PROPERTIES) + 3 + len(MESSAGES))


def old(process: LeveretProcess, count: int) -> list[Any]:
    """Return the deliveries over 0-9-1."""
    found: list[Any] = []
    with pika.BlockingConnection(pika.ConnectionParameters(process.host, process.port)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=50)
        for method, properties, body in channel.consume(
            "s", arguments={"x-stream-offset": "first"}, inactivity_timeout=TIMEOUT
        ):
            assert method is not None, f"only {len(found)} of {count} came"
            found.append((method.exchange, method.routing_key, method.redelivered, _plain(vars(properties)), body))
            if len(found) == count:
                return found
    return found


def new(process: LeveretProcess, count: int) -> list[Any]:
    """Return the deliveries over 1.0."""
    connection = BlockingConnection(f"amqp://{process.host}:{process.port}", timeout=TIMEOUT)
    receiver = connection.create_receiver("s", credit=100, options=Copy())
    found = []
    for _ in range(count):
        message = receiver.receive(timeout=TIMEOUT)
        receiver.accept()
        left = message.ttl
        message.ttl = 0  # the remaining time differs each time
        found.append((left > 0.5 * LONG / 1000, message.encode()))
    connection.close()
    return found


def _plain(value: Any) -> Any:
    return {name: repr(item) for name, item in value.items()}


def figures(process: LeveretProcess) -> dict[str, Any]:
    found: dict[str, Any] = call(process.data_dir, "streams.show", {"vhost": "/", "name": "s"})
    return found


def test_deliveries_are_the_same(process: LeveretProcess) -> None:
    count = publish(process)
    wait_until(lambda: figures(process)["messages"] == count)
    before = old(process, count), new(process, count)
    assert len({repr(one) for one in before[0]}) == count
    call(process.data_dir, "streams.seal", {"vhost": "/", "name": "s"})
    wait_until(lambda: figures(process)["unsealed"] == 0)
    assert (old(process, count), new(process, count)) == before
    process.stop()
    process.start()
    assert figures(process)["segments"] >= 1
    assert (old(process, count), new(process, count)) == before
