"""Acknowledging, rejecting; which messages are redelivered, to which consumer, and how often."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.amqp09 import kinds
from tests.conformance.amqp09.conftest import Connect
from tests.conformance.amqp09.test_consume import each
from tests.conformance.conftest import MODES
from tests.support.peers.amqp09 import Channel, Peer
from tests.support.peers.codec09 import Header

STRICT_LIMIT = 5
BOTH = ("basic", "file")


def hold(channel: Channel, kind: str, queue: str, count: int = 1) -> list[kinds.Got]:
    """Publish messages, and return their deliveries."""
    for number in range(count):
        kinds.publish(channel, kind, b"%d" % number, queue)
    kinds.consume(channel, kind, queue, "held")
    return [kinds.receive(channel, kind) for _ in range(count)]


@each("CLASS.ack.multiple.01", BOTH)
@pytest.mark.parametrize("multiple", [False, True])
@pytest.mark.parametrize("tag", [2, 1 << 40, (1 << 64) - 1])
def test_an_unknown_tag_is_refused(channel: Channel, name: str, kind: str, tag: int, multiple: bool) -> None:
    channel.queue(name)
    hold(channel, kind, name)
    channel.ack(tag, multiple=multiple, kind=kind)
    channel = channel.refused(406, f"{kind}.ack")
    assert channel.depth(name) == 1, "the channel's end gave it back"


@each("CLASS.ack.multiple.01", BOTH)
@pytest.mark.parametrize("again", ["ack", "reject"])
def test_a_tag_is_settled_once(channel: Channel, name: str, kind: str, again: str) -> None:
    channel.queue(name)
    first, second = hold(channel, kind, name, 2)
    channel.ack(first.tag, kind=kind)
    channel.send(f"{kind}.{again}", delivery_tag=first.tag)
    channel = channel.refused(406, f"{kind}.{again}")
    assert second.tag > first.tag
    assert channel.depth(name) == 1


@each("CLASS.ack.multiple.01", BOTH)
def test_a_tag_without_acknowledgement_cannot_be_acknowledged(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name)
    kinds.publish(channel, kind, b"x", name)
    kinds.consume(channel, kind, name, "c", no_ack=True)
    kinds.ack(channel, kind, kinds.receive(channel, kind))
    channel.refused(406, f"{kind}.ack")


@each("CLASS.ack.multiple.01", BOTH)
@pytest.mark.rule("0-9", "basic.ack.multiple.text.up-to")
@pytest.mark.rule("0-9", "file.ack.multiple.text.up-to")
def test_multiple_means_up_to_and_including(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name)
    held = hold(channel, kind, name, 5)
    channel.ack(held[0].tag, kind=kind)
    channel.ack(held[2].tag, multiple=True, kind=kind)
    channel.close()
    channel = channel.peer.open()
    kinds.consume(channel, kind, name, "c", no_ack=True)
    assert kinds.receive_all(channel, kind, 2) == [b"3", b"4"]
    channel.quiet()


@pytest.mark.rule("0-9", "basic.reject.01")
def test_a_reject_is_processed_while_content_is_being_sent(connect: Connect, name: str) -> None:
    size = 30_000_000
    watcher = connect().open()
    watcher.queue(name + ".dead")
    watcher.queue(name, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name + ".dead"})
    watcher.publish(b"small", name)
    watcher.publish(b"x" * size, name)
    watcher.quiet()
    peer = connect(receive_buffer=65536)
    slow = peer.open()
    slow.consume(name)
    small = slow.delivery()
    slow.expect("basic.deliver")
    assert isinstance(peer.read(1), Header)
    # Much more is sent than the socket buffers hold.
    slow.reject(small.tag, requeue=False)
    watcher.consume(name + ".dead", no_ack=True)
    assert watcher.delivery().body == b"small"
    missing = size
    while missing:
        missing -= len(peer.read(1))
    for queue in (name, name + ".dead"):
        watcher.call("queue.delete", queue=queue)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("basic", marks=pytest.mark.rule("0-9", "basic.reject.02")),
        pytest.param("file", marks=pytest.mark.rule("0-9", "file.reject.01")),
    ],
)
def test_a_rejected_message_is_delivered_to_another_consumer(
    channel: Channel, other: Channel, name: str, kind: str
) -> None:
    channel.queue(name)
    (got,) = hold(channel, kind, name)
    kinds.consume(other, kind, name, "o")
    kinds.reject(channel, kind, got, requeue=True)
    again = kinds.receive(other, kind)
    assert (again.body, again.redelivered) == (b"0", True)
    # The client that rejected it continues with other messages.
    other.close()
    channel.quiet()
    kinds.publish(channel, kind, b"next", name)
    assert kinds.receive(channel, kind).body == b"next"


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("basic", marks=pytest.mark.rule("0-9", "basic.reject.03")),
        pytest.param("file", marks=pytest.mark.rule("0-9", "file.reject.02")),
    ],
)
def test_a_message_that_is_not_requeued_is_dead_lettered_and_not_redelivered(
    channel: Channel, other: Channel, name: str, kind: str
) -> None:
    dead = channel.queue(name + ".dead")
    channel.queue(name, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    (got,) = hold(channel, kind, name)
    kinds.consume(other, kind, name, "o")
    kinds.reject(channel, kind, got, requeue=False)
    channel.quiet()
    other.quiet()
    assert channel.depth(name) == 0
    kinds.consume(other, kind, dead, "d", no_ack=True)
    letter = kinds.receive(other, kind)
    assert letter.body == b"0"
    assert letter.properties["headers"]["x-death"][0]["reason"] == "rejected"


@each("CLASS.reject.requeue.01", BOTH)
def test_a_requeued_message_is_not_redelivered_to_the_same_channel(peer: Peer, name: str, kind: str) -> None:
    channel, sibling = peer.open(1), peer.open(2)
    channel.queue(name)
    (got,) = hold(channel, kind, name)
    kinds.reject(channel, kind, got, requeue=True)
    channel.quiet()
    kinds.publish(channel, kind, b"next", name)  # it blocks no later message
    assert kinds.receive(channel, kind).body == b"next"
    kinds.consume(sibling, kind, name, "s")
    again = kinds.receive(sibling, kind)
    assert (again.body, again.redelivered) == (b"0", True)


@each("CLASS.reject.requeue.01", BOTH)
def test_other_consumers_do_not_change_that(connect: Connect, channel: Channel, name: str, kind: str) -> None:
    channel.queue(name)
    (got,) = hold(channel, kind, name)
    passing = connect().open()
    kinds.consume(passing, kind, name, "p")
    kinds.reject(channel, kind, got, requeue=True)
    assert kinds.receive(passing, kind).body == b"0"
    passing.close()
    channel.quiet()
    assert channel.depth(name) == 1


@pytest.mark.rule("0-9", "basic.reject.requeue.01")
def test_a_get_does_not_return_it_to_the_same_channel_either(peer: Peer, name: str) -> None:
    channel = peer.open()
    channel.queue(name)
    for number in range(3):
        channel.publish(b"%d" % number, name)
    first = channel.get(name, no_ack=False)
    assert first is not None
    channel.reject(first.tag, requeue=True)
    assert channel.drain(name) == [b"1", b"2"]
    assert peer.open(2).drain(name) == [b"0"]


@each("CLASS.reject.requeue.01", BOTH)
def test_the_same_in_a_transaction(peer: Peer, name: str, kind: str) -> None:
    channel = peer.open()
    channel.queue(name)
    (got,) = hold(channel, kind, name)
    channel.call("tx.select")
    kinds.reject(channel, kind, got, requeue=True)
    channel.call("tx.commit")
    channel.quiet()
    assert peer.open(2).depth(name) == 1


@each("CLASS.reject.requeue.01", BOTH)
def test_it_is_available_again_when_the_channel_is_closed(peer: Peer, name: str, kind: str) -> None:
    channel = peer.open()
    channel.queue(name)
    (got,) = hold(channel, kind, name)
    kinds.reject(channel, kind, got, requeue=True)
    channel.quiet()
    assert channel.depth(name) == 1
    channel.close()
    channel = peer.open()
    kinds.consume(channel, kind, name, "again")
    assert kinds.receive(channel, kind).body == b"0"


@each("CLASS.deliver.01", BOTH)
@pytest.mark.mode("strict")
def test_after_some_failures_a_message_is_dead_lettered(connect: Connect, mode: str, name: str, kind: str) -> None:
    probe = connect(MODES[mode]).open()
    probe.queue(name)
    kinds.publish(probe, kind, b"poison", name, message_id=name)
    deliveries = 0
    while probe.depth(name):
        # A new client each time: the message is not redelivered to the old one.
        peer = connect(MODES[mode])
        channel = peer.open()
        kinds.consume(channel, kind, name, "c")
        got = kinds.receive(channel, kind)
        deliveries += 1
        assert deliveries <= STRICT_LIMIT + 1
        assert got.redelivered is (deliveries > 1)
        kinds.reject(channel, kind, got, requeue=True)
        channel.quiet()
        peer.close()
    assert deliveries == STRICT_LIMIT + 1
    kinds.consume(probe, kind, "amq.dead", "dead", no_ack=True)
    letters: list[kinds.Got] = []
    while not letters or letters[-1].properties.get("message_id") != name:
        letters.append(kinds.receive(probe, kind))
    assert letters[-1].properties["headers"]["x-death"][0]["reason"] == "delivery_limit"


@each("CLASS.deliver.01", BOTH)
@pytest.mark.mode("rabbitmq")
def test_with_a_limit_a_message_is_dead_lettered_after_it(moded: Callable[[], Channel], name: str, kind: str) -> None:
    channel = moded()
    dead = channel.queue(name + ".dead")
    channel.queue(name, arguments={"x-delivery-limit": 3, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    kinds.publish(channel, kind, b"x", name)
    for attempt in range(4):
        consumer = channel.peer.open(2 + attempt)
        kinds.consume(consumer, kind, name, f"c{attempt}")
        got = kinds.receive(consumer, kind)
        assert got.redelivered is (attempt > 0)
        kinds.reject(consumer, kind, got, requeue=True)
        consumer.quiet()
        consumer.close()
    assert channel.depth(name) == 0
    kinds.consume(channel, kind, dead, "d", no_ack=True)
    assert kinds.receive(channel, kind).properties["headers"]["x-death"][0]["reason"] == "delivery_limit"
