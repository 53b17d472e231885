"""Clients of AMQP 0-9-1 that prepare queues, deliveries and bindings."""

from __future__ import annotations

from bench.turn_lab import Client, Lab


def new_client(lab: Lab) -> Client:
    client = lab.connect()
    client.open_channel()
    return client


def deep(
    lab: Lab, count: int, *, durable: bool = False, arguments: dict[str, object] | None = None, **properties: object
) -> Client:
    client = new_client(lab)
    client.declare("q", durable=durable, arguments=arguments)
    client.fill("q", count, **properties)
    return client


def unacked(lab: Lab, count: int, arguments: dict[str, object] | None = None) -> Client:
    client = deep(lab, count, arguments=arguments)
    client.consume("q", tag="c")
    client.wait_delivered(count)
    return client


def call(client: Client, name: str, **arguments: object) -> None:
    client.call(1, name, f"{name}-ok", **arguments)


def bindings(lab: Lab, count: int, type_name: str) -> Client:
    client = new_client(lab)
    client.declare("q", durable=True)
    client.call(1, "exchange.declare", "exchange.declare-ok", exchange="x", type=type_name, durable=True)
    for number in range(count):
        client.send(1, "queue.bind", queue="q", exchange="x", routing_key=f"a.{number}.b", no_wait=True)
    client.sync()
    return client
