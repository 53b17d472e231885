"""The reply code of each failure, and its scope: the constants of 0-9-1, and the codes that its rules name."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, Final

import pytest
from pamqp.base import Frame

from tests.conformance.marks import checks, names
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.peers.amqp091 import Basic, Channel, ChannelClass, Connection, Exchange, Peer, Queue, Tx, describe

V: Final = "0-9-1"
CHANNEL, CONNECTION = "channel", "connection"

# Violations on a new channel, with a unique name, and the refused method.
Breach = Callable[[Channel, Channel, str], type[Frame]]


def sends(kind: type[Frame], **fields: Any) -> Breach:
    """Send one method; NAME in a field stands for the test's name."""

    def run(channel: Channel, other: Channel, name: str) -> type[Frame]:
        channel.send(
            kind,
            **{field: value.replace("NAME", name) if isinstance(value, str) else value for field, value in fields.items()},
        )
        return kind

    return run


def on_a_queue(kind: type[Frame], **fields: Any) -> Breach:
    def run(channel: Channel, other: Channel, name: str) -> type[Frame]:
        channel.queue(name)
        return sends(kind, **fields)(channel, other, name)

    return run


def unnamed(kind: type[Frame], **fields: Any) -> Breach:
    """On a channel that has declared no queue."""
    return sends(kind, queue="", **fields)


def retyped(channel: Channel, other: Channel, name: str) -> type[Frame]:
    other.exchange(name, "fanout", auto_delete=True)
    channel.send(Exchange.Declare, exchange=name, exchange_type="topic", auto_delete=True)
    return Exchange.Declare


def exchange_in_use(channel: Channel, other: Channel, name: str) -> type[Frame]:
    other.exchange(name, auto_delete=True)
    other.queue(name)
    other.bind(name, name)
    channel.send(Exchange.Delete, exchange=name, if_unused=True)
    return Exchange.Delete


def locked(channel: Channel, other: Channel, name: str) -> type[Frame]:
    other.queue(name)
    channel.send(Basic.Consume, queue=name)
    return Basic.Consume


def queue_in_use(channel: Channel, other: Channel, name: str) -> type[Frame]:
    channel.queue(name)
    channel.consume(name)
    channel.send(Queue.Delete, queue=name, if_unused=True)
    return Queue.Delete


def queue_not_empty(channel: Channel, other: Channel, name: str) -> type[Frame]:
    channel.queue(name)
    channel.publish(b"x", name)
    channel.send(Queue.Delete, queue=name, if_empty=True)
    return Queue.Delete


def tag_in_use(channel: Channel, other: Channel, name: str) -> type[Frame]:
    channel.queue(name)
    channel.consume(name, "c")
    channel.send(Basic.Consume, queue=name, consumer_tag="c")
    return Basic.Consume


def tag_of_another_channel(channel: Channel, other: Channel, name: str) -> type[Frame]:
    second = channel.peer.channel(2)
    second.queue(name)
    second.consume(name, "c")
    channel.send(Basic.Cancel, consumer_tag="c")
    return Basic.Cancel


def not_alone(channel: Channel, other: Channel, name: str) -> type[Frame]:
    channel.queue(name)
    channel.consume(name)
    channel.send(Basic.Consume, queue=name, exclusive=True)
    return Basic.Consume


def unknown_exchange(channel: Channel, other: Channel, name: str) -> type[Frame]:
    channel.publish(b"x", "", name)
    return Basic.Publish


