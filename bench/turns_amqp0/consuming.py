"""Delivering to consumers over AMQP 0-9-1: priorities, many consumers, windows."""

from __future__ import annotations

from collections.abc import Callable

from bench.turn_lab import Lab
from bench.turn_operations import operation
from bench.turns_amqp0.clients import call, deep, new_client, unacked
from leveret.wire.amqp0.specs import V0_9


@operation
def no_local_over_a_deep_queue(lab: Lab, count: int) -> Callable[[], None]:
    client = deep(lab, count)

    def act() -> None:
        client.call(1, "basic.consume", "basic.consume-ok", queue="q", no_local=True)
        client.sync()

    return act


@operation
def priorities(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("q", arguments={"x-max-priority": 255})
    for number in range(count):
        client.publish("q", priority=number % 256)
    client.sync()
    return lambda: call(client, "queue.purge", queue="q")


@operation
def consume_priorities(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("q", arguments={"x-max-priority": 255})
    for number in range(count):
        client.publish("q", priority=number % 256)
    client.sync()

    def act() -> None:
        client.consume("q", tag="c")
        client.wait_delivered(count)

    return act


@operation
def get_priorities(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("q", arguments={"x-max-priority": 255})
    for number in range(min(count, 20_000)):
        client.publish("q", priority=number % 256)
    client.sync()

    def act() -> None:
        for _ in range(min(count, 20_000)):
            client.send(1, "basic.get", queue="q", no_ack=True)
        client.sync()

    return act


@operation
def close_consumer_priorities(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("q", arguments={"x-single-active-consumer": True})
    for number in range(min(count, 20_000)):
        client.send(1, "basic.consume", queue="q", consumer_tag=str(number), no_wait=True, arguments={"x-priority": number})
    client.sync()
    return client.drop


@operation
def no_local_priorities(lab: Lab, count: int) -> Callable[[], None]:
    """Publish messages that none of many consumers accepts, each with another priority."""
    client = new_client(lab)
    client.declare("q")
    for number in range(min(count, 20_000)):
        client.send(
            1,
            "basic.consume",
            queue="q",
            consumer_tag=str(number),
            no_wait=True,
            no_local=True,
            arguments={"x-priority": number},
        )
    client.sync()

    def act() -> None:
        for _ in range(100):
            client.publish("q")
        client.sync()

    return act


@operation
def requeue_to_many_connections(lab: Lab, count: int) -> Callable[[], None]:
    """Requeue messages for which consumers of many connections wait."""
    client = unacked(lab, count)
    for _ in range(100):
        other = new_client(lab)
        other.consume("q")

    def act() -> None:
        client.call(1, "basic.cancel", "basic.cancel-ok", consumer_tag="c")
        client.engine.send_nack(1, 0, True, True)
        client.sync()

    return act


@operation
def fanout_to_consumers(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    other = new_client(lab)
    for number in range(min(count, 10_000)):
        client.send(1, "queue.declare", queue=f"q{number}", no_wait=True)
        client.send(1, "queue.bind", queue=f"q{number}", exchange="amq.fanout", no_wait=True)
    client.sync()
    for number in range(min(count, 10_000)):
        other.send(1, "basic.consume", queue=f"q{number}", no_wait=True, no_ack=True)
    other.sync()

    def act() -> None:
        client.publish("", exchange="amq.fanout")
        client.sync()

    return act


@operation
def fanout_to_connections(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    for number in range(min(count, 2000)):
        other = new_client(lab)
        other.call(1, "queue.declare", "queue.declare-ok", queue=f"q{number}")
        other.call(1, "queue.bind", "queue.bind-ok", queue=f"q{number}", exchange="amq.fanout")
        other.consume(f"q{number}", no_ack=True)

    def act() -> None:
        client.publish("", exchange="amq.fanout")
        client.sync()

    return act


@operation
def fanout_durable(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    for number in range(min(count, 9000)):
        client.send(1, "queue.declare", queue=f"q{number}", no_wait=True, durable=True)
        client.send(1, "queue.bind", queue=f"q{number}", exchange="amq.fanout", no_wait=True)
    client.sync()

    def act() -> None:
        client.publish("", exchange="amq.fanout", delivery_mode=2)
        client.sync()

    return act


@operation
def browsers(lab: Lab, count: int) -> Callable[[], None]:
    """Browse a queue with many consumers."""
    client = deep(lab, min(count, 20_000))
    channels = [new_client(lab) for _ in range(50)]

    def act() -> None:
        for channel in channels:
            for number in range(40):
                channel.send(
                    1,
                    "basic.consume",
                    queue="q",
                    consumer_tag=str(number),
                    no_ack=True,
                    no_wait=True,
                    arguments={"x-browse": True},
                )
            channel.flush()
        for channel in channels:
            channel.wait_delivered(min(count, 20_000))
        client.publish("q")
        client.sync()

    return act


@operation
def spec_window(lab: Lab, count: int) -> Callable[[], None]:
    """Use a window of the connection, over many channels with a consumer each (`amqp.qos_global = "spec"`)."""
    client = lab.connect(version=V0_9)
    channels = min(count, 5000)
    for number in range(1, channels + 1):
        client.send(number, "channel.open")
    client.call(1, "queue.declare", "queue.declare-ok", queue="q")
    client.call(1, "basic.qos", "basic.qos-ok", prefetch_size=0, prefetch_count=2000, **{"global": True})
    for number in range(1, channels + 1):
        client.send(number, "basic.consume", queue="q", consumer_tag=str(number), nowait=True)
    client.sync(channels)

    def act() -> None:
        publisher = new_client(lab)
        publisher.fill("q", 10_000)
        client.wait_delivered(2000)
        for number in range(1, channels + 1):
            client.engine.send_ack(number, 0, True)
        client.wait_delivered(4000)

    return act
