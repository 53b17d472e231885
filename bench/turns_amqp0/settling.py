"""Acknowledging, requeuing, transactions, and the ends of channels and consumers over AMQP 0-9-1."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from bench.turn_lab import Lab
from bench.turn_operations import operation
from bench.turns_amqp0.clients import call, deep, new_client, unacked


@operation
def ack_multiple(lab: Lab, count: int) -> Callable[[], None]:
    client = unacked(lab, count)

    def act() -> None:
        client.engine.send_ack(1, 0, True)
        client.sync()

    return act


@operation
def nack_requeue(lab: Lab, count: int) -> Callable[[], None]:
    client = unacked(lab, count)

    def act() -> None:
        client.call(1, "basic.cancel", "basic.cancel-ok", consumer_tag="c")
        client.engine.send_nack(1, 0, True, True)
        client.sync()

    return act


@operation
def nack_scattered(lab: Lab, count: int) -> Callable[[], None]:
    """Requeue deliveries that are few among many tags, and whose order a rollback has changed."""
    client = unacked(lab, count)
    left = list(range(1, count + 1, 6))
    kept = set(left)
    for tag in range(1, count + 1):
        if tag not in kept:
            client.engine.send_ack(1, tag, False)
            if client.engine.pending > 1 << 17:
                client.flush()
    client.call(1, "basic.cancel", "basic.cancel-ok", consumer_tag="c")
    client.call(1, "tx.select", "tx.select-ok")
    Random(1).shuffle(left)
    for tag in left:
        client.engine.send_ack(1, tag, False)
        if client.engine.pending > 1 << 17:
            client.flush()
    call(client, "tx.rollback")

    def act() -> None:
        client.engine.send_nack(1, 0, True, True)
        call(client, "tx.commit")

    return act


@operation
def reject_dead_letter(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("dead")
    client.declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    client.fill("q", count // 4)
    client.consume("q", tag="c")
    client.wait_delivered(count // 4)

    def act() -> None:
        client.engine.send_nack(1, 0, True, False)
        client.sync()

    return act


@operation
def recover(lab: Lab, count: int) -> Callable[[], None]:
    client = unacked(lab, count)

    def act() -> None:
        client.call(1, "basic.recover", "basic.recover-ok", requeue=True)

    return act


@operation
def close_unacked(lab: Lab, count: int) -> Callable[[], None]:
    client = unacked(lab, count)
    return client.drop


@operation
def qos_by_size(lab: Lab, count: int) -> Callable[[], None]:
    client = unacked(lab, count)
    return lambda: call(client, "basic.qos", prefetch_size=1 << 20, prefetch_count=0, **{"global": True})


@operation
def tx_commit(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("q", durable=True)
    client.call(1, "tx.select", "tx.select-ok")
    for _ in range(count):
        client.publish("q", delivery_mode=2)
    client.sync()
    return lambda: call(client, "tx.commit")


@operation
def tx_rollback_publishes(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("q", durable=True)
    client.call(1, "tx.select", "tx.select-ok")
    for _ in range(count):
        client.publish("q", delivery_mode=2)
    client.sync()
    return lambda: call(client, "tx.rollback")


@operation
def tx_rollback_acks(lab: Lab, count: int) -> Callable[[], None]:
    client = unacked(lab, count)
    client.call(1, "tx.select", "tx.select-ok")
    client.engine.send_ack(1, 0, True)
    client.sync()
    return lambda: call(client, "tx.rollback")


@operation
def close_channels(lab: Lab, count: int) -> Callable[[], None]:
    client = lab.connect()
    channels = min(count, 65_000)
    for number in range(1, channels + 1):
        client.send(number, "channel.open")
    client.call(channels, "queue.declare", "queue.declare-ok", queue="q")
    return client.drop


@operation
def close_consumers(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("q")
    for number in range(min(count, 40_000)):
        client.send(1, "basic.consume", queue="q", consumer_tag=str(number), no_wait=True)
    client.sync()
    return client.drop


@operation
def close_exclusive_queues(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    for number in range(min(count, 50_000)):
        client.send(1, "queue.declare", queue=f"q{number}", exclusive=True, no_wait=True)
    client.sync()
    return client.drop


@operation
def acks_of_a_shared_window(lab: Lab, count: int) -> Callable[[], None]:
    client = deep(lab, count)
    client.call(1, "basic.qos", "basic.qos-ok", prefetch_size=0, prefetch_count=1000, **{"global": True})
    for number in range(min(count, 20_000)):
        client.send(1, "basic.consume", queue="q", consumer_tag=str(number), no_wait=True)
    client.sync()
    client.wait_delivered(1000)

    def act() -> None:
        for tag in range(1, 1001):
            client.engine.send_ack(1, tag, False)
        client.wait_delivered(2000)

    return act
