"""Operations on many consumers and bindings at once."""

from __future__ import annotations

from collections.abc import Callable

from bench.turn_lab import Client, Lab
from bench.turn_operations import deep_operation, operation
from bench.turns_amqp0.clients import new_client

CONSUMERS = 40_000


def consuming(lab: Lab, count: int) -> Client:
    """Return a client with many consumers of one queue."""
    client = new_client(lab)
    client.declare("q")
    for number in range(min(count, CONSUMERS)):
        client.send(1, "basic.consume", queue="q", consumer_tag=str(number), no_wait=True)
    client.sync()
    return client


@operation
def delete_queue_of_consumers(lab: Lab, count: int) -> Callable[[], None]:
    consuming(lab, count)
    other = new_client(lab)
    return lambda: (other.call(1, "queue.delete", "queue.delete-ok", queue="q"), None)[1]


@operation
def cancel_consumers(lab: Lab, count: int) -> Callable[[], None]:
    client = consuming(lab, count)

    def act() -> None:
        for number in range(min(count, CONSUMERS)):
            client.send(1, "basic.cancel", consumer_tag=str(number), no_wait=True)
        client.sync()

    return act


@deep_operation
def unbinds(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("q")
    many = min(count, 100_000)
    for number in range(many):
        client.send(1, "queue.bind", queue="q", exchange="amq.topic", routing_key=f"a.{number}.#", no_wait=True)
    client.sync()

    def act() -> None:
        for number in range(many):
            client.engine.send(
                1, "queue.unbind", {"queue": "q", "exchange": "amq.topic", "routing_key": f"a.{number}.#", "arguments": {}}
            )
            if client.engine.pending > 1 << 17:
                client.flush()
        for _ in range(many):
            client.take("queue.unbind-ok")

    return act
