"""Delayed exchanges with real clients, and persistent delayed messages across starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import UnroutableError

from tests.interop.helpers import channel_error, get
from tests.support.broker import LeveretProcess, leveret_only

proton = pytest.importorskip("proton")

from proton.utils import BlockingConnection  # noqa: E402

DELAYED_TYPE = "x-delayed-message"
HOUR = 3_600_000


@pytest.fixture(autouse=True)
def only_leveret() -> None:
    leveret_only("RabbitMQ's plugin is not part of it")


def later(milliseconds: int, mode: int = 2) -> pika.BasicProperties:
    return pika.BasicProperties(headers={"x-delay": milliseconds}, delivery_mode=mode)


def test_pika(channel: BlockingChannel, name: str) -> None:
    """A delayed message comes after one that was published later, and its header is negated."""
    channel.confirm_delivery()
    channel.exchange_declare(name, DELAYED_TYPE, auto_delete=True, arguments={"x-delayed-type": "topic"})
    channel.queue_declare(name, exclusive=True)
    channel.queue_bind(name, name, "light.*")
    channel.basic_publish(name, "light.red", b"later", later(300))
    channel.basic_publish(name, "light.red", b"now", later(0))
    assert get(channel, name)[2] == b"now"
    _, properties, body = get(channel, name)
    assert (body, properties.headers) == (b"later", {"x-delay": -300})
    with pytest.raises(UnroutableError):
        channel.basic_publish(name, "sound", b"", later(HOUR), mandatory=True)


def test_pika_learns_which_type_is_missing(channel: BlockingChannel, name: str) -> None:
    with channel_error(channel, 406):
        channel.exchange_declare(name, DELAYED_TYPE, arguments={"x-delayed-type": DELAYED_TYPE})


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LeveretProcess]:
    process = LeveretProcess(tmp_path)
    with process.start():
        yield process
        process.check_log()


def connect(process: LeveretProcess) -> BlockingChannel:
    return pika.BlockingConnection(pika.ConnectionParameters(process.host, process.port)).channel()


def test_persistent_messages_survive(process: LeveretProcess) -> None:
    """Messages of both protocols come once, after a kill and a stop, and not before they are due."""
    channel = connect(process)
    channel.confirm_delivery()
    channel.exchange_declare("later", DELAYED_TYPE, durable=True, arguments={"x-delayed-type": "fanout"})
    channel.queue_declare("kept", durable=True)
    channel.queue_bind("kept", "later", "")
    for number in range(100):
        channel.basic_publish("later", "", b"%d" % number, later(1000))
    channel.basic_publish("later", "", b"in an hour", later(HOUR))
    connection = BlockingConnection(f"amqp://{process.host}:{process.port}", timeout=60)
    message = proton.Message(body=b"proton", properties={"x-delay": 1000}, durable=True, inferred=True)
    connection.create_sender("/exchanges/later/").send(message)
    process.kill()
    process.start()
    channel = connect(process)
    found = [get(channel, "kept", auto_ack=False)[2] for _ in range(101)]
    assert sorted(found) == sorted([*(b"%d" % number for number in range(100)), b"proton"])
    process.stop()
    process.start()
    channel = connect(process)
    assert sorted(get(channel, "kept")[2] for _ in range(101)) == sorted(found)
    assert channel.basic_get("kept")[0] is None
