"""The firehose over all protocols, with the headers that RabbitMQ gives to its trace messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from leveret import sync
from leveret.client.errors import PublishFailed
from leveret.management import control_client
from tests.interop.helpers import channel_error, count, get
from tests.support import rabbitmq
from tests.support.broker import Broker, LeveretProcess
from tests.support.polling import wait_until

TRACE = "amq.rabbitmq.trace"
FULL = pika.BasicProperties(
    content_type="text/plain",
    content_encoding="utf-8",
    headers={"h": 1, "n": {"x": [1, "a"]}, "CC": ["cc"]},
    delivery_mode=2,
    priority=3,
    correlation_id="c",
    reply_to="r",
    expiration="60000",
    message_id="m",
    timestamp=1_700_000_000,
    type="t",
    user_id="guest",
    app_id="a",
)


def table_of(properties: pika.BasicProperties) -> dict[str, Any]:
    return {name: value for name, value in vars(properties).items() if value is not None}


class Switched:
    """A broker whose firehose can be switched."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def switch(self, on: bool, vhost: str = "/") -> None:
        if isinstance(self.broker, rabbitmq.RabbitProcess):
            self.broker.control("trace_on" if on else "trace_off", "-p", vhost)
        else:
            self.call("vhosts.trace", name=vhost, on=on)

    def call(self, operation: str, **arguments: Any) -> Any:
        assert isinstance(self.broker, LeveretProcess)
        return control_client.call(self.broker.data_dir, operation, arguments)

    def connect(self, **options: Any) -> BlockingConnection:
        return BlockingConnection(pika.URLParameters(self.broker.url(**options)))


