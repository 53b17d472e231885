"""Streams over AMQP 0-9-1."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from bench.turn_lab import Client, Lab
from bench.turn_operations import operation
from bench.turns_amqp0.clients import call, new_client


@operation
def stream_filters(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    client.fill("s", count, headers={"x-stream-filter-value": "a"})
    client.call(1, "basic.qos", "basic.qos-ok", prefetch_size=0, prefetch_count=100, **{"global": False})

    def act() -> None:
        client.consume("s", arguments={"x-stream-offset": "first", "x-stream-filter": "b"})
        client.publish("s", headers={"x-stream-filter-value": "b"})
        client.wait_delivered(1)

    return act


def _stream(lab: Lab, count: int) -> Client:
    client = new_client(lab)
    client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    for _ in range(10):
        client.fill("s", count // 10, delivery_mode=2)
        time.sleep(0.05)
    client.call(1, "basic.qos", "basic.qos-ok", prefetch_size=0, prefetch_count=100, **{"global": False})
    return client


def _attach_stream(lab: Lab, count: int, offset: object) -> Callable[[], None]:
    client = _stream(lab, count)

    def act() -> None:
        client.consume("s", arguments={"x-stream-offset": offset})
        client.wait_delivered(1)

    return act


@operation
def stream_at_timestamp(lab: Lab, count: int) -> Callable[[], None]:
    return _attach_stream(lab, count, datetime.now(UTC) - timedelta(seconds=1))


@operation
def stream_at_interval(lab: Lab, count: int) -> Callable[[], None]:
    return _attach_stream(lab, count, "1h")


@operation
def stream_at_offset(lab: Lab, count: int) -> Callable[[], None]:
    return _attach_stream(lab, count, count // 2)


@operation
def stream_readers(lab: Lab, count: int) -> Callable[[], None]:
    """Append one message for many readers of a stream."""
    client = _stream(lab, 100)
    for number in range(min(count, 20_000)):
        client.send(
            1, "basic.consume", queue="s", consumer_tag=str(number), no_wait=True, arguments={"x-stream-offset": "next"}
        )
    client.sync()

    def act() -> None:
        client.publish("s", delivery_mode=2)
        client.wait_delivered(min(count, 20_000))

    return act


@operation
def delete_stream(lab: Lab, count: int) -> Callable[[], None]:
    client = _stream(lab, count)
    return lambda: call(client, "queue.delete", queue="s")
