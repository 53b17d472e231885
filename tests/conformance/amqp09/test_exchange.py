"""Class exchange."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.amqp09.conftest import Connect
from tests.support.peers.amqp09 import Channel, Peer

STANDARD = ("direct", "fanout", "topic", "headers")
Unique = Callable[[], str]


@pytest.mark.rule("0-9", "exchange.required-types")
@pytest.mark.parametrize("kind", ["fanout", "direct"])
def test_required_types(channel: Channel, name: str, kind: str) -> None:
    channel.exchange(name, kind)
    channel.queue(name)
    channel.bind(name, name, "key")
    channel.publish(b"hit", "key", name)
    channel.publish(b"other", "other", name)
    assert channel.drain(name) == ([b"hit", b"other"] if kind == "fanout" else [b"hit"])


@pytest.mark.rule("0-9", "exchange.recommended-types")
def test_topic(channel: Channel, unique: Unique) -> None:
    exchange = channel.exchange(unique(), "topic")
    patterns = {"*.stock.#": unique(), "usd.*": unique(), "#": unique()}
    for pattern, queue in patterns.items():
        channel.queue(queue)
        channel.bind(queue, exchange, pattern)
    for key in ("usd.stock", "eur.stock.db", "stock.nasdaq", "usd"):
        channel.publish(key.encode(), key, exchange)
    assert channel.drain(patterns["*.stock.#"]) == [b"usd.stock", b"eur.stock.db"]
    assert channel.drain(patterns["usd.*"]) == [b"usd.stock"]
    assert channel.drain(patterns["#"]) == [b"usd.stock", b"eur.stock.db", b"stock.nasdaq", b"usd"]


@pytest.mark.rule("0-9", "exchange.recommended-types")
def test_headers(channel: Channel, unique: Unique) -> None:
    exchange = channel.exchange(unique(), "headers")
    queues = {}
    for match in ("all", "any"):
        queues[match] = channel.queue(unique())
        channel.bind(queues[match], exchange, "", {"x-match": match, "a": 1, "b": "x"})
    channel.publish(b"both", "", exchange, headers={"a": 1, "b": "x", "c": "z"})
    channel.publish(b"one", "", exchange, headers={"a": 1, "b": "y"})
    channel.publish(b"none", "", exchange, headers={"c": 1})
    assert channel.drain(queues["all"]) == [b"both"]
    assert channel.drain(queues["any"]) == [b"both", b"one"]


@pytest.mark.rule("0-9", "exchange.required-instances")
@pytest.mark.parametrize("kind", STANDARD)
def test_every_standard_type_has_its_instance(channel: Channel, kind: str, name: str) -> None:
    instance = f"amq.{kind}"
    channel.call("exchange.declare", exchange=instance, passive=True)
    channel.queue(name)
    channel.bind(name, instance, name, {"x-match": "all", "test": name} if kind == "headers" else None)
    channel.publish(b"here", name, instance, headers={"test": name})
    assert channel.drain(name) == [b"here"]


@pytest.mark.rule("0-9", "exchange.default-exchange")
def test_the_default_exchange_accepts_publishes_and_bindings(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.bind(name, "", name)
    channel.publish(b"by name", name, "")
    assert channel.drain(name) == [b"by name"], "the binding was there already, and is one"


@pytest.mark.rule("0-9", "exchange.default-exchange")
@pytest.mark.rule("0-9", "exchange.default-access")
def test_the_default_exchange_takes_bindings_with_any_key(channel: Channel, unique: Unique) -> None:
    first, second = channel.queue(unique()), channel.queue(unique())
    key = unique()
    for queue in (first, second):
        channel.bind(queue, "", key)
    channel.publish(b"by key", key, "")
    channel.publish(b"by name", first, "")
    assert channel.drain(first) == [b"by key", b"by name"]
    assert channel.drain(second) == [b"by key"]
    channel.call("queue.unbind", queue=first, exchange="", routing_key=key)
    channel.publish(b"again", key, "")
    assert (channel.drain(first), channel.drain(second)) == ([], [b"again"])
    channel.send("queue.unbind", queue=first, exchange="", routing_key=first)
    channel.refused(403, "queue.unbind")


@pytest.mark.rule("0-9", "exchange.default-access")
@pytest.mark.parametrize("method", ["exchange.delete", "exchange.declare"])
def test_the_default_exchange_cannot_be_declared_or_deleted(channel: Channel, method: str, name: str) -> None:
    channel.send(method, exchange="", **{"type": "direct"} if method == "exchange.declare" else {})
    channel = channel.refused(403, method)
    channel.queue(name)
    channel.publish(b"still there", name)
    assert channel.drain(name) == [b"still there"]


@pytest.mark.rule("0-9", "exchange.extensions")
def test_consistent_hash_is_another_type(channel: Channel, unique: Unique) -> None:
    exchange = channel.exchange(unique(), "x-consistent-hash")
    queues = [channel.queue(unique()) for _ in range(3)]
    for queue in queues:
        channel.bind(queue, exchange, "10")
    for number in range(150):
        channel.publish(b"%d" % (number % 50), f"key{number % 50}", exchange)
    contents = [channel.drain(queue) for queue in queues]
    assert sum(len(content) for content in contents) == 150
    for content in contents:
        assert all(content.count(body) == 3 for body in content), "one key went to two queues"


@pytest.mark.rule("0-9", "exchange.declare.minimum")
def test_there_can_be_many_exchanges(channel: Channel, unique: Unique) -> None:
    exchanges = [channel.exchange(unique()) for _ in range(64)]
    assert all(channel.exchange_exists(exchange) for exchange in exchanges)
    for exchange in exchanges:
        channel.call("exchange.delete", exchange=exchange)


@pytest.mark.rule("0-9", "exchange.declare.exchange.reserved")
@pytest.mark.rule("0-9", "exchange.declare.exchange.reserved.reply-code")
def test_reserved_names(channel: Channel, name: str) -> None:
    channel.send("exchange.declare", exchange="amq." + name, type="direct")
    channel = channel.refused(403, "exchange.declare")
    assert not channel.exchange_exists("amq." + name)


@pytest.mark.rule("0-9", "exchange.declare.type.typed")
@pytest.mark.rule("0-9", "exchange.declare.type.typed.reply-code")
@pytest.mark.rule("0-9", "exchange.declare.type.text.fixed")
def test_the_type_of_an_exchange_stays(peer: Peer, connect: Connect, name: str) -> None:
    channel = peer.open()
    channel.exchange(name, "direct")
    channel.exchange(name, "direct")
    channel.send("exchange.declare", exchange=name, type="fanout")
    peer.expect_end(530, "exchange.declare")
    channel = connect().open()
    channel.queue(name)
    channel.bind(name, name, "key")
    channel.publish(b"hit", "key", name)
    channel.publish(b"missed", "other", name)
    assert channel.drain(name) == [b"hit"]


@pytest.mark.rule("0-9", "exchange.declare.type.support")
@pytest.mark.rule("0-9", "command-invalid.constant")
@pytest.mark.rule("0-9", "exchange.declare.type.support.reply-code")
def test_an_unknown_type_is_an_invalid_command(peer: Peer, connect: Connect, name: str) -> None:
    peer.open().send("exchange.declare", exchange=name, type="no-such-type")
    peer.expect_end(503, "exchange.declare")
    assert not connect().open().exchange_exists(name)


@pytest.mark.rule("0-9", "exchange.declare.passive.not-found")
def test_a_missing_exchange_is_404(channel: Channel, name: str) -> None:
    channel.exchange(name)
    channel.call("exchange.declare", exchange=name, passive=True)
    channel.call("exchange.delete", exchange=name)
    channel.send("exchange.declare", exchange=name, type="direct", passive=True)
    channel.refused(404, "exchange.declare")


def is_durable(channel: Channel, exchange: str, name: str) -> bool:
    """Return whether the exchange is durable: a durable queue cannot be bound to a transient one."""
    channel.queue(name, durable=True)
    channel.send("queue.bind", queue=name, exchange=exchange)
    answer = channel.peer.read()
    assert answer.name == "queue.bind-ok" or (answer.name, answer.reply_code) == ("connection.close", 530), answer
    return bool(answer.name == "queue.bind-ok")


@pytest.mark.rule("0-9", "exchange.declare.durable.support")
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.rule("0-9", "exchange.declare.durable.text.marks")
def test_exchanges_are_durable_or_transient(channel: Channel, name: str, durable: bool) -> None:
    channel.exchange(name, "fanout", durable=durable)
    channel.queue(name + ".t")
    channel.bind(name + ".t", name)
    channel.publish(b"x", "", name)
    assert channel.drain(name + ".t") == [b"x"]
    assert is_durable(channel, name, name) is durable


@pytest.mark.rule("0-9", "exchange.declare.durable.sticky")
@pytest.mark.parametrize("durable", [False, True])
def test_durable_is_ignored_if_the_exchange_exists(channel: Channel, name: str, durable: bool) -> None:
    channel.exchange(name, "fanout", durable=durable)
    channel.exchange(name, "fanout", durable=not durable)
    assert is_durable(channel, name, name) is durable


@pytest.mark.rule("0-9", "exchange.declare.auto-delete.sticky")
@pytest.mark.parametrize("auto_delete", [False, True])
def test_auto_delete_is_ignored_if_the_exchange_exists(channel: Channel, name: str, auto_delete: bool) -> None:
    channel.exchange(name, "fanout", auto_delete=auto_delete)
    channel.exchange(name, "fanout", auto_delete=not auto_delete)
    channel.queue(name)
    channel.bind(name, name)
    channel.call("queue.unbind", queue=name, exchange=name)
    assert channel.exchange_exists(name) is not auto_delete


@pytest.mark.rule("0-9", "exchange.delete.exchange.exists")
@pytest.mark.rule("0-9", "exchange.delete.exchange.exists.reply-code")
def test_deleting_a_missing_exchange_is_404(channel: Channel, name: str) -> None:
    channel.exchange(name)
    channel.call("exchange.delete", exchange=name)
    channel.send("exchange.delete", exchange=name)
    channel.refused(404, "exchange.delete")


@pytest.mark.rule("0-9", "section.exchange.delete.if-unused")
def test_an_exchange_that_is_used_stays(channel: Channel, name: str) -> None:
    channel.exchange(name)
    channel.queue(name)
    channel.bind(name, name)
    channel.send("exchange.delete", exchange=name, if_unused=True)
    channel = channel.refused(406, "exchange.delete")
    channel.call("queue.delete", queue=name)
    channel.call("exchange.delete", exchange=name, if_unused=True)
