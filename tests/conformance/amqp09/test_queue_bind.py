"""Class queue: bind and unbind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.amqp09.conftest import Connect
from tests.conformance.marks import checks
from tests.support.peers.amqp09 import Channel, Peer

Unique = Callable[[], str]


@pytest.mark.rule("0-9", "queue.bind.duplicates")
def test_a_duplicate_binding_is_ignored(channel: Channel, name: str) -> None:
    channel.exchange(name)
    channel.queue(name)
    channel.bind(name, name, "key")
    channel.bind(name, name, "key")
    channel.publish(b"once", "key", name)
    assert channel.drain(name) == [b"once"]
    channel.call("queue.unbind", queue=name, exchange=name, routing_key="key")
    channel.publish(b"gone", "key", name)
    assert channel.drain(name) == []


BAD_BINDS = [
    pytest.param(
        {"queue": "", "exchange": "NAME"},
        530,
        id="no-name",
        marks=checks("0-9", "queue.bind.queue.empty-queue", "queue.bind.queue.empty-queue.reply-code"),
    ),
    pytest.param(
        {"queue": "NAME", "exchange": "NAME.transient"},
        530,
        id="transient-exchange",
        marks=checks("0-9", "queue.bind.transient-exchange", "queue.bind.transient-exchange.reply-code"),
    ),
    pytest.param(
        {"queue": "NAME", "exchange": "NAME.internal"},
        530,
        id="internal-exchange",
        marks=pytest.mark.rule("0-9", "queue.bind.internal-exchange"),
    ),
]


NOT_THERE = pytest.mark.parametrize(
    "fields",
    [
        pytest.param(
            {"queue": "NAME.none", "exchange": "NAME"},
            id="no-queue",
            marks=checks("0-9", "queue.bind.queue.queue-existence", "queue.bind.queue.queue-existence.reply-code"),
        ),
        pytest.param(
            {"queue": "NAME", "exchange": "NAME.none"},
            id="no-exchange",
            marks=checks(
                "0-9", "queue.bind.exchange.exchange-existence", "queue.bind.exchange.exchange-existence.reply-code"
            ),
        ),
    ],
)


@pytest.mark.rule("0-9", "queue.bind.failure")
@pytest.mark.mode("rabbitmq")
@NOT_THERE
def test_binding_a_missing_object_closes_the_channel(
    moded: Callable[[], Channel], name: str, fields: dict[str, str]
) -> None:
    channel = moded()
    channel.queue(name)
    channel.exchange(name)
    channel.send("queue.bind", **{key: value.replace("NAME", name) for key, value in fields.items()})
    assert channel.refused(404, "queue.bind").exists(name)


@pytest.mark.rule("0-9", "queue.bind.failure")
@pytest.mark.mode("strict")
@NOT_THERE
def test_binding_a_missing_object_ends_the_connection(
    moded: Callable[[], Channel], name: str, fields: dict[str, str]
) -> None:
    channel = moded()
    channel.queue(name)
    channel.exchange(name)
    channel.send("queue.bind", **{key: value.replace("NAME", name) for key, value in fields.items()})
    channel.peer.expect_end(404, "queue.bind")


@pytest.mark.rule("0-9", "queue.bind.failure")
@pytest.mark.parametrize(("fields", "code"), BAD_BINDS)
def test_a_bind_that_fails_ends_the_connection(
    connect: Connect, other: Channel, name: str, fields: dict[str, str], code: int
) -> None:
    other.queue(name, durable=True)
    other.exchange(name, durable=True)
    other.exchange(name + ".transient")
    other.exchange(name + ".internal", durable=True, internal=True)
    peer = connect()
    peer.open().send("queue.bind", **{key: value.replace("NAME", name) for key, value in fields.items()})
    peer.expect_end(code, "queue.bind")
    for exchange in (name, name + ".transient"):
        other.publish(b"not bound", "", exchange)
    other.quiet()
    assert other.depth(name) == 0
    other.call("queue.delete", queue=name)


@pytest.mark.rule("0-9", "queue.bind.transient-exchange")
def test_a_transient_queue_binds_to_any(channel: Channel, name: str) -> None:
    channel.queue(name)
    for durable in (False, True):
        exchange = channel.exchange(f"{name}.{durable}", durable=durable)
        channel.bind(name, exchange, "k")
        channel.publish(b"x", "k", exchange)
        assert channel.drain(name) == [b"x"]


@pytest.mark.rule("0-9", "queue.bind.binding-count")
def test_a_queue_has_many_bindings(channel: Channel, unique: Unique) -> None:
    queue = channel.queue(unique())
    exchanges = [channel.exchange(unique()) for _ in range(8)]
    for exchange in exchanges:
        for key in ("a", "b"):
            channel.bind(queue, exchange, key)
    for exchange in exchanges:
        for key in ("a", "b", "c"):
            channel.publish(f"{exchange}{key}".encode(), key, exchange)
    assert channel.drain(queue) == [f"{exchange}{key}".encode() for exchange in exchanges for key in ("a", "b")]


@pytest.mark.rule("0-9", "queue.bind.queue.empty-queue")
def test_no_name_means_the_last_declared_queue(channel: Channel, name: str) -> None:
    channel.exchange(name)
    channel.queue(name)
    channel.call("queue.bind", exchange=name, routing_key="k")
    channel.publish(b"x", "k", name)
    assert channel.drain(name) == [b"x"]


@pytest.mark.rule("0-9", "queue.bind.routing-key.direct-exchange-key-matching")
@pytest.mark.parametrize(
    "key",
    ["k", "", "a.b.c", "#", "*", "ü" * 120, "k" * 255],
    ids=["letter", "empty", "words", "hash", "star", "utf-8", "long"],
)
def test_a_direct_exchange_compares_keys(channel: Channel, name: str, key: str) -> None:
    channel.exchange(name)
    channel.queue(name)
    channel.bind(name, name, key)
    for other in ("other", key[:-1] + "x"):
        channel.publish(b"another key", other, name)
    channel.publish(b"the same", key, name)
    assert channel.drain(name) == [b"the same"]


@pytest.mark.rule("0-9", "queue.unbind.01")
def test_unbinding_a_missing_binding_ends_the_connection(peer: Peer, name: str) -> None:
    channel = peer.open()
    channel.exchange(name)
    channel.queue(name)
    channel.bind(name, name, "k")
    channel.call("queue.unbind", queue=name, exchange=name, routing_key="k")
    channel.send("queue.unbind", queue=name, exchange=name, routing_key="k")
    peer.expect_end(404, "queue.unbind")


@pytest.mark.rule("0-9", "queue.unbind.queue.02")
def test_an_unbind_of_a_missing_queue_is_an_error_of_the_channel(channel: Channel, name: str) -> None:
    channel.exchange(name)
    channel.send("queue.unbind", queue=name, exchange=name, routing_key="k")
    channel.refused(404, "queue.unbind")


@pytest.mark.rule("0-9", "queue.unbind.exchange.03")
def test_an_unbind_of_a_missing_exchange_is_an_error_of_the_channel(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.send("queue.unbind", queue=name, exchange=name, routing_key="k")
    channel = channel.refused(404, "queue.unbind")
    assert channel.exists(name)