Expected = tuple[str, int]
# Scope and code by default, and with compat.strict if they differ.
REPLY_CODES: Final[dict[str, tuple[Breach, Expected] | tuple[Breach, Expected | None, Expected]]] = {
    "channel.open.state": (sends(ChannelClass.Open), (CONNECTION, 504)),
    "exchange.declare.exchange.reserved": (sends(Exchange.Declare, exchange="amq.NAME"), (CHANNEL, 403)),
    "exchange.declare.exchange.syntax": (
        sends(Exchange.Declare, exchange="NAME/#", auto_delete=True),
        None,
        (CHANNEL, 406),
    ),
    "exchange.declare.type.typed": (retyped, (CHANNEL, 406), (CONNECTION, 530)),
    "exchange.declare.type.support": (sends(Exchange.Declare, exchange="NAME", exchange_type="NAME"), (CONNECTION, 503)),
    "exchange.delete.exchange.exists": (sends(Exchange.Delete, exchange="NAME"), None, (CHANNEL, 404)),
    "exchange.delete.if-unused.in-use": (exchange_in_use, (CHANNEL, 406)),
    "queue.declare.queue.reserved": (sends(Queue.Declare, queue="amq.NAME"), (CHANNEL, 403)),
    "queue.declare.queue.syntax": (sends(Queue.Declare, queue="NAME/#", exclusive=True), None, (CHANNEL, 406)),
    "queue.declare.passive.passive": (sends(Queue.Declare, queue="NAME", passive=True), (CHANNEL, 404)),
    "queue.declare.exclusive.exclusive": (locked, (CHANNEL, 405)),
    "queue.bind.queue.queue-known": (unnamed(Queue.Bind, exchange="amq.direct", routing_key=""), (CHANNEL, 404)),
    "queue.bind.queue.must-exist": (sends(Queue.Bind, queue="NAME", exchange="amq.direct", routing_key=""), (CHANNEL, 404)),
    "queue.bind.exchange.exchange-existence": (
        on_a_queue(Queue.Bind, queue="NAME", exchange="NAME", routing_key=""),
        (CHANNEL, 404),
    ),
    "queue.unbind.queue.queue-known": (
        unnamed(Queue.Unbind, exchange="amq.direct", routing_key=""),
        (CHANNEL, 404),
        (CONNECTION, 404),
    ),
    "queue.unbind.queue.must-exist": (
        sends(Queue.Unbind, queue="NAME", exchange="amq.direct", routing_key=""),
        None,
        (CONNECTION, 404),
    ),
    "queue.unbind.exchange.must-exist": (
        on_a_queue(Queue.Unbind, queue="NAME", exchange="NAME", routing_key=""),
        None,
        (CONNECTION, 404),
    ),
    "queue.purge.queue.queue-known": (unnamed(Queue.Purge), (CHANNEL, 404)),
    "queue.purge.queue.must-exist": (sends(Queue.Purge, queue="NAME"), (CHANNEL, 404)),
    "queue.delete.queue.queue-known": (unnamed(Queue.Delete), (CHANNEL, 404)),
    "queue.delete.queue.must-exist": (sends(Queue.Delete, queue="NAME"), None, (CHANNEL, 404)),
    "queue.delete.if-unused.in-use": (queue_in_use, (CHANNEL, 406)),
    "queue.delete.if-empty.not-empty": (queue_not_empty, (CHANNEL, 406)),
    "basic.consume.consumer-tag.01": (tag_in_use, (CONNECTION, 530)),
    "basic.consume.consumer-tag.02": (tag_of_another_channel, None, (CONNECTION, 530)),
    "basic.consume.exclusive.01": (not_alone, (CHANNEL, 403)),
    "basic.publish.exchange.must-exist": (unknown_exchange, (CHANNEL, 404)),
    "basic.ack.multiple.exists": (sends(Basic.Ack, delivery_tag=1), (CHANNEL, 406)),
    "tx.commit.transacted": (sends(Tx.Commit), (CHANNEL, 406)),
    "tx.rollback.transacted": (sends(Tx.Rollback), (CHANNEL, 406)),
}
OF_CLOSES: Final = [
    *(
        f"{scope}.close{field}"
        for scope in (CHANNEL, CONNECTION)
        for field in (".text.names-method", ".class-id.text.of-method", ".method-id.text.of-method")
    ),
    "reply-text.assert.notnull",
    "errors.close",
]


@pytest.mark.rule(V, "reply-code.assert.notnull")
def test_every_rule_with_a_reply_code_is_in_the_table() -> None:
    assert [f"{rule}.reply-code" for rule in REPLY_CODES] == names(V, r".*\.reply-code")


def check(channel: Channel, breach: Breach, expected: Expected | None, other: Channel, name: str) -> None:
    """Check the reply to a violation, None for no violation. The channel or the connection is then closed."""
    kind = breach(channel, other, name)
    if expected is None:
        answer = channel.peer.read()
        assert not isinstance(answer, (ChannelClass.Close, Connection.Close)), describe(answer)
        channel.quiet()
    elif expected[0] == CHANNEL:
        channel.expect_close(expected[1], kind)
        channel.reopen().quiet()
    else:
        channel.peer.expect_connection_close(expected[1], kind)
    other.quiet()


of_rules = pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=checks(V, f"{rule}.reply-code", *OF_CLOSES)) for rule in REPLY_CODES]
)


@pytest.mark.mode("rabbitmq")
@of_rules
def test_the_reply_to_a_violation_by_default(channel: Channel, other: Channel, name: str, rule: str) -> None:
    row = REPLY_CODES[rule]
    check(channel, row[0], row[1], other, name)


@pytest.mark.mode("strict")
@of_rules
def test_the_reply_to_a_violation_in_strict_mode(channel: Channel, other: Channel, name: str, rule: str) -> None:
    row = REPLY_CODES[rule]
    check(channel, row[0], row[-1], other, name)


# Codes that no rule names


@pytest.mark.rule(V, "connection-forced.constant")
def test_an_operator_who_stops_the_broker_closes_connections(own_broker: LeveretProcess) -> None:
    peer = Peer(own_broker.host, own_broker.port)
    peer.handshake()
    assert own_broker.process is not None
    own_broker.process.send_signal(signal.SIGTERM)
    peer.expect_connection_close(320)
    peer.drop()
    own_broker.process.wait(60)


@pytest.fixture
def small(raw: Callable[..., Peer], mode: str) -> Channel:
    """A channel in a virtual host of the mode that has reached its queue limit."""
    leveret_only("it is configured")
    peer = raw()
    peer.handshake("small" if mode == "rabbitmq" else "small-strict")  # amq.dead is that queue
    channel = peer.channel()
    if mode == "rabbitmq":
        channel.queue()
    return channel


@pytest.mark.rule(V, "resource-error.constant")
@pytest.mark.mode("rabbitmq")
def test_a_queue_above_the_limit_is_a_channel_error(small: Channel) -> None:
    small.send(Queue.Declare, queue="")
    small.expect_close(406, Queue.Declare)


@pytest.mark.rule(V, "resource-error.constant")
@pytest.mark.mode("strict")
def test_a_queue_above_the_limit_is_a_resource_error(small: Channel) -> None:
    small.send(Queue.Declare, queue="")
    small.peer.expect_connection_close(506, Queue.Declare)


@pytest.mark.rule(V, "errors.no-answer")
def test_a_client_that_does_not_answer_a_close_is_disconnected(raw: Callable[..., Peer]) -> None:
    peer = raw()
    peer.handshake()
    peer.send(0, ChannelClass.Open())
    peer.read_connection_close(503)
    peer.expect_eof()
