"""Length limits of queues over AMQP 0-9-1."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.turn_lab import Lab
from bench.turn_operations import operation
from bench.turns_amqp0.clients import new_client


@operation
def drop_head_by_size(lab: Lab, count: int) -> Callable[[], None]:
    """Publish a large message that drops all small ones from a queue with `x-max-length-bytes`."""
    client = new_client(lab)
    client.declare("q", arguments={"x-max-length-bytes": count})
    for _ in range(count):
        client.publish("q", b"b")
    client.sync()

    def act() -> None:
        client.publish("q", b"b" * count)
        client.sync()

    return act


@operation
def drop_head_to_dead_letters(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("dead")
    many = count // 4
    client.declare(
        "q", arguments={"x-max-length-bytes": many, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    )
    for _ in range(many):
        client.publish("q", b"b")
    client.sync()

    def act() -> None:
        client.publish("q", b"b" * many)
        client.sync()

    return act


@operation
def max_length_zero(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("q", arguments={"x-max-length": 0})

    def act() -> None:
        for _ in range(min(count, 100_000)):
            client.publish("q")
        client.sync()

    return act


@operation
def requeue_to_a_full_queue(lab: Lab, count: int) -> Callable[[], None]:
    """Requeue messages to a queue that is full of newer ones."""
    client = new_client(lab)
    client.declare("q", arguments={"x-max-length": count})
    client.fill("q", count)
    client.consume("q", tag="c")
    client.wait_delivered(count)
    client.call(1, "basic.cancel", "basic.cancel-ok", consumer_tag="c")
    client.fill("q", count)

    def act() -> None:
        client.engine.send_nack(1, 0, True, True)
        client.sync()

    return act


@operation
def overflow_chain(lab: Lab, count: int) -> Callable[[], None]:
    """Publish to a chain of queues of length 0, each of which dead-letters to the next."""
    client = new_client(lab)
    many = min(count, 300)
    for number in range(many):
        client.send(
            1,
            "queue.declare",
            queue=f"q{number}",
            no_wait=True,
            arguments={"x-max-length": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"q{number + 1}"},
        )
    client.declare(f"q{many}")

    def act() -> None:
        client.publish("q0")
        client.sync()
        while not client.call(1, "queue.declare", "queue.declare-ok", queue=f"q{many}", passive=True)["message_count"]:
            time.sleep(0.02)

    return act


@operation
def overflow_with_priorities(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("q", arguments={"x-max-priority": 255, "x-max-length": 1000})
    for number in range(1000):
        client.publish("q", priority=number % 256)
    client.sync()

    def act() -> None:
        for number in range(min(count, 50_000)):
            client.publish("q", priority=number % 256)
        client.sync()

    return act


@operation
def refused_during_a_commit(lab: Lab, count: int) -> Callable[[], None]:
    """Publish to a full queue that rejects publishes, while a large transaction to it commits."""
    client = new_client(lab)
    client.declare("q", durable=True, arguments={"x-max-length-bytes": 1 << 30, "x-overflow": "reject-publish"})
    client.call(1, "tx.select", "tx.select-ok")
    for _ in range(min(count, 50_000)):
        client.publish("q", b"b", delivery_mode=2)
    client.sync()
    other = new_client(lab)

    def act() -> None:
        client.send(1, "tx.commit")
        client.flush()
        for _ in range(5000):
            other.publish("q", b"b")
        other.sync()
        client.take("tx.commit-ok")

    return act


@operation
def dead_letter_fanout(lab: Lab, count: int) -> Callable[[], None]:
    """Dead-letter a message to the maximum number of queues."""
    client = new_client(lab)
    for number in range(min(count, 10_000)):
        client.send(1, "queue.declare", queue=f"d{number}", no_wait=True)
        client.send(1, "queue.bind", queue=f"d{number}", exchange="amq.fanout", no_wait=True)
    client.declare("q", arguments={"x-dead-letter-exchange": "amq.fanout", "x-max-length": 0})

    def act() -> None:
        client.publish("q")
        client.sync()

    return act
