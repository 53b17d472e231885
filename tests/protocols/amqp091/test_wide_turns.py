"""A fan-out to many queues runs in portions, so that a publisher's burst neither stalls the broker nor fills its memory."""

from __future__ import annotations

import pytest

from leveret.protocols.amqp091.connection.base import MAX_WORK
from tests.protocols.support import Channel, Site

QUEUES = 100
MESSAGES = 5 * MAX_WORK // QUEUES


@pytest.fixture
def publisher() -> Channel:
    site = Site()
    channel = site.channel()
    vhost = site.broker.vhosts["/"]
    for number in range(QUEUES):
        vhost.bind(vhost.declare_queue(f"q{number}", None), "amq.fanout", "", {})
    return channel


def ready(channel: Channel, number: int) -> int:
    return channel.client.site.broker.vhosts["/"].queues[f"q{number}"].ready_count


def burst(channel: Channel) -> None:
    for number in range(MESSAGES):
        channel.publish("", b"%d" % number, exchange="amq.fanout")
    channel.client.flush()


def test_a_burst_is_performed_in_portions_and_in_order(publisher: Channel) -> None:
    burst(publisher)
    assert 0 < ready(publisher, 0) <= MAX_WORK // QUEUES + 1
    assert not publisher.client.peer.reading
    publisher.run()
    assert publisher.client.peer.reading
    vhost = publisher.client.site.broker.vhosts["/"]
    for number in (0, QUEUES - 1):
        queue = vhost.queues[f"q{number}"]
        assert [entry.message.body for entry in queue.ready.backlog.head] == [b"%d" % item for item in range(MESSAGES)]


def test_an_alarm_stops_buffered_input_at_the_next_publish(publisher: Channel) -> None:
    burst(publisher)
    site = publisher.client.site
    site.services.set_alarm("memory")
    before = ready(publisher, 0)
    publisher.run()
    assert before < ready(publisher, 0) <= before + MAX_WORK // QUEUES + 1 < MESSAGES
    site.services.set_alarm("")
    while site.later:
        _, callback = site.later.pop(0)
        callback()
        publisher.run()
    assert ready(publisher, 0) == MESSAGES


def test_a_client_that_disconnects_in_the_middle_leaves_no_state(publisher: Channel) -> None:
    burst(publisher)
    before = ready(publisher, 0)
    publisher.client.drop()
    publisher.client.site.run()
    assert ready(publisher, 0) == before


def test_all_publishers_together_get_one_portion_per_turn(publisher: Channel) -> None:
    site = publisher.client.site
    site.services.call_soon = site.posted.append
    others = [site.channel() for _ in range(9)]
    for channel in (publisher, *others):
        burst(channel)
    # Without a turn in between: one portion, and one message of each connection that came too late for it.
    assert ready(publisher, 0) <= MAX_WORK // QUEUES + 1 + len(others)
    publisher.run()
    assert ready(publisher, 0) == MESSAGES * 10


def test_more_routing_keys_than_allowed_are_refused_and_none_is_dropped() -> None:
    site = Site()
    site.broker.max_routing_keys = 5
    channel = site.channel()
    for number in range(5):
        channel.declare(f"q{number}")
    keys = [f"q{number}" for number in range(5)]
    channel.publish("q0", b"all", headers={"CC": keys[:3] * 2, "BCC": keys[3:] * 2})
    channel.run()
    assert [ready(channel, number) for number in range(5)] == [1] * 5
    channel.publish("q0", b"none", headers={"CC": keys, "BCC": ["q5"]})
    channel.run()
    code, text = channel.client.refusal()
    assert code == 406 and "6 routing keys" in text and "limits.routing_keys" in text
    assert [ready(site.channel(), number) for number in range(5)] == [1] * 5


def test_a_transaction_refuses_too_many_routing_keys_with_the_publish() -> None:
    site = Site()
    site.broker.max_routing_keys = 2
    channel = site.channel()
    channel.call("tx.select", "tx.select-ok")
    channel.publish("q0", b"none", headers={"CC": ["q1", "q2"]})
    channel.run()
    code, text = channel.client.refusal()
    assert code == 406 and "limits.routing_keys" in text
