"""Deliveries: consume, cancel, qos, get, deliver, and the order of messages."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.conformance.conftest import Connect
from tests.support.broker import Broker
from tests.support.peers.amqp091 import Basic, Channel, Peer, Queue


@pytest.mark.rule("0-9-1", "delivery-tag.non-zero")
def test_delivery_tags_begin_at_one_and_grow(channel: Channel, name: str) -> None:
    channel.queue(name)
    for _ in range(3):
        channel.publish(b"", name)
    got = channel.get(name, no_ack=False)
    assert got is not None
    channel.consume(name, "c")
    assert [got.tag, *(content.tag for content in channel.deliveries(2))] == [1, 2, 3]
    channel.publish(b"", name)
    assert channel.delivery().tag == 4


@pytest.mark.rule("0-9-1", "delivery-tag.non-zero")
def test_delivery_tags_without_acknowledgement_are_not_zero_either(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.publish(b"", name)
    content = channel.get(name, no_ack=True)
    assert content is not None
    assert content.tag > 0
    channel.consume(name, "c", no_ack=True)
    channel.publish(b"", name)
    assert channel.delivery().tag > content.tag


@pytest.mark.rule("0-9-1", "redelivered.implementation")
def test_unacknowledged_messages_are_redelivered(connect: Connect, name: str) -> None:
    peer = connect()
    channel = peer.channel()
    channel.queue(name, exclusive=False)
    channel.publish(b"first", name)
    channel.publish(b"second", name)
    channel.qos(1)
    channel.consume(name, "c")
    content = channel.delivery()
    assert (content.body, content.redelivered) == (b"first", False)
    peer.close()
    again = connect().channel()
    again.consume(name, "c")
    first, second = again.deliveries(2)
    assert (first.body, first.redelivered) == (b"first", True)
    assert (second.body, second.redelivered) == (b"second", False)
    again.call(Queue.Delete, Queue.DeleteOk, queue=name)


@pytest.mark.rule("0-9-1", "redelivered.implementation")
def test_a_lost_socket_is_noticed_too(connect: Connect, name: str) -> None:
    peer = connect()
    channel = peer.channel()
    channel.queue(name, exclusive=False)
    channel.publish(b"x", name)
    channel.consume(name, "c")
    channel.delivery()
    again = connect().channel()
    again.consume(name, "c")
    peer.drop()
    content = again.delivery()
    assert (content.body, content.redelivered) == (b"x", True)
    again.call(Queue.Delete, Queue.DeleteOk, queue=name)


@pytest.mark.rule("0-9-1", "basic.06")
def test_priority_nine_overtakes_priority_zero(channel: Channel, name: str) -> None:
    channel.queue(name, arguments={"x-max-priority": 9})
    for number in range(5):
        channel.publish(b"low %d" % number, name, priority=0)
    channel.publish(b"high", name, priority=9)
    assert channel.drain(name) == [b"high", *(b"low %d" % number for number in range(5))]


@pytest.mark.rule("0-9-1", "basic.06")
@pytest.mark.ahead_of_rabbitmq("priorities need x-max-priority")
def test_priorities_need_no_argument(channel: Channel, name: str) -> None:
    channel.queue(name)
    for number in range(5):
        channel.publish(b"low %d" % number, name, priority=0)
    channel.publish(b"high", name, priority=9)
    channel.consume(name, "c", no_ack=True)
    assert [content.body for content in channel.deliveries(6)] == [b"high", *(b"low %d" % number for number in range(5))]


@pytest.mark.rule("0-9-1", "basic.07")
@pytest.mark.ahead_of_rabbitmq("priorities need x-max-priority")
def test_ten_priorities_on_any_queue(channel: Channel, name: str) -> None:
    channel.queue(name)
    for level in range(10):
        channel.publish(b"%d" % level, name, priority=level)
    channel.publish(b"absent", name)  # equals 4, and was published later
    order = [b"9", b"8", b"7", b"6", b"5", b"4", b"absent", b"3", b"2", b"1", b"0"]
    assert channel.drain(name) == order


@pytest.mark.rule("0-9-1", "basic.07")
@pytest.mark.mode("strict")
def test_with_a_small_maximum_the_levels_are_those_of_the_middle(channel: Channel, name: str) -> None:
    """The specification requires at least two levels; AMQP 1.0 defines them (messaging section 3.2.1)."""
    channel.queue(name, arguments={"x-max-priority": 5})
    channel.publish(b"absent", name)
    for priority in (0, 3, 5, 200, 1):
        channel.publish(b"%d" % priority, name, priority=priority)
    assert channel.drain(name) == [b"200", b"5", b"absent", b"3", b"0", b"1"]


@pytest.mark.rule("0-9-1", "basic.07")
@pytest.mark.mode("rabbitmq")
def test_with_a_maximum_absent_is_zero_and_more_is_the_maximum(channel: Channel, name: str) -> None:
    channel.queue(name, arguments={"x-max-priority": 5})
    channel.publish(b"absent", name)
    for priority in (0, 3, 5, 200, 1):
        channel.publish(b"%d" % priority, name, priority=priority)
    assert channel.drain(name) == [b"5", b"200", b"3", b"1", b"absent", b"0"]


@pytest.mark.rule("0-9-1", "basic.08")
def test_persistence_does_not_change_the_order(channel: Channel, name: str) -> None:
    channel.queue(name, exclusive=False, durable=True)
    chance = random.Random(8)
    bodies = [b"%d" % number for number in range(200)]
    for body in bodies:
        channel.publish(body, name, delivery_mode=chance.choice((1, 2)), priority=7)
    channel.consume(name, "c", no_ack=True)
    assert [content.body for content in channel.deliveries(200)] == bodies
    channel.call(Queue.Delete, Queue.DeleteOk, queue=name)


@pytest.mark.rule("0-9-1", "basic.09")
@pytest.mark.rule("0-9-1", "no-ack.text.not-expected")
@pytest.mark.rule("0-9-1", "no-ack.text.dequeued")
def test_consumers_without_acknowledgement(channel: Channel, other: Channel, name: str) -> None:
    channel.queue(name, exclusive=False)
    for number in range(10):
        channel.publish(b"%d" % number, name)
    other.consume(name, "c", no_ack=True)
    assert [content.body for content in other.deliveries(10)] == [b"%d" % number for number in range(10)]
    other.close()
    assert channel.call(Queue.Delete, Queue.DeleteOk, queue=name).message_count == 0


@pytest.mark.rule("0-9-1", "basic.10")
def test_only_unacknowledged_messages_are_redelivered(connect: Connect, name: str) -> None:
    peer = connect()
    channel = peer.channel()
    channel.queue(name, exclusive=False)
    for number in range(10):
        channel.publish(b"%d" % number, name)
    channel.consume(name, "c")
    for content in channel.deliveries(10):
        if content.tag % 2:
            channel.ack(content.tag)
    peer.close()
    again = connect().channel()
    assert again.depth(name) == 5
    again.consume(name, "c")
    contents = again.deliveries(5)
    assert [(content.body, content.redelivered) for content in contents] == [
        (b"%d" % number, True) for number in (1, 3, 5, 7, 9)
    ]
    again.ack(contents[-1].tag, multiple=True)
    again.call(Queue.Delete, Queue.DeleteOk, queue=name)


# Quality of service


@pytest.mark.rule("0-9-1", "basic.qos.prefetch-size.01")
@pytest.mark.ahead_of_rabbitmq("540, not implemented")
def test_a_single_message_larger_than_the_window_is_delivered(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.qos(size=100)
    channel.consume(name, "c")
    channel.publish(b"x" * 1000, name)
    content = channel.delivery()
    channel.publish(b"y" * 1000, name)
    channel.quiet()
    channel.ack(content.tag)
    assert channel.delivery().body == b"y" * 1000


@pytest.mark.rule("0-9-1", "basic.qos.prefetch-count.01")
@pytest.mark.rule("0-9-1", "basic.qos.prefetch-count.text.both-windows")
@pytest.mark.ahead_of_rabbitmq("540, not implemented")
def test_the_size_window_applies_before_the_count_window(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.qos(count=10, size=1000)
    channel.consume(name, "c")
    for number in range(5):
        channel.publish(b"%d" % number * 600, name)
    for number in range(5):
        content = channel.delivery()
        assert content.body[:1] == b"%d" % number
        channel.quiet()  # two of them would be 1200 bytes
        channel.ack(content.tag)


@pytest.mark.rule("0-9-1", "basic.qos.prefetch-count.01")
@pytest.mark.rule("0-9-1", "basic.qos.prefetch-size.text.fits")
@pytest.mark.ahead_of_rabbitmq("540, not implemented")
def test_small_messages_fill_the_size_window(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.qos(size=1000)
    channel.consume(name, "c")
    for _ in range(8):
        channel.publish(b"x" * 300, name)
    contents = channel.deliveries(3)
    channel.quiet()
    channel.ack(contents[0].tag)
    channel.delivery()
    channel.quiet()


@pytest.mark.rule("0-9-1", "basic.qos.prefetch-count.01")
@pytest.mark.rule("0-9-1", "basic.qos.prefetch-size.text.zero")
@pytest.mark.parametrize("count", [1, 3])
def test_no_more_than_the_count_window_is_sent(channel: Channel, name: str, count: int) -> None:
    channel.queue(name)
    channel.qos(count)
    channel.consume(name, "c")
    for number in range(10):
        channel.publish(b"%d" % number, name)
    seen: list[bytes] = []
    while len(seen) < 10:
        contents = channel.deliveries(min(count, 10 - len(seen)))
        channel.quiet()
        seen += [content.body for content in contents]
        channel.ack(contents[-1].tag, multiple=True)
    assert seen == [b"%d" % number for number in range(10)]


@pytest.mark.rule("0-9-1", "basic.qos.prefetch-count.01")
def test_rejecting_and_cancelling_count_too(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.qos(2)
    channel.consume(name, "c")
    for number in range(6):
        channel.publish(b"%d" % number, name)
    first, second = channel.deliveries(2)
    channel.reject(first.tag, requeue=False)
    third = channel.delivery()
    channel.quiet()
    channel.nack(third.tag, multiple=True, requeue=False)
    channel.deliveries(2)
    channel.quiet()
    assert second.tag < third.tag


@pytest.mark.rule("0-9-1", "basic.qos.prefetch-count.01")
@pytest.mark.rule("0-9-1", "basic.ack.multiple.text.single")
def test_acknowledgements_may_come_in_any_order(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.qos(5)
    channel.consume(name, "c")
    for number in range(100):
        channel.publish(b"%d" % number, name)
    chance = random.Random(5)
    held = channel.deliveries(5)
    seen = [content.body for content in held]
    while held:
        content = held.pop(chance.randrange(len(held)))
        channel.ack(content.tag)
        if len(seen) < 100:
            held.append(channel.delivery())
            seen.append(held[-1].body)
    assert seen == [b"%d" % number for number in range(100)]


@pytest.mark.rule("0-9-1", "basic.qos.prefetch-count.01")
@pytest.mark.rule("0-9-1", "basic.qos.prefetch-count.text.no-ack")
@pytest.mark.rule("0-9-1", "basic.qos.prefetch-size.text.no-ack")
def test_consumers_without_acknowledgement_have_no_window(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.qos(1)
    channel.consume(name, "c", no_ack=True)
    for _ in range(10):
        channel.publish(b"", name)
    channel.deliveries(10)


@pytest.mark.rule("0-9-1", "basic.qos.global.text.channel")
@pytest.mark.mode("rabbitmq")
def test_by_default_a_window_is_for_each_new_consumer(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.qos(2)
    channel.consume(name, "a")
    channel.qos(3)
    channel.consume(name, "b")
    for number in range(10):
        channel.publish(b"%d" % number, name)
    tags = [content.method.consumer_tag for content in channel.deliveries(5)]
    assert (tags.count("a"), tags.count("b")) == (2, 3)
    channel.quiet()


@pytest.mark.rule("0-9-1", "basic.qos.global.text.connection")
@pytest.mark.mode("rabbitmq")
def test_by_default_global_is_a_window_for_the_channel(peer: Peer, name: str) -> None:
    channel, second = peer.channel(1), peer.channel(2)
    channel.queue(name)
    channel.qos(3, all_consumers=True)
    channel.consume(name, "a")
    channel.consume(name, "b")
    for number in range(10):
        channel.publish(b"%d" % number, name)
    held = channel.deliveries(3)
    channel.quiet()
    second.consume(name, "c")
    assert len(second.deliveries(7)) == 7, "another channel has its own window"
    channel.ack(held[0].tag)


@pytest.fixture
def spec_windows(raw: Callable[..., Peer], broker: Broker) -> Peer:
    """A connection to a virtual host with the specification's meaning of `global`."""
    if broker.kind != "leveret":
        pytest.skip("a setting of Leveret's")
    peer: Peer = raw()
    peer.handshake("windows")
    return peer


