"""Reading many small methods of AMQP 0-9-1."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from bench.turn_lab import Lab
from bench.turn_operations import operation
from bench.turns_amqp0.clients import deep, new_client


@operation
def many_small_methods(lab: Lab, count: int) -> Callable[[], None]:
    client = deep(lab, 10)

    def act() -> None:
        for _ in range(min(count, 50_000)):
            client.send(1, "queue.declare", queue="q", passive=True, no_wait=True)
        client.sync()

    return act


@operation
def many_gets(lab: Lab, count: int) -> Callable[[], None]:
    client = deep(lab, count)

    def act() -> None:
        for _ in range(min(count, 50_000)):
            client.send(1, "basic.get", queue="q", no_ack=True)
        client.sync()

    return act


@operation
def many_decimals(lab: Lab, count: int) -> Callable[[], None]:
    """Send frames full of the values that are slowest to parse."""
    client = new_client(lab)
    arguments = {"x": [Decimal("0.05")] * 21_000}

    def act() -> None:
        for number in range(10):
            client.send(1, "queue.declare", queue=f"w{number}", arguments=arguments, no_wait=True)
        client.sync()

    return act


@operation
def open_channels(lab: Lab, count: int) -> Callable[[], None]:
    client = lab.connect()

    def act() -> None:
        for number in range(1, min(count, 65_000) + 1):
            client.send(number, "channel.open")
        client.call(1, "queue.declare", "queue.declare-ok", queue="q")

    return act


@operation
def many_heartbeats(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)

    def act() -> None:
        client.socket.sendall(b"\x08\0\0\0\0\0\0\xce" * min(count, 500_000))
        client.sync()

    return act


@operation
def many_flows(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)

    def act() -> None:
        for _ in range(min(count, 100_000)):
            client.send(1, "channel.flow-ok", active=True)
        client.sync()

    return act


@operation
def many_empty_acks(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)

    def act() -> None:
        for _ in range(min(count, 100_000)):
            client.engine.send_ack(1, 0, True)
            if client.engine.pending > 1 << 17:
                client.flush()
        client.sync()

    return act
