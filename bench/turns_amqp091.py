"""Operations over AMQP 0-9-1 and 0-9."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from bench.turn_lab import Client, Lab
from bench.turn_operations import operation
from leveret.wire.amqp0.specs import V0_9


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


@operation
def purge(lab: Lab, count: int) -> Callable[[], None]:
    client = deep(lab, count)
    return lambda: call(client, "queue.purge", queue="q")


@operation
def purge_durable(lab: Lab, count: int) -> Callable[[], None]:
    client = deep(lab, count, durable=True, delivery_mode=2)
    return lambda: call(client, "queue.purge", queue="q")


def call(client: Client, name: str, **arguments: object) -> None:
    client.call(1, name, f"{name}-ok", **arguments)


@operation
def delete(lab: Lab, count: int) -> Callable[[], None]:
    client = deep(lab, count)
    return lambda: call(client, "queue.delete", queue="q")


@operation
def delete_unacked(lab: Lab, count: int) -> Callable[[], None]:
    client = unacked(lab, count)
    client.declare("other")
    return lambda: call(client, "queue.delete", queue="q")


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


def bindings(lab: Lab, count: int, type_name: str) -> Client:
    client = new_client(lab)
    client.declare("q", durable=True)
    client.call(1, "exchange.declare", "exchange.declare-ok", exchange="x", type=type_name, durable=True)
    for number in range(count):
        client.send(1, "queue.bind", queue="q", exchange="x", routing_key=f"a.{number}.b", no_wait=True)
    client.sync()
    return client


@operation
def delete_exchange(lab: Lab, count: int) -> Callable[[], None]:
    client = bindings(lab, min(count, 100_000), "direct")
    return lambda: call(client, "exchange.delete", exchange="x")


@operation
def delete_bound_queue(lab: Lab, count: int) -> Callable[[], None]:
    client = bindings(lab, min(count, 100_000), "topic")
    return lambda: call(client, "queue.delete", queue="q")


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
def binds(lab: Lab, count: int) -> Callable[[], None]:
    def act() -> None:
        bindings(lab, min(count, 100_000), "topic")

    return act


@operation
def stream_filters(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    client.fill("s", count, headers={"x-stream-filter-value": "a"})
    client.call(1, "basic.qos", "basic.qos-ok", prefetch_size=0, prefetch_count=100, **{"global": False})

    def act() -> None:
        client.consume("s", arguments={"x-stream-offset": "first", "x-stream-filter": "b"})
        client.publish("s", headers={"x-stream-filter-value": "b"})
        client.wait_delivered(1)

    return act


# Overflow


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


# Priorities of messages and of consumers


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


# Waiting consumers


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


# Reading


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


# Routing


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


# Streams


def _stream(lab: Lab, count: int) -> Client:
    client = new_client(lab)
    client.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    for _ in range(10):
        client.fill("s", count // 10, delivery_mode=2)
        time.sleep(0.05)
    client.call(1, "basic.qos", "basic.qos-ok", prefetch_size=0, prefetch_count=100, **{"global": False})
    return client


def _attach_stream(lab: Lab, count: int, offset: object) -> Callable[[], None]:
    client = _stream(lab, count)

    def act() -> None:
        client.consume("s", arguments={"x-stream-offset": offset})
        client.wait_delivered(1)

    return act


@operation
def stream_at_timestamp(lab: Lab, count: int) -> Callable[[], None]:
    return _attach_stream(lab, count, datetime.now(UTC) - timedelta(seconds=1))


@operation
def stream_at_interval(lab: Lab, count: int) -> Callable[[], None]:
    return _attach_stream(lab, count, "1h")


@operation
def stream_at_offset(lab: Lab, count: int) -> Callable[[], None]:
    return _attach_stream(lab, count, count // 2)


@operation
def stream_readers(lab: Lab, count: int) -> Callable[[], None]:
    """Append one message for many readers of a stream."""
    client = _stream(lab, 100)
    for number in range(min(count, 20_000)):
        client.send(
            1, "basic.consume", queue="s", consumer_tag=str(number), no_wait=True, arguments={"x-stream-offset": "next"}
        )
    client.sync()

    def act() -> None:
        client.publish("s", delivery_mode=2)
        client.wait_delivered(min(count, 20_000))

    return act


@operation
def delete_stream(lab: Lab, count: int) -> Callable[[], None]:
    client = _stream(lab, count)
    return lambda: call(client, "queue.delete", queue="s")


# AMQP 0-9


def _dtx(lab: Lab, count: int) -> Client:
    client = lab.connect(version=V0_9)
    client.open_channel()
    client.declare("q", durable=True)
    client.call(1, "dtx.select", "dtx.select-ok")
    client.call(1, "dtx.start", "dtx.start-ok", dtx_identifier="b")
    for _ in range(count):
        client.publish("q", delivery_mode=2)
    client.sync()
    return client


@operation
def dtx_prepare(lab: Lab, count: int) -> Callable[[], None]:
    _dtx(lab, min(count, 100_000))
    return lambda: (lab.control("dtx.prepare", name="b"), None)[1]


def _work(lab: Lab, count: int) -> Client:
    """Return a client with a branch of class dtx-demarcation, with this many acknowledgements and publishes."""
    deep(lab, count, durable=True, delivery_mode=2)
    client = lab.connect(version=V0_9)
    client.open_channel()
    client.call(1, "dtx-demarcation.select", "dtx-demarcation.select-ok")
    client.call(1, "dtx-demarcation.start", "dtx-demarcation.start-ok", xid="b")
    client.send(1, "basic.consume", queue="q", consumer_tag="c")
    client.wait_delivered(count)
    client.engine.send_ack(1, 0, True)
    for _ in range(count):
        client.publish("q", delivery_mode=2)
    client.sync()
    return client


@operation
def dtx_end(lab: Lab, count: int) -> Callable[[], None]:
    client = _work(lab, min(count, 100_000))
    return lambda: call(client, "dtx-demarcation.end", xid="b")


@operation
def dtx_end_failed(lab: Lab, count: int) -> Callable[[], None]:
    client = _work(lab, min(count, 100_000))
    return lambda: call(client, "dtx-demarcation.end", xid="b", fail=True)


def _ended(lab: Lab, count: int) -> Client:
    client = _work(lab, min(count, 100_000))
    call(client, "dtx-demarcation.end", xid="b")
    return client


@operation
def dtx_prepare_acks(lab: Lab, count: int) -> Callable[[], None]:
    client = _ended(lab, count)
    return lambda: call(client, "dtx-coordination.prepare", xid="b")


@operation
def dtx_commit(lab: Lab, count: int) -> Callable[[], None]:
    client = _ended(lab, count)
    return lambda: call(client, "dtx-coordination.commit", xid="b", one_phase=True)


@operation
def dtx_rollback_ended(lab: Lab, count: int) -> Callable[[], None]:
    client = _ended(lab, count)
    return lambda: call(client, "dtx-coordination.rollback", xid="b")


@operation
def dtx_rollback_prepared(lab: Lab, count: int) -> Callable[[], None]:
    client = _ended(lab, count)
    call(client, "dtx-coordination.prepare", xid="b")
    return lambda: call(client, "dtx-coordination.rollback", xid="b")


@operation
def dtx_rollback(lab: Lab, count: int) -> Callable[[], None]:
    _dtx(lab, min(count, 100_000))
    return lambda: (lab.control("dtx.rollback", name="b"), None)[1]


@operation
def dtx_rollback_acks(lab: Lab, count: int) -> Callable[[], None]:
    many = min(count, 100_000)
    deep(lab, many)
    client = lab.connect(version=V0_9)
    client.open_channel()
    client.call(1, "dtx.select", "dtx.select-ok")
    client.call(1, "dtx.start", "dtx.start-ok", dtx_identifier="b")
    client.send(1, "basic.consume", queue="q", consumer_tag="c")
    client.wait_delivered(many)
    client.engine.send_ack(1, 0, True)
    client.sync()
    return lambda: (lab.control("dtx.rollback", name="b"), None)[1]


@operation
def staged_uploads(lab: Lab, count: int) -> Callable[[], None]:
    """Open the maximum number of uploads of a user, list them, and close their connection."""
    client = lab.connect(version=V0_9)
    client.open_channel()
    for number in range(min(count, 1000)):
        client.call(1, "file.open", "file.open-ok", identifier=f"f{number}", content_size=1000)

    def act() -> None:
        lab.control("staged.list")
        client.drop()

    return act


# Windows of the specification


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