@pytest.mark.rule("0-9-1", "basic.qos.global.text.channel")
@pytest.mark.mode("strict")
def test_by_the_specification_a_window_is_for_the_channel(spec_windows: Peer, name: str) -> None:
    channel, second = spec_windows.channel(1), spec_windows.channel(2)
    channel.queue(name)
    channel.consume(name, "a")
    channel.qos(3)  # also for existing consumers
    channel.consume(name, "b")
    for number in range(10):
        channel.publish(b"%d" % number, name)
    held = channel.deliveries(3)
    channel.quiet()
    second.qos(2)
    second.consume(name, "c")
    second.deliveries(2)
    second.quiet()
    channel.ack(held[-1].tag, multiple=True)
    channel.deliveries(3)
    channel.quiet()


@pytest.mark.rule("0-9-1", "basic.qos.global.text.connection")
@pytest.mark.mode("strict")
def test_by_the_specification_global_is_a_window_for_the_connection(spec_windows: Peer, name: str) -> None:
    channel, second = spec_windows.channel(1), spec_windows.channel(2)
    channel.queue(name)
    channel.qos(3, all_consumers=True)
    channel.consume(name, "a")
    second.consume(name, "b")
    for number in range(10):
        channel.publish(b"%d" % number, name)
    for _ in range(3):
        while not isinstance(spec_windows.read(None), Basic.Deliver):
            pass
    channel.publish(b"11", name)
    frames = []
    # Drain the three messages; nothing more arrives on either channel.
    second.send(Basic.Qos, prefetch_count=0)
    while not isinstance(value := spec_windows.read(None), Basic.QosOk):
        frames.append(value)
    assert not any(isinstance(frame, Basic.Deliver) for frame in frames)
    channel.ack(0, multiple=True)
    second.ack(0, multiple=True)
    assert isinstance(spec_windows.read(None), Basic.Deliver)


