"""Class stream: rates and resolutions. Rules shared with other classes are tested by subject."""

from __future__ import annotations

import pytest

from tests.conformance.amqp09 import kinds
from tests.support.peers.amqp09 import Channel, Peer

# So slow that a second message of this size is not due within a test.
SLOW, SIZE = 1, 1000


def rate(channel: Channel, data: int, count: int = 0) -> None:
    channel.call("stream.qos", consume_rate=data, prefetch_count=count)


@pytest.mark.rule("0-9", "stream.qos.consume-rate.01")
@pytest.mark.parametrize("count", [1, 3])
def test_no_more_is_sent_ahead_of_the_rate_than_the_window_allows(channel: Channel, name: str, count: int) -> None:
    channel.queue(name)
    rate(channel, SLOW, count)
    channel.consume(name, kind="stream")
    for number in range(10):
        kinds.publish(channel, "stream", b"%d" % number * SIZE, name)
    assert [got[:1] for got in kinds.receive_all(channel, "stream", count)] == [b"%d" % number for number in range(count)]
    channel.quiet()
    rate(channel, 0)
    assert len(kinds.receive_all(channel, "stream", 10 - count)) == 10 - count


@pytest.mark.rule("0-9", "stream.qos.consume-rate.01")
def test_a_slow_consumer_gets_the_highest_priorities(channel: Channel, name: str) -> None:
    channel.queue(name, arguments={"x-max-length": 2})
    rate(channel, SLOW, 1)
    channel.consume(name, kind="stream")
    kinds.publish(channel, "stream", b"first" * SIZE, name)
    kinds.receive(channel, "stream")
    for number in range(10):
        kinds.publish(channel, "stream", b"%d" % number, name, priority=9 if number in (3, 6) else 0)
    channel.quiet()
    rate(channel, 0)
    assert kinds.receive_all(channel, "stream", 2) == [b"3", b"6"]
    channel.quiet()


@pytest.mark.rule("0-9", "stream.consume.02")
@pytest.mark.rule("0-9", "stream.qos.global.text.channel")
@pytest.mark.rule("0-9", "stream.qos.global.text.connection")
def test_channels_select_their_resolutions_by_themselves(peer: Peer, name: str) -> None:
    """One source, two channels of one connection: the fine one receives all messages, the coarse one those that its
    rate and the priorities allow; nothing is transformed."""
    fine, coarse = peer.open(1), peer.open(2)
    fine.exchange(name, "fanout")
    for channel, queue in ((fine, name + ".fine"), (coarse, name + ".coarse")):
        channel.queue(queue, arguments={"x-max-length": 100 if channel is fine else 1})
        channel.bind(queue, name)
    rate(coarse, SLOW, 1)
    fine.consume(name + ".fine", kind="stream")
    coarse.consume(name + ".coarse", kind="stream")
    frames = [b"%02d" % number * SIZE for number in range(20)]
    for number, frame in enumerate(frames):
        kinds.publish(fine, "stream", frame, "", name, priority=9 if number == 10 else 0)
    assert sorted(kinds.receive_all(fine, "stream", 20)) == frames
    assert kinds.receive(coarse, "stream").body == frames[0]
    coarse.quiet()
    rate(coarse, 0)
    assert kinds.receive(coarse, "stream").body == frames[10]
    coarse.quiet()


@pytest.mark.rule("0-9", "section.stream.deliver")
@pytest.mark.rule("0-9", "stream.deliver.queue.assert.notnull")
def test_a_delivery_names_consumer_exchange_and_queue(channel: Channel, name: str) -> None:
    channel.exchange(name, "topic")
    channel.queue(name)
    channel.bind(name, name, "a.#")
    channel.consume(name, "mine", kind="stream")
    kinds.publish(channel, "stream", b"x", "a.b", name)
    method = channel.delivery("stream").method
    assert (method.consumer_tag, method.exchange, method.queue) == ("mine", name, name)


@pytest.mark.rule("0-9", "section.stream.cancel")
def test_after_cancel_ok_no_message_is_delivered(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.cancel(channel.consume(name, kind="stream"), "stream")
    kinds.publish(channel, "stream", b"x", name)
    channel.quiet()
    assert channel.depth(name) == 1
