"""Readers that filter a stream by routing key and by filter value, over 0-9-1 and AMQP 1.0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from tests.interop.conftest import Connect
from tests.support.broker import Broker

KEYS = ("order.paid", "order.sent", "invoice.paid", "order")
COLOURS = ("red", "blue", None)
COUNT = 240


@pytest.fixture(autouse=True)
def only_leveret(broker: Broker) -> None:
    if broker.kind != "leveret":
        pytest.skip("other brokers filter by chunk, and not by routing key")


@pytest.fixture
def stream(channel: BlockingChannel, name: str) -> Iterator[str]:
    """A stream with messages of all keys and colours in turn, and a last one that matches every filter."""
    exchange = f"{name}.x"
    channel.exchange_declare(exchange, "fanout", auto_delete=True)
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_bind(name, exchange)
    channel.tx_select()
    for number in range(COUNT):
        colour = COLOURS[number % len(COLOURS)]
        headers: dict[str, Any] = {"other": "red"}
        if colour is not None:
            headers["x-stream-filter-value"] = colour
        channel.basic_publish(exchange, KEYS[number % len(KEYS)], b"%d" % number, pika.BasicProperties(headers=headers))
    channel.basic_publish(exchange, "order.paid", b"end", pika.BasicProperties(headers={"x-stream-filter-value": "red"}))
    channel.tx_commit()
    yield name
    channel.queue_delete(name)


def expected(*keys: str, colours: tuple[str | None, ...] = COLOURS) -> list[int]:
    return [
        number for number in range(COUNT) if KEYS[number % len(KEYS)] in keys and COLOURS[number % len(COLOURS)] in colours
    ]


def read(connect: Connect, stream: str, **arguments: Any) -> list[int]:
    """Return the offsets of the messages before the last one; each body has the same value."""
    channel = connect().channel()
    channel.basic_qos(prefetch_count=50)
    offsets = []
    wanted = {"x-stream-offset": "first"}
    wanted |= {f"x-stream-{name.replace('_', '-')}": value for name, value in arguments.items()}
    for method, properties, body in channel.consume(stream, arguments=wanted, inactivity_timeout=60):
        assert body is not None, "nothing came"
        channel.basic_ack(method.delivery_tag)
        if body == b"end":
            break
        offsets.append(properties.headers["x-stream-offset"])
        assert body == b"%d" % offsets[-1]
    return offsets


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        ("order.paid", ("order.paid",)),
        ("order.#", ("order.paid", "order.sent", "order")),
        ("*.paid", ("order.paid", "invoice.paid")),
        (["invoice.*", "order.paid"], ("invoice.paid", "order.paid")),
    ],
    ids=str,
)
def test_by_routing_key(connect: Connect, stream: str, pattern: Any, keys: tuple[str, ...]) -> None:
    assert read(connect, stream, filter_routing_key=pattern) == expected(*keys)


def test_by_value(connect: Connect, stream: str) -> None:
    assert read(connect, stream, filter="red") == expected(*KEYS, colours=("red",))
    assert read(connect, stream, filter=["red", "green"], match_unfiltered=True) == expected(*KEYS, colours=("red", None))


def test_by_both_with_a_name(connect: Connect, stream: str) -> None:
    """A consumer that reconnects resumes at its position, with its filters."""
    arguments = {"filter": "red", "filter_routing_key": "order.*", "consumer": "me"}
    assert read(connect, stream, **arguments) == expected("order.paid", "order.sent", colours=("red",))


def test_a_pattern_that_is_none(connect: Connect, stream: str) -> None:
    channel = connect().channel()
    channel.basic_qos(prefetch_count=1)
    with pytest.raises(ChannelClosedByBroker, match=r"filter-routing-key.*a string or a list of strings") as caught:
        channel.basic_consume(stream, lambda *_: None, arguments={"x-stream-filter-routing-key": 5})
    assert caught.value.reply_code == 406


def test_over_1_0(broker: Broker, stream: str) -> None:
    utils = pytest.importorskip("proton.utils", reason="Qpid Proton is not installed")
    proton = pytest.importorskip("proton")
    reactor = pytest.importorskip("proton.reactor")
    connection = utils.BlockingConnection(f"amqp://{broker.host}:{broker.port}", timeout=60)

    def described(name: str, value: Any) -> Any:
        return proton.symbol(name), proton.Described(proton.symbol(name), value)

    filters = reactor.Filter(
        dict(
            [
                described("rabbitmq:stream-offset-spec", "first"),
                described("leveret:stream-filter-routing-key", ["invoice.*", "order.paid"]),
                described("rabbitmq:stream-filter", "red"),
            ]
        )
    )
    receiver = connection.create_receiver(stream, credit=50, options=filters)
    offsets = []
    while True:
        message = receiver.receive(timeout=60)
        receiver.accept()
        if bytes(message.body) == b"end":
            break
        offsets.append(message.annotations[proton.symbol("x-stream-offset")])
    assert offsets == expected("invoice.paid", "order.paid", colours=("red",))
    connection.close()