# consume and cancel


@pytest.mark.rule("0-9-1", "basic.consume.01")
def test_a_queue_has_many_consumers_and_shares_fairly(channel: Channel, name: str) -> None:
    channel.queue(name)
    tags = [channel.consume(name, f"c{number}", no_ack=True) for number in range(64)]
    for number in range(640):
        channel.publish(b"%d" % number, name)
    counts = dict.fromkeys(tags, 0)
    for content in channel.deliveries(640):
        counts[content.method.consumer_tag] += 1
    assert set(counts.values()) == {10}


@pytest.mark.rule("0-9-1", "basic.consume.consumer-tag.01")
def test_a_tag_is_used_once_on_a_channel(peer: Peer, name: str) -> None:
    channel = peer.channel()
    channel.queue(name)
    channel.consume(name, "same")
    channel.call(Basic.Cancel, Basic.CancelOk, consumer_tag="same")
    channel.consume(name, "same")
    channel.send(Basic.Consume, queue=name, consumer_tag="same")
    peer.expect_connection_close(530, Basic.Consume)


@pytest.mark.rule("0-9-1", "basic.consume.consumer-tag.02")
def test_tags_are_local_to_their_channel(peer: Peer, name: str) -> None:
    first, second = peer.channel(1), peer.channel(2)
    first.queue(name)
    first.consume(name, "same")
    second.consume(name, "same")
    second.call(Basic.Cancel, Basic.CancelOk, consumer_tag="same")
    for _ in range(2):
        first.publish(b"x", name)
        assert first.delivery().method.consumer_tag == "same"
    generated = {channel.consume(name, "") for channel in (first, second) for _ in range(10)}
    assert len(generated) == 20
    assert "" not in generated


