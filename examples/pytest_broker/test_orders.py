"""Tests with a real broker, without mocks, cleanup or name conflicts."""

from __future__ import annotations

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel


@pytest.mark.parametrize("body", [b"one tea", b"two coffees"])
def test_an_order_arrives(channel: BlockingChannel, body: bytes) -> None:
    assert channel.queue_declare("orders", durable=True).method.message_count == 0
    channel.basic_publish("", "orders", body, pika.BasicProperties(content_type="text/plain"))
    method, properties, received = channel.basic_get("orders", auto_ack=True)
    assert (method.redelivered, properties.content_type, received) == (False, "text/plain", body)


def test_an_unroutable_order_is_returned(channel: BlockingChannel) -> None:
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "no-such-queue", b"one tea", mandatory=True)
