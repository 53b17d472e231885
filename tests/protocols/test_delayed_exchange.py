"""Publishing to a delayed exchange over every protocol."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.transactions.branch import PREPARED
from leveret.wire.amqp10.encode import encode_pairs
from leveret.wire.amqp10.messaging import Accepted, Released
from leveret.wire.amqp10.transactions import TransactionalState
from leveret.wire.amqp10.transport import Disposition
from leveret.wire.amqp10.values import Symbol
from tests.protocols.amqp09.support import connect as connect09
from tests.protocols.amqp10.support import Session, connect, make_site, message
from tests.protocols.amqp10.transaction.test_transactions import Controller, post
from tests.protocols.support import Channel, Site

DELAY: dict[str, Any] = {"headers": {"x-delay": 60_000}}
APPLICATION = b"\x00\x53\x74"
ANNOTATIONS = b"\x00\x53\x72"


@pytest.fixture
def site() -> Site:
    """Messages to the exchange `later` with any routing key but `none` go to the queue `q`."""
    site = make_site()
    vhost = site.vhost
    queue = vhost.declare_queue("q", None, durable=True)
    vhost.declare_exchange("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"})
    vhost.bind(queue, "later", "q", {})
    return site


def counts(site: Site) -> tuple[int, int]:
    site.run()
    queue = site.vhost.queues["q"]
    return queue.delayed_count, queue.ready_count


@pytest.fixture
def channel(site: Site) -> Channel:
    return site.channel()


def test_basic(site: Site, channel: Channel) -> None:
    """Each message is confirmed, and an unroutable one is returned at once."""
    channel.call("confirm.select", "confirm.select-ok")
    channel.publish(exchange="later", **DELAY)
    channel.publish(exchange="later", delivery_mode=2, **DELAY)
    channel.publish(exchange="later")
    channel.publish("none", exchange="later", mandatory=True, **DELAY)
    channel.run()
    assert counts(site) == (2, 1)
    assert channel.client.take("basic.return", channel.number) is not None
    assert all(name == "ack" for name, _, _ in channel.confirms())


def test_a_full_queue_refuses_a_confirm(site: Site, channel: Channel) -> None:
    arguments: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    site.vhost.bind(site.vhost.declare_queue("full", None, arguments=arguments), "later", "full", {})
    channel.call("confirm.select", "confirm.select-ok")
    for _ in range(2):
        channel.publish("full", exchange="later", **DELAY)
        channel.run()
    assert [name for name, _, _ in channel.confirms()] == ["ack", "nack"]


def test_a_local_transaction(site: Site, channel: Channel) -> None:
    channel.call("tx.select", "tx.select-ok")
    channel.publish(exchange="later", **DELAY)
    channel.publish(exchange="later")
    channel.run()
    assert counts(site) == (0, 0)
    channel.call("tx.commit", "tx.commit-ok")
    assert counts(site) == (1, 1)


def test_message_transfers(site: Site) -> None:
    channel = connect09(site).channel()
    for more in ({"application_headers": {"x-delay": 60_000}}, {}):
        channel.send("message.transfer", destination="later", routing_key="q", body=(0, b"m"), **more)
    channel.run()
    assert counts(site) == (1, 1)


def test_a_distributed_transaction(site: Site) -> None:
    channel = connect09(site).channel()
    channel.call("dtx.select", "dtx.select-ok")
    channel.call("dtx.start", "dtx.start-ok", dtx_identifier="x")
    channel.publish(exchange="later", **DELAY)
    channel.publish(exchange="later")
    channel.run()
    branches = site.vhost.branches
    branch = branches.find("x", None)
    branches.prepare(branch, lambda outcome: None)
    site.run()
    assert branch.state == PREPARED and counts(site) == (0, 0)
    branches.commit(branch, False, lambda outcome: None)
    assert counts(site) == (1, 1)


@pytest.fixture
def session(site: Site) -> Session:
    return connect(site).begin()


DELAYED = {
    "application property": message(before=APPLICATION + encode_pairs([("x-delay", 60_000)])),
    "annotation": message(before=ANNOTATIONS + encode_pairs([(Symbol("x-delay"), 60_000)])),
}


@pytest.mark.parametrize("payload", DELAYED.values(), ids=DELAYED)
def test_transfers(site: Site, session: Session, payload: bytes) -> None:
    sender = session.sender("/exchanges/later/q")
    for sent in (payload, message()):
        sender.send(sent)
        assert isinstance(session.client.take(Disposition).state, Accepted)
    assert counts(site) == (1, 1)
    session.sender("/exchanges/later/none").send(payload)
    assert isinstance(session.client.take(Disposition).state, Released)


@pytest.mark.parametrize("payload", DELAYED.values(), ids=DELAYED)
def test_a_transaction(site: Site, session: Session, payload: bytes) -> None:
    controller = Controller(session)
    sender = session.sender("/exchanges/later/q")
    id = controller.declare()
    sender.send(payload, state=TransactionalState(id))
    post(sender, id)
    assert counts(site) == (0, 0)
    controller.discharge(id)
    assert counts(site) == (1, 1)