@pytest.mark.rule("0-9-1", "basic.consume.consumer-tag.02")
@pytest.mark.mode("strict")
def test_cancelling_another_channels_consumer_is_not_allowed(peer: Peer, name: str) -> None:
    first, second = peer.channel(1), peer.channel(2)
    first.queue(name)
    first.consume(name, "one")
    second.consume(name, "two")
    second.send(Basic.Cancel, consumer_tag="one")
    peer.expect_connection_close(530, Basic.Cancel)


@pytest.mark.rule("0-9-1", "basic.consume.consumer-tag.02")
@pytest.mark.mode("rabbitmq")
def test_cancelling_another_channels_consumer_has_no_effect(peer: Peer, name: str) -> None:
    first, second = peer.channel(1), peer.channel(2)
    first.queue(name)
    first.consume(name, "one")
    assert second.call(Basic.Cancel, Basic.CancelOk, consumer_tag="one").consumer_tag == "one"
    first.publish(b"x", name)
    assert first.delivery().method.consumer_tag == "one"


@pytest.mark.rule("0-9-1", "basic.consume.exclusive.01")
def test_exclusive_access_needs_a_queue_without_consumers(channel: Channel, other: Channel, name: str) -> None:
    channel.queue(name, exclusive=False, auto_delete=True)
    channel.consume(name, "c")
    other.send(Basic.Consume, queue=name, consumer_tag="x", exclusive=True)
    other.expect_close(403, Basic.Consume)
    channel.publish(b"x", name)
    assert channel.delivery().body == b"x"


