"""The flow property `rabbitmq:active`, and the priority of receivers."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.wire.amqp10.transport import Detach, Flow
from leveret.wire.amqp10.values import Symbol
from tests.protocols.amqp10.support import Receiver, Session, connect, make_site
from tests.protocols.support import Site

SINGLE: dict[str, Any] = {"x-single-active-consumer": True}
QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}


@pytest.fixture
def site() -> Site:
    return make_site()


def session_of(site: Site, container: str) -> Session:
    return connect(site, container=container).begin()


def told(receiver: Receiver) -> list[object]:
    """Return the notifications of being active, in order."""
    flows = [frame for frame in receiver.client.all(Flow) if frame.handle == receiver.attached.handle]
    for frame in flows:
        assert frame.properties is None or set(frame.properties) == {Symbol("rabbitmq:active")}
    return [frame.properties[Symbol("rabbitmq:active")] for frame in flows if frame.properties is not None]


@pytest.mark.parametrize("arguments", [SINGLE, SINGLE | QUORUM], ids=["classic", "quorum"])
def test_the_next_consumer_becomes_active(site: Site, arguments: dict[str, Any]) -> None:
    site.vhost.declare_queue("single", None, durable=True, arguments=arguments)
    one = session_of(site, "one").receiver("single")
    two = session_of(site, "two").receiver("single")
    three = session_of(site, "three").receiver("single")
    assert told(one) == told(two) == []
    one.flow(1)
    two.flow(1)
    assert told(one) == [True]
    assert told(two) == [False]
    one.flow(2)
    assert told(one) == []
    one.detach()
    assert told(two) == [True]
    two.client.drop()
    assert told(three) == []
    three.flow(1)
    assert told(three) == [True]


def test_the_flow_contains_the_state_of_the_link_too(site: Site) -> None:
    site.vhost.declare_queue("single", None, arguments=SINGLE)
    sender = session_of(site, "sender")
    sender.sender("single").send()
    receiver = session_of(site, "receiver").receiver("single")
    receiver.flow(5)
    flow = next(frame for frame in receiver.client.all(Flow) if frame.properties)
    assert (flow.delivery_count, flow.link_credit, flow.available) == (0, 5, 1)
    assert len(receiver.deliveries()) == 1


def test_receivers_of_a_quorum_queue_are_all_active(site: Site) -> None:
    site.vhost.declare_queue("quorum", None, durable=True, arguments=QUORUM)
    for container in ("one", "two"):
        receiver = session_of(site, container).receiver("quorum")
        receiver.flow(1)
        assert told(receiver) == [True]


def test_receivers_of_other_queues_are_not_notified(site: Site) -> None:
    receiver = session_of(site, "one").receiver("plain")
    receiver.flow(1)
    assert told(receiver) == []


def test_receivers_of_a_higher_priority_are_served_first(site: Site) -> None:
    site.vhost.declare_queue("q", None)
    low = session_of(site, "low").receiver("q", 10)
    high = session_of(site, "high").receiver("q", 2, properties={Symbol("rabbitmq:priority"): 5})
    sender = session_of(site, "sender").sender("q")
    for _ in range(3):
        sender.send(settled=True)
    assert (len(high.deliveries()), len(low.deliveries())) == (2, 1)


def test_a_priority_that_is_no_number_is_refused(site: Site) -> None:
    site.vhost.declare_queue("q", None)
    receiver = session_of(site, "one").receiver("q", properties={Symbol("rabbitmq:priority"): "high"})
    assert receiver.attached.source is None
    assert receiver.client.error(Detach)[0] == "amqp:invalid-field"
