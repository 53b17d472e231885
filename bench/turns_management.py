"""Operations of the control socket and of requests to `leveret.control`, over many objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from bench.turn_lab import Client, Lab
from bench.turn_operations import operation
from bench.turns_amqp0.clients import deep, new_client
from bench.turns_amqp10 import LINKS, attach_links
from leveret.wire.amqp0.commands import Deliver
from leveret.wire.amqp10.messaging import Source

REPLY_TO = "amq.rabbitmq.reply-to"


def ask(client: Client, name: str, /, **arguments: Any) -> dict[str, Any]:
    """Send a request; the client must not receive other deliveries meanwhile."""
    if not getattr(client, "asks", False):
        client.asks = True  # type: ignore[attr-defined]
        client.consume(REPLY_TO, no_ack=True, tag="replies")
    client.publish(name, json.dumps({"version": 1, **arguments}).encode(), exchange="leveret.control", reply_to=REPLY_TO)
    client.flush()
    while True:
        data = client.socket.recv(1 << 18)
        if not data:
            raise ConnectionResetError("the broker closed the connection")
        for command in client.engine.receive(data):
            if isinstance(command, Deliver):
                body = command.body if isinstance(command.body, bytes) else b"".join(command.body)
                answer: dict[str, Any] = json.loads(body)
                if not answer["ok"]:
                    raise RuntimeError(answer["error"]["message"])
                return answer
            client.received.append(command)


def _queues(lab: Lab, count: int, arguments: dict[str, Any] | None = None, **options: Any) -> Client:
    client = new_client(lab)
    for number in range(count):
        client.send(1, "queue.declare", queue=f"q-{number}", no_wait=True, arguments=arguments or {}, **options)
    client.sync()
    return client


def _listing(lab: Lab, name: str, /, **arguments: Any) -> Callable[[], None]:
    return lambda: (lab.control(name, **arguments), None)[1]


@operation
def delete_vhost(lab: Lab, count: int) -> Callable[[], None]:
    queues = min(count, 10_000)
    changes = [{"call": "vhosts.add", "arguments": {"name": "v"}}]
    for number in range(queues):
        queue = f"q-{number}"
        changes.append({"call": "queues.add", "arguments": {"vhost": "v", "name": queue}})
        for key in range(10):
            binding = {"source": "amq.topic", "destination": queue, "routing_key": f"a.{number}.{key}"}
            changes.append({"call": "bindings.add", "arguments": {"vhost": "v", **binding}})
    for at in range(0, len(changes), 1000):
        assert not lab.control("definitions.apply", changes=changes[at : at + 1000])["refused"]
    return lambda: (lab.control("vhosts.delete", name="v"), None)[1]


@operation
def events_of_a_fanout(lab: Lab, count: int) -> Callable[[], None]:
    """Publish two messages to many queues whose events are bound."""
    client = _queues(lab, min(count, 10_000))
    client.declare("events")
    client.call(1, "queue.bind", "queue.bind-ok", queue="events", exchange="amq.leveret.events", routing_key="routed.#")
    for number in range(min(count, 10_000)):
        client.send(1, "queue.bind", queue=f"q-{number}", exchange="amq.fanout", no_wait=True)
    client.sync()

    def act() -> None:
        for _ in range(2):
            client.publish("", exchange="amq.fanout")
        client.sync()

    return act


@operation
def list_queues(lab: Lab, count: int) -> Callable[[], None]:
    _queues(lab, min(count, 50_000))
    return _listing(lab, "queues.list")


@operation
def statistics_of_new_queues(lab: Lab, count: int) -> Callable[[], None]:
    _queues(lab, min(count, 50_000))
    return _listing(lab, "statistics.changes", reader="bench")


@operation
def statistics_of_idle_queues(lab: Lab, count: int) -> Callable[[], None]:
    _queues(lab, min(count, 50_000))
    lab.control("statistics.changes", reader="bench")
    return _listing(lab, "statistics.changes", reader="bench")


@operation
def statistics_of_busy_queues(lab: Lab, count: int) -> Callable[[], None]:
    many = min(count, 50_000)
    client = _queues(lab, many)
    lab.control("statistics.changes", reader="bench")
    for number in range(many):
        client.publish(f"q-{number}", b"body")
    client.sync()
    return _listing(lab, "statistics.changes", reader="bench")


@operation
def list_wide_queues(lab: Lab, count: int) -> Callable[[], None]:
    _queues(lab, min(count, 1000), {f"a{number}": number for number in range(5000)})
    return _listing(lab, "queues.list")


@operation
def list_bindings(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("q")
    for number in range(min(count, 200_000)):
        client.send(1, "queue.bind", queue="q", exchange="amq.direct", routing_key=str(number), no_wait=True)
    client.sync()
    return _listing(lab, "bindings.list")


@operation
def control_delete_binding(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("q")
    many = min(count, 200_000)
    for number in range(many):
        client.send(1, "queue.bind", queue="q", exchange="amq.direct", routing_key=str(number), no_wait=True)
    client.sync()
    return _listing(lab, "bindings.delete", source="amq.direct", destination="q", routing_key=str(many - 1))


@operation
def list_exchanges(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    for number in range(min(count, 50_000)):
        client.send(1, "exchange.declare", exchange=f"x{number}", type="direct", no_wait=True)
    client.sync()
    return _listing(lab, "exchanges.list")


@operation
def list_channels(lab: Lab, count: int) -> Callable[[], None]:
    client = lab.connect()
    channels = min(count, 65_000)
    for number in range(1, channels + 1):
        client.send(number, "channel.open")
    client.call(channels, "queue.declare", "queue.declare-ok", queue="q")
    return _listing(lab, "channels.list")


@operation
def list_links(lab: Lab, count: int) -> Callable[[], None]:
    deep(lab, 0)
    for _ in range(max(1, min(count // LINKS, 10))):
        attach_links(lab, LINKS, Source("/queues/q"))
    return _listing(lab, "links.list")


@operation
def list_links_of_another_vhost(lab: Lab, count: int) -> Callable[[], None]:
    lab.control("vhosts.add", name="other")
    list_links(lab, count)
    return _listing(lab, "links.list", vhost="other")


@operation
def list_consumers(lab: Lab, count: int) -> Callable[[], None]:
    """List the consumers of many queues without consumers."""
    _queues(lab, min(count, 50_000))
    return _listing(lab, "consumers.list")


@operation
def show_status(lab: Lab, count: int) -> Callable[[], None]:
    _queues(lab, min(count, 50_000))
    return _listing(lab, "status")


@operation
def list_streams(lab: Lab, count: int) -> Callable[[], None]:
    _queues(lab, min(count, 5000), {"x-queue-type": "stream"}, durable=True)
    return _listing(lab, "streams.list")


@operation
def match_streams(lab: Lab, count: int) -> Callable[[], None]:
    client = _queues(lab, min(count, 100_000))
    for number in range(3000):
        client.send(
            1, "queue.declare", queue=f"s-{number}", no_wait=True, durable=True, arguments={"x-queue-type": "stream"}
        )
    client.sync()
    return lambda: (ask(client, "stream.match", pattern="s-.*"), None)[1]


def _super_stream(lab: Lab, partitions: int) -> None:
    lab.control("streams.add_super", name="orders", partitions=partitions)


@operation
def add_super_stream(lab: Lab, count: int) -> Callable[[], None]:
    return lambda: _super_stream(lab, min(count, 10_000))


@operation
def describe_super_stream(lab: Lab, count: int) -> Callable[[], None]:
    _super_stream(lab, min(count, 5000))
    client = new_client(lab)
    return lambda: (ask(client, "superstream.describe", name="orders"), None)[1]


@operation
def publish_super_stream(lab: Lab, count: int) -> Callable[[], None]:
    _super_stream(lab, min(count, 5000))
    client = new_client(lab)

    def act() -> None:
        for number in range(1000):
            client.publish(str(number), exchange="orders")
        client.sync()

    return act


def _leased(lab: Lab, count: int, *, plan: bool) -> tuple[Client, dict[str, Any]]:
    client = deep(lab, count, durable=True, delivery_mode=2)
    lease = ask(client, "lease.acquire", queue="q", lease="l")
    named = {"queue": "q", "lease": "l", "epoch": lease["epoch"]}
    if plan:
        ask(client, "lease.plan", **named, after=0, max_messages=count)
    return client, named


@operation
def lease_plan(lab: Lab, count: int) -> Callable[[], None]:
    client, named = _leased(lab, count, plan=False)
    return lambda: (ask(client, "lease.plan", **named, after=0, max_messages=count), None)[1]


@operation
def lease_commit(lab: Lab, count: int) -> Callable[[], None]:
    client, named = _leased(lab, count, plan=True)
    return lambda: (ask(client, "lease.commit", **named, batch=1), None)[1]


@operation
def lease_commit_except(lab: Lab, count: int) -> Callable[[], None]:
    client, named = _leased(lab, count, plan=True)
    kept = list(range(0, min(count, 20_000), 2))
    return lambda: (ask(client, "lease.commit", **named, batch=1, **{"except": kept}), None)[1]


@operation
def lease_release(lab: Lab, count: int) -> Callable[[], None]:
    client, _ = _leased(lab, count, plan=True)
    return lambda: (ask(client, "lease.release", queue="q", lease="l"), None)[1]


@operation
def lease_read(lab: Lab, count: int) -> Callable[[], None]:
    client, named = _leased(lab, count, plan=True)

    def act() -> None:
        client.delivered = 0
        client.consume(
            "q",
            no_ack=True,
            arguments={
                "x-lease": "l",
                "x-lease-epoch": named["epoch"],
                "x-lease-batch": 1,
                "x-lease-first": 0,
                "x-lease-count": count,
            },
        )
        client.wait_delivered(count)

    return act


@operation
def delete_leased(lab: Lab, count: int) -> Callable[[], None]:
    client, _ = _leased(lab, count, plan=True)
    return lambda: (client.call(1, "queue.delete", "queue.delete-ok", queue="q"), None)[1]


@operation
def list_leases(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    for number in range(max(1, min(count // 100, 100))):
        client.declare(f"q{number}", durable=True)
        for lease in range(100):
            ask(client, "lease.acquire", queue=f"q{number}", lease=f"l{lease}")
    return lambda: (ask(client, "lease.list"), None)[1]


@operation
def promote_stage(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("q", durable=True)
    ask(client, "stage.open", stage="s", app="a", exchanges=[""])
    for _ in range(count):
        client.publish("q", exchange="leveret.stage:s:", delivery_mode=2)
    client.sync()
    ask(client, "stage.seal", stage="s", count=count, crc32=0)
    return lambda: (ask(client, "stage.promote", app="a", batch=1, stages=["s"]), None)[1]


@operation
def discard_stage(lab: Lab, count: int) -> Callable[[], None]:
    client = new_client(lab)
    client.declare("q", durable=True)
    ask(client, "stage.open", stage="s", app="a", exchanges=[""])
    for _ in range(count):
        client.publish("q", exchange="leveret.stage:s:", delivery_mode=2)
    client.sync()
    return lambda: (ask(client, "stage.discard", stages=["s"]), None)[1]
