"""Consuming: rules that the content classes share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.amqp09 import kinds
from tests.conformance.amqp09.conftest import Connect
from tests.conformance.amqp09.kinds import KINDS
from tests.support.peers.amqp09 import Channel, Peer

Unique = Callable[[], str]


def each(rule: str, only: tuple[str, ...] = KINDS) -> pytest.MarkDecorator:
    """Run for each class, and mark with the rule of that class: CLASS stands for its name."""
    return pytest.mark.parametrize(
        "kind", [pytest.param(kind, marks=pytest.mark.rule("0-9", rule.replace("CLASS", kind)), id=kind) for kind in only]
    )


@each("CLASS.consume.01")
def test_a_queue_has_many_consumers(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name)
    for number in range(32):
        kinds.consume(channel, kind, name, f"c{number}", no_ack=True)
    for number in range(64):
        kinds.publish(channel, kind, b"%d" % number, name)
    deliveries = [kinds.receive(channel, kind) for _ in range(64)]
    assert len({got.consumer for got in deliveries}) == 32, "all of them get some"
    assert sorted(int(got.body) for got in deliveries) == list(range(64))


@each("CLASS.consume.queue.01")
@pytest.mark.rule("0-9", "basic.consume.queue.01.reply-code")
@pytest.mark.rule("0-9", "message.consume.queue.01.reply-code")
def test_no_queue_name_without_a_declared_queue_is_not_allowed(peer: Peer, kind: str) -> None:
    method, tag = kinds.consume_method(kind)
    peer.open().send(method, **{tag: "c"})
    peer.expect_end(530, method)


@each("CLASS.consume.queue.01")
@pytest.mark.rule("0-9", "basic.consume.queue.text.last-declared")
def test_no_queue_name_means_the_last_declared_queue(channel: Channel, unique: Unique, kind: str) -> None:
    channel.queue(unique())
    last = channel.queue(unique())
    kinds.consume(channel, kind, "", "c", no_ack=True)
    kinds.publish(channel, kind, b"x", last)
    assert kinds.receive(channel, kind).body == b"x"


@each("message.get.queue.01", ("message",))
def test_no_queue_name_in_a_get(connect: Connect, kind: str, name: str) -> None:
    peer = connect()
    peer.open().send("message.get", destination="d")
    peer.expect_end(530, "message.get")
    channel = connect().open()
    channel.queue(name)
    kinds.publish(channel, kind, b"x", name)
    channel.call("message.get", "message.ok", destination="d", no_ack=True)
    assert kinds.receive(channel, kind).body == b"x"
    channel.call("message.get", "message.empty", destination="d")


TAG_RULES = {kind: f"{kind}.consume.{'destination' if kind == 'message' else 'consumer-tag'}.01" for kind in KINDS}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.rule("0-9", rule), id=kind) for kind, rule in TAG_RULES.items()]
)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same-class", "another-class"])
@pytest.mark.rule("0-9", "basic.consume.consumer-tag.01.reply-code")
@pytest.mark.rule("0-9", "message.consume.destination.01.reply-code")
def test_a_tag_of_an_existing_consumer_is_not_allowed(peer: Peer, name: str, kind: str, elsewhere: bool) -> None:
    channel = peer.open()
    channel.queue(name)
    kinds.consume(channel, KINDS[KINDS.index(kind) - 1] if elsewhere else kind, name, "same")
    method, tag = kinds.consume_method(kind)
    channel.send(method, queue=name, **{tag: "same"})
    peer.expect_end(530, method)


@pytest.mark.rule("0-9", "basic.consume.consumer-tag.02")
@pytest.mark.rule("0-9", "message.consume.destination.02.reply-code")
@pytest.mark.rule("0-9", "basic.consume.consumer-tag.02.reply-code")
@pytest.mark.rule("0-9", "message.consume.destination.02")
@pytest.mark.parametrize("kind", ["basic", "message"])
def test_a_tag_is_unique_in_the_connection(peer: Peer, connect: Connect, name: str, kind: str) -> None:
    first, second = peer.open(1), peer.open(2)
    first.queue(name)
    kinds.consume(first, kind, name, "one")
    kinds.consume(second, kind, name, "two")
    kinds.consume(connect().open(), "basic", name, "one")  # another client may use it
    method, tag = kinds.consume_method(kind)
    second.send(method, queue=name, **{tag: "one"})
    peer.expect_end(530, method)


@pytest.mark.rule("0-9", "basic.consume.consumer-tag.02")
def test_a_consumer_is_cancelled_on_any_channel_of_its_connection(peer: Peer, other: Channel, name: str) -> None:
    first, second = peer.open(1), peer.open(2)
    first.queue(name)
    first.consume(name, "one")
    other.cancel("one")  # it does not exist there
    first.publish(b"delivered", name)
    assert first.delivery().body == b"delivered"
    second.cancel("one")
    first.publish(b"stays", name)
    first.quiet()
    assert first.depth(name) == 1


@pytest.mark.rule("0-9", "message.consume.destination.02")
@pytest.mark.rule("0-9", "message.consume.destination.02.reply-code")
def test_a_destination_is_cancelled_on_its_own_channel_only(peer: Peer, connect: Connect, name: str) -> None:
    first, second = peer.open(1), peer.open(2)
    first.queue(name)
    kinds.consume(first, "message", name, "one")
    kinds.consume(second, "message", name, "two")
    second.send("message.cancel", destination="one")
    peer.expect_end(530, "message.cancel")


@pytest.mark.rule("0-9", "basic.cancel.01")
@pytest.mark.rule("0-9", "message.cancel.01")
@pytest.mark.parametrize("kind", ["basic", "message"])
def test_a_cancel_is_answered_after_the_queue_was_deleted(channel: Channel, other: Channel, name: str, kind: str) -> None:
    channel.queue(name)
    kinds.consume(channel, kind, name, "c")
    other.call("queue.delete", queue=name)
    kinds.cancel(channel, kind, "c")
    channel.quiet()


@pytest.mark.rule("0-9", "resource-locked.constant")
@each("CLASS.consume.exclusive.01")
@pytest.mark.rule("0-9", "basic.consume.exclusive.01.reply-code")
@pytest.mark.rule("0-9", "message.consume.exclusive.01.reply-code")
def test_exclusive_access_needs_a_queue_without_consumers(channel: Channel, other: Channel, name: str, kind: str) -> None:
    code = 405 if kind in ("file", "stream") else 403
    channel.queue(name)
    kinds.consume(channel, kind, name, "c", no_ack=True)
    method, tag = kinds.consume_method(kind)
    other.send(method, queue=name, exclusive=True, **{tag: "x"})
    other = other.refused(code, method)
    kinds.publish(channel, kind, b"x", name)
    assert kinds.receive(channel, kind).body == b"x"
    kinds.cancel(channel, kind, "c")
    kinds.consume(other, kind, name, "x", exclusive=True, no_ack=True)
    # From now on the queue is exclusive to that consumer, whatever the class.
    for another in KINDS:
        third = channel.peer.open(7)
        method, tag = kinds.consume_method(another)
        third.send(method, queue=name, **{tag: "third"})
        third.refused(405 if another in ("file", "stream") else 403, method).close()


@each("CLASS.qos.prefetch-size.01", ("basic", "message"))
def test_a_single_message_larger_than_the_window_is_delivered(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name)
    qos(channel, kind, size=10)
    kinds.consume(channel, kind, name, "c")
    kinds.publish(channel, kind, b"x" * 1000, name)
    kinds.publish(channel, kind, b"y" * 1000, name)
    first = kinds.receive(channel, kind)
    assert first.body == b"x" * 1000
    channel.quiet()
    kinds.ack(channel, kind, first)
    assert kinds.receive(channel, kind).body == b"y" * 1000


def qos(channel: Channel, kind: str, count: int = 0, size: int = 0, *, everywhere: bool = False) -> None:
    if kind == "message":
        channel.call("message.qos", "message.ok", prefetch_count=count, prefetch_size=size, global_=everywhere)
    else:
        channel.qos(count, size, everywhere=everywhere, kind=kind)


@each("CLASS.qos.prefetch-count.01", ("basic", "file", "message"))
@pytest.mark.parametrize("count", [1, 3])
def test_no_more_than_the_count_window_is_sent(channel: Channel, name: str, kind: str, count: int) -> None:
    channel.queue(name)
    qos(channel, kind, count)
    kinds.consume(channel, kind, name, "c")
    for number in range(8):
        kinds.publish(channel, kind, b"%d" % number, name)
    held = [kinds.receive(channel, kind) for _ in range(count)]
    channel.quiet()
    assert channel.depth(name) == 8 - count
    for number in range(count, 8):
        kinds.ack(channel, kind, held.pop(0))
        held.append(kinds.receive(channel, kind))
        assert held[-1].body == b"%d" % number
        channel.quiet()


@each("CLASS.qos.prefetch-count.01", ("basic", "file", "message"))
@pytest.mark.rule("0-9", "basic.qos.prefetch-count.text.both-windows")
@pytest.mark.rule("0-9", "file.qos.prefetch-count.text.both-windows")
@pytest.mark.rule("0-9", "stream.qos.prefetch-count.text.both-windows")
@pytest.mark.rule("0-9", "message.qos.prefetch-count.text.both-windows")
def test_the_size_window_applies_before_the_count_window(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name)
    qos(channel, kind, 10, 1500)
    kinds.consume(channel, kind, name, "c")
    for number in range(3):
        kinds.publish(channel, kind, b"%d" % number * 1000, name)
    first = kinds.receive(channel, kind)
    channel.quiet()
    kinds.ack(channel, kind, first)
    assert kinds.receive(channel, kind).body == b"1" * 1000
    channel.quiet()


@each("CLASS.qos.prefetch-count.01", ("basic", "file", "message"))
@pytest.mark.rule("0-9", "basic.qos.global.text.channel")
@pytest.mark.rule("0-9", "basic.qos.global.text.connection")
@pytest.mark.rule("0-9", "file.qos.global.text.channel")
@pytest.mark.rule("0-9", "file.qos.global.text.connection")
@pytest.mark.rule("0-9", "message.qos.global.text.channel")
@pytest.mark.rule("0-9", "message.qos.global.text.connection")
def test_a_global_window_is_for_the_connection(peer: Peer, name: str, kind: str) -> None:
    first, second = peer.open(1), peer.open(2)
    first.queue(name)
    qos(first, kind, 2, everywhere=True)
    kinds.consume(first, kind, name, "c")
    kinds.publish(first, kind, b"0", name)
    kinds.publish(first, kind, b"1", name)
    held = [kinds.receive(first, kind) for _ in range(2)]
    kinds.consume(second, kind, name, "d")
    kinds.publish(second, kind, b"2", name)
    second.quiet()
    first.quiet()
    assert second.depth(name) == 1
    kinds.cancel(first, kind, "c")
    kinds.ack(first, kind, held[0])
    assert kinds.receive(second, kind).body == b"2"


@pytest.mark.rule("0-9", "delivery-tag.channel-local")
@pytest.mark.parametrize("kind", ["basic", "file"])
def test_a_delivery_tag_is_unknown_on_another_channel(peer: Peer, name: str, kind: str) -> None:
    first, second = peer.open(1), peer.open(2)
    first.queue(name)
    kinds.publish(first, kind, b"x", name)
    kinds.consume(first, kind, name, "c")
    got = kinds.receive(first, kind)
    kinds.ack(second, kind, got)
    second.refused(406, f"{kind}.ack").close()
    kinds.ack(first, kind, got)
    first.quiet()
    first.close()
    assert peer.open(3).depth(name) == 0


@pytest.mark.rule("0-9", "delivery-tag.non-zero")
@pytest.mark.parametrize("kind", ["basic", "file", "stream"])
@pytest.mark.parametrize("no_ack", [False, True])
def test_delivery_tags_are_not_zero(channel: Channel, name: str, kind: str, no_ack: bool) -> None:
    channel.queue(name)
    kinds.consume(channel, kind, name, "c", no_ack=no_ack)
    for number in range(10):
        kinds.publish(channel, kind, b"%d" % number, name)
    tags = [kinds.receive(channel, kind).tag for _ in range(10)]
    assert 0 not in tags
    assert len(set(tags)) == 10


@pytest.mark.rule("0-9", "delivery-tag.non-zero")
@pytest.mark.parametrize("kind", ["basic", "file"])
def test_zero_means_all_that_was_received(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name)
    kinds.consume(channel, kind, name, "c")
    for number in range(5):
        kinds.publish(channel, kind, b"%d" % number, name)
        kinds.receive(channel, kind)
    channel.ack(0, multiple=True, kind=kind)
    channel.close()
    assert channel.peer.open().depth(name) == 0


@pytest.mark.rule("0-9", "redelivered.implementation")
@pytest.mark.parametrize("kind", ["basic", "file", "message"])
def test_unacknowledged_messages_are_redelivered(connect: Connect, name: str, kind: str) -> None:
    peer = connect()
    channel = peer.open()
    channel.queue(name)
    kinds.publish(channel, kind, b"x", name)
    kinds.consume(channel, kind, name, "c")
    assert not kinds.receive(channel, kind).redelivered
    peer.close()
    channel = connect().open()
    kinds.consume(channel, kind, name, "c")
    got = kinds.receive(channel, kind)
    assert (got.body, got.redelivered) == (b"x", True)


@pytest.mark.rule("0-9", "redelivered.hinting")
@pytest.mark.parametrize("kind", ["basic", "file", "message"])
def test_the_flag_is_a_hint_and_the_message_has_an_identity(connect: Connect, name: str, kind: str) -> None:
    """A message in flight to a client that never read it is flagged as well. Its identity, which stays, reveals a
    duplicate."""
    channel = connect().open()
    channel.queue(name)
    kinds.publish(channel, kind, b"x", name, message_id=f"id of {name}")
    unread = connect()
    kinds.consume(unread.open(), kind, name, "c", no_ack=False)
    if kind == "file":
        kinds.receive(unread.open(2), kind) if channel.depth(name) else unread.expect_method(1, "file.open")
        unread.send_method(1, "file.open-ok")
        unread.rest_of(1, unread.expect_method(1, "file.stage"))
    channel.quiet()
    unread.drop()
    kinds.consume(channel, kind, name, "c")
    got = kinds.receive(channel, kind)
    assert (got.body, got.redelivered) == (b"x", True)
    assert got.properties["message_id"] == f"id of {name}"


@each("CLASS.09", ("basic", "message"))
def test_consumers_without_acknowledgement(connect: Connect, channel: Channel, name: str, kind: str) -> None:
    channel.queue(name)
    kinds.consume(channel, kind, name, "c", no_ack=True)
    for number in range(50):
        kinds.publish(channel, kind, b"%d" % number, name)
    assert kinds.receive_all(channel, kind, 50) == [b"%d" % number for number in range(50)]
    channel.peer.close()
    assert connect().open().depth(name) == 0


@each("CLASS.10", ("basic", "message"))
def test_only_unacknowledged_messages_are_redelivered(connect: Connect, name: str, kind: str) -> None:
    peer = connect()
    channel = peer.open()
    channel.queue(name)
    kinds.consume(channel, kind, name, "c")
    for number in range(10):
        kinds.publish(channel, kind, b"%d" % number, name)
    held = [kinds.receive(channel, kind) for _ in range(10)]
    for got in held[:5]:
        kinds.ack(channel, kind, got)
    channel.quiet()
    peer.close()
    channel = connect().open()
    kinds.consume(channel, kind, name, "c")
    assert kinds.receive_all(channel, kind, 5) == [b"%d" % number for number in range(5, 10)]
    channel.quiet()


@each("CLASS.recover.01", ("basic", "message"))
@pytest.mark.parametrize("requeue", [False, True])
@pytest.mark.rule("0-9", "basic.recover.text.any-number")
@pytest.mark.rule("0-9", "basic.recover.requeue.text.same-recipient")
@pytest.mark.rule("0-9", "basic.recover.requeue.text.requeued")
@pytest.mark.rule("0-9", "message.recover.text.any-number")
@pytest.mark.rule("0-9", "message.recover.requeue.text.same-recipient")
@pytest.mark.rule("0-9", "message.recover.requeue.text.requeued")
def test_recover_sets_the_redelivered_flag(channel: Channel, name: str, kind: str, requeue: bool) -> None:
    channel.queue(name)
    kinds.consume(channel, kind, name, "c")
    for number in range(3):
        kinds.publish(channel, kind, b"%d" % number, name)
    assert [kinds.receive(channel, kind).redelivered for _ in range(3)] == [False] * 3
    channel.send(f"{kind}.recover", requeue=requeue)
    if kind == "message":
        channel.peer.pick(1, "message.ok")
    again = [kinds.receive(channel, kind) for _ in range(3)]
    assert [(got.body, got.redelivered) for got in again] == [(b"%d" % number, True) for number in range(3)]
    channel.quiet()


@each("CLASS.recover.02", ("basic", "message"))
@pytest.mark.parametrize("requeue", [False, True])
@pytest.mark.rule("0-9", "basic.recover.text.not-transacted")
@pytest.mark.rule("0-9", "message.recover.text.not-transacted")
def test_recover_is_not_for_transacted_channels(channel: Channel, kind: str, requeue: bool) -> None:
    channel.call("tx.select")
    channel.send(f"{kind}.recover", requeue=requeue)
    channel.refused(406, f"{kind}.recover")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("basic", marks=[pytest.mark.rule("0-9", "basic.06"), pytest.mark.rule("0-9", "basic.07")]),
        pytest.param("file", marks=pytest.mark.rule("0-9", "file.03")),
        pytest.param("stream", marks=pytest.mark.rule("0-9", "stream.02")),
        pytest.param("message", marks=[pytest.mark.rule("0-9", "message.06"), pytest.mark.rule("0-9", "message.07")]),
    ],
)
def test_ten_priorities_on_any_queue(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name)
    for level in range(10):
        kinds.publish(channel, kind, b"%d" % level, name, priority=level)
    kinds.publish(channel, kind, b"late nine", name, priority=9)
    channel.quiet()
    kinds.consume(channel, kind, name, "c", no_ack=True)
    bodies = kinds.receive_all(channel, kind, 11)
    assert bodies == [b"9", b"late nine", *(b"%d" % level for level in range(8, -1, -1))]


@each("CLASS.08", ("basic", "message"))
def test_persistence_does_not_change_the_order(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name, durable=True)
    bodies = [b"%d" % number for number in range(60)]
    for number, body in enumerate(bodies):
        kinds.publish(channel, kind, body, name, priority=7, delivery_mode=1 + number * number % 7 % 2)
    kinds.consume(channel, kind, name, "c", no_ack=True)
    assert kinds.receive_all(channel, kind, 60) == bodies
    channel.call("queue.delete", queue=name)


@pytest.mark.rule("0-9", "file.04")
def test_files_are_acknowledged_automatically_or_explicitly(connect: Connect, unique: Unique) -> None:
    peer = connect()
    channel = peer.open()
    automatic, explicit = channel.queue(unique()), channel.queue(unique())
    for queue in (automatic, explicit):
        kinds.consume(channel, "file", queue, queue, no_ack=queue == automatic)
        for number in range(2):
            kinds.publish(channel, "file", b"%d" % number, queue)
            got = kinds.receive(channel, "file")
    kinds.ack(channel, "file", got)  # the last of the explicit ones
    channel.quiet()
    peer.close()
    channel = connect().open()
    assert channel.depth(automatic) == 0
    assert channel.depth(explicit) == 1
    kinds.consume(channel, "file", explicit, "c")
    again = kinds.receive(channel, "file")
    assert (again.body, again.redelivered) == (b"0", True)


@pytest.mark.rule("0-9", "stream.03")
def test_a_stream_message_is_removed_when_it_is_delivered(connect: Connect, name: str) -> None:
    peer = connect()
    channel = peer.open()
    channel.queue(name)
    kinds.consume(channel, "stream", name, "c")
    for number in range(10):
        kinds.publish(channel, "stream", b"%d" % number, name)
    assert kinds.receive_all(channel, "stream", 10) == [b"%d" % number for number in range(10)]
    peer.drop()
    assert connect().open().depth(name) == 0
