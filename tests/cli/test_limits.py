"""The keys of the configuration reach the broker: each limit is met by a client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import amqp
import pika
import pika.exceptions
import pytest

from leveret.config import Config
from leveret.config.schema import Key, Table, schema_of
from leveret.node.choices import CHOICES
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.polling import wait_until

CONFIG = """
[server]
handshake_timeout = 5

[amqp]
frame_max = 8192
channel_max = 5
heartbeat = 33
max_message_size = "10KiB"
qos_global = "spec"

[limits]
connections = 4
connections_per_user = 3
consumers_per_channel = 2
unacked_per_channel = 3
queues_per_vhost = 2
transaction_size = 100

[users.guest]
password = "guest"
permissions."/" = { configure = ".*", write = ".*", read = ".*" }
permissions.small = { configure = ".*", write = ".*", read = ".*" }
limits.max_connections = 2
limits.max_channels = 3

[users.other]
password = "other"
permissions."/" = { configure = ".*", write = ".*", read = ".*" }

[vhosts.small]
limits.max_queues = 1
limits.max_connections = 1
qos_global = "rabbitmq"
consumer_timeout = 0.2
"""


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    leveret_only("it has a configuration of its own")
    process = LeveretProcess(tmp_path_factory.mktemp("limits"), config=CONFIG)
    process.start()
    yield process
    process.stop()
    process.check_log()


class Clients:
    """Connections that are closed at the end of the test."""

    def __init__(self, process: LeveretProcess) -> None:
        self.process = process
        self.opened: list[pika.BlockingConnection] = []

    def connect(self, user: str = "guest", vhost: str = "/", **more: Any) -> pika.BlockingConnection:
        parameters = pika.URLParameters(self.process.url(user=user, password=user, vhost=vhost))
        for name, value in more.items():
            setattr(parameters, name, value)
        connection = pika.BlockingConnection(parameters)
        self.opened.append(connection)
        return connection


@pytest.fixture
def clients(process: LeveretProcess) -> Iterator[Clients]:
    clients = Clients(process)
    yield clients
    for connection in clients.opened:
        if connection.is_open:
            connection.close()


def test_tune_proposals(clients: Clients) -> None:
    connection = clients.connect(heartbeat=lambda connection, proposed: proposed)
    parameters = connection._impl.params
    assert (parameters.frame_max, parameters.channel_max, parameters.heartbeat) == (8192, 5, 33)


def test_the_largest_message(clients: Clients) -> None:
    channel = clients.connect().channel()
    channel.confirm_delivery()
    channel.basic_publish("amq.fanout", "", b"x" * 10240)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="311"):
        channel.basic_publish("amq.fanout", "", b"x" * 10241)


def test_connections_of_a_user_and_of_the_broker(clients: Clients) -> None:
    clients.connect()
    clients.connect()
    with pytest.raises(pika.exceptions.AMQPConnectionError, match=r"per_user|max_connections"):
        clients.connect()
    clients.connect("other")
    clients.connect("other")
    with pytest.raises(pika.exceptions.AMQPConnectionError, match=r"limits\.connections"):
        clients.connect("other")


def test_connections_of_a_vhost(clients: Clients) -> None:
    clients.connect(vhost="small")
    with pytest.raises(pika.exceptions.AMQPConnectionError, match=r"vhosts\.small\.limits\.max_connections"):
        clients.connect(vhost="small")


def test_channels_of_a_user(clients: Clients) -> None:
    first, second = clients.connect(), clients.connect()
    first.channel()
    first.channel()
    second.channel()
    with pytest.raises(pika.exceptions.AMQPError, match="max_channels"):
        second.channel()


@pytest.mark.parametrize(
    ("vhost", "most", "setting"),
    [
        ("/", 2, "queues_per_vhost|max_queues"),
        ("small", 1, r"vhosts\.small\.limits\.max_queues"),
    ],
)
def test_queues_of_a_vhost(clients: Clients, vhost: str, most: int, setting: str) -> None:
    channel = clients.connect(vhost=vhost).channel()
    for _ in range(most):
        channel.queue_declare("", exclusive=True)
    with pytest.raises(pika.exceptions.AMQPError, match=setting):
        channel.queue_declare("", exclusive=True)


def arrive(connection: pika.BlockingConnection, channel: Any, queue: str) -> None:
    """Take what the broker sends without further events: the effects of a turn may follow the reply of the first call."""
    for _ in range(2):
        channel.queue_declare(queue, passive=True)
    connection.process_data_events(time_limit=0)


def test_consumers_and_unacked_of_a_channel(clients: Clients) -> None:
    connection = clients.connect()
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    for _ in range(5):
        channel.basic_publish("", queue, b"x")
    got: list[int] = []
    channel.basic_consume(queue, lambda channel, method, properties, body: got.append(method.delivery_tag))
    arrive(connection, channel, queue)
    assert got == [1, 2, 3]
    channel.basic_ack(1)
    wait_until(lambda: len(got) == 4 or connection.process_data_events(time_limit=0.02))
    channel.basic_consume(queue, lambda *_: None)
    with pytest.raises(pika.exceptions.AMQPError, match="consumers_per_channel"):
        channel.basic_consume(queue, lambda *_: None)


def test_the_size_of_a_transaction(clients: Clients) -> None:
    channel = clients.connect().channel()
    channel.tx_select()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"311.*transaction_size"):
        for _ in range(2):
            channel.basic_publish("amq.fanout", "", b"x" * 60)
        channel.tx_commit()


@pytest.mark.parametrize(("vhost", "shared"), [("/", True), ("small", False)])
def test_the_meaning_of_global(clients: Clients, vhost: str, shared: bool) -> None:
    connection = clients.connect(vhost=vhost)
    channels = [connection.channel(), connection.channel()]
    queue = channels[0].queue_declare("", exclusive=True).method.queue
    channels[0].basic_qos(prefetch_count=1, global_qos=True)  # window of the connection, as in the specification
    got: list[int] = []
    for channel in channels:
        channel.basic_consume(queue, lambda channel, method, properties, body: got.append(channel.channel_number))
    for _ in range(4):
        channels[0].basic_publish("", queue, b"x")
    arrive(connection, channels[0], queue)
    assert (len(got) == 1) is shared


def test_a_consumer_that_exceeds_the_timeout(clients: Clients) -> None:
    connection = clients.connect(vhost="small")
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_consume(queue, lambda *_: None)
    channel.basic_publish("", queue, b"x")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"406.*vhosts\.small\.consumer_timeout"):
        channel.start_consuming()


def test_a_slow_handshake(process: LeveretProcess) -> None:
    with process.connect(20) as silent, process.connect(20) as slow:
        slow.sendall(b"AMQP\0\0\x09\x01")
        assert silent.recv(1) == b""
        while slow.recv(4096):
            pass
    amqp.Connection(f"127.0.0.1:{process.port}").connect()


def test_every_limit_is_read_somewhere() -> None:
    """A setting without effect would be a false promise."""
    from tests.support.broker import ROOT

    sources = [
        path.read_text("utf-8")
        for path in (ROOT / "src" / "leveret").rglob("*.py")
        if "config" not in path.parent.parts[-1]
    ]

    def leaves(table: Table) -> Iterator[str]:
        for name, node in table.keys.items():
            if isinstance(node, Key):
                yield name
            elif name != "shovels":  # each is read as a whole
                yield from leaves(node.each or node)

    unread = [name for name in leaves(schema_of(Config, CHOICES)) if not any(f".{name}" in source for source in sources)]
    assert unread == []
