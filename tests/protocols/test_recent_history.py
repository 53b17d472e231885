"""Publishing to a recent-history exchange over every protocol."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.queues.history import NO_STORE
from leveret.wire.amqp0.commands import ContentMethod
from leveret.wire.amqp10.encode import encode_pairs
from leveret.wire.amqp10.messaging import Accepted, Released
from leveret.wire.amqp10.transport import Disposition
from tests.protocols.amqp09.support import connect as connect09
from tests.protocols.amqp10.support import connect, make_site, message
from tests.protocols.amqp10.transaction.test_transactions import Controller, post
from tests.protocols.support import Channel, Site
from tests.protocols.test_record_batches import publish as publish_rows

APPLICATION = b"\x00\x53\x74"
EXCLUDED: dict[str, Any] = {NO_STORE: True}


@pytest.fixture
def site() -> Site:
    site = make_site()
    site.vhost.declare_exchange("news", "x-recent-history")
    return site


def kept(site: Site) -> int:
    """Return how many messages a new queue gets when it is bound."""
    site.run()
    queue = site.vhost.declare_queue("newcomer", None)
    site.vhost.bind(queue, "news", "", {})
    site.run()
    return site.vhost.delete_queue("newcomer", None)


def test_basic(site: Site) -> None:
    channel = site.channel()
    channel.call("confirm.select", "confirm.select-ok")
    channel.publish(exchange="news")
    channel.publish(exchange="news", headers=EXCLUDED)
    channel.publish(exchange="news", delivery_mode=2)
    channel.run()
    assert kept(site) == 2
    assert all(name == "ack" for name, _, _ in channel.confirms())


def test_a_local_transaction(site: Site) -> None:
    channel = site.channel()
    channel.call("tx.select", "tx.select-ok")
    channel.publish(exchange="news", delivery_mode=2)
    channel.call("tx.rollback", "tx.rollback-ok")
    assert kept(site) == 0
    channel.publish(exchange="news", delivery_mode=2)
    channel.run()
    assert kept(site) == 0
    channel.call("tx.commit", "tx.commit-ok")
    assert kept(site) == 1


def test_message_transfers(site: Site) -> None:
    channel = connect09(site).channel()
    for more in ({"application_headers": EXCLUDED}, {}):
        channel.send("message.transfer", destination="news", body=(0, b"m"), **more)
    channel.run()
    assert kept(site) == 1


def test_transfers(site: Site) -> None:
    session = connect(site).begin()
    sender = session.sender("/exchanges/news/")
    for sent in (message(before=APPLICATION + encode_pairs([(NO_STORE, True)])), message()):
        sender.send(sent)
        assert isinstance(session.client.take(Disposition).state, Released)
    site.vhost.bind(site.vhost.declare_queue("q", None), "news", "", {})
    sender.send(message())
    assert isinstance(session.client.take(Disposition).state, Accepted)
    assert kept(site) == 2


# Without a bound queue, messages are unroutable, and the history keeps them


def returned(channel: Channel) -> str:
    frame = channel.client.take("basic.return", channel.number)
    assert isinstance(frame, ContentMethod)
    return str(frame.arguments["reply_text"])


def test_a_mandatory_message_is_returned(site: Site) -> None:
    channel = site.channel()
    for number in range(2):
        channel.publish(exchange="news", mandatory=True)
        channel.publish(exchange="news")
        channel.run()
        assert returned(channel) == "NO_ROUTE"
        assert channel.client.take("basic.return", channel.number) is None
        assert kept(site) == 2 + 2 * number
    site.vhost.topology_changed()  # counts the messages of routes
    statistics = site.vhost.statistics
    assert (statistics.publish_in, statistics.publish_out, statistics.unroutable, statistics.returned) == (4, 0, 4, 2)
    channel.declare("q")
    channel.call("queue.bind", "queue.bind-ok", queue="q", exchange="news", routing_key="", arguments={})
    assert channel.bodies() == [b"m"] * 4
    channel.publish(exchange="news", mandatory=True)
    channel.run()
    assert channel.client.take("basic.return", channel.number) is None and channel.bodies() == [b"m"]
    site.vhost.topology_changed()
    assert (statistics.publish_in, statistics.publish_out) == (5, 1)


def test_a_mandatory_message_in_a_transaction_is_returned(site: Site) -> None:
    channel = site.channel()
    channel.call("tx.select", "tx.select-ok")
    channel.publish(exchange="news", mandatory=True)
    channel.call("tx.commit", "tx.commit-ok")
    assert returned(channel) == "NO_ROUTE" and kept(site) == 1


def test_a_mandatory_record_batch_is_returned(site: Site) -> None:
    channel = site.channel()
    publish_rows(channel, [("news", "", b"row", {})], mandatory=True)
    assert returned(channel) == "NO_ROUTE - 1 of 1 rows unroutable" and kept(site) == 1


def test_a_posting_will_be_released(site: Site) -> None:
    session = connect(site).begin()
    controller = Controller(session)
    id = controller.declare()
    answer = post(session.sender("/exchanges/news/"), id)
    assert answer is not None and isinstance(answer.state.outcome, Released)
    assert kept(site) == 0
    assert isinstance(controller.discharge(id), Accepted)
    assert kept(site) == 1
