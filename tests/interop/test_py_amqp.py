"""py-amqp, the library of kombu and Celery, which uses the protocol differently from pika."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import pytest
from amqp.exceptions import (
    AccessRefused,
    ChannelError,
    ConsumerCancelled,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)
from amqp.exceptions import (
    ConnectionError as AMQPConnectionError,
)

from tests.interop.helpers import drain_until
from tests.support.broker import Broker

Connect = Callable[..., amqp.Connection]


@pytest.fixture
def open_amqp(broker: Broker) -> Iterator[Connect]:
    connections: list[amqp.Connection] = []

    def open_connection(**options: Any) -> amqp.Connection:
        settings = {"userid": "guest", "password": "guest", "virtual_host": "/", "connect_timeout": 60, **options}
        connection = amqp.Connection(f"{broker.host}:{broker.port}", **settings)
        connections.append(connection)
        connection.connect()
        return connection

    yield open_connection
    for connection in connections:
        if connection.connected:
            connection.close()


def test_line_ends_are_no_part_of_a_name(open_amqp: Connect, name: str) -> None:
    """Not with pika, which waits for a reply with the original name."""
    channel = open_amqp().channel()
    assert channel.queue_declare(f"\r{name}\n", exclusive=True).queue == name
    assert channel.queue_declare(f"{name}\r\n", passive=True).queue == name
    channel.exchange_declare(f"{name[0]}\n{name[1:]}", "fanout")
    channel.exchange_declare(f"{name}\n", "fanout", passive=True)
    channel.queue_bind(name, name)
    channel.exchange_delete(f"{name}\r")
    channel.queue_delete(f"{name}\n")
    with pytest.raises(NotFound):
        channel.queue_declare(name, passive=True)


@pytest.mark.parametrize("method", ["PLAIN", "AMQPLAIN"])
def test_login_methods(open_amqp: Connect, method: str) -> None:
    connection = open_amqp(login_method=method)
    assert connection.channel().is_open


@pytest.mark.parametrize("method", ["PLAIN", "AMQPLAIN"])
def test_wrong_password(open_amqp: Connect, method: str) -> None:
    with pytest.raises(AccessRefused):
        open_amqp(login_method=method, password="wrong")


def test_round_trip(open_amqp: Connect, name: str) -> None:
    channel = open_amqp().channel()
    channel.queue_declare(name, exclusive=True)
    message = amqp.Message(
        "grüße",
        content_type="text/plain",
        content_encoding="utf-8",
        delivery_mode=2,
        application_headers={"a": 1, "list": [1, 2.5, "x"], "table": {"b": True}, "none": None},
    )
    channel.basic_publish(message, routing_key=name)
    got = channel.basic_get(name)
    assert got.body == "grüße"
    assert got.headers == {"a": 1, "list": [1, 2.5, "x"], "table": {"b": True}, "none": None}
    assert got.delivery_info["message_count"] == 0
    channel.basic_ack(got.delivery_tag)
    assert channel.basic_get(name) is None


def test_consumer_tag_of_the_broker(open_amqp: Connect, name: str) -> None:
    channel = open_amqp().channel()
    channel.queue_declare(name, exclusive=True)
    tags = {channel.basic_consume(name, consumer_tag="", callback=lambda message: None) for _ in range(3)}
    assert len(tags) == 3
    assert all(tag.startswith("amq.ctag-") for tag in tags)


def test_confirms(open_amqp: Connect, name: str) -> None:
    channel = open_amqp(confirm_publish=True).channel()
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.basic_publish_confirm(amqp.Message("1"), routing_key=name)
    with pytest.raises(amqp.exceptions.MessageNacked):
        channel.basic_publish_confirm(amqp.Message("2"), routing_key=name)


def test_transaction(open_amqp: Connect, name: str) -> None:
    connection = open_amqp()
    channel, watcher = connection.channel(), connection.channel()
    channel.queue_declare(name, exclusive=True)
    channel.tx_select()
    channel.basic_publish(amqp.Message("1"), routing_key=name)
    channel.tx_rollback()
    channel.basic_publish(amqp.Message("2"), routing_key=name)
    assert watcher.basic_get(name) is None
    channel.tx_commit()
    assert watcher.basic_get(name, no_ack=True).body == "2"


def test_returned(open_amqp: Connect, name: str) -> None:
    connection = open_amqp()
    channel = connection.channel()
    returned: list[tuple[Any, ...]] = []
    channel.events["basic_return"].add(lambda *arguments: returned.append(arguments))
    channel.basic_publish(amqp.Message("x"), exchange="amq.direct", routing_key=name, mandatory=True)
    drain_until(connection, lambda: returned)
    error, exchange, routing_key, message = returned[0]
    assert (exchange, routing_key, message.body) == ("amq.direct", name, "x")
    assert error.reply_code == 312


def test_exceptions(open_amqp: Connect, name: str) -> None:
    connection, other = open_amqp(), open_amqp()
    attempts: list[tuple[type[Exception], Callable[[amqp.Channel], object]]] = [
        (NotFound, lambda channel: channel.queue_declare(name, passive=True)),
        (AccessRefused, lambda channel: channel.exchange_declare("amq.bad", "direct")),
        (PreconditionFailed, lambda channel: channel.queue_declare(name, arguments={"x-max-length": -1})),
    ]
    for wanted, attempt in attempts:
        channel = connection.channel()
        with pytest.raises(wanted):
            attempt(channel)
        assert connection.connected
    other.channel().queue_declare(name, exclusive=True)
    with pytest.raises(ResourceLocked):
        connection.channel().queue_declare(name)


def test_recover(open_amqp: Connect, name: str) -> None:
    channel = open_amqp().channel()
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish(amqp.Message("x"), routing_key=name)
    assert channel.basic_get(name).delivery_info["redelivered"] is False
    channel.basic_recover(requeue=True)
    assert channel.basic_get(name, no_ack=True).delivery_info["redelivered"] is True


def test_recover_async(open_amqp: Connect, name: str) -> None:
    """The deprecated form without an answer."""
    channel = open_amqp().channel()
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish(amqp.Message("x"), routing_key=name)
    channel.basic_get(name)
    channel.basic_recover_async(requeue=True)
    assert channel.basic_get(name, no_ack=True).delivery_info["redelivered"] is True


def test_cancel_notification(open_amqp: Connect, name: str) -> None:
    connection, other = open_amqp(), open_amqp()
    channel = connection.channel()
    channel.queue_declare(name, auto_delete=False)
    told: list[str] = []
    channel.basic_consume(name, callback=lambda message: None, on_cancel=told.append)
    other.channel().queue_delete(name)
    try:
        drain_until(connection, lambda: told)
    except ConsumerCancelled:
        return
    assert told


def test_exchange_binding(open_amqp: Connect, name: str) -> None:
    channel = open_amqp().channel()
    channel.exchange_declare(name, "topic", auto_delete=True)
    channel.queue_declare(f"{name}.q", exclusive=True)
    channel.exchange_bind(name, "amq.topic", f"{name}.#")
    channel.queue_bind(f"{name}.q", name, "#")
    channel.basic_publish(amqp.Message("through"), "amq.topic", f"{name}.key")
    assert channel.basic_get(f"{name}.q", no_ack=True).body == "through"
    channel.exchange_unbind(name, "amq.topic", f"{name}.#")
    channel.basic_publish(amqp.Message("not"), "amq.topic", f"{name}.key")
    assert channel.basic_get(f"{name}.q", no_ack=True) is None


def test_heartbeat(open_amqp: Connect) -> None:
    """Heartbeats alone keep an idle connection for longer than the broker waits for a silent one: twice the interval."""
    connection = open_amqp(heartbeat=1)
    assert connection.heartbeat == 1
    opened = time.monotonic()

    def outlived() -> bool:
        connection.heartbeat_tick(rate=4)
        return bool(connection.last_heartbeat_sent > opened + 2.5)

    drain_until(connection, outlived)
    assert connection.channel().is_open


def test_ten_megabytes(open_amqp: Connect, name: str) -> None:
    channel = open_amqp(frame_max=8192).channel()
    channel.queue_declare(name, exclusive=True)
    body = bytes(range(256)) * 40960
    channel.basic_publish(amqp.Message(body), routing_key=name)
    got = channel.basic_get(name, no_ack=True)
    assert (got.body if isinstance(got.body, bytes) else got.body.encode("latin-1")) == body


def test_vhost_errors(open_amqp: Connect) -> None:
    with pytest.raises((AMQPConnectionError, ChannelError, amqp.exceptions.AMQPError)) as caught:
        open_amqp(virtual_host="missing")
    assert caught.value.reply_code == 530