@pytest.fixture(scope="module", params=["leveret", "rabbitmq"])
def process(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory: Path = tmp_path_factory.mktemp(request.param)
    if request.param == "rabbitmq":
        if not rabbitmq.available():
            pytest.skip("rabbitmq-server is not installed")
        with rabbitmq.RabbitProcess(directory).start() as node:
            yield node
        return
    with LeveretProcess(directory).start() as process:
        yield process
        process.check_log()


@pytest.fixture
def traced(process: Broker) -> Iterator[Switched]:
    switched = Switched(process)
    switched.switch(True)
    yield switched
    switched.switch(False)


@pytest.fixture
def ours(traced: Switched) -> Switched:
    if traced.broker.kind != "leveret":
        pytest.skip("about Leveret")
    return traced


class Traces:
    """A queue of trace messages."""

    def __init__(self, connection: BlockingConnection, *patterns: str) -> None:
        self.channel = connection.channel()
        self.queue: str = self.channel.queue_declare("", exclusive=True).method.queue
        for pattern in patterns:
            self.channel.queue_bind(self.queue, TRACE, pattern)

    def next(self) -> tuple[str, dict[str, Any], bytes]:
        """Return routing key, headers and body of the next trace message."""
        method, properties, body = get(self.channel, self.queue)
        assert method.exchange == TRACE
        assert table_of(properties).keys() == {"headers"}
        return method.routing_key, dict(properties.headers), body

    def is_empty(self) -> bool:
        return count(self.channel, self.queue) == 0


@pytest.fixture
def connection(traced: Switched) -> Iterator[BlockingConnection]:
    with traced.connect() as opened:
        yield opened


@pytest.fixture
def channel(connection: BlockingConnection) -> BlockingChannel:
    return connection.channel(7)


def common(headers: dict[str, Any], connection: BlockingConnection, channel: int) -> dict[str, Any]:
    """Return the headers that name vhost, node and client. The name of the node is not compared."""
    local = connection._impl._transport._sock.getsockname()
    remote = connection._impl._transport._sock.getpeername()
    assert headers["node"].count("@") == 1
    return {
        "node": headers["node"],
        "vhost": "/",
        "connection": f"{local[0]}:{local[1]} -> {remote[0]}:{remote[1]}",
        "channel": channel,
        "user": "guest",
    }


def test_the_headers_of_a_publish_and_of_deliveries(
    connection: BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    traces = Traces(connection, "publish.amq.topic", f"deliver.{name}.#")
    for queue in (f"{name}.a", f"{name}.b"):
        channel.queue_declare(queue, exclusive=True)
        channel.queue_bind(queue, "amq.topic", f"{name}.#")
    channel.queue_bind(f"{name}.b", "amq.topic", "cc")
    channel.basic_publish("amq.topic", f"{name}.1", b"body", FULL)
    key, headers, body = traces.next()
    message = {"exchange_name": "amq.topic", "routing_keys": [f"{name}.1", "cc"], "properties": table_of(FULL)}
    message |= common(headers, connection, 7)
    assert (key, body) == ("publish.amq.topic", b"body")
    assert headers == message | {"routed_queues": [f"{name}.a", f"{name}.b"]}

    got = get(channel, f"{name}.a", auto_ack=False)
    key, headers, body = traces.next()
    assert (key, body) == (f"deliver.{name}.a", b"body")
    assert headers == message | {"redelivered": 0}
    channel.basic_nack(got.method.delivery_tag, requeue=True)
    get(channel, f"{name}.a")
    assert traces.next()[1] == message | {"redelivered": 1}

    next(channel.consume(f"{name}.b", auto_ack=True, inactivity_timeout=60))
    channel.cancel()
    key, headers, body = traces.next()
    assert (key, body) == (f"deliver.{name}.b", b"body")
    assert headers == message | {"redelivered": 0}
    assert traces.is_empty()


def test_the_default_exchange_and_unroutable_messages(
    connection: BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    traces = Traces(connection, "publish.#")
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish("", name, b"")
    key, headers, body = traces.next()
    assert (key, body) == ("publish.", b"")
    assert (headers["exchange_name"], headers["routing_keys"], headers["routed_queues"]) == ("", [name], [name])
    assert headers["properties"] == {}
    channel.basic_publish("amq.direct", "nowhere", b"", pika.BasicProperties(headers={}))
    key, headers, _ = traces.next()
    assert (key, headers["routed_queues"], headers["properties"]) == ("publish.amq.direct", [], {"headers": {}})


def test_keys_of_bcc_are_in_the_trace_of_the_publish(connection: BlockingConnection, channel: BlockingChannel) -> None:
    traces = Traces(connection, "publish.amq.direct")
    headers = {"CC": ["one"], "BCC": ["two"]}
    channel.basic_publish("amq.direct", "key", b"", pika.BasicProperties(headers=headers))
    found = traces.next()[1]
    assert found["routing_keys"] == ["key", "one", "two"]
    assert found["properties"]["headers"] == {"CC": ["one"]}


def test_dead_letters_are_delivered_but_not_published(
    connection: BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    traces = Traces(connection, "#")
    dead = f"{name}.dead"
    channel.queue_declare(dead, exclusive=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare(name, exclusive=True, arguments=arguments)
    channel.basic_publish("", name, b"x")
    channel.basic_reject(get(channel, name, auto_ack=False).method.delivery_tag, requeue=False)
    get(channel, dead)
    found = [traces.next() for _ in range(3)]
    assert [key for key, _, _ in found] == ["publish.", f"deliver.{name}", f"deliver.{dead}"]
    headers = found[2][1]
    assert (headers["exchange_name"], headers["routing_keys"]) == ("", [dead])
    (death,) = headers["properties"]["headers"]["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == (name, "rejected", 1)


def test_streams_are_delivered_with_their_offset(
    connection: BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    traces = Traces(connection, f"deliver.{name}")
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    channel.basic_publish("", name, b"first")
    channel.basic_qos(prefetch_count=10)
    next(channel.consume(name, arguments={"x-stream-offset": "first"}, inactivity_timeout=60))
    _, headers, body = traces.next()
    assert body == b"first"
    assert (headers["redelivered"], headers["properties"]["headers"]) == (0, {"x-stream-offset": 0})
    channel.cancel()
    channel.queue_delete(name)


def test_trace_messages_are_not_traced(connection: BlockingConnection, channel: BlockingChannel, name: str) -> None:
    traces = Traces(connection, "#")
    channel.exchange_declare(name, "fanout", auto_delete=True)
    channel.exchange_bind(name, TRACE, "publish.#")
    channel.queue_declare(name, exclusive=True)
    channel.queue_bind(name, name)
    channel.basic_publish("amq.direct", "k", b"x")
    assert get(channel, name).method.exchange == TRACE
    assert traces.next()[0] == "publish.amq.direct"
    assert traces.is_empty()


def test_the_exchange_is_predeclared_and_internal(traced: Switched) -> None:
    with traced.connect() as connection:
        channel = connection.channel()
        channel.exchange_declare(TRACE, "topic", durable=True, internal=True)
        with channel_error(channel, 403):
            channel.basic_publish(TRACE, "k", b"")
        channel = connection.channel()
        with channel_error(channel, 403):
            channel.exchange_delete(TRACE)


def test_other_vhosts_and_a_switched_off_firehose(process: Broker) -> None:
    switched = Switched(process)
    switched.switch(True, "interop")
    with switched.connect() as connection, switched.connect(vhost="interop") as other:
        traces, others = Traces(connection, "#"), Traces(other, "#")
        connection.channel().basic_publish("amq.direct", "k", b"")
        other.channel().basic_publish("amq.direct", "k", b"")
        assert others.next()[1]["vhost"] == "interop"
        switched.switch(False, "interop")
        other.channel().basic_publish("amq.direct", "k", b"")
        for found in (traces, others):
            assert found.is_empty()


def test_a_restart_switches_it_off(process: Broker) -> None:
    if not isinstance(process, LeveretProcess | rabbitmq.RabbitProcess):
        pytest.skip("must restart the broker")
    switched = Switched(process)
    switched.switch(True)
    if isinstance(process, LeveretProcess):
        process.stop()
    else:
        process.kill()
    process.start()
    with switched.connect() as connection:
        traces = Traces(connection, "#")
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.basic_publish("", queue, b"")
        get(channel, queue)
        assert traces.is_empty()


# Leveret alone


@pytest.mark.parametrize("protocol", ["0-9-1", "0-9", "1.0"])
def test_each_protocol(ours: Switched, connection: BlockingConnection, name: str, protocol: str) -> None:
    traces = Traces(connection, "#")
    setup = connection.channel()
    setup.queue_declare(name)
    client: Any = sync.connect(ours.broker.url(), protocol=protocol)
    with client:
        if protocol == "1.0":
            with client.sender(f"/queues/{name}") as sender:
                sender.send(b"body", message_id="m", application_properties={"a": 1})
            with client.receiver(f"/queues/{name}") as receiver:
                receiver.next().accept()
        else:
            channel = client.open_channel()
            channel.publish(b"body", name, message_id="m", headers={"a": 1})
            wait_until(lambda: channel.get(name, no_ack=True), "the message")
    key, published, body = traces.next()
    assert (key, body) == ("publish.", b"body")
    assert published["routed_queues"] == [name]
    key, delivered, body = traces.next()
    assert (key, body, delivered["redelivered"]) == (f"deliver.{name}", b"body", 0)
    for headers in (published, delivered):
        assert (headers["exchange_name"], headers["routing_keys"]) == ("", [name])
        assert headers["properties"]["message_id"] == "m"
        assert headers["properties"]["headers"] == {"a": 1}
        assert (headers["user"], headers["vhost"]) == ("guest", "/")
        assert headers["connection"].endswith(f" -> 127.0.0.1:{ours.broker.port}")
    assert published["channel"] == delivered["channel"]
    setup.queue_delete(name)


def test_a_receiver_of_1_0_gets_trace_messages(ours: Switched, channel: BlockingChannel) -> None:
    client: Any = sync.connect(ours.broker.url(), protocol="1.0")
    with client, client.receiver(f"/exchanges/{TRACE}/publish.amq.direct") as receiver:
        channel.basic_publish("amq.direct", "k", b"body")
        delivery = receiver.next()
        delivery.accept()
    assert delivery.body == b"body"
    assert delivery.message.application_properties["exchange_name"] == "amq.direct"


def test_publishes_of_transactions_are_traced_at_the_commit(
    ours: Switched, connection: BlockingConnection, channel: BlockingChannel
) -> None:
    traces = Traces(connection, "publish.#")
    channel.tx_select()
    channel.basic_publish("amq.direct", "rolled back", b"")
    channel.tx_rollback()
    channel.basic_publish("amq.direct", "committed", b"")
    assert traces.is_empty()
    channel.tx_commit()
    _, headers, _ = traces.next()
    assert (headers["routing_keys"], headers["channel"]) == (["committed"], 7)


def test_headers_that_do_not_fit_a_trace_message_are_omitted(
    ours: Switched, connection: BlockingConnection, channel: BlockingChannel
) -> None:
    """Tables nested as deeply as a client may send them, names of 1.0 that are too long for 0-9-1, and large headers."""
    traces = Traces(connection, "publish.amq.direct")
    nested: dict[str, Any] = {}
    for _ in range(63):
        nested = {"t": nested}
    channel.basic_publish("amq.direct", "k", b"a", pika.BasicProperties(headers=nested, type="t"))
    assert traces.next()[1]["properties"] == {"type": "t"}
    channel.basic_publish("amq.direct", "k", b"b", pika.BasicProperties(headers={"a": "x" * 100_000}, type="t"))
    assert traces.next()[1]["properties"] == {"type": "t"}
    client: Any = sync.connect(ours.broker.url(), protocol="1.0")
    with client, client.sender("/exchanges/amq.direct/k") as sender, pytest.raises(PublishFailed):
        sender.send(b"c", application_properties={"k" * 300: 1}, message_id="m")
    assert traces.next()[1]["properties"]["message_id"] == "m"


def test_a_vhost_is_deleted_while_it_is_traced(ours: Switched) -> None:
    ours.call("vhosts.add", name="brief")
    ours.call("users.add", name="brief", password="secret")
    ours.call("permissions.set", user="brief", vhost="brief", configure=".*", write=".*", read=".*")
    ours.switch(True, "brief")
    connection = ours.connect(user="brief", password="secret", vhost="brief")
    traces = Traces(connection, "#")
    channel = connection.channel()
    for _ in range(100):
        channel.basic_publish("", traces.queue, b"x")
    ours.call("vhosts.delete", name="brief")
    ours.call("vhosts.add", name="brief")
    (found,) = [vhost for vhost in ours.call("vhosts.list") if vhost["name"] == "brief"]
    assert found["tracing"] is False
    ours.call("vhosts.delete", name="brief")
    ours.call("users.delete", name="brief")


def test_a_flood_of_publishes_is_traced_completely(ours: Switched, connection: BlockingConnection) -> None:
    """Trace messages count as work of the turn, which thus reads no more than can be traced."""
    traces = Traces(connection, "publish.amq.direct")
    client: Any = sync.connect(ours.broker.url())
    with client:
        channel = client.channel(confirms=False)
        for number in range(20_000):
            channel.publish(b"%d" % number, "k", "amq.direct")
        wait_until(lambda: count(traces.channel, traces.queue) == 20_000, "trace messages", 60)
