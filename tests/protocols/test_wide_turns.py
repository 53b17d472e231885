"""A fan-out to many queues is done in portions, so that one publisher's burst neither stalls nor swells the broker."""

from __future__ import annotations

import pytest

from leveret.protocols.v0_9_1.connection import MAX_WORK
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


def test_a_burst_is_done_in_portions_and_in_order(publisher: Channel) -> None:
    burst(publisher)
    assert 0 < ready(publisher, 0) <= MAX_WORK // QUEUES + 1
    assert not publisher.client.peer.reading
    publisher.run()
    assert publisher.client.peer.reading
    vhost = publisher.client.site.broker.vhosts["/"]
    for number in (0, QUEUES - 1):
        queue = vhost.queues[f"q{number}"]
        assert [entry.message.body for entry in queue.backlog.head] == [b"%d" % item for item in range(MESSAGES)]


def test_an_alarm_stops_what_was_read_already(publisher: Channel) -> None:
    burst(publisher)
    site = publisher.client.site
    site.services.set_alarm("memory")
    before = ready(publisher, 0)
    publisher.run()
    assert ready(publisher, 0) == before < MESSAGES
    site.services.set_alarm("")
    while site.later:
        _, callback = site.later.pop(0)
        callback()
        publisher.run()
    assert ready(publisher, 0) == MESSAGES


def test_a_client_that_goes_in_the_middle_leaves_nothing_behind(publisher: Channel) -> None:
    burst(publisher)
    before = ready(publisher, 0)
    publisher.client.drop()
    publisher.client.site.run()
    assert ready(publisher, 0) == before


def test_all_publishers_together_get_one_portion_a_turn(publisher: Channel) -> None:
    site = publisher.client.site
    site.services.call_soon = site.posted.append
    others = [site.channel() for _ in range(9)]
    for channel in (publisher, *others):
        burst(channel)
    # Without a turn in between: one portion, and a message of each connection that came too late for it.
    assert ready(publisher, 0) <= MAX_WORK // QUEUES + 1 + len(others)
    publisher.run()
    assert ready(publisher, 0) == MESSAGES * 10
