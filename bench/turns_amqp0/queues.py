"""Purging, deleting and expiring over AMQP 0-9-1, and last-value queues."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.turn_lab import Client, Lab
from bench.turn_operations import deep_operation, operation
from bench.turns_amqp0.clients import bindings, call, deep, new_client, unacked


@deep_operation
def purge(lab: Lab, count: int) -> Callable[[], None]:
    client = deep(lab, count)
    return lambda: call(client, "queue.purge", queue="q")


@deep_operation
def purge_durable(lab: Lab, count: int) -> Callable[[], None]:
    client = deep(lab, count, durable=True, delivery_mode=2)
    return lambda: call(client, "queue.purge", queue="q")


@deep_operation
def delete(lab: Lab, count: int) -> Callable[[], None]:
    client = deep(lab, count)
    return lambda: call(client, "queue.delete", queue="q")


@operation
def delete_unacked(lab: Lab, count: int) -> Callable[[], None]:
    client = unacked(lab, count)
    client.declare("other")
    return lambda: call(client, "queue.delete", queue="q")


@deep_operation
def delete_exchange(lab: Lab, count: int) -> Callable[[], None]:
    client = bindings(lab, min(count, 100_000), "direct")
    return lambda: call(client, "exchange.delete", exchange="x")


@deep_operation
def delete_bound_queue(lab: Lab, count: int) -> Callable[[], None]:
    client = bindings(lab, min(count, 100_000), "topic")
    return lambda: call(client, "queue.delete", queue="q")


LAST_VALUE = {"x-queue-type": "last-value", "x-last-value-key": "k"}


@operation
def last_value_publishes(lab: Lab, count: int) -> Callable[[], None]:
    """Replace messages in the middle of a long last-value queue."""
    client = _last_values(lab, count)

    def act() -> None:
        for number in range(2000):
            client.publish("q", headers={"k": count // 2 + number})
        client.sync()

    return act


@operation
def last_value_commit(lab: Lab, count: int) -> Callable[[], None]:
    client = _last_values(lab, count)
    client.call(1, "tx.select", "tx.select-ok")
    for number in range(2000):
        client.publish("q", headers={"k": count // 2 + number})
    client.sync()
    return lambda: call(client, "tx.commit")


def _last_values(lab: Lab, count: int) -> Client:
    client = new_client(lab)
    client.declare("q", arguments=LAST_VALUE)
    for number in range(count):
        client.publish("q", headers={"k": number})
    client.sync()
    return client


@operation
def last_value_fanout(lab: Lab, count: int) -> Callable[[], None]:
    """Publish a message with large headers to many last-value queues."""
    client = new_client(lab)
    for number in range(min(count, 10_000)):
        client.send(1, "queue.declare", queue=f"q{number}", no_wait=True, arguments=LAST_VALUE)
        client.send(1, "queue.bind", queue=f"q{number}", exchange="amq.fanout", no_wait=True)
    client.sync()
    headers = {"k": ["x"] * 5000, **{f"h{number}": number for number in range(5000)}}

    def act() -> None:
        for _ in range(3):
            client.publish("", exchange="amq.fanout", headers=headers)
        client.sync()

    return act


@deep_operation
def expire_all(lab: Lab, count: int) -> Callable[[], None]:
    deep(lab, count, arguments={"x-message-ttl": 8000 + count // 20})
    return lambda: time.sleep(9 + count / 20_000)


@operation
def expire_to_dead_letters(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("dead")
    client.declare(
        "q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 5000}
    )
    client.fill("q", count // 4)
    return lambda: time.sleep(6)


@operation
def consume_expired(lab: Lab, count: int) -> Callable[[], None]:
    client = deep(lab, count // 2, expiration="3000")
    client.publish("q")

    def act() -> None:
        time.sleep(0.01)
        client.consume("q")

    return act
