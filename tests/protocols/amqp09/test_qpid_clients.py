"""The behaviour of Qpid's JMS clients over 0-9, as seen on the wire (tests/interop/test_qpid09.py runs them)."""

from __future__ import annotations

import pytest

from leveret.wire.amqp0.commands import Method
from tests.protocols.amqp09.support import Channel, Client, connect
from tests.protocols.support import Site
from tests.support.queues import classic


def qpid(site: Site, product: str = "Qpid Java Client") -> Client:
    client = Client(site)
    client.product = product
    client.open()
    return client


@pytest.fixture
def channel(site: Site) -> Channel:
    return qpid(site).channel()


def test_the_product_lets_them_ask_for_bindings(site: Site) -> None:
    client = connect(site)
    assert client.start is not None
    assert "qpid" in client.start.arguments["server_properties"]["product"].lower()


def test_their_consumer_tags_are_those_of_a_channel(channel: Channel) -> None:
    channel.declare("one")
    channel.declare("two")
    other = channel.client.channel()
    assert channel.consume("one", tag="1") == other.consume("two", tag="1") == "1"
    channel.publish("one", b"first")
    channel.publish("two", b"second")
    assert [item.body for item in channel.deliveries()] == [b"first"]
    assert [item.body for item in other.deliveries()] == [b"second"]
    other.call("basic.cancel", "basic.cancel-ok", consumer_tag="1")
    channel.publish("one", b"third")
    assert [item.body for item in channel.deliveries()] == [b"third"]
    channel.send("basic.consume", queue="one", consumer_tag="1")
    assert channel.refused() == 530


def test_the_queue_of_a_durable_subscription_outlives_its_connection(site: Site, channel: Channel) -> None:
    channel.declare("client:subscription", durable=True, exclusive=True)
    tag = channel.consume("client:subscription")
    channel.call("basic.cancel", "basic.cancel-ok", consumer_tag=tag)
    channel.client.call(0, "connection.close", "connection.close-ok")
    again = qpid(site).channel()
    again.publish("client:subscription", b"meanwhile")
    again.declare("client:subscription", durable=True, exclusive=True)
    again.consume("client:subscription")
    assert [item.body for item in again.deliveries()] == [b"meanwhile"]


def test_the_end_of_a_queue_is_answered_even_without_wait(site: Site, channel: Channel) -> None:
    channel.declare("q")
    channel.call("queue.delete", "queue.delete-ok", queue="q", nowait=True)
    other = connect(site).channel()
    other.declare("q")
    other.send("queue.delete", queue="q", nowait=True)
    other.call("channel.ping", "channel.ok")
    assert other.client.take("queue.delete-ok", other.number) is None


def test_their_other_exclusive_queues_are_those_of_the_connection(site: Site, channel: Channel) -> None:
    channel.declare("temporary", exclusive=True, auto_delete=True)
    other = qpid(site).channel()
    other.send("queue.declare", queue="temporary", passive=True)
    assert other.refused() == 405


def test_an_expiration_may_be_a_point_in_time(site: Site, channel: Channel) -> None:
    channel.declare()
    now = site.broker.timers.now()
    channel.publish(body=b"late", expiration=str(now - 1000))
    channel.publish(body=b"kept", expiration=str(now + 600_000))
    channel.publish(body=b"for a while", expiration="600000")
    assert channel.bodies() == [b"kept", b"for a while"]


@pytest.mark.parametrize("expiration", ["", "0"])
def test_an_expiration_may_be_zero(site: Site, channel: Channel, expiration: str) -> None:
    channel.declare()
    channel.publish(expiration=expiration)
    assert channel.bodies() == [b"m"]
    other = connect(site).channel()
    other.publish(expiration=expiration)
    assert other.bodies() == ([b"m"] if expiration == "" else [])


@pytest.mark.parametrize("expiration", ["-1", "soon", "1" * 16])
def test_an_expiration_is_milliseconds(channel: Channel, expiration: str) -> None:
    channel.declare()
    channel.publish(expiration=expiration)
    assert channel.refused() == 406


