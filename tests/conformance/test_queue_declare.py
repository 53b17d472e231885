"""queue.declare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.conftest import Connect
from tests.support.peers.amqp091 import Basic, Channel, ChannelClass, Queue


@pytest.mark.rule("0-9-1", "queue.declare.default-binding")
def test_a_new_queue_is_bound_to_the_default_exchange(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.publish(b"by its name", name)
    assert channel.drain(name) == [b"by its name"]


@pytest.mark.rule("0-9-1", "queue.declare.minimum-queues")
def test_there_can_be_many_queues(channel: Channel, unique: Callable[[], str]) -> None:
    queues = [channel.queue(unique()) for _ in range(300)]
    for number, queue in enumerate(queues):
        channel.publish(b"%d" % number, queue)
    assert [channel.drain(queue) for queue in queues] == [[b"%d" % number] for number in range(300)]


@pytest.mark.rule("0-9-1", "queue.declare.queue.default-name")
@pytest.mark.rule("0-9-1", "queue.declare-ok.queue.text.generated")
@pytest.mark.rule("0-9-1", "queue.declare-ok.queue.assert.notnull")
def test_an_empty_name_generates_a_unique_one(connect: Connect) -> None:
    channels = [connect().channel(), connect().channel()]
    queues = [channel.queue("") for channel in channels for _ in range(20)]
    assert all(queues)
    assert len(set(queues)) == 40
    for queue in queues[:20]:
        assert channels[0].depth(queue) == 0


@pytest.mark.rule("0-9-1", "queue.declare.queue.default-name")
def test_an_empty_name_means_the_last_declared_queue_afterwards(channel: Channel, unique: Callable[[], str]) -> None:
    first = channel.queue(unique())
    last = channel.queue("")
    channel.call(Queue.Bind, Queue.BindOk, queue="", exchange="amq.direct", routing_key="")
    channel.publish(b"bound by default with the name as key", last, "amq.direct")
    content = channel.get("")
    assert content is not None
    assert content.body == b"bound by default with the name as key"
    channel.publish(b"x", last)
    assert channel.call(Queue.Purge, Queue.PurgeOk, queue="").message_count == 1
    channel.call(Basic.Consume, Basic.ConsumeOk, queue="", consumer_tag="c")
    channel.publish(b"y", last)
    assert channel.delivery().body == b"y"
    channel.call(Queue.Delete, Queue.DeleteOk, queue="")
    assert channel.exists(first)
    assert not channel.exists(last)


@pytest.mark.rule("0-9-1", "queue.declare.queue.reserved")
def test_reserved_names(channel: Channel, name: str) -> None:
    channel.send(Queue.Declare, queue="amq." + name)
    channel.expect_close(403, Queue.Declare)
    channel = channel.reopen()
    assert channel.exists(channel.queue(""))
    assert not channel.exists("amq." + name)


@pytest.mark.rule("0-9-1", "queue.declare.queue.reserved")
@pytest.mark.ahead_of_rabbitmq("403")
def test_a_reserved_name_may_be_declared_if_the_queue_exists(channel: Channel) -> None:
    generated = channel.queue("")
    assert channel.queue(generated) == generated


ILLEGAL_NAMES = ["with blank", "celery@host", "slash/", "hash#", "umläut", "a" * 128]


@pytest.mark.rule("0-9-1", "queue.declare.queue.syntax")
@pytest.mark.rule("0-9-1", "queue-name.assert.length")
@pytest.mark.rule("0-9-1", "queue-name.assert.regexp")
@pytest.mark.mode("strict")
@pytest.mark.parametrize("illegal", ILLEGAL_NAMES)
def test_names_are_letters_digits_and_some_signs(channel: Channel, illegal: str) -> None:
    channel.queue("Aa0-_.:" + "z" * 100)
    channel.send(Queue.Declare, queue=illegal)
    channel.expect_close(406, Queue.Declare)


@pytest.mark.rule("0-9-1", "queue.declare.queue.syntax")
@pytest.mark.rule("0-9-1", "queue-name.assert.length")
@pytest.mark.rule("0-9-1", "queue-name.assert.regexp")
@pytest.mark.mode("rabbitmq")
@pytest.mark.parametrize("illegal", [*ILLEGAL_NAMES, "ü" * 127])
def test_names_are_any_utf8_up_to_255_bytes(channel: Channel, illegal: str) -> None:
    assert channel.queue(illegal) == illegal
    channel.publish(b"x", illegal)
    assert channel.drain(illegal) == [b"x"]


@pytest.mark.rule("0-9-1", "queue.declare.passive.passive")
@pytest.mark.rule("0-9-1", "queue.declare.passive.text.asserts")
def test_a_passive_declare_asserts_existence(channel: Channel, name: str) -> None:
    channel.send(Queue.Declare, queue=name, passive=True)
    channel.expect_close(404, Queue.Declare)
    channel = channel.reopen()
    assert not channel.exists(name)
    channel.queue(name)
    for _ in range(3):
        channel.publish(b"", name)
    channel.consume(name, "c", no_ack=True)
    channel.deliveries(3)
    found = channel.call(Queue.Declare, Queue.DeclareOk, queue=name, passive=True, durable=True)
    assert (found.queue, found.message_count, found.consumer_count) == (name, 0, 1)


ORIGINAL: dict[str, Any] = {
    "durable": True,
    "exclusive": False,
    "auto_delete": False,
    "arguments": {"x-message-ttl": 60000, "x-max-length": 10},
}


@pytest.mark.rule("0-9-1", "queue.declare.passive.equivalent")
def test_an_equal_redeclaration_succeeds_and_counts(channel: Channel, name: str) -> None:
    channel.queue(name, **ORIGINAL)
    channel.publish(b"", name)
    reordered = ORIGINAL | {"arguments": {"x-max-length": 10, "x-message-ttl": 60000}}
    again = channel.call(Queue.Declare, Queue.DeclareOk, queue=name, **reordered)
    assert (again.message_count, again.consumer_count) == (1, 0)
    channel.call(Queue.Delete, Queue.DeleteOk, queue=name)


@pytest.mark.rule("0-9-1", "queue.declare.passive.equivalent")
@pytest.mark.parametrize(
    "changed",
    [
        {"durable": False},
        {"arguments": {}},
        {"arguments": {"x-message-ttl": 60001, "x-max-length": 10}},
        {"arguments": {"x-message-ttl": 60000}},
        {"arguments": {"x-message-ttl": 60000, "x-max-length": 10, "x-max-length-bytes": 10}},
    ],
)
def test_another_redeclaration_is_refused(channel: Channel, name: str, changed: dict[str, object]) -> None:
    channel.queue(name, **ORIGINAL)
    channel.send(Queue.Declare, queue=name, **(ORIGINAL | changed))
    closed = channel.expect_close(406, Queue.Declare)
    assert "inequivalent arg" in closed.reply_text
    assert name in closed.reply_text
    channel = channel.reopen()
    channel.queue(name, **ORIGINAL)
    channel.call(Queue.Delete, Queue.DeleteOk, queue=name)


@pytest.mark.rule("0-9-1", "queue.declare.passive.equivalent")
@pytest.mark.parametrize("exclusive", [True, False])
def test_a_redeclaration_with_another_exclusivity_is_refused(channel: Channel, name: str, exclusive: bool) -> None:
    channel.queue(name, exclusive=exclusive)
    channel.send(Queue.Declare, queue=name, exclusive=not exclusive)
    closed = channel.expect(ChannelClass.Close)
    assert closed.reply_code in (405, 406)


@pytest.mark.rule("0-9-1", "queue.declare.auto-delete.pre-existence")
@pytest.mark.mode("strict")
@pytest.mark.parametrize("auto_delete", [True, False])
def test_auto_delete_is_ignored_if_the_queue_exists(connect: Connect, name: str, auto_delete: bool) -> None:
    channel = connect().channel()
    channel.queue(name, exclusive=False, auto_delete=auto_delete)
    channel.queue(name, exclusive=False, auto_delete=not auto_delete)
    channel.consume(name, "c")
    channel.call(Basic.Cancel, Basic.CancelOk, consumer_tag="c")
    # The flag of the first declaration applies.
    assert channel.exists(name) is not auto_delete
    if not auto_delete:
        channel.call(Queue.Delete, Queue.DeleteOk, queue=name)


@pytest.mark.rule("0-9-1", "queue.declare.auto-delete.pre-existence")
@pytest.mark.mode("rabbitmq")
@pytest.mark.parametrize("auto_delete", [True, False])
def test_auto_delete_is_compared_if_the_queue_exists(channel: Channel, name: str, auto_delete: bool) -> None:
    channel.queue(name, auto_delete=auto_delete)
    channel.send(Queue.Declare, queue=name, exclusive=True, auto_delete=not auto_delete)
    assert "inequivalent arg 'auto_delete'" in channel.expect_close(406, Queue.Declare).reply_text


@pytest.mark.rule("0-9-1", "queue.declare.durable.types")
@pytest.mark.rule("0-9-1", "queue.declare.durable.text.marks")
@pytest.mark.parametrize("durable", [False, True])
def test_durable_and_transient_queues(channel: Channel, name: str, durable: bool) -> None:
    channel.queue(name, exclusive=False, durable=durable)
    channel.publish(b"x", name, delivery_mode=2 if durable else 1)
    assert channel.drain(name) == [b"x"]
    channel.call(Queue.Delete, Queue.DeleteOk, queue=name)


@pytest.mark.rule("0-9-1", "queue.declare.exclusive.types")
@pytest.mark.rule("0-9-1", "queue.declare.exclusive.text.one-connection")
def test_exclusive_and_shared_queues(connect: Connect, unique: Callable[[], str]) -> None:
    peer = connect()
    channel, other = peer.channel(), connect().channel()
    private, shared = unique(), unique()
    channel.queue(private, exclusive=True)
    channel.queue(shared, exclusive=False)
    channel.publish(b"x", private)
    assert channel.drain(private) == [b"x"]
    assert peer.channel(2).depth(private) == 0, "another channel of the connection may use it"
    other.publish(b"y", shared)
    assert other.drain(shared) == [b"y"]
    peer.close()
    assert not other.exists(private)
    assert other.exists(shared)
    other.call(Queue.Delete, Queue.DeleteOk, queue=shared)


@pytest.mark.rule("0-9-1", "queue.declare.exclusive.exclusive")
@pytest.mark.rule("0-9-1", "queue.declare.exclusive.text.one-connection")
@pytest.mark.rule("0-9-1", "queue.declare.exclusive.text.passive-too")
@pytest.mark.rule("0-9-1", "resource-locked.constant")
@pytest.mark.parametrize(
    "use",
    [
        (Queue.Declare, {}),
        (Queue.Declare, {"exclusive": True}),
        (Queue.Declare, {"passive": True}),
        (Queue.Bind, {"exchange": "amq.direct", "routing_key": "k"}),
        (Queue.Unbind, {"exchange": "amq.direct", "routing_key": "bound"}),
        (Basic.Consume, {}),
        (Basic.Get, {}),
        (Queue.Purge, {}),
        (Queue.Delete, {}),
    ],
    ids=lambda use: use[0].name + str(sorted(use[1])),
)
def test_another_connection_may_not_use_an_exclusive_queue(
    channel: Channel, other: Channel, name: str, use: tuple[Any, dict[str, object]]
) -> None:
    channel.queue(name, exclusive=True)
    channel.bind(name, "amq.direct", "bound")
    channel.publish(b"mine", name)
    kind, fields = use
    other.send(kind, queue=name, **fields)
    other.expect_close(405, kind)
    assert channel.drain(name) == [b"mine"]


@pytest.mark.rule("0-9-1", "queue.declare.auto-delete.text.last-consumer")
@pytest.mark.rule("0-9-1", "queue.declare.auto-delete.text.never-consumed")
def test_an_auto_delete_queue_is_deleted_with_its_last_consumer(connect: Connect, name: str) -> None:
    peer = connect()
    channel, other = peer.channel(), connect().channel()
    channel.queue(name, exclusive=False, auto_delete=True)
    assert channel.exists(name)  # it waits for its first
    channel.consume(name, "a")
    other.consume(name, "b")
    channel.call(Basic.Cancel, Basic.CancelOk, consumer_tag="a")
    assert channel.exists(name)
    other.close()
    other = other.reopen()
    assert not other.exists(name)


@pytest.mark.rule("0-9-1", "precondition-failed.constant")
@pytest.mark.parametrize(
    "arguments",
    [
        {"x-message-ttl": -1},
        {"x-message-ttl": "soon"},
        {"x-expires": 0},
        {"x-max-length": -5},
        {"x-max-priority": 256},
        {"x-overflow": "explode"},
        {"x-dead-letter-routing-key": "k"},
        {"x-queue-type": "square"},
    ],
)
def test_a_known_argument_with_a_bad_value_is_406(channel: Channel, name: str, arguments: dict[str, Any]) -> None:
    channel.send(Queue.Declare, queue=name, arguments=arguments)
    closed = channel.expect_close(406, Queue.Declare)
    assert next(iter(arguments)) in closed.reply_text


@pytest.mark.rule("0-9-1", "precondition-failed.constant")
@pytest.mark.mode("strict")
def test_an_unknown_argument_is_refused(channel: Channel, name: str) -> None:
    channel.send(Queue.Declare, queue=name, arguments={"x-unheard-of": 1})
    assert "x-unheard-of" in channel.expect_close(406, Queue.Declare).reply_text


@pytest.mark.rule("0-9-1", "precondition-failed.constant")
@pytest.mark.mode("rabbitmq")
def test_an_unknown_argument_is_accepted(channel: Channel, name: str) -> None:
    assert channel.queue(name, arguments={"x-unheard-of": 1}) == name
