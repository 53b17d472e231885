"""Confirms wait for the commit: only messages on disk are confirmed."""

from __future__ import annotations

import pytest

from tests.broker.support import HeldLog
from tests.protocols.support import Channel, Site


class SlowSite(Site):
    """A site whose commits complete on request."""

    def __init__(self) -> None:
        self.held = HeldLog()
        super().__init__(self.held)

    def release(self, channel: Channel) -> None:
        """Complete one commit."""
        self.held.release()
        channel.run()


@pytest.fixture
def site() -> SlowSite:
    return SlowSite()


@pytest.fixture
def channel(site: SlowSite) -> Channel:
    """A confirming channel with the durable queue `q` and the transient queue `t`."""
    channel = site.channel()
    channel.declare(durable=True)
    channel.declare("t")
    channel.call("confirm.select", "confirm.select-ok")
    site.run()
    site.held.held = True
    return channel


def test_the_confirm_of_a_persistent_message_waits(site: SlowSite, channel: Channel) -> None:
    channel.publish(delivery_mode=2)
    channel.run()
    assert channel.confirms() == []
    site.release(channel)
    assert channel.confirms() == [("ack", 1, False)]


def test_the_confirm_of_a_transient_message_does_not_wait(site: SlowSite, channel: Channel) -> None:
    channel.publish()
    channel.publish("t", delivery_mode=2)
    channel.run()
    assert channel.confirms() == [("ack", 2, True)]


def test_later_confirms_wait_for_earlier_ones(site: SlowSite, channel: Channel) -> None:
    channel.publish("t")
    channel.publish(delivery_mode=2)
    channel.publish("t")
    channel.run()
    assert channel.confirms() == [("ack", 1, False)]
    channel.publish("t")
    channel.run()
    assert channel.confirms() == []
    site.release(channel)
    assert channel.confirms() == [("ack", 4, True)]


def test_each_commit_confirms_its_messages(site: SlowSite, channel: Channel) -> None:
    channel.publish(delivery_mode=2)
    channel.publish(delivery_mode=2)
    channel.run()
    channel.publish(delivery_mode=2)
    channel.run()
    channel.publish(delivery_mode=2)
    channel.run()
    site.release(channel)
    assert channel.confirms() == [("ack", 2, True)]
    site.release(channel)
    assert channel.confirms() == [("ack", 4, True)]


def test_a_nack_waits_for_earlier_confirms(site: SlowSite, channel: Channel) -> None:
    channel.declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    channel.publish(delivery_mode=2)
    channel.publish("full")
    channel.publish(delivery_mode=2)
    channel.run()
    assert channel.confirms() == []
    site.release(channel)
    assert channel.confirms() == [("ack", 1, False), ("nack", 2, False), ("ack", 3, False)]


def test_a_message_acked_before_its_commit_is_confirmed_after_it(site: SlowSite, channel: Channel) -> None:
    """The acknowledgement is in the same commit, so an earlier confirm would be wrong after a crash."""
    consumer = site.connect().channel()
    consumer.consume(no_ack=True)
    channel.publish(delivery_mode=2)
    channel.run()
    assert consumer.delivered() == [b"m"]
    assert channel.confirms() == []
    site.held.release_all()
    channel.run()
    assert channel.confirms() == [("ack", 1, False)]


def test_two_channels_share_a_commit(site: SlowSite, channel: Channel) -> None:
    other = channel.client.channel()
    other.call("confirm.select", "confirm.select-ok")
    channel.publish(delivery_mode=2)
    other.publish("t")
    other.publish(delivery_mode=2)
    channel.run()
    assert channel.confirms() == [] and other.confirms() == [("ack", 1, False)]
    site.release(channel)
    assert channel.confirms() == [("ack", 1, False)]
    assert other.confirms() == [("ack", 2, False)]


def test_a_channel_closed_before_the_commit_gets_no_confirms(site: SlowSite, channel: Channel) -> None:
    channel.publish(delivery_mode=2)
    channel.run()
    channel.send("channel.close", reply_code=200)
    channel.run()
    channel.client.received.clear()
    site.release(channel)
    assert channel.client.received == []
    assert channel.client.is_open


def test_a_connection_lost_before_the_commit(site: SlowSite, channel: Channel) -> None:
    channel.publish(delivery_mode=2)
    channel.run()
    channel.client.drop()
    site.held.release_all()
    site.run()
    assert site.vhost.queues["q"].ready_count == 1


def test_definitions_are_answered_when_they_are_on_disk(site: SlowSite, channel: Channel) -> None:
    channel.send("queue.declare", queue="new", durable=True)
    channel.run()
    assert channel.client.take("queue.declare-ok", channel.number) is None
    site.release(channel)
    assert channel.client.take("queue.declare-ok", channel.number) is not None


def test_commands_after_a_pending_definition_keep_their_order(site: SlowSite, channel: Channel) -> None:
    channel.send("queue.declare", queue="new", durable=True)
    channel.publish("new", b"a")
    channel.send("queue.declare", queue="new", passive=True)
    channel.run()
    site.held.release_all()
    channel.run()
    first = channel.client.take("queue.declare-ok", channel.number)
    second = channel.client.take("queue.declare-ok", channel.number)
    assert first is not None and first.arguments["message_count"] == 0
    assert second is not None and second.arguments["message_count"] == 1
    assert channel.confirms() == [("ack", 1, False)]


def test_other_channels_do_not_wait_for_a_definition(site: SlowSite, channel: Channel) -> None:
    other = channel.client.channel()
    channel.send("queue.declare", queue="new", durable=True)
    channel.run()
    assert other.declare("t2") == "t2"
