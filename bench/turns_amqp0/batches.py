"""Record batches over AMQP 0-9-1 that are as much work as possible."""

from __future__ import annotations

from collections.abc import Callable

from bench.turn_lab import Client, Lab
from bench.turn_operations import operation
from bench.turns_amqp0.clients import new_client
from leveret.broker.message import make_address
from leveret.wire.amqp0.properties import FLAGS_AT, encode_header
from leveret.wire.record_batches import EXCHANGE, MAX_ROWS, encode

BASIC = 60
BATCHES = 10


def _publisher(client: Client, exchange: str, rows: int, properties: list[bytes], keys: bool = False) -> Callable[[], None]:
    addresses = [make_address(exchange, f"k{number}" if keys else "q") for number in range(rows)]
    batch = encode(addresses, properties, [b""] * rows)

    def act() -> None:
        for _ in range(BATCHES):
            client.publish("", batch, exchange=EXCHANGE)
        client.sync()

    return act


def _properties(rows: int, **headers: object) -> list[bytes]:
    return [encode_header(BASIC, 0, {"message_id": str(number), "headers": headers})[FLAGS_AT:] for number in range(rows)]


@operation
def batch_rows(lab: Lab, count: int) -> Callable[[], None]:
    """Publish batches whose rows have properties and routing keys of their own."""
    client = new_client(lab)
    client.declare("q")
    return _publisher(client, "amq.topic", MAX_ROWS, _properties(MAX_ROWS, a=1), keys=True)


@operation
def batch_copies(lab: Lab, count: int) -> Callable[[], None]:
    """Publish batches whose rows have CC headers."""
    client = new_client(lab)
    client.declare("q")
    return _publisher(client, "", MAX_ROWS, _properties(MAX_ROWS, CC=["k", "l"]))


@operation
def batch_fanout(lab: Lab, count: int) -> Callable[[], None]:
    """Publish batches whose rows go to many queues."""
    client = new_client(lab)
    for number in range(min(count, 100)):
        client.send(1, "queue.declare", queue=f"q{number}", no_wait=True)
        client.send(1, "queue.bind", queue=f"q{number}", exchange="amq.fanout", no_wait=True)
    client.sync()
    return _publisher(client, "amq.fanout", MAX_ROWS, [b"\0\0"] * MAX_ROWS)


@operation
def batch_headers(lab: Lab, count: int) -> Callable[[], None]:
    """Publish batches whose rows have many headers, which route them."""
    client = new_client(lab)
    client.declare("q")
    client.send(1, "queue.bind", queue="q", exchange="amq.headers", arguments={"a": 1}, no_wait=True)
    wide = {str(number): None for number in range(10_000)}
    return _publisher(client, "amq.headers", 8, _properties(8, **wide))
