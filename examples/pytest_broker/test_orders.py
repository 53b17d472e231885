"""What a test with the fixtures beside it looks like."""

from __future__ import annotations

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel


def test_an_order_arrives(channel: BlockingChannel) -> None:
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, b"one tea", pika.BasicProperties(content_type="text/plain"))
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    assert (method.redelivered, properties.content_type, body) == (False, "text/plain", b"one tea")


def test_an_order_that_nobody_takes_comes_back(channel: BlockingChannel) -> None:
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "nobody", b"one tea", mandatory=True)