def test_a_selector_chooses_messages(channel: Channel) -> None:
    channel.declare()
    channel.consume(arguments={"x-filter-jms-selector": "colour = 'red' AND size > 1 AND JMSPriority > 4"})
    for colour in ("red", "blue"):
        for size in (1, 2):
            for priority in (4, 5):
                channel.publish(
                    body=f"{colour}{size}{priority}".encode(), priority=priority, headers={"colour": colour, "size": size}
                )
    assert [item.body for item in channel.deliveries()] == [b"red25"]
    other = channel.client.channel()
    other.consume(arguments={"x-filter-jms-selector": ""})
    assert len(other.deliveries()) == 7


def test_a_selector_that_cannot_be_read_is_refused(channel: Channel) -> None:
    channel.declare()
    channel.send("basic.consume", queue="q", filter={"x-filter-jms-selector": "colour = = 'red'"})
    assert channel.refused() == 406


@pytest.mark.parametrize("count", [0, 3])
def test_a_browser_is_cancelled_once_it_has_seen_everything(channel: Channel, count: int) -> None:
    channel.declare()
    for number in range(count):
        channel.publish(body=b"%d" % number)
    for _ in range(2):
        channel.consume(tag="b", arguments={"x-filter-no-consume": True, "x-filter-auto-close": True})
        assert [item.body for item in channel.deliveries()] == [b"%d" % number for number in range(count)]
        ended = channel.client.take("basic.cancel-ok", channel.number)
        assert isinstance(ended, Method) and ended.arguments["consumer_tag"] == "b"
    channel.publish(body=b"more")
    assert channel.deliveries() == []
    queue = channel.client.site.vhost.queues["q"]
    assert (queue.ready_count, classic(queue).browsing.browsers) == (count + 1, {})


def test_a_browser_that_does_not_close_continues(channel: Channel) -> None:
    channel.declare()
    channel.consume(arguments={"x-filter-no-consume": True, "x-filter-auto-close": False})
    channel.publish()
    assert len(channel.deliveries()) == 1
    assert channel.client.received == []
    assert channel.client.site.vhost.queues["q"].ready_count == 1


def test_messages_recovered_in_a_pause_are_delivered_after_it(channel: Channel) -> None:
    channel.declare()
    for body in (b"one", b"two"):
        channel.publish(body=body)
    channel.consume()
    assert len(channel.deliveries()) == 2
    channel.publish(body=b"three")
    channel.call("channel.flow", "channel.flow-ok", active=False)
    channel.call("basic.recover-sync", "basic.recover-sync-ok", requeue=False)
    assert channel.deliveries() == []
    channel.call("channel.flow", "channel.flow-ok", active=True)
    assert [(item.body, item.redelivered) for item in channel.deliveries()] == [
        (b"one", True),
        (b"two", True),
        (b"three", False),
    ]
    channel.call("channel.flow", "channel.flow-ok", active=True)
    assert channel.deliveries() == []


def test_messages_settled_in_a_rolled_back_transaction_are_redelivered(channel: Channel) -> None:
    channel.declare()
    channel.call("tx.select", "tx.select-ok")
    for body in (b"one", b"two", b"three"):
        channel.publish(body=body)
    channel.call("tx.commit", "tx.commit-ok")
    channel.consume()
    first, second, third = channel.deliveries()
    channel.reject(first.delivery_tag)
    channel.reject(second.delivery_tag)
    channel.ack(third.delivery_tag)
    channel.call("tx.rollback", "tx.rollback-ok")
    again = channel.deliveries()
    assert [(item.body, item.redelivered) for item in again] == [(b"one", True), (b"two", True), (b"three", True)]
    channel.ack(again[2].delivery_tag, multiple=True)
    channel.call("tx.commit", "tx.commit-ok")
    assert channel.bodies() == []


def test_messages_rejected_in_a_committed_transaction_are_not_redelivered(channel: Channel) -> None:
    channel.declare()
    channel.publish(body=b"one")
    channel.call("tx.select", "tx.select-ok")
    channel.consume()
    channel.reject(channel.deliveries()[0].delivery_tag)
    channel.call("tx.commit", "tx.commit-ok")
    assert channel.deliveries() == []
    other = channel.client.channel()
    other.consume()
    assert [item.body for item in other.deliveries()] == [b"one"]
