"""Bindings, exchanges and routing over AMQP 0-9-1."""

from __future__ import annotations

from collections.abc import Callable

from bench.turn_lab import Lab
from bench.turn_operations import operation
from bench.turns_amqp0.clients import bindings, new_client


@operation
def fanout(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    for number in range(min(count, 10_000)):
        client.send(1, "queue.declare", queue=f"q{number}", no_wait=True)
        client.send(1, "queue.bind", queue=f"q{number}", exchange="amq.fanout", no_wait=True)
    client.sync()

    def act() -> None:
        client.publish("", exchange="amq.fanout")
        client.sync()

    return act


@operation
def many_copies(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("q")
    for number in range(min(count, 20_000)):
        client.send(
            1, "queue.bind", queue="q", exchange="amq.headers", no_wait=True, arguments={"kind": "order", "id": number}
        )
    client.sync()

    def act() -> None:
        client.publish(
            "", exchange="amq.headers", headers={"CC": [str(number) for number in range(900)], "id": 7, "kind": "order"}
        )
        client.sync()

    return act


@operation
def wide_arguments(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    wide = {f"a{number}": number for number in range(9000)}

    def act() -> None:
        for number in range(20):
            client.send(1, "queue.declare", queue=f"w{number}", arguments=wide, no_wait=True)
        client.sync()

    return act


@operation
def binds(lab: Lab, count: int) -> Callable[[], None]:
    def act() -> None:
        bindings(lab, min(count, 100_000), "topic")

    return act


@operation
def exchange_chain(lab: Lab, count: int) -> Callable[[], None]:
    """Publish with new keys to an exchange that is bound to many others."""
    client = new_client(lab)
    many = min(count, 9000)
    for number in range(many + 1):
        client.send(1, "exchange.declare", exchange=f"x{number}", type="fanout", no_wait=True)
    for number in range(many):
        client.send(1, "exchange.bind", source=f"x{number}", destination=f"x{number + 1}", routing_key="", no_wait=True)
    client.sync()

    def act() -> None:
        for number in range(100):
            client.publish(str(number), exchange="x0")
        client.sync()

    return act


@operation
def refused_routes(lab: Lab, count: int) -> Callable[[], None]:
    """Publish messages that exceed the limit of routing steps, on many channels."""
    client = lab.connect()
    client.open_channel()
    client.declare("q")
    for number in range(min(count, 100_000)):
        client.send(1, "queue.bind", queue="q", exchange="amq.headers", no_wait=True, arguments={"n": 1, "m": number})
    client.sync()
    for number in range(2, 302):
        client.open_channel(number)
    headers = {"n": 1, "CC": [str(number) for number in range(999)]}

    def act() -> None:
        for number in range(2, 302):
            client.publish("", exchange="amq.headers", channel=number, headers=headers)
        client.flush()
        client.sync(1)

    return act
