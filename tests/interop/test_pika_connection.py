"""Connections as pika opens them: negotiation, credentials, virtual hosts, heartbeats, many at once."""

from __future__ import annotations

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import (
    AMQPConnectionError,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from tests.interop.conftest import Connect
from tests.interop.helpers import Collector, connection_error, get, pump
from tests.support.broker import Broker

CAPABILITIES = [
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
]


def test_server_properties(connection: BlockingConnection) -> None:
    properties = connection._impl.server_properties
    for capability in CAPABILITIES:
        assert properties["capabilities"][capability] is True, capability
    for key in ("product", "version", "platform", "copyright", "information"):
        assert isinstance(properties[key], (str, bytes)), key
    assert isinstance(properties["cluster_name"], (str, bytes))


def test_the_offer(connect: Connect) -> None:
    """If the client sets nothing, the server's proposal applies: 2047 channels, 131,072 bytes, 60 s."""
    connection = connect(channel_max=65535, frame_max=131072, heartbeat=None)
    parameters = connection._impl.params
    assert (parameters.channel_max, parameters.frame_max, parameters.heartbeat) == (2047, 131072, 60)


@pytest.mark.parametrize("frame_max", [4096, 8192, 131072])
def test_frame_max(connect: Connect, name: str, frame_max: int) -> None:
    connection = connect(frame_max=frame_max)
    assert connection._impl.params.frame_max == frame_max
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    body = bytes(range(256)) * 200
    channel.basic_publish("", name, body)
    assert get(channel, name).body == body


@pytest.mark.parametrize("vhost", ["/", "interop", "vhöst/ü"])
def test_virtual_hosts(connect: Connect, vhost: str) -> None:
    connection = connect(virtual_host=vhost)
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, vhost.encode())
    assert get(channel, queue).body == vhost.encode()


def test_virtual_hosts_are_separate(connect: Connect, name: str) -> None:
    here = connect(virtual_host="/").channel()
    there = connect(virtual_host="interop").channel()
    here.queue_declare(name, exclusive=True)
    there.queue_declare(name, exclusive=True)
    here.basic_publish("", name, b"here")
    there.basic_publish("", name, b"there")
    assert get(here, name).body == b"here"
    assert get(there, name).body == b"there"


def test_wrong_password(connect: Connect) -> None:
    with pytest.raises(ProbableAuthenticationError) as caught:
        connect(user="guest", password="wrong")
    assert "403" in str(caught.value)


def test_unknown_user(connect: Connect) -> None:
    with pytest.raises(ProbableAuthenticationError):
        connect(user="unknown", password="guest")


def test_unknown_vhost(connect: Connect) -> None:
    with pytest.raises(AMQPConnectionError) as caught:
        connect(virtual_host="no-such-vhost")
    assert isinstance(caught.value, (ConnectionClosedByBroker, ProbableAccessDeniedError))
    assert "530" in str(caught.value)


def test_vhost_without_permission(connect: Connect) -> None:
    with pytest.raises(AMQPConnectionError) as caught:
        connect(user="limited", password="secret", virtual_host="/")
    assert "530" in str(caught.value)


def test_client_properties(connect: Connect) -> None:
    """Any table is accepted, however nested and unusual."""
    connection = connect(
        client_properties={
            "product": "test",
            "connection_name": "größe",
            "list": [1, "two", {"three": 3}],
            "nothing": None,
            "flag": True,
            "capabilities": {"consumer_cancel_notify": True},
        }
    )
    assert connection.channel().is_open


@pytest.mark.parametrize("heartbeat", [0, 1, 600])
def test_heartbeat(connect: Connect, heartbeat: int) -> None:
    """The client's interval applies, including 0 (none), and an idle connection with a short one stays open."""
    connection = connect(heartbeat=heartbeat)
    assert connection._impl.params.heartbeat == heartbeat
    if heartbeat == 1:
        # Sent twice a second: the fifth one follows after more than twice the interval.
        checker = connection._impl._heartbeat_checker
        pump(connection, lambda: checker._heartbeat_frames_sent >= 5)
    assert connection.channel().is_open


def test_update_secret(connection: BlockingConnection) -> None:
    connection.update_secret("guest", "renewed")
    assert connection.channel().is_open


def test_close_with_consumers(connect: Connect, name: str) -> None:
    """A close during deliveries requeues all messages."""
    keeper = connect().channel()
    keeper.queue_declare(name)
    for number in range(200):
        keeper.basic_publish("", name, b"%d" % number)
    connection = connect()
    consumer = Collector(connection.channel(), name)
    consumer.wait(50)
    connection.close()
    bodies: list[bytes] = []
    while len(bodies) < 200:
        got = get(keeper, name)
        bodies.append(got.body)
        assert got.method.redelivered
    assert bodies == [b"%d" % number for number in range(200)]
    keeper.queue_delete(name)


def test_channel_numbers_are_reused(connection: BlockingConnection, name: str) -> None:
    first = connection.channel()
    number = first.channel_number
    first.close()
    second = connection.channel(number)
    second.queue_declare(name, exclusive=True)
    second.basic_publish("", name, b"again")
    assert get(second, name).body == b"again"


def test_many_channels(connect: Connect, name: str) -> None:
    """As many channels as negotiated, each with its own consumer."""
    connection = connect(channel_max=300)
    channels = [connection.channel() for _ in range(300)]
    with pytest.raises(pika.exceptions.NoFreeChannels):
        connection.channel()
    queues = [channel.queue_declare("", exclusive=True).method.queue for channel in channels]
    collectors = [Collector(channel, queue, auto_ack=True) for channel, queue in zip(channels, queues, strict=True)]
    for channel, queue in zip(channels, reversed(queues), strict=True):
        channel.basic_publish("", queue, queue.encode())
    pump(connection, lambda: all(collector.messages for collector in collectors))
    assert [collector.bodies for collector in collectors] == [[queue.encode()] for queue in queues]


def test_many_connections(connect: Connect, name: str) -> None:
    connections = [connect() for _ in range(100)]
    channels = [connection.channel() for connection in connections]
    channels[0].queue_declare(name, auto_delete=True)
    for number, channel in enumerate(channels):
        channel.basic_publish("", name, b"%d" % number)
    bodies = {get(channels[-1], name).body for _ in channels}
    assert bodies == {b"%d" % number for number in range(100)}


def test_guest_is_limited_to_known_vhosts(connect: Connect) -> None:
    with pytest.raises(AMQPConnectionError):
        connect(virtual_host="")


def test_connection_error_leaves_others(connect: Connect, broker: Broker, name: str) -> None:
    other = connect().channel()
    other.queue_declare(name, exclusive=True)
    connection = connect()
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_consume(queue, lambda *_: None, consumer_tag="same")
    with connection_error(connection, 530):
        # pika itself refuses a duplicate tag on a channel, but not with this method.
        channel._impl._send_method(pika.spec.Basic.Consume(queue=queue, consumer_tag="same"))
        pump(connection, lambda: False)
    other.basic_publish("", name, b"still here")
    assert get(other, name).body == b"still here"
