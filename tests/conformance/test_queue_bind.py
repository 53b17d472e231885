"""queue.bind and queue.unbind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.peers.amqp091 import Basic, Channel, Exchange, Peer, Queue


@pytest.mark.rule("0-9-1", "queue.bind.duplicates")
def test_an_equal_binding_is_ignored(channel: Channel, name: str) -> None:
    channel.queue(name)
    for _ in range(3):
        channel.bind(name, "amq.topic", "a.*", {"extra": [1, "two"]})
    channel.publish(b"once", "a.b", "amq.topic")
    assert channel.drain(name) == [b"once"]
    channel.call(
        Queue.Unbind, Queue.UnbindOk, queue=name, exchange="amq.topic", routing_key="a.*", arguments={"extra": [1, "two"]}
    )
    channel.publish(b"none is left", "a.b", "amq.topic")
    assert channel.drain(name) == []


@pytest.mark.rule("0-9-1", "queue.bind.unique")
def test_many_matching_bindings_deliver_once(channel: Channel, name: str) -> None:
    channel.queue(name)
    for pattern in ("#", "*.*", "a.#", "#.b", "a.b", "*.b"):
        channel.bind(name, "amq.topic", pattern)
    channel.publish(b"once", "a.b", "amq.topic")
    assert channel.drain(name) == [b"once"]


@pytest.mark.rule("0-9-1", "queue.bind.unique")
def test_many_paths_through_exchanges_deliver_once(channel: Channel, name: str, unique: Callable[[], str]) -> None:
    channel.queue(name)
    source = channel.exchange(unique(), "fanout", auto_delete=True)
    for _ in range(3):
        middle = channel.exchange(unique(), "fanout", auto_delete=True)
        channel.bind(name, middle)
        channel.call(Exchange.Bind, Exchange.BindOk, destination=middle, source=source)
    # A cycle ends.
    channel.call(Exchange.Bind, Exchange.BindOk, destination=source, source=middle)
    channel.publish(b"once", "", source)
    assert channel.drain(name) == [b"once"]


@pytest.mark.rule("0-9-1", "queue.bind.transient-exchange")
def test_a_durable_queue_binds_to_a_transient_exchange(channel: Channel, name: str) -> None:
    channel.exchange(name, "direct", durable=False)
    channel.queue(name, exclusive=False, durable=True)
    channel.bind(name, name, "k")
    channel.publish(b"x", "k", name)
    assert channel.drain(name) == [b"x"]
    channel.call(Queue.Delete, Queue.DeleteOk, queue=name)
    channel.call(Exchange.Delete, Exchange.DeleteOk, exchange=name)


@pytest.mark.rule("0-9-1", "queue.bind.binding-count")
def test_a_queue_has_many_bindings(channel: Channel, name: str, unique: Callable[[], str]) -> None:
    channel.queue(name)
    for exchange in ("amq.direct", "amq.fanout", "amq.topic"):
        channel.bind(name, exchange, name)
        channel.publish(exchange.encode(), name, exchange)
    channel.bind(name, "amq.headers", "", {"conformance": name})
    channel.publish(b"amq.headers", "", "amq.headers", headers={"conformance": name})
    own = [channel.exchange(unique(), auto_delete=True) for _ in range(50)]
    for exchange in own:
        for key in range(4):
            channel.bind(name, exchange, str(key))
        channel.publish(exchange.encode(), "3", exchange)
    assert channel.drain(name) == [
        exchange.encode() for exchange in ("amq.direct", "amq.fanout", "amq.topic", "amq.headers", *own)
    ]


@pytest.mark.rule("0-9-1", "queue.bind.queue.queue-known")
def test_binding_an_unnamed_queue_needs_a_declared_one(channel: Channel) -> None:
    channel.send(Queue.Bind, queue="", exchange="amq.direct", routing_key="k")
    channel.expect_close(404, Queue.Bind)


@pytest.mark.rule("0-9-1", "queue.bind.queue.must-exist")
def test_binding_a_queue_that_does_not_exist(channel: Channel, name: str) -> None:
    channel.send(Queue.Bind, queue=name, exchange="amq.direct", routing_key="k")
    channel.expect_close(404, Queue.Bind)


@pytest.mark.rule("0-9-1", "queue.bind.exchange.exchange-existence")
def test_binding_to_an_exchange_that_does_not_exist(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.send(Queue.Bind, queue=name, exchange=name, routing_key="k")
    channel.expect_close(404, Queue.Bind)


@pytest.mark.rule("0-9-1", "queue.bind.exchange.default-exchange")
@pytest.mark.mode("strict")
def test_a_blank_exchange_is_the_default_one(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.bind(name, "", name)  # already bound
    channel.bind(name, "", name + ".alias")
    channel.publish(b"by name", name)
    channel.publish(b"by alias", name + ".alias")
    assert channel.drain(name) == [b"by name", b"by alias"]


@pytest.mark.rule("0-9-1", "queue.bind.routing-key.direct-exchange-key-matching")
def test_direct_bindings_match_equal_keys(channel: Channel, name: str) -> None:
    channel.queue(name)
    keys = ["", "k", "a.b", "*", "#", "K", "ü" * 127, "k" * 255]
    for key in keys:
        channel.publish(b"before", key, "amq.direct")
        channel.bind(name, "amq.direct", name + key if len(key) < 100 else key)
    for key in keys:
        channel.publish(key.encode(), name + key if len(key) < 100 else key, "amq.direct")
        channel.publish(b"another key", name + key + "x" if len(key) < 100 else key[:-1], "amq.direct")
    assert channel.drain(name) == [key.encode() for key in keys]


# Missing objects of an unbind: the binding, the queue, the exchange.
FAILING: list[Any] = [
    pytest.param({}, marks=pytest.mark.rule("0-9-1", "queue.unbind.01"), id="binding"),
    pytest.param(
        {"queue": "conf.no-such-queue"},
        id="queue",
        marks=[pytest.mark.rule("0-9-1", "queue.unbind.01"), pytest.mark.rule("0-9-1", "queue.unbind.queue.must-exist")],
    ),
    pytest.param(
        {"exchange": "conf.no-such-exchange"},
        id="exchange",
        marks=[pytest.mark.rule("0-9-1", "queue.unbind.01"), pytest.mark.rule("0-9-1", "queue.unbind.exchange.must-exist")],
    ),
]


@pytest.mark.mode("strict")
@pytest.mark.parametrize("changed", FAILING)
def test_an_unbind_that_fails_is_an_error_of_the_connection(peer: Peer, name: str, changed: dict[str, str]) -> None:
    channel = peer.channel()
    channel.queue(name)
    channel.send(Queue.Unbind, **({"queue": name, "exchange": "amq.direct", "routing_key": "k"} | changed))
    peer.expect_connection_close(404, Queue.Unbind)


@pytest.mark.mode("rabbitmq")
@pytest.mark.parametrize("changed", FAILING)
def test_unbinding_a_missing_binding_succeeds(channel: Channel, name: str, changed: dict[str, str]) -> None:
    channel.queue(name)
    channel.call(Queue.Unbind, Queue.UnbindOk, **({"queue": name, "exchange": "amq.direct", "routing_key": "k"} | changed))


@pytest.mark.rule("0-9-1", "queue.unbind.queue.queue-known")
@pytest.mark.mode("rabbitmq")
def test_unbinding_an_unnamed_queue_needs_a_declared_one(channel: Channel) -> None:
    channel.send(Queue.Unbind, queue="", exchange="amq.direct", routing_key="k")
    channel.expect_close(404, Queue.Unbind)


@pytest.mark.rule("0-9-1", "queue.unbind.queue.queue-known")
@pytest.mark.mode("strict")
def test_unbinding_an_unnamed_queue_is_an_unbind_that_fails(peer: Peer) -> None:
    peer.channel().send(Queue.Unbind, queue="", exchange="amq.direct", routing_key="k")
    peer.expect_connection_close(404, Queue.Unbind)


@pytest.mark.rule("0-9-1", "queue.bind.exchange.default-exchange")
@pytest.mark.rule("0-9-1", "queue.unbind.exchange.default-exchange")
@pytest.mark.mode("rabbitmq")
@pytest.mark.parametrize("kind", [Queue.Bind, Queue.Unbind])
def test_the_default_exchange_has_its_own_bindings_only(
    channel: Channel, name: str, kind: type[Queue.Bind | Queue.Unbind]
) -> None:
    channel.queue(name)
    channel.send(kind, queue=name, exchange="", routing_key=name)
    channel.expect_close(403, kind)
    channel.reopen().publish(b"by name", name)
    assert channel.drain(name) == [b"by name"]


@pytest.mark.rule("0-9-1", "queue.unbind.exchange.default-exchange")
@pytest.mark.mode("strict")
def test_a_blank_exchange_is_the_default_one_for_unbind_too(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.bind(name, "", name + ".alias")
    channel.call(Queue.Unbind, Queue.UnbindOk, queue=name, exchange="", routing_key=name + ".alias")
    channel.publish(b"by alias", name + ".alias")
    channel.publish(b"by name", name)
    assert channel.drain(name) == [b"by name"]


@pytest.mark.rule("0-9-1", "queue.unbind.response.unbind-ok")
def test_unbinding_one_keeps_the_others(channel: Channel, name: str, unique: Callable[[], str]) -> None:
    second = channel.queue(unique())
    channel.queue(name)
    for queue in (name, second):
        channel.bind(queue, "amq.direct", name)
        channel.bind(queue, "amq.direct", name + ".2")
    channel.call(Queue.Unbind, Queue.UnbindOk, queue=name, exchange="amq.direct", routing_key=name)
    channel.publish(b"one", name, "amq.direct")
    channel.publish(b"two", name + ".2", "amq.direct")
    assert channel.drain(name) == [b"two"]
    assert channel.drain(second) == [b"one", b"two"]


@pytest.mark.rule("0-9-1", "ordering.visible")
def test_a_binding_counts_for_the_next_publish(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.consume(name, "c", no_ack=True)
    for number in range(50):
        channel.bind(name, "amq.direct", f"{name}.{number}")
        channel.publish(b"%d" % number, f"{name}.{number}", "amq.direct")
        channel.send(Queue.Unbind, queue=name, exchange="amq.direct", routing_key=f"{name}.{number}")
        channel.publish(b"unbound", f"{name}.{number}", "amq.direct")
        frames = [channel.peer.read(1) for _ in range(4)]
        assert sorted(type(frame).__name__ for frame in frames) == ["ContentBody", "ContentHeader", "Deliver", "UnbindOk"]
    channel.call(Basic.Cancel, Basic.CancelOk, consumer_tag="c")
    assert channel.depth(name) == 0