@pytest.mark.rule("0-9-1", "basic.consume.exclusive.01")
@pytest.mark.rule("0-9-1", "basic.consume.exclusive.text.alone")
@pytest.mark.rule("0-9-1", "access-refused.constant")
def test_an_exclusive_consumer_excludes_others(channel: Channel, other: Channel, name: str) -> None:
    channel.queue(name, exclusive=False)
    channel.consume(name, "c", exclusive=True)
    other.send(Basic.Consume, queue=name, consumer_tag="x")
    other.expect_close(403, Basic.Consume)
    channel.call(Basic.Cancel, Basic.CancelOk, consumer_tag="c")
    other = other.reopen()
    other.consume(name, "x", exclusive=True)
    other.call(Queue.Delete, Queue.DeleteOk, queue=name)


@pytest.mark.rule("0-9-1", "no-local.text.own-messages")
@pytest.mark.ahead_of_rabbitmq("ignores it")
def test_no_local_excludes_own_messages(connect: Connect, name: str) -> None:
    peer = connect()
    channel, sibling, other = peer.channel(1), peer.channel(2), connect().channel()
    channel.queue(name, exclusive=False)
    channel.consume(name, "c", no_local=True, no_ack=True)
    channel.publish(b"own", name)
    sibling.publish(b"own, by another channel", name)
    other.publish(b"another's", name)
    assert channel.delivery().body == b"another's"
    channel.quiet()
    # Own messages wait for another consumer, and block no others.
    other.consume(name, "o", no_ack=True)
    assert [content.body for content in other.deliveries(2)] == [b"own", b"own, by another channel"]
    other.call(Queue.Delete, Queue.DeleteOk, queue=name)


@pytest.mark.rule("0-9-1", "basic.cancel.01")
def test_a_cancel_is_answered_after_the_queue_was_deleted(channel: Channel, other: Channel, name: str) -> None:
    channel.queue(name, exclusive=False)
    channel.consume(name, "c")
    other.call(Queue.Delete, Queue.DeleteOk, queue=name)
    assert channel.call(Basic.Cancel, Basic.CancelOk, consumer_tag="c").consumer_tag == "c"
    channel.quiet()


@pytest.mark.rule("0-9-1", "basic.cancel.text.no-more-messages")
def test_after_cancel_ok_there_are_no_deliveries_and_acknowledgements_still_count(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.qos(2)
    channel.consume(name, "c")
    for number in range(4):
        channel.publish(b"%d" % number, name)
    first, second = channel.deliveries(2)
    channel.call(Basic.Cancel, Basic.CancelOk, consumer_tag="c")
    channel.ack(first.tag)
    channel.quiet()
    channel.reject(second.tag, requeue=True)
    channel.quiet()
    # On another channel: in strict mode a rejected message is not redelivered to this one.
    assert channel.peer.channel(2).drain(name) == [b"1", b"2", b"3"]


@pytest.mark.rule("0-9-1", "basic.get-ok.text.acknowledged")
def test_get(channel: Channel, name: str) -> None:
    channel.queue(name)
    assert channel.get(name) is None
    for number in range(3):
        channel.publish(b"%d" % number, name, "", message_id="m")
    content = channel.get(name, no_ack=False)
    assert content is not None
    assert (content.body, content.method.message_count, content.redelivered) == (b"0", 2, False)
    assert (content.method.exchange, content.method.routing_key, content.properties.message_id) == ("", name, "m")
    assert channel.depth(name) == 2
    channel.ack(content.tag)
    assert channel.drain(name) == [b"1", b"2"]


@pytest.mark.rule("0-9-1", "not-found.constant")
@pytest.mark.parametrize("kind", [Basic.Consume, Basic.Get])
def test_the_queue_must_exist(channel: Channel, name: str, kind: type[Basic.Consume | Basic.Get]) -> None:
    channel.send(kind, queue=name)
    channel.expect_close(404, kind)
    channel = channel.reopen()
    channel.send(kind, queue="")
    channel.expect_close(404, kind)


@pytest.mark.rule("0-9-1", "basic.deliver.text.as-they-arrive")
@pytest.mark.rule("0-9-1", "basic.deliver.routing-key.text.as-published")
def test_a_delivery_names_consumer_exchange_and_key(channel: Channel, unique: Callable[[], str]) -> None:
    exchange = channel.exchange(unique(), "topic", auto_delete=True)
    queue = channel.queue(unique())
    channel.bind(queue, exchange, "#")
    channel.consume(queue, "täg")
    channel.publish(b"x", "some.key", exchange, content_type="text/plain")
    content = channel.delivery()
    fields = content.method
    assert (fields.consumer_tag, fields.exchange, fields.routing_key) == ("täg", exchange, "some.key")
    assert content.properties.content_type == "text/plain"
