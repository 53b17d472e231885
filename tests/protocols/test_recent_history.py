"""Publishing to a recent-history exchange over every protocol."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.queues.history import NO_STORE
from leveret.wire.amqp10.encode import encode_pairs
from leveret.wire.amqp10.messaging import Accepted
from leveret.wire.amqp10.transport import Disposition
from tests.protocols.amqp09.support import connect as connect09
from tests.protocols.amqp10.support import connect, make_site, message
from tests.protocols.support import Site

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
        assert isinstance(session.client.take(Disposition).state, Accepted)
    assert kept(site) == 1
