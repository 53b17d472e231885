"""Class queue: declaring, purging, deleting. Binding is in `test_queue_bind`, restarts are in `test_durability`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.amqp09.conftest import Connect
from tests.support.peers.amqp09 import Channel, Peer
from tests.support.peers.codec09 import INLINE, Body

Unique = Callable[[], str]


def publish_class(channel: Channel, kind: str, body: bytes, key: str, exchange: str) -> None:
    if kind == "file":
        channel.publish_file(body, key, exchange, identifier=f"{key}.{body.decode()}")
    elif kind == "message":
        channel.call("message.transfer", "message.ok", destination=exchange, routing_key=key, body=Body(INLINE, body))
    else:
        channel.publish(body, key, exchange, kind=kind)


@pytest.mark.rule("0-9", "queue.any-content")
@pytest.mark.parametrize("exchange_type", ["direct", "fanout", "topic", "headers"])
def test_any_queue_accepts_any_content_and_each_class_is_delivered_independently(
    connect: Connect, channel: Channel, unique: Unique, exchange_type: str
) -> None:
    kinds = ("basic", "file", "stream", "message")
    exchange = channel.exchange(unique(), exchange_type)
    queues = [channel.queue(unique()) for _ in range(2)]
    for queue in queues:
        channel.bind(queue, exchange, "key", {"x-match": "all"} if exchange_type == "headers" else None)
    for number in range(2):
        for kind in kinds:
            publish_class(channel, kind, f"{kind}{number}".encode(), "key", exchange)
    channel.quiet()
    for queue in queues:
        assert channel.depth(queue) == 8
        assert channel.drain(queue) == [b"basic0", b"basic1"]
        reader = connect().open()
        reader.consume(queue, "f", kind="file", no_ack=True)
        assert [content.body for content in reader.files(2)] == [b"file0", b"file1"]
        reader.consume(queue, "s", kind="stream")
        assert [content.body for content in reader.deliveries(2, "stream")] == [b"stream0", b"stream1"]
        reader.call("message.consume", "message.ok", queue=queue, destination="m", no_ack=True)
        assert [reader.expect("message.transfer").body.data for _ in range(2)] == [b"message0", b"message1"]
        reader.quiet()
        assert channel.depth(queue) == 0


@pytest.mark.rule("0-9", "queue.declare.default-binding")
def test_a_queue_is_bound_to_the_default_exchange_by_its_name(channel: Channel, unique: Unique) -> None:
    first, second = channel.queue(unique()), channel.queue(unique())
    channel.publish(b"1", first)
    channel.publish(b"2", second)
    assert channel.drain(first) == [b"1"]
    assert channel.drain(second) == [b"2"]


@pytest.mark.rule("0-9", "queue.declare.minimum-queues")
def test_there_can_be_many_queues(channel: Channel, unique: Unique) -> None:
    queues = [channel.queue(unique(), exclusive=True) for _ in range(300)]
    for queue in queues:
        channel.publish(queue.encode(), queue)
    for queue in queues:
        assert channel.drain(queue) == [queue.encode()]


@pytest.mark.rule("0-9", "queue.declare.queue.default-name")
def test_a_queue_without_a_name_gets_one(channel: Channel) -> None:
    names = {channel.queue(exclusive=True) for _ in range(10)}
    assert len(names) == 10
    assert all(names)
    channel.publish(b"to the last", max(names))
    assert channel.drain(max(names)) == [b"to the last"]


@pytest.mark.rule("0-9", "queue.declare.queue.reserved-prefix")
@pytest.mark.rule("0-9", "queue.declare.queue.reserved-prefix.reply-code")
def test_reserved_names_are_not_allowed(peer: Peer, connect: Connect, name: str) -> None:
    peer.open().send("queue.declare", queue=f"amq.{name}")
    peer.expect_end(530, "queue.declare")
    assert not connect().open().exists(f"amq.{name}"), "looking for it is allowed"


@pytest.mark.rule("0-9", "queue.declare.passive.passive")
@pytest.mark.rule("0-9", "queue.declare.passive.passive.reply-code")
def test_passive_checks_that_the_queue_exists(channel: Channel, name: str) -> None:
    channel.queue(name)
    assert channel.call("queue.declare", queue=name, passive=True).queue == name
    channel.send("queue.declare", queue=name + ".none", passive=True)
    channel = channel.refused(404, "queue.declare")
    assert not channel.exists(name + ".none"), "asking has created it"


def is_durable(channel: Channel, queue: str, name: str) -> bool:
    """Return whether the queue is durable: a durable queue cannot be bound to a transient exchange."""
    channel.exchange(name + ".x")
    channel.send("queue.bind", queue=queue, exchange=name + ".x")
    answer = channel.peer.read()
    assert answer.name == "queue.bind-ok" or (answer.name, answer.reply_code) == ("connection.close", 530), answer
    return bool(answer.name != "queue.bind-ok")


@pytest.mark.rule("0-9", "queue.declare.durable.types")
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.rule("0-9", "queue.declare.durable.text.marks")
def test_queues_are_durable_or_transient(channel: Channel, name: str, durable: bool) -> None:
    channel.queue(name, durable=durable)
    channel.publish(b"x", name)
    assert channel.drain(name) == [b"x"]
    assert is_durable(channel, name, name) is durable


@pytest.mark.rule("0-9", "queue.declare.durable.pre-existence")
@pytest.mark.parametrize("durable", [False, True])
def test_durable_is_ignored_if_the_queue_exists(channel: Channel, name: str, durable: bool) -> None:
    channel.queue(name, durable=durable)
    channel.queue(name, durable=not durable)
    assert is_durable(channel, name, name) is durable


@pytest.mark.rule("0-9", "queue.declare.exclusive.types")
@pytest.mark.rule("0-9", "queue.declare.exclusive.text.one-connection")
def test_queues_are_shared_or_private(connect: Connect, unique: Unique) -> None:
    shared, private = unique(), unique()
    owner, other = connect().open(), connect().open()
    owner.queue(shared)
    owner.queue(private, exclusive=True)
    other.publish(b"x", shared)
    assert other.drain(shared) == [b"x"]
    other.publish(b"y", private)
    other.quiet()
    assert owner.drain(private) == [b"y"]
    owner.peer.close()
    assert other.exists(shared)
    assert not other.exists(private)


@pytest.mark.rule("0-9", "section.queue.declare.exclusive")
@pytest.mark.mode("strict")
def test_a_private_queue_is_deleted_with_its_last_consumer(moded: Callable[[], Channel], name: str) -> None:
    channel = moded()
    channel.queue(name, exclusive=True)
    channel.cancel(channel.consume(name))
    assert not channel.exists(name)


@pytest.mark.rule("0-9", "section.queue.declare.exclusive")
@pytest.mark.mode("rabbitmq")
def test_a_private_queue_stays_until_its_connection_ends(moded: Callable[[], Channel], name: str) -> None:
    channel, other = moded(), moded()
    channel.queue(name, exclusive=True)
    channel.cancel(channel.consume(name))
    channel.publish(b"x", name)
    assert channel.drain(name) == [b"x"]
    channel.queue(name + ".auto", exclusive=True, auto_delete=True)
    channel.cancel(channel.consume(name + ".auto"))
    assert not channel.exists(name + ".auto")
    channel.peer.close()
    assert not other.exists(name)


PRIVATE = pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("queue.declare", {"exclusive": True}),
        ("queue.declare", {}),
        ("queue.declare", {"passive": True}),
        ("queue.delete", {}),
        ("queue.bind", {"exchange": "amq.direct"}),
        ("queue.unbind", {"exchange": "amq.direct"}),
    ],
    ids=["exclusive", "shared", "passive", "delete", "bind", "unbind"],
)


@pytest.mark.rule("0-9", "queue.declare.exclusive.02")
@pytest.mark.rule("0-9", "queue.declare.exclusive.02.reply-code")
@pytest.mark.mode("rabbitmq")
@PRIVATE
@pytest.mark.rule("0-9", "queue.declare.exclusive.text.one-connection")
def test_a_private_queue_is_locked_for_others(
    moded: Callable[[], Channel], name: str, method: str, fields: dict[str, bool]
) -> None:
    channel, other = moded(), moded()
    channel.queue(name, exclusive=True)
    other.send(method, queue=name, **fields)
    other.refused(405, method).quiet()
    assert channel.exists(name)
    channel.queue(name, exclusive=True)  # its own connection may do that


@pytest.mark.rule("0-9", "queue.declare.exclusive.02")
@pytest.mark.mode("rabbitmq")
def test_a_shared_queue_cannot_become_exclusive(moded: Callable[[], Channel], name: str) -> None:
    channel = moded()
    channel.queue(name)
    channel.send("queue.declare", queue=name, exclusive=True)
    assert channel.refused(405, "queue.declare").exists(name)


@pytest.mark.rule("0-9", "queue.declare.exclusive.02")
@pytest.mark.rule("0-9", "queue.declare.exclusive.02.reply-code")
@pytest.mark.mode("strict")
@PRIVATE
@pytest.mark.rule("0-9", "queue.declare.exclusive.text.one-connection")
def test_a_private_queue_is_for_its_connection(
    moded: Callable[[], Channel], name: str, method: str, fields: dict[str, bool]
) -> None:
    channel, other = moded(), moded()
    channel.queue(name, exclusive=True)
    other.send(method, queue=name, **fields)
    other.peer.expect_end(504, method)
    assert channel.exists(name)


@pytest.mark.rule("0-9", "queue.declare.auto-delete.pre-existence")
@pytest.mark.parametrize("auto_delete", [False, True])
def test_auto_delete_is_ignored_if_the_queue_exists(channel: Channel, name: str, auto_delete: bool) -> None:
    channel.queue(name, auto_delete=auto_delete)
    channel.queue(name, auto_delete=not auto_delete)
    channel.cancel(channel.consume(name))
    assert channel.exists(name) is not auto_delete


@pytest.mark.rule("0-9", "queue.purge.01")
def test_a_purged_queue_is_empty(channel: Channel, name: str) -> None:
    channel.queue(name)
    for kind in ("basic", "file"):
        for number in range(5):
            publish_class(channel, kind, b"%d" % number, name, "")
    channel.quiet()
    assert channel.call("queue.purge", queue=name).message_count == 10
    assert channel.depth(name) == 0
    assert channel.drain(name) == []
    channel.publish(b"later", name)
    assert channel.drain(name) == [b"later"]


@pytest.mark.rule("0-9", "queue.purge.02")
@pytest.mark.parametrize("transacted", [False, True])
def test_unacknowledged_messages_are_not_purged(channel: Channel, name: str, transacted: bool) -> None:
    channel.queue(name)
    for number in range(5):
        channel.publish(b"%d" % number, name)
    if transacted:
        channel.call("tx.select")
    held = [channel.get(name, no_ack=False) for _ in range(2)]
    assert channel.call("queue.purge", queue=name).message_count == 3
    assert all(held)
    channel.close()
    assert channel.peer.open(2).drain(name) == [b"0", b"1"]


@pytest.mark.rule("0-9", "queue.purge.queue.01")
@pytest.mark.rule("0-9", "queue.delete.queue.01")
@pytest.mark.rule("0-9", "basic.get.queue.01")
@pytest.mark.parametrize("method", ["queue.purge", "queue.delete", "basic.get"])
def test_no_name_without_a_declared_queue_is_not_allowed(peer: Peer, method: str) -> None:
    peer.open().send(method)
    peer.expect_end(530, method)


@pytest.mark.rule("0-9", "queue.purge.queue.01")
@pytest.mark.rule("0-9", "queue.delete.queue.01")
@pytest.mark.rule("0-9", "basic.get.queue.01")
def test_no_name_means_the_last_declared_queue(channel: Channel, unique: Unique) -> None:
    first = channel.queue(unique())
    last = channel.queue(unique())
    for queue in (first, last):
        channel.publish(queue.encode(), queue)
        channel.publish(queue.encode(), queue)
    content = channel.get("")
    assert content is not None and content.body == last.encode()
    assert channel.call("queue.purge").message_count == 1
    channel.call("queue.delete")
    assert not channel.exists(last)
    assert channel.depth(first) == 2


@pytest.mark.rule("0-9", "queue.purge.queue.02")
def test_purging_a_missing_queue_is_404(channel: Channel, name: str) -> None:
    channel.send("queue.purge", queue=name)
    channel.refused(404, "queue.purge")


@pytest.mark.rule("0-9", "queue.delete.01")
@pytest.mark.mode("strict")
@pytest.mark.parametrize("kind", ["basic", "file"])
@pytest.mark.rule("0-9", "queue.delete.text.pending-and-consumers")
def test_pending_messages_of_a_deleted_queue_are_dead_lettered(moded: Callable[[], Channel], name: str, kind: str) -> None:
    channel = moded()
    channel.queue(name)
    publish_class(channel, kind, name.encode(), name, "")
    channel.quiet()
    channel.call("queue.delete", queue=name)
    if kind == "basic":
        assert name.encode() in channel.drain("amq.dead")
    else:
        channel.consume("amq.dead", kind="file", no_ack=True)
        assert channel.file().body == name.encode()


@pytest.mark.rule("0-9", "queue.delete.01")
@pytest.mark.mode("rabbitmq")
@pytest.mark.rule("0-9", "queue.delete.text.pending-and-consumers")
def test_pending_messages_are_deleted_with_their_queue(moded: Callable[[], Channel], name: str) -> None:
    channel = moded()
    channel.queue(name)
    channel.publish(b"x", name)
    channel.publish(b"y", name)
    channel.quiet()
    assert channel.call("queue.delete", queue=name).message_count == 2
    assert not channel.exists("amq.dead")
    channel.queue(name)
    assert channel.drain(name) == []


@pytest.mark.rule("0-9", "queue.delete.queue.02")
def test_deleting_a_missing_queue_is_404(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.call("queue.delete", queue=name)
    channel.send("queue.delete", queue=name)
    channel.refused(404, "queue.delete")


@pytest.mark.rule("0-9", "queue.delete.if-unused.01")
@pytest.mark.rule("0-9", "queue.delete.if-unused.text.only-unused")
@pytest.mark.rule("0-9", "queue.delete.if-unused.text.else-error")
def test_a_queue_that_is_used_stays(channel: Channel, other: Channel, name: str) -> None:
    other.queue(name)
    tag = other.consume(name)
    channel.send("queue.delete", queue=name, if_unused=True)
    channel = channel.refused(406, "queue.delete")
    assert channel.exists(name)
    other.cancel(tag)
    channel.call("queue.delete", queue=name, if_unused=True)
    assert not channel.exists(name)


@pytest.mark.rule("0-9", "queue.delete.if-empty.01")
@pytest.mark.parametrize("kind", ["basic", "file"])
@pytest.mark.rule("0-9", "queue.delete.if-empty.text.only-empty")
def test_a_queue_that_is_not_empty_stays(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name)
    publish_class(channel, kind, b"x", name, "")
    channel.quiet()
    channel.send("queue.delete", queue=name, if_empty=True)
    channel = channel.refused(406, "queue.delete")
    assert channel.call("queue.purge", queue=name).message_count == 1
    channel.call("queue.delete", queue=name, if_empty=True)
