"""Values of queues and consumers in random states: what they must be, and that RabbitMQ has the same.

A seed gives a sequence of steps. A model of the queue says what the values are after them; `test_values` compares it with
Leveret, `test_values_of_rabbitmq` with RabbitMQ. A failure names the seed, which replays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.management.http.client import HttpApi, HttpBroker, HttpRabbit
from tests.management.http.scrapes import Samples, scrape
from tests.support.broker import Broker, free_port
from tests.support.examples import THOROUGH
from tests.support.polling import wait_until
from tests.support.rabbitmq import RabbitProcess, available

SEEDS = range(40 if THOROUGH else 12)
STEPS = 14
POLICY = "values.limited"
UNLIMITED = 1 << 30
# The kinds of queues: the options and arguments of their declaration.
KINDS: dict[str, tuple[dict[str, bool], dict[str, Any]]] = {
    "durable": ({"durable": True}, {}),
    "transient": ({}, {}),
    "exclusive": ({"exclusive": True}, {}),
    "priority": ({"durable": True}, {"x-max-priority": 5}),
    "lazy": ({"durable": True}, {"x-queue-mode": "lazy"}),
    "single": ({"durable": True}, {"x-single-active-consumer": True}),
    "limited": ({"durable": True}, {}),  # by a policy
    "quorum": ({"durable": True}, {"x-queue-type": "quorum"}),
    "quorum-single": ({"durable": True}, {"x-queue-type": "quorum", "x-single-active-consumer": True}),
    "stream": ({"durable": True}, {"x-queue-type": "stream"}),
}
# Metrics of each queue with the key of the same value in the API.
METRICS = {
    "messages": "messages",
    "messages_ready": "messages_ready",
    "messages_unacked": "messages_unacknowledged",
    "messages_ready_bytes": "message_bytes_ready",
    "messages_unacked_bytes": "message_bytes_unacknowledged",
    "messages_bytes": "message_bytes",
    "messages_persistent": "messages_persistent",
    "messages_persistent_bytes": "message_bytes_persistent",
    "messages_ram": "messages_ram",
    "messages_ram_bytes": "message_bytes_ram",
    "messages_paged_out": "messages_paged_out",
    "consumers": "consumers",
}
# Keys that RabbitMQ has for no queue of a kind, or with another meaning: a quorum queue keeps all of its messages in its
# log, a lazy queue all on disk, and streams have few statistics.
_MEMORY = {
    "messages_ram",
    "message_bytes_ram",
    "messages_ready_ram",
    "messages_unacknowledged_ram",
    "messages_paged_out",
    "message_bytes_paged_out",
}
_SIZES = {"message_bytes", "message_bytes_ready", "message_bytes_unacknowledged"}
_PERSISTENT = {"messages_persistent", "message_bytes_persistent"}
_TAGS = {"exclusive_consumer_tag", "single_active_consumer_tag"}
THEIR_OWN = {
    "quorum": _MEMORY | _PERSISTENT | _TAGS,
    "quorum-single": _MEMORY | _PERSISTENT | _TAGS,
    "stream": _MEMORY | _PERSISTENT | _TAGS | _SIZES,
    "lazy": _MEMORY,
}


@dataclass
class Message:
    seq: int
    size: int
    persistent: bool
    priority: int


@dataclass
class Consumer:
    tag: str
    prefetch: int
    exclusive: bool
    no_ack: bool


@dataclass
class Model:
    """One queue: what it has, and what the API must say of it."""

    kind: str
    name: str
    ready: list[Message] = field(default_factory=list)
    unacked: list[Message] = field(default_factory=list)
    got: int = 0
    consumers: list[Consumer] = field(default_factory=list)
    max_length: int = UNLIMITED

    @property
    def type(self) -> str:
        return str(KINDS[self.kind][1].get("x-queue-type", "classic"))

    @property
    def is_single(self) -> bool:
        return "x-single-active-consumer" in KINDS[self.kind][1]

    def active(self) -> list[Consumer]:
        return self.consumers[:1] if self.is_single else self.consumers

    def credit(self) -> int:
        if self.type == "stream":
            return 0  # nothing leaves it
        return sum(consumer.prefetch for consumer in self.active()) - (len(self.unacked) - self.got)

    def deliver(self) -> None:
        self.ready.sort(key=lambda message: (-message.priority, message.seq))
        if any(consumer.no_ack for consumer in self.consumers):
            self.ready.clear()
        count = min(max(self.credit(), 0), len(self.ready))
        self.unacked += self.ready[:count]
        del self.ready[:count]

    def values(self) -> dict[str, Any]:
        messages = [*self.ready, *self.unacked]
        is_kept = "durable" in KINDS[self.kind][0]
        keeps_all = self.type == "stream"
        kept = [message.size for message in messages if keeps_all or (message.persistent and is_kept)]
        ready, unacked = _size(self.ready), _size(self.unacked)
        exclusive = [consumer.tag for consumer in self.consumers if consumer.exclusive]
        return {
            "messages": len(messages),
            "messages_ready": len(self.ready),
            "messages_unacknowledged": len(self.unacked),
            "message_bytes": ready + unacked,
            "message_bytes_ready": ready,
            "message_bytes_unacknowledged": unacked,
            "messages_persistent": len(kept),
            "message_bytes_persistent": sum(kept),
            "messages_ram": len(messages),
            "message_bytes_ram": ready + unacked,
            "messages_ready_ram": len(self.ready),
            "messages_unacknowledged_ram": len(self.unacked),
            "messages_paged_out": 0,
            "message_bytes_paged_out": 0,
            "consumers": len(self.consumers),
            "exclusive_consumer_tag": exclusive[0] if exclusive else None,
            "single_active_consumer_tag": self.consumers[0].tag if self.is_single and self.consumers else None,
            "policy": POLICY if self.kind == "limited" else None,
            "consumer_details": {consumer.tag: self._consumer(consumer) for consumer in self.consumers},
        }

    def _consumer(self, consumer: Consumer) -> dict[str, Any]:
        is_active = consumer in self.active()
        return {
            "active": is_active,
            "activity_status": "waiting" if not is_active else "single_active" if self.is_single else "up",
            "exclusive": consumer.exclusive,
            "ack_required": not consumer.no_ack,
            "prefetch_count": 0 if consumer.prefetch == UNLIMITED else consumer.prefetch,
        }

    def capacity(self) -> float:
        """Return the share of the time in which a consumer is able to take a message, once it does not change."""
        return 1.0 if self.consumers and not self.ready else 0.0


def _size(messages: list[Message]) -> int:
    return sum(message.size for message in messages)


def kind_of(seed: int) -> str:
    return list(KINDS)[seed % len(KINDS)]


def name_of(seed: int) -> str:
    return f"values.{seed}.{kind_of(seed)}"


class Driver:
    """Random steps on one queue of a broker, and in its model."""

    def __init__(self, seed: int, connection: pika.BlockingConnection) -> None:
        self.random = Random(seed)
        self.model = Model(kind := kind_of(seed), name_of(seed))
        self.connection = connection
        self.channel: BlockingChannel = connection.channel()
        self.channel.confirm_delivery()
        self.seq = 0
        if kind == "limited":
            self.model.max_length = 3
        options, arguments = KINDS[kind]
        self.channel.queue_declare(self.model.name, arguments=arguments, **options)

    def run(self) -> Model:
        steps = [self.publish, self.publish, self.consume, self.get, self.ack, self.requeue, self.purge, self.cancel]
        if self.model.kind == "limited":
            steps.remove(self.consume)
        if self.model.type == "stream":
            steps = [self.publish, self.consume]
        for _ in range(STEPS):
            self.random.choice(steps)()
            self.model.deliver()
            self.settle()
        return self.model

    def settle(self) -> None:
        """Wait until the queue has delivered what it can."""
        model = self.model

        def is_settled() -> bool:
            found = self.channel.queue_declare(model.name, passive=True).method.message_count
            return bool(found == len(model.ready))

        if model.type != "stream":
            wait_until(is_settled, lambda: f"{model.name} has {len(model.ready)} ready messages")

    def publish(self) -> None:
        for _ in range(self.random.randrange(1, 5)):
            self.seq += 1
            size, persistent = self.random.choice((0, 10, 300, 5000)), self.random.random() < 0.6
            priority = self.random.randrange(6) if self.model.kind == "priority" else 0
            properties = pika.BasicProperties(delivery_mode=2 if persistent else 1, priority=priority or None)
            self.channel.basic_publish("", self.model.name, bytes(size), properties)
            self.model.ready.append(Message(self.seq, size, persistent, priority))
            self.model.deliver()
            del self.model.ready[: max(len(self.model.ready) - self.model.max_length, 0)]

    def consume(self) -> None:
        """Add a consumer; one that is exclusive, or that does not acknowledge, only as the only one."""
        consumers = self.model.consumers
        if len(consumers) == 3 or any(consumer.exclusive or consumer.no_ack for consumer in consumers):
            return
        tag, prefetch = f"{self.model.name}.{self.seq}.{len(consumers)}", self.random.choice((1, 2, 5, UNLIMITED))
        alone = not consumers and not self.model.is_single and self.model.type == "classic"
        exclusive, no_ack = alone and self.random.random() < 0.3, alone and self.random.random() < 0.2
        arguments = {"x-stream-offset": "first"} if self.model.type == "stream" else {}
        if self.model.type == "stream":
            prefetch = 5
        if no_ack:
            prefetch = UNLIMITED
        self.channel.basic_qos(prefetch_count=0 if prefetch == UNLIMITED else prefetch)
        self.channel.basic_consume(
            self.model.name, _ignore, auto_ack=no_ack, exclusive=exclusive, consumer_tag=tag, arguments=arguments
        )
        consumers.append(Consumer(tag, prefetch, exclusive, no_ack))

    def get(self) -> None:
        # RabbitMQ counts gets of quorum queues as consumers.
        if self.model.type == "quorum" or any(consumer.exclusive for consumer in self.model.consumers):
            return
        if self.model.is_single and self.model.consumers:
            return  # refused
        found = self.channel.basic_get(self.model.name)[0]
        assert (found is not None) == bool(self.model.ready)
        if found is not None:
            self.model.unacked.append(self.model.ready.pop(0))
            self.model.got += 1

    def ack(self) -> None:
        if self.model.unacked:
            self.channel.basic_ack(0, multiple=True)
        self.model.unacked.clear()
        self.model.got = 0

    def requeue(self) -> None:
        if self.model.unacked:
            self.channel.basic_nack(0, multiple=True, requeue=True)
        self.model.ready += self.model.unacked
        self.model.unacked.clear()
        self.model.got = 0

    def purge(self) -> None:
        self.channel.queue_purge(self.model.name)
        self.model.ready.clear()

    def cancel(self) -> None:
        if self.model.consumers:
            consumer = self.model.consumers[self.random.randrange(len(self.model.consumers))]
            self.ack()
            self.settle_acked()
            self.connection.process_data_events(0)  # pika requeues deliveries that it has not handled
            self.channel.basic_cancel(consumer.tag)
            self.model.consumers.remove(consumer)

    def settle_acked(self) -> None:
        """Acknowledge until the queue has nothing that consumers can take."""
        while self.model.credit() > 0 and self.model.ready:
            self.model.deliver()
            self.settle()
            self.ack()


def _ignore(*_: object) -> None:
    """Leave the delivery unacknowledged."""


def seen(api: HttpApi, model: Model) -> dict[str, Any]:
    """Return what the API says of a queue, under the keys of the model."""
    row = api.get(f"/queues/%2F/{model.name}")
    expected = model.values()
    row["consumer_details"] = {
        consumer["consumer_tag"]: {
            key: consumer[key] for key in ("active", "activity_status", "exclusive", "ack_required", "prefetch_count")
        }
        for consumer in row["consumer_details"]
    }
    return {key: row.get(key) for key in expected}


def without(values: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def prepare(api: HttpApi, broker: Broker) -> pika.BlockingConnection:
    policy = {"pattern": r"^values\.\d+\.limited$", "definition": {"max-length": 3}, "apply-to": "queues"}
    assert api("PUT", f"/policies/%2F/{POLICY}", policy).status in (201, 204)
    return pika.BlockingConnection(pika.URLParameters(broker.url()))


@pytest.mark.parametrize("seed", SEEDS)
def test_values(api: HttpBroker, seed: int) -> None:
    connection = prepare(api, api.process)
    try:
        model = Driver(seed, connection).run()
        expected = model.values()
        if model.type == "stream":  # whose consumers get all messages, which stay in it
            expected["single_active_consumer_tag"] = None
        assert seen(api, model) == expected
        listed = {row["name"]: row for row in api.get("/queues")}[model.name]
        listed_values = {key: listed[key] for key in expected if key != "consumer_details"}
        wait_until(
            lambda: _listed(api, model) == without(expected, {"consumer_details"}), lambda: (listed_values, expected)
        )
        samples = Samples(scrape(api.process, "/per-object"))
        for metric, key in METRICS.items():
            assert samples.value(f"rabbitmq_queue_{metric}", vhost="/", queue=model.name) == expected[key], metric
        if model.type != "stream":
            path = f"/queues/%2F/{model.name}?columns=consumer_capacity,consumer_utilisation"
            capacity = {"consumer_capacity": model.capacity(), "consumer_utilisation": model.capacity()}
            wait_until(lambda: api.get(path) == capacity, lambda: (api.get(path), capacity))
    finally:
        connection.process_data_events(0)  # pika requeues deliveries that it has not handled, which streams refuse
        connection.close()
        api("DELETE", f"/queues/%2F/{name_of(seed)}")


def _listed(api: HttpBroker, model: Model) -> dict[str, Any]:
    row = next(row for row in api.get("/queues/%2F") if row["name"] == model.name)
    return {key: row[key] for key in model.values() if key != "consumer_details"}


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RabbitProcess, HttpRabbit]]:
    if not available():
        pytest.skip("rabbitmq-server is not installed")
    port = free_port()
    settings = f"management.tcp.port = {port}\nmanagement.tcp.ip = 127.0.0.1\ncollect_statistics_interval = 500\n"
    process = RabbitProcess(tmp_path_factory.mktemp("rabbit"), ("rabbitmq_management",), settings)
    with process.start():
        process.control("eval", "application:set_env(rabbit, quorum_tick_interval, 500).")
        yield process, HttpRabbit(port)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_values_of_rabbitmq(rabbit: tuple[RabbitProcess, HttpRabbit], seed: int) -> None:
    process, api = rabbit
    connection = prepare(api, process)
    try:
        model = Driver(seed, connection).run()
        omitted = THEIR_OWN.get(model.kind, set())
        expected = without(model.values(), omitted)
        if model.type == "stream":
            del expected["consumer_details"]
        wait_until(
            lambda: (found := without(seen(api, model), omitted)) and {key: found[key] for key in expected} == expected,
            lambda: (f"seed {seed}", seen(api, model), expected),
            within=30,
        )
    finally:
        connection.process_data_events(0)  # pika requeues deliveries that it has not handled, which streams refuse
        connection.close()
