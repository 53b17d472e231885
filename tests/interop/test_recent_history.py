"""A recent-history exchange and a kill of the broker."""

from __future__ import annotations

from pathlib import Path

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop.helpers import drain
from tests.support.broker import LeveretProcess, leveret_only

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def connect(process: LeveretProcess) -> BlockingChannel:
    channel = pika.BlockingConnection(pika.ConnectionParameters(process.host, process.port)).channel()
    channel.confirm_delivery()
    return channel


def test_queues_keep_what_they_got(tmp_path: Path) -> None:
    """Both queues have all messages, though the first one had settled them before the second one got them."""
    leveret_only("RabbitMQ's plugin is not part of it")
    process = LeveretProcess(tmp_path)
    with process.start():
        channel = connect(process)
        channel.exchange_declare("news", "x-recent-history", durable=True)
        channel.queue_declare("first", durable=True)
        channel.queue_bind("first", "news")
        sent = [b"%d" % number for number in range(5)]
        for body in sent:
            channel.basic_publish("news", "", body, PERSISTENT)
        assert drain(channel, "first") == sent
        channel.queue_declare("second", durable=True)
        channel.queue_bind("second", "news")
        channel.basic_publish("news", "", b"last", PERSISTENT)
        process.kill()
        process.start()
        channel = connect(process)
        assert drain(channel, "second") == [*sent, b"last"]
        assert drain(channel, "first") == [b"last"]
        channel.queue_declare("third", durable=True)
        channel.queue_bind("third", "news")
        assert drain(channel, "third") == []
        channel.basic_publish("news", "", b"new", PERSISTENT)
        channel.queue_declare("fourth", durable=True)
        channel.queue_bind("fourth", "news")
        assert drain(channel, "fourth") == [b"new"]
        process.check_log()
