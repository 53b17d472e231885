"""Streams with pika: readers at offsets, credit, and refused operations."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from tests.interop.conftest import Connect
from tests.interop.helpers import channel_error, pump
from tests.support.polling import wait_until


@pytest.fixture
def stream(channel: BlockingChannel, name: str) -> Any:
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    for number in range(10):
        channel.basic_publish("", name, b"%d" % number)
    yield name
    channel.queue_delete(name)


class Reader:
    def __init__(self, connection: BlockingConnection, stream: str, start: Any, prefetch: int = 50) -> None:
        self.connection = connection
        self.channel = connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.bodies: list[bytes] = []
        self.offsets: list[int] = []
        self.channel.basic_consume(stream, self._take, arguments={"x-stream-offset": start})

    def _take(self, channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        self.bodies.append(body)
        self.offsets.append(properties.headers["x-stream-offset"])
        channel.basic_ack(method.delivery_tag)

    def wait(self, count: int) -> None:
        pump(self.connection, lambda: len(self.bodies) >= count)


def test_every_reader_reads_everything(connect: Connect, stream: str) -> None:
    for prefetch in (1, 50):
        reader = Reader(connect(), stream, "first", prefetch)
        reader.wait(10)
        assert reader.bodies == [b"%d" % number for number in range(10)]
        assert reader.offsets == list(range(10))


def test_from_an_offset_on(connection: BlockingConnection, channel: BlockingChannel, stream: str) -> None:
    reader = Reader(connection, stream, 7)
    reader.wait(3)
    channel.basic_publish("", stream, b"new")
    reader.wait(4)
    assert reader.offsets == [7, 8, 9, 10]
    assert reader.bodies[-1] == b"new"


def test_declared_twice_and_counted(channel: BlockingChannel, stream: str) -> None:
    channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
    wait_until(lambda: channel.queue_declare(stream, passive=True).method.message_count == 10)


def test_a_reader_without_prefetch_is_refused(connection: BlockingConnection, stream: str) -> None:
    channel = connection.channel()
    with channel_error(channel, 406):
        channel.basic_consume(stream, lambda *_: None, arguments={"x-stream-offset": "first"})
