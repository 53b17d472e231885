"""Pipelined methods take effect in order, although deliveries wait for the end of the turn."""

from __future__ import annotations

import pytest

from tests.protocols.support import Channel, Site


@pytest.fixture
def channel() -> Channel:
    channel = Site().channel()
    channel.declare()
    return channel


def test_a_get_after_a_publish_does_not_overtake_a_waiting_consumer(channel: Channel) -> None:
    channel.consume(no_ack=True)
    channel.publish(body=b"a")
    assert channel.get() is None
    assert channel.delivered() == [b"a"]


def test_a_consumer_gets_messages_published_before_its_cancel(channel: Channel) -> None:
    channel.consume(tag="high", no_ack=True, arguments={"x-priority": 1})
    channel.consume(tag="low", no_ack=True)
    channel.publish(body=b"a")
    channel.send("basic.cancel", consumer_tag="high")
    channel.publish(body=b"b")
    tags = [(item.consumer_tag, item.body) for item in channel.deliveries()]
    assert tags == [(b"high", b"a"), (b"low", b"b")]


def test_counts_exclude_messages_for_a_waiting_consumer(channel: Channel) -> None:
    channel.consume(no_ack=True)
    channel.publish()
    assert channel.call("queue.declare", "queue.declare-ok", queue="q", passive=True)["message_count"] == 0
    channel.publish()
    assert channel.call("queue.purge", "queue.purge-ok", queue="q")["message_count"] == 0
    channel.publish()
    assert channel.call("queue.delete", "queue.delete-ok", queue="q")["message_count"] == 0
    assert len(channel.deliveries()) == 3


def test_counts_include_the_message_without_a_consumer(channel: Channel) -> None:
    channel.publish()
    assert channel.call("queue.declare", "queue.declare-ok", queue="q", passive=True)["message_count"] == 1
