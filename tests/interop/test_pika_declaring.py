"""Exchanges, queues and bindings declared with pika, and every refusal with its code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ConnectionClosedByBroker

from tests.interop.conftest import Connect
from tests.interop.helpers import Collector, channel_error, connection_error, count, drain, empty, get
from tests.support.polling import DEADLINE, wait_until


def test_queue_declare_answers(channel: BlockingChannel, name: str) -> None:
    ok = channel.queue_declare(name, exclusive=True).method
    assert (ok.queue, ok.message_count, ok.consumer_count) == (name, 0, 0)
    for _ in range(3):
        channel.basic_publish("", name, b"")
    Collector(channel, name, exclusive=True)
    wait_until(lambda: channel.queue_declare(name, passive=True).method.consumer_count == 1)
    assert channel.queue_declare(name, exclusive=True).method.message_count == 0


def test_server_named_queues(channel: BlockingChannel) -> None:
    names = {channel.queue_declare("", exclusive=True).method.queue for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("amq.gen-") for name in names)


def test_an_empty_name_is_the_last_declared_queue(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.queue_bind("", "amq.direct", name)
    channel.basic_publish("amq.direct", name, b"bound")
    assert get(channel, "").body == b"bound"


def test_empty_name_without_a_declared_queue(channel: BlockingChannel) -> None:
    with channel_error(channel, 404):
        channel.basic_get("")


@pytest.mark.parametrize(
    "queue", ["celery@host.celery.pidbox", "sp ace", "ünïcødé-日本語-🐇", "a" * 255, "q" + "é" * 127, "{[(*#.)]}"]
)
def test_any_name(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue, exclusive=True)
    channel.exchange_declare(queue, "direct", auto_delete=True)
    channel.queue_bind(queue, queue, queue)
    channel.basic_publish(queue, queue, b"x")
    got = get(channel, queue)
    assert (got.method.exchange, got.method.routing_key) == (queue, queue)


def test_passive(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "fanout", auto_delete=True)
    channel.exchange_declare(name, passive=True)
    channel.exchange_declare("amq.topic", passive=True)
    with channel_error(channel, 404):
        channel.exchange_declare(name + ".other", passive=True)


def test_passive_queue_that_is_missing(channel: BlockingChannel, name: str) -> None:
    with channel_error(channel, 404):
        channel.queue_declare(name, passive=True)


@pytest.mark.parametrize(
    "exchange,type_",
    [
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.topic", "topic"),
        ("amq.headers", "headers"),
        ("amq.match", "headers"),
    ],
)
def test_predeclared_exchanges(channel: BlockingChannel, exchange: str, type_: str) -> None:
    channel.exchange_declare(exchange, type_, durable=True)


@pytest.mark.parametrize(
    "change",
    [
        {"durable": True},
        {"auto_delete": True},
        {"arguments": {"x-message-ttl": 1000}},
        {"arguments": {"x-max-length": 5}},
        {"arguments": {"x-dead-letter-exchange": "amq.fanout"}},
    ],
    ids=repr,
)
def test_redeclared_queue_with_other_properties(channel: BlockingChannel, name: str, change: dict[str, Any]) -> None:
    channel.queue_declare(name, arguments={"x-expires": 60000})
    channel.queue_declare(name, arguments={"x-expires": 60000})
    change.setdefault("arguments", {}).setdefault("x-expires", 60000)
    with channel_error(channel, 406):
        channel.queue_declare(name, **change)


@pytest.mark.parametrize("exclusive", [False, True])
def test_redeclared_with_another_exclusivity(channel: BlockingChannel, name: str, exclusive: bool) -> None:
    channel.queue_declare(name, exclusive=exclusive, arguments={"x-expires": 60000})
    with channel_error(channel, 405):
        channel.queue_declare(name, exclusive=not exclusive, durable=True)


@pytest.mark.parametrize("method", ["queue_bind", "queue_unbind"])
def test_the_default_exchange_cannot_be_bound(channel: BlockingChannel, method: str) -> None:
    with channel_error(channel, 403):
        getattr(channel, method)("no-such-queue", "", "k")


def test_redeclared_exchange_of_an_unknown_type(connection: BlockingConnection, name: str) -> None:
    channel = connection.channel()
    channel.exchange_declare(name, "direct", auto_delete=True)
    with pytest.raises(ConnectionClosedByBroker) as error:
        channel.exchange_declare(name, "no-such-type")
    assert error.value.reply_code == 503


@pytest.mark.parametrize(
    "change",
    [
        {"exchange_type": "direct"},
        {"durable": True},
        {"auto_delete": False},
        {"internal": True},
        {"arguments": {"alternate-exchange": "amq.fanout"}},
    ],
    ids=repr,
)
def test_redeclared_exchange_with_other_properties(channel: BlockingChannel, name: str, change: dict[str, Any]) -> None:
    same: dict[str, Any] = {"exchange_type": "topic", "auto_delete": True}
    channel.exchange_declare(name, **same)
    channel.exchange_declare(name, **same)
    with channel_error(channel, 406):
        channel.exchange_declare(name, **(same | change))


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": -1},
        {"x-message-ttl": "1000"},
        {"x-message-ttl": 2**40},
        {"x-expires": 0},
        {"x-expires": -5},
        {"x-max-length": -1},
        {"x-max-length": "ten"},
        {"x-max-length-bytes": -1},
        {"x-overflow": "explode"},
        {"x-max-priority": -1},
        {"x-max-priority": 256},
        {"x-max-priority": "high"},
        {"x-dead-letter-exchange": 5},
        {"x-dead-letter-routing-key": "without-exchange"},
        {"x-single-active-consumer": "yes"},
        {"x-queue-type": "nonsense"},
        {"x-queue-mode": "nonsense"},
    ],
    ids=repr,
)
def test_bad_queue_arguments(channel: BlockingChannel, name: str, arguments: dict[str, Any]) -> None:
    with channel_error(channel, 406):
        channel.queue_declare(name, exclusive=True, arguments=arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-queue-type": "classic"},
        {"x-queue-mode": "lazy"},
        {"x-queue-mode": "default"},
        {"x-queue-version": 2},
        {"x-unknown-to-all": "kept"},
        {"x-message-ttl": 0},
        {"x-max-length": 0},
        {"x-max-priority": 0},
        {"x-max-priority": 255},
        {"x-queue-master-locator": "min-masters"},
    ],
    ids=repr,
)
def test_good_queue_arguments(channel: BlockingChannel, name: str, arguments: dict[str, Any]) -> None:
    channel.queue_declare(name, exclusive=True, arguments=arguments)
    channel.queue_declare(name, exclusive=True, arguments=arguments)


def test_quorum_queue(channel: BlockingChannel, name: str) -> None:
    arguments = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 1}
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.confirm_delivery()
    for _ in range(2):
        channel.basic_publish("", name, b"kept")
    got = get(channel, name, auto_ack=False)
    assert (got.body, got.properties.headers) == (b"kept", {"x-delivery-count": 0})
    channel.basic_ack(got.method.delivery_tag)
    deliveries = channel.consume(name, inactivity_timeout=DEADLINE)
    method, properties, _ = next(deliveries)
    assert properties.headers is None
    channel.basic_nack(method.delivery_tag)
    method, properties, _ = next(deliveries)
    assert method.redelivered
    assert properties.headers == {"x-delivery-count": 1}
    channel.basic_ack(method.delivery_tag)
    channel.cancel()
    channel.queue_delete(name)


@pytest.mark.parametrize("flags", [{"durable": False}, {"durable": True, "exclusive": True}], ids=repr)
def test_quorum_queues_are_durable_and_shared(channel: BlockingChannel, name: str, flags: dict[str, bool]) -> None:
    with channel_error(channel, 406):
        channel.queue_declare(name, arguments={"x-queue-type": "quorum"}, **flags)


def test_exclusive_queue(connect: Connect, name: str) -> None:
    owner, other = connect(), connect()
    owner.channel().queue_declare(name, exclusive=True)
    attempts: tuple[Callable[[BlockingChannel], object], ...] = (
        lambda channel: channel.queue_declare(name, passive=True),
        lambda channel: channel.queue_declare(name, exclusive=True),
        lambda channel: channel.basic_consume(name, lambda *_: None),
        lambda channel: channel.basic_get(name),
        lambda channel: channel.queue_purge(name),
        lambda channel: channel.queue_delete(name),
        lambda channel: channel.queue_bind(name, "amq.fanout"),
    )
    for attempt in attempts:
        channel = other.channel()
        with channel_error(channel, 405):
            attempt(channel)
    # Another may publish to it.
    other.channel().basic_publish("", name, b"for the owner")
    reader = owner.channel()
    assert get(reader, name).body == b"for the owner"
    owner.close()
    checker = connect()

    def gone() -> bool:
        ok = checker.channel()
        try:
            with channel_error(ok, 404):
                ok.queue_declare(name, passive=True)
        except AssertionError:
            return False
        return True

    wait_until(gone, "the exclusive queue's end")


def test_delete_answers_and_conditions(connection: BlockingConnection, name: str) -> None:
    channel = connection.channel()
    channel.queue_declare(name)
    channel.basic_publish("", name, b"")
    wait_until(lambda: count(channel, name) == 1)
    other = connection.channel()
    with channel_error(other, 406):
        other.queue_delete(name, if_empty=True)
    collector = Collector(channel, name)
    collector.wait(1)
    refused = connection.channel()
    with channel_error(refused, 406):
        refused.queue_delete(name, if_unused=True)
    channel.basic_cancel(collector.tag)
    channel.basic_recover(requeue=True)
    assert channel.queue_delete(name, if_unused=True).method.message_count == 1


def test_deleting_missing_objects(channel: BlockingChannel, name: str) -> None:
    assert channel.queue_delete(name).method.message_count == 0
    channel.exchange_delete(name)
    assert channel.is_open


def test_unbinding_a_missing_binding(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.queue_unbind(name, "amq.direct", "never-bound")
    channel.queue_unbind(name, name + ".no-exchange", "key")
    channel.queue_unbind(name + ".no-queue", "amq.direct", "key")
    channel.exchange_unbind(name + ".no", "amq.direct", "key")
    assert channel.is_open


def test_unbinding_the_exclusive_queue_of_another(connect: Connect, name: str) -> None:
    owner = connect().channel()
    owner.queue_declare(name, exclusive=True)
    owner.queue_bind(name, "amq.direct", "bound")
    channel = connect().channel()
    channel.queue_unbind(name, "amq.direct", "never-bound")
    with channel_error(channel, 405):
        channel.queue_unbind(name, "amq.direct", "bound")
    owner.basic_publish("amq.direct", "bound", b"still bound")
    assert get(owner, name).body == b"still bound"


def test_purge(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    for _ in range(5):
        channel.basic_publish("", name, b"")
    get(channel, name, auto_ack=False)
    assert channel.queue_purge(name).method.message_count == 4
    channel.basic_recover(requeue=True)
    assert count(channel, name) == 1


@pytest.mark.parametrize(
    "case",
    [
        "queue_declare",
        "exchange_declare",
        "exchange_delete_default",
        "exchange_declare_default",
        "exchange_delete_reserved",
        "bind_default",
        "unbind_default",
    ],
)
def test_reserved_names(channel: BlockingChannel, name: str, case: str) -> None:
    channel.queue_declare(name, exclusive=True)
    with channel_error(channel, 403):
        if case == "queue_declare":
            channel.queue_declare("amq.mine", exclusive=True)
        elif case == "exchange_declare":
            channel.exchange_declare("amq.mine", "direct")
        elif case == "exchange_delete_default":
            channel.exchange_delete("")
        elif case == "exchange_declare_default":
            channel.exchange_declare("", "direct", durable=True)
        elif case == "exchange_delete_reserved":
            channel.exchange_delete("amq.direct")
        elif case == "bind_default":
            channel.queue_bind(name, "", "key")
        else:
            channel.queue_unbind(name, "", name)


def test_unknown_exchange_type(connection: BlockingConnection, name: str) -> None:
    with connection_error(connection, 503):
        connection.channel().exchange_declare(name, "x-does-not-exist")


def test_exchange_delete_if_unused(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "direct")
    channel.queue_declare(name, exclusive=True)
    channel.queue_bind(name, name, "key")
    other = channel.connection.channel()
    with channel_error(other, 406):
        other.exchange_delete(name, if_unused=True)
    channel.queue_unbind(name, name, "key")
    channel.exchange_delete(name, if_unused=True)
    with channel_error(channel, 404):
        channel.exchange_declare(name, passive=True)


def test_auto_delete_exchange(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "direct", auto_delete=True)
    channel.queue_declare(name, exclusive=True)
    channel.queue_bind(name, name, "one")
    channel.queue_bind(name, name, "two")
    channel.queue_unbind(name, name, "one")
    channel.exchange_declare(name, passive=True)
    channel.queue_unbind(name, name, "two")
    with channel_error(channel, 404):
        channel.exchange_declare(name, passive=True)


def test_auto_delete_exchange_is_deleted_with_its_queue(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "fanout", auto_delete=True)
    channel.queue_declare(name)
    channel.queue_bind(name, name)
    channel.queue_delete(name)
    with channel_error(channel, 404):
        channel.exchange_declare(name, passive=True)


@pytest.mark.parametrize("case", ["queue", "exchange", "source", "destination"])
def test_binding_missing_objects(channel: BlockingChannel, name: str, case: str) -> None:
    channel.queue_declare(name, exclusive=True)
    with channel_error(channel, 404):
        if case == "queue":
            channel.queue_bind(name + ".no", "amq.direct", "key")
        elif case == "exchange":
            channel.queue_bind(name, name + ".no", "key")
        elif case == "source":
            channel.exchange_bind("amq.fanout", name + ".no")
        else:
            channel.exchange_bind(name + ".no", "amq.fanout")


def test_binding_twice_is_one_binding(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    for _ in range(2):
        channel.queue_bind(name, "amq.direct", name)
    channel.basic_publish("amq.direct", name, b"once")
    assert get(channel, name).body == b"once"
    assert empty(channel, name)
    channel.queue_unbind(name, "amq.direct", name)
    channel.basic_publish("amq.direct", name, b"never")
    assert count(channel, name) == 0


def test_deleting_a_queue_removes_its_bindings(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    channel.queue_bind(name, "amq.direct", name)
    channel.queue_delete(name)
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish("amq.direct", name, b"never")
    assert count(channel, name) == 0


def test_permissions(connect: Connect, name: str) -> None:
    """Configure, write and read, each refused with 403 on its channel."""
    keeper = connect(virtual_host="interop").channel()
    mine, theirs = f"mine-{name}", f"their-{name}"
    keeper.queue_declare(theirs)
    connection = connect(user="limited", password="secret", virtual_host="interop")
    channel = connection.channel()
    channel.queue_declare(mine, exclusive=True)
    channel.basic_publish("", mine, b"allowed")
    assert get(channel, mine).body == b"allowed"
    channel.exchange_declare(mine, "fanout", auto_delete=True)
    channel.queue_bind(mine, mine)
    attempts: tuple[Callable[[BlockingChannel], object], ...] = (
        lambda c: c.queue_declare(theirs),
        lambda c: c.queue_delete(theirs),
        lambda c: c.queue_purge(theirs),
        lambda c: c.basic_get(theirs),
        lambda c: c.basic_consume(theirs, lambda *_: None),
        lambda c: c.basic_publish("amq.direct", "key", b""),
        lambda c: c.queue_bind(theirs, mine),
        lambda c: c.queue_bind(mine, "amq.direct", "key"),
        lambda c: c.exchange_declare(theirs, "direct"),
        lambda c: c.exchange_bind(mine, "amq.fanout"),
        lambda c: c.exchange_bind("amq.fanout", mine),
        lambda c: c.exchange_delete("amq.direct"),
    )
    for attempt in attempts:
        refused = connection.channel()
        with channel_error(refused, 403):
            attempt(refused)
    keeper.queue_delete(theirs)


def test_channel_number_after_an_error(connection: BlockingConnection, name: str) -> None:
    """A channel that was closed by an error can be opened again under its number."""
    channel = connection.channel()
    number = channel.channel_number
    with channel_error(channel, 404):
        channel.queue_declare(name, passive=True)
    again = connection.channel(number)
    again.queue_declare(name, exclusive=True)
    again.basic_publish("", name, b"works")
    assert drain(again, name) == [b"works"]


def test_exceptions_carry_the_code(connection: BlockingConnection) -> None:
    with pytest.raises(ConnectionClosedByBroker) as caught:
        connection.channel().exchange_declare("x", "no-such-type")
    assert caught.value.reply_code == 503
