"""Class exchange, and the exchange types (0-9-1 section 3.1.3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.conftest import Connect
from tests.support.peers.amqp091 import Basic, Channel, Exchange, Peer, Queue

STANDARD = ("direct", "fanout", "topic", "headers")


@pytest.mark.rule("0-9-1", "exchange.required-types")
@pytest.mark.parametrize("kind", ["fanout", "direct"])
def test_required_types(channel: Channel, name: str, kind: str) -> None:
    channel.exchange(name, kind)
    channel.queue(name)
    channel.bind(name, name, "key")
    channel.publish(b"hit", "key", name)
    channel.publish(b"other", "other", name)
    assert channel.drain(name) == ([b"hit", b"other"] if kind == "fanout" else [b"hit"])
    channel.call(Exchange.Delete, Exchange.DeleteOk, exchange=name)


@pytest.mark.rule("0-9-1", "exchange.recommended-types")
def test_topic(channel: Channel, unique: Callable[[], str]) -> None:
    exchange = channel.exchange(unique(), "topic", auto_delete=True)
    patterns = {"*.stock.#": unique(), "usd.*": unique(), "#": unique()}
    for pattern, queue in patterns.items():
        channel.queue(queue)
        channel.bind(queue, exchange, pattern)
    for key in ("usd.stock", "eur.stock.db", "stock.nasdaq", "usd", ""):
        channel.publish(key.encode(), key, exchange)
    assert channel.drain(patterns["*.stock.#"]) == [b"usd.stock", b"eur.stock.db"]
    assert channel.drain(patterns["usd.*"]) == [b"usd.stock"]
    assert channel.drain(patterns["#"]) == [b"usd.stock", b"eur.stock.db", b"stock.nasdaq", b"usd", b""]


@pytest.mark.rule("0-9-1", "exchange.recommended-types")
def test_headers(channel: Channel, unique: Callable[[], str]) -> None:
    exchange = channel.exchange(unique(), "headers", auto_delete=True)
    bindings = {
        "all": {"x-match": "all", "a": 1, "b": "x"},
        "any": {"x-match": "any", "a": 1, "b": "x"},
        "default": {"a": 1, "b": "x"},
    }
    queues = {}
    for label, arguments in bindings.items():
        queues[label] = channel.queue(unique())
        channel.bind(queues[label], exchange, "", arguments)
    channel.publish(b"both", "", exchange, headers={"a": 1, "b": "x", "c": True})
    channel.publish(b"one", "", exchange, headers={"a": 1, "b": "y"})
    channel.publish(b"none", "", exchange, headers={"c": 1})
    channel.publish(b"no headers", "", exchange)
    assert channel.drain(queues["all"]) == [b"both"]
    assert channel.drain(queues["default"]) == [b"both"]
    assert channel.drain(queues["any"]) == [b"both", b"one"]


@pytest.mark.rule("0-9-1", "exchange.required-instances")
@pytest.mark.parametrize("kind", STANDARD)
def test_every_standard_type_has_its_instance(channel: Channel, kind: str, name: str) -> None:
    instance = f"amq.{kind}"
    channel.call(Exchange.Declare, Exchange.DeclareOk, exchange=instance, passive=True)
    channel.call(Exchange.Declare, Exchange.DeclareOk, exchange=instance, exchange_type=kind, durable=True)
    channel.queue(name)
    channel.bind(name, instance, name, {"x-match": "all", "test": name} if kind == "headers" else None)
    channel.publish(b"here", name, instance, headers={"test": name})
    assert channel.drain(name) == [b"here"]


@pytest.mark.rule("0-9-1", "exchange.default-exchange")
def test_the_default_exchange_accepts_publishes(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.publish(b"by name", name, "")
    assert channel.drain(name) == [b"by name"]


@pytest.mark.rule("0-9-1", "exchange.default-access")
@pytest.mark.rule("0-9-1", "exchange.declare.exchange.assert.notnull")
@pytest.mark.rule("0-9-1", "exchange.delete.exchange.assert.notnull")
def test_the_default_exchange_cannot_be_declared_deleted_or_bound(peer: Peer, name: str) -> None:
    channel = peer.channel()
    channel.send(Exchange.Delete, exchange="")
    channel.expect_close(403, Exchange.Delete)
    channel = peer.channel()
    channel.send(Exchange.Declare, exchange="", exchange_type="direct", durable=True)
    channel.expect_close(403, Exchange.Declare)
    channel = peer.channel()
    channel.exchange(name, auto_delete=True)
    channel.send(Exchange.Bind, destination=name, source="", routing_key="k")
    channel.expect_close(403, Exchange.Bind)
    channel = peer.channel()
    channel.send(Exchange.Bind, destination="", source=name, routing_key="k")
    channel.expect_close(403, Exchange.Bind)


@pytest.mark.rule("0-9-1", "exchange.default-access")
@pytest.mark.parametrize("instance", [f"amq.{kind}" for kind in STANDARD])
def test_pre_declared_exchanges_cannot_be_deleted(channel: Channel, instance: str) -> None:
    channel.send(Exchange.Delete, exchange=instance)
    channel.expect_close(403, Exchange.Delete)
    channel.reopen().call(Exchange.Declare, Exchange.DeclareOk, exchange=instance, passive=True)


@pytest.mark.rule("0-9-1", "exchange.extensions")
def test_consistent_hash_is_another_type(channel: Channel, unique: Callable[[], str]) -> None:
    exchange = channel.exchange(unique(), "x-consistent-hash", auto_delete=True)
    queues = [channel.queue(unique()) for _ in range(4)]
    for queue in queues:
        channel.bind(queue, exchange, "10")
    for number in range(200):
        channel.publish(b"%d" % (number % 50), f"key{number % 50}", exchange)
    contents = [channel.drain(queue) for queue in queues]
    assert sum(len(content) for content in contents) == 200
    assert sum(1 for content in contents if content) >= 3
    for content in contents:
        assert all(content.count(body) == 4 for body in content), "one key went to two queues"
    channel.send(Queue.Bind, queue=queues[0], exchange=exchange, routing_key="heavy")
    channel.expect_close(406, Queue.Bind)


@pytest.mark.rule("0-9-1", "exchange.declare.minimum")
def test_there_can_be_many_exchanges(channel: Channel, unique: Callable[[], str]) -> None:
    exchanges = [channel.exchange(unique()) for _ in range(100)]
    for exchange in exchanges:
        channel.call(Exchange.Declare, Exchange.DeclareOk, exchange=exchange, passive=True)
    for exchange in exchanges:
        channel.call(Exchange.Delete, Exchange.DeleteOk, exchange=exchange)


@pytest.mark.rule("0-9-1", "exchange.declare.exchange.reserved")
def test_reserved_names(channel: Channel, name: str) -> None:
    channel.call(Exchange.Declare, Exchange.DeclareOk, exchange="amq.direct", passive=True)
    channel.exchange("amq.direct", "direct", durable=True)
    channel.send(Exchange.Declare, exchange="amq." + name, exchange_type="direct")
    channel.expect_close(403, Exchange.Declare)
    channel = channel.reopen()
    channel.send(Exchange.Declare, exchange="amq." + name, passive=True)
    channel.expect_close(404, Exchange.Declare)


ILLEGAL_NAMES = ["with blank", "celery@host", "slash/", "hash#", "umläut", "a" * 128]


@pytest.mark.rule("0-9-1", "exchange.declare.exchange.syntax")
@pytest.mark.rule("0-9-1", "exchange-name.assert.length")
@pytest.mark.rule("0-9-1", "exchange-name.assert.regexp")
@pytest.mark.mode("strict")
@pytest.mark.parametrize("illegal", ILLEGAL_NAMES)
def test_names_are_letters_digits_and_some_signs(channel: Channel, illegal: str) -> None:
    channel.exchange("Aa0-_.:" + "z" * 100, auto_delete=True)
    channel.send(Exchange.Declare, exchange=illegal, exchange_type="direct")
    channel.expect_close(406, Exchange.Declare)


@pytest.mark.rule("0-9-1", "exchange.declare.exchange.syntax")
@pytest.mark.rule("0-9-1", "exchange-name.assert.length")
@pytest.mark.rule("0-9-1", "exchange-name.assert.regexp")
@pytest.mark.mode("rabbitmq")
@pytest.mark.parametrize("illegal", [*ILLEGAL_NAMES, "ü" * 127])
def test_names_are_any_utf8_up_to_255_bytes(channel: Channel, illegal: str) -> None:
    channel.exchange(illegal)
    channel.call(Exchange.Declare, Exchange.DeclareOk, exchange=illegal, passive=True)
    channel.call(Exchange.Delete, Exchange.DeleteOk, exchange=illegal)


@pytest.mark.rule("0-9-1", "exchange.declare.type.typed")
@pytest.mark.rule("0-9-1", "exchange.declare.type.text.fixed")
@pytest.mark.mode("strict")
def test_a_redeclaration_with_another_type_is_an_error_of_the_connection(peer: Peer, name: str) -> None:
    channel = peer.channel()
    channel.exchange(name, "direct")
    channel.send(Exchange.Declare, exchange=name, exchange_type="fanout")
    peer.expect_connection_close(530, Exchange.Declare)


@pytest.mark.rule("0-9-1", "exchange.declare.type.typed")
@pytest.mark.rule("0-9-1", "exchange.declare.type.text.fixed")
@pytest.mark.mode("rabbitmq")
def test_a_redeclaration_with_another_type_is_an_error_of_the_channel(channel: Channel, name: str) -> None:
    channel.exchange(name, "direct", auto_delete=True)
    channel.send(Exchange.Declare, exchange=name, exchange_type="fanout", auto_delete=True)
    assert "inequivalent arg 'type'" in channel.expect_close(406, Exchange.Declare).reply_text


@pytest.mark.rule("0-9-1", "exchange.declare.type.support")
@pytest.mark.parametrize("kind", ["x-unheard-of", "", "Direct"])
def test_an_unknown_type_is_an_error_of_the_connection(peer: Peer, name: str, kind: str) -> None:
    peer.channel().send(Exchange.Declare, exchange=name, exchange_type=kind)
    peer.expect_connection_close(503, Exchange.Declare)


@pytest.mark.rule("0-9-1", "exchange.declare.passive.not-found")
@pytest.mark.rule("0-9-1", "exchange.declare.passive.text.asserts")
def test_a_passive_declare_of_a_missing_exchange_is_404_and_declares_none(channel: Channel, name: str) -> None:
    for _ in range(2):
        channel.send(Exchange.Declare, exchange=name, exchange_type="direct", passive=True)
        channel.expect_close(404, Exchange.Declare)
        channel = channel.reopen()


@pytest.mark.rule("0-9-1", "exchange.declare.passive.equivalent")
@pytest.mark.rule("0-9-1", "exchange.declare.text.creates-or-verifies")
def test_an_equal_redeclaration_succeeds(channel: Channel, unique: Callable[[], str]) -> None:
    for durable in (False, True):
        exchange = unique()
        for _ in range(2):
            channel.exchange(exchange, "topic", durable=durable, arguments={"alternate-exchange": "amq.fanout"})
        channel.call(Exchange.Declare, Exchange.DeclareOk, exchange=exchange, passive=True)
        channel.call(Exchange.Delete, Exchange.DeleteOk, exchange=exchange)


@pytest.mark.rule("0-9-1", "exchange.declare.passive.equivalent")
@pytest.mark.rule("0-9-1", "exchange.declare.text.creates-or-verifies")
@pytest.mark.parametrize(
    "changed",
    [
        {"durable": True},
        {"arguments": {}},
        {"arguments": {"alternate-exchange": "amq.topic"}},
    ],
)
def test_another_redeclaration_is_refused(channel: Channel, name: str, changed: dict[str, object]) -> None:
    original: dict[str, object] = {"durable": False, "auto_delete": True, "arguments": {"alternate-exchange": "amq.fanout"}}
    channel.exchange(name, "direct", **original)
    channel.send(Exchange.Declare, exchange=name, exchange_type="direct", **(original | changed))
    assert "inequivalent arg" in channel.expect_close(406, Exchange.Declare).reply_text
    channel.reopen().exchange(name, "direct", **original)


@pytest.mark.rule("0-9-1", "exchange.declare.passive.equivalent")
@pytest.mark.rule("0-9-1", "exchange.declare.passive.text.others-ignored")
def test_a_passive_declare_compares_no_fields(channel: Channel, name: str) -> None:
    channel.exchange(name, "topic", auto_delete=True)
    channel.call(Exchange.Declare, Exchange.DeclareOk, exchange=name, exchange_type="fanout", passive=True, durable=True)


@pytest.mark.rule("0-9-1", "exchange.declare.durable.support")
@pytest.mark.parametrize("durable", [False, True])
def test_durable_and_transient_exchanges(channel: Channel, name: str, durable: bool) -> None:
    channel.exchange(name, "fanout", durable=durable)
    channel.queue(name)
    channel.bind(name, name)
    channel.publish(b"x", "", name)
    assert channel.drain(name) == [b"x"]
    channel.call(Exchange.Delete, Exchange.DeleteOk, exchange=name)


@pytest.mark.rule("0-9-1", "exchange.delete.exchange.exists")
@pytest.mark.mode("strict")
def test_deleting_a_missing_object_is_404(channel: Channel, name: str) -> None:
    channel.send(Exchange.Delete, exchange=name)
    channel.expect_close(404, Exchange.Delete)


@pytest.mark.rule("0-9-1", "exchange.delete.exchange.exists")
@pytest.mark.mode("rabbitmq")
def test_deleting_a_missing_object_succeeds(channel: Channel, name: str) -> None:
    channel.call(Exchange.Delete, Exchange.DeleteOk, exchange=name)


@pytest.mark.rule("0-9-1", "exchange.delete.if-unused.in-use")
@pytest.mark.rule("0-9-1", "exchange.delete.if-unused.text.only-unused")
@pytest.mark.rule("0-9-1", "exchange.delete.if-unused.text.else-error")
def test_if_unused_keeps_an_exchange_in_use(channel: Channel, name: str) -> None:
    channel.exchange(name)
    channel.queue(name)
    channel.bind(name, name, "k")
    channel.send(Exchange.Delete, exchange=name, if_unused=True)
    channel.expect_close(406, Exchange.Delete)
    channel = channel.reopen()
    channel.publish(b"still", "k", name)
    assert channel.drain(name) == [b"still"]
    channel.call(Queue.Unbind, Queue.UnbindOk, queue=name, exchange=name, routing_key="k")
    channel.call(Exchange.Delete, Exchange.DeleteOk, exchange=name, if_unused=True)
    channel.send(Exchange.Declare, exchange=name, passive=True)
    channel.expect_close(404)


@pytest.mark.rule("0-9-1", "exchange.delete.text.bindings")
def test_deleting_an_exchange_deletes_its_bindings(channel: Channel, name: str) -> None:
    channel.exchange(name, "fanout")
    channel.queue(name)
    channel.bind(name, name)
    channel.call(Exchange.Delete, Exchange.DeleteOk, exchange=name)
    channel.exchange(name, "fanout")
    channel.publish(b"lost", "", name)
    assert channel.drain(name) == []
    channel.call(Exchange.Delete, Exchange.DeleteOk, exchange=name)


@pytest.mark.rule("0-9-1", "no-wait.text.no-reply")
def test_no_wait_sends_no_answer(channel: Channel, name: str) -> None:
    channel.send(Exchange.Declare, exchange=name, exchange_type="fanout", nowait=True)
    channel.send(Queue.Declare, queue=name, nowait=True, exclusive=True)
    channel.send(Queue.Bind, queue=name, exchange=name, nowait=True)
    channel.send(Basic.Consume, queue=name, consumer_tag="c", nowait=True, no_ack=True)
    channel.publish(b"delivered first", "", name)
    assert channel.delivery().body == b"delivered first"
    channel.send(Basic.Cancel, consumer_tag="c", nowait=True)
    channel.send(Queue.Purge, queue=name, nowait=True)
    channel.send(Queue.Delete, queue=name, nowait=True)
    channel.send(Exchange.Delete, exchange=name, nowait=True)
    channel.quiet()
    assert not channel.exists(name)


@pytest.mark.rule("0-9-1", "exchange.declare.reserved-2.reserved")
def test_an_auto_delete_exchange_is_deleted_with_its_last_binding(connect: Connect, name: str) -> None:
    channel = connect().channel()
    channel.exchange(name, "fanout", auto_delete=True)
    channel.call(Exchange.Declare, Exchange.DeclareOk, exchange=name, passive=True)  # it waits for its first
    for queue in (name + ".1", name + ".2"):
        channel.queue(queue)
        channel.bind(queue, name)
    channel.call(Queue.Unbind, Queue.UnbindOk, queue=name + ".1", exchange=name)
    channel.call(Exchange.Declare, Exchange.DeclareOk, exchange=name, passive=True)
    channel.call(Queue.Delete, Queue.DeleteOk, queue=name + ".2")
    channel.send(Exchange.Declare, exchange=name, passive=True)
    channel.expect_close(404)
