"""Filling, draining and removing a deep queue over AMQP 0-9-1."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.turn_lab import Client, Lab
from bench.turn_operations import deep_operation
from bench.turns_amqp0.clients import call, deep, new_client

BODY = b"b" * 16
# Messages that a lab on one core publishes in a second, at the least.
FILL_RATE = 100_000


def _declared(lab: Lab, *, durable: bool = False) -> Client:
    client = new_client(lab)
    client.declare("q", durable=durable)
    return client


def _publish(client: Client, count: int, *, delivery_mode: int = 1) -> None:
    for _ in range(count):
        client.publish("q", BODY, delivery_mode=delivery_mode)
    client.sync()


@deep_operation
def fill(lab: Lab, count: int) -> Callable[[], None]:
    client = _declared(lab)
    return lambda: _publish(client, count)


@deep_operation
def fill_durable(lab: Lab, count: int) -> Callable[[], None]:
    client = _declared(lab, durable=True)
    return lambda: _publish(client, count, delivery_mode=2)


def _drain(client: Client, count: int) -> None:
    client.consume("q", no_ack=True)
    client.wait_delivered(count)


@deep_operation
def drain(lab: Lab, count: int) -> Callable[[], None]:
    client = _declared(lab)
    _publish(client, count)
    return lambda: _drain(client, count)


@deep_operation
def drain_durable(lab: Lab, count: int) -> Callable[[], None]:
    client = _declared(lab, durable=True)
    _publish(client, count, delivery_mode=2)
    return lambda: _drain(client, count)


@deep_operation
def drain_acks(lab: Lab, count: int) -> Callable[[], None]:
    """Drain a queue with a prefetch of 500, and an ack for each 50 messages."""
    client = _declared(lab, durable=True)
    _publish(client, count, delivery_mode=2)

    def act() -> None:
        client.call(1, "basic.qos", "basic.qos-ok", prefetch_size=0, prefetch_count=500, **{"global": False})
        client.consume("q")
        acked = 0
        while client.delivered < count:
            if client.delivered - acked >= 50:
                acked = client.delivered
                client.engine.send_ack(1, acked, True)
                client.flush()
            client.read()
        client.engine.send_ack(1, 0, True)
        client.sync()

    return act


@deep_operation
def purge_while_filling(lab: Lab, count: int) -> Callable[[], None]:
    """Purge a queue to which another client publishes."""
    client = deep(lab, count)
    other = new_client(lab)

    def act() -> None:
        for _ in range(1000):
            other.publish("q")
        other.flush()
        call(client, "queue.purge", queue="q")
        other.sync()

    return act


@deep_operation
def delete_durable(lab: Lab, count: int) -> Callable[[], None]:
    client = deep(lab, count, durable=True, delivery_mode=2)
    return lambda: call(client, "queue.delete", queue="q")


@deep_operation
def expire_queue(lab: Lab, count: int) -> Callable[[], None]:
    """Let a deep queue that is not used expire (`x-expires`)."""
    expires = 3000
    client = new_client(lab)
    client.declare("q", arguments={"x-expires": expires})
    client.fill("q", count)
    client.call(1, "queue.declare", "queue.declare-ok", queue="q", passive=True)
    return lambda: time.sleep(expires / 1000 + 1)


@deep_operation
def expire_messages(lab: Lab, count: int) -> Callable[[], None]:
    """Let messages with an expiration of their own expire."""
    milliseconds = 2000 + count * 1000 // FILL_RATE
    deep(lab, count, durable=True, delivery_mode=2, expiration=str(milliseconds))
    return lambda: time.sleep(milliseconds / 1000)
