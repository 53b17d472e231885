"""Class tx over a channel."""

from __future__ import annotations

import time

import pytest

from leveret.protocols.services import VhostSessionSettings
from tests.protocols.support import Channel, Site


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def channel(site: Site) -> Channel:
    """A transacted channel, with the queue `q`."""
    channel = site.channel()
    channel.declare()
    channel.call("tx.select", "tx.select-ok")
    return channel


def test_publishes_appear_with_the_commit(site: Site, channel: Channel) -> None:
    channel.publish(body=b"a")
    channel.publish(body=b"b")
    channel.run()
    other = site.channel()
    assert other.get() is None
    channel.call("tx.commit", "tx.commit-ok")
    assert other.bodies() == [b"a", b"b"]


def test_a_rollback_drops_publishes(site: Site, channel: Channel) -> None:
    channel.publish(body=b"a")
    channel.call("tx.rollback", "tx.rollback-ok")
    channel.call("tx.commit", "tx.commit-ok")
    assert channel.bodies() == []


def test_acknowledgements_take_effect_with_the_commit(site: Site, channel: Channel) -> None:
    publish = site.channel()
    for body in (b"a", b"b", b"c"):
        publish.publish(body=body)
    publish.run()
    for _ in range(3):
        channel.get(no_ack=False)
    channel.ack(1)
    channel.reject(2, requeue=False)
    channel.nack(3, requeue=True)
    channel.run()
    queue = site.vhost.queues["q"]
    assert (queue.ready_count, queue.unacked) == (0, 3)
    channel.call("tx.commit", "tx.commit-ok")
    assert (queue.ready_count, queue.unacked) == (1, 0)


def test_a_rollback_undoes_acknowledgements(site: Site, channel: Channel) -> None:
    site.channel().publish(body=b"a")
    other = site.channel()
    other.publish(body=b"a")
    other.publish(body=b"b")
    other.run()
    channel.consume()
    assert len(channel.deliveries()) == 2
    channel.ack(1)
    channel.ack(2)
    channel.call("tx.rollback", "tx.rollback-ok")
    assert channel.deliveries() == []
    assert site.vhost.queues["q"].unacked == 2
    channel.ack(2, multiple=True)
    channel.call("tx.commit", "tx.commit-ok")
    assert channel.client.is_open and site.vhost.queues["q"].unacked == 0


def test_a_tag_cannot_be_acknowledged_twice_in_a_transaction(site: Site, channel: Channel) -> None:
    other = site.channel()
    other.publish()
    other.run()
    channel.get(no_ack=False)
    channel.ack(1)
    channel.ack(1)
    channel.run()
    assert channel.client.refusal()[0] == 406
    assert site.vhost.queues["q"].ready_count == 1


def test_a_channel_that_closes_rolls_back(site: Site, channel: Channel) -> None:
    other = site.channel()
    other.publish(body=b"a")
    other.run()
    channel.get(no_ack=False)
    channel.ack(1)
    channel.publish(body=b"never")
    channel.close()
    assert other.bodies() == [b"a"]
    assert site.vhost.queues["q"].unacked == 0


def test_a_lost_connection_rolls_back(site: Site, channel: Channel) -> None:
    other = site.channel()
    other.publish(body=b"a")
    other.run()
    channel.get(no_ack=False)
    channel.ack(1)
    channel.publish(body=b"never")
    channel.run()
    channel.client.drop()
    assert other.bodies() == [b"a"]


def test_without_select_there_is_no_commit(site: Site) -> None:
    for name in ("tx.commit", "tx.rollback"):
        channel = site.channel()
        channel.send(name)
        channel.run()
        assert channel.client.refusal()[0] == 406


def test_select_twice_is_harmless(channel: Channel) -> None:
    channel.call("tx.select", "tx.select-ok")


def test_returns_are_sent_at_the_commit(channel: Channel) -> None:
    channel.publish("nowhere", mandatory=True)
    channel.publish(immediate=True)
    channel.run()
    assert channel.client.received == []
    channel.call("tx.commit", "tx.commit-ok")
    codes = []
    while (returned := channel.client.take("basic.return", channel.number)) is not None:
        codes.append(returned.arguments["reply_code"])
    assert codes == [312, 313]


def test_an_exchange_that_does_not_exist_is_refused_at_once(channel: Channel) -> None:
    channel.publish("k", exchange="missing")
    channel.run()
    assert channel.client.refusal()[0] == 404


def test_the_size_of_a_transaction_is_limited() -> None:
    channel = Site(max_transaction=10_000).channel()
    channel.declare()
    channel.call("tx.select", "tx.select-ok")
    for _ in range(20):
        channel.publish(body=bytes(1000))
    channel.run()
    code, text = channel.client.refusal()
    assert code == 311 and "transaction" in text


def test_a_queue_deleted_before_the_commit_is_skipped(site: Site, channel: Channel) -> None:
    channel.publish(body=b"a")
    channel.run()
    site.channel().call("queue.delete", "queue.delete-ok", queue="q")
    channel.call("tx.commit", "tx.commit-ok")


def test_limits_count_the_transactions_own_messages(site: Site) -> None:
    channel = site.channel()
    channel.declare(arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    channel.call("tx.select", "tx.select-ok")
    for number in range(5):
        channel.publish(body=b"%d" % number)
    channel.call("tx.commit", "tx.commit-ok")
    assert site.vhost.queues["q"].ready_count == 2


def test_copies_are_routed(site: Site, channel: Channel) -> None:
    channel.declare("copy")
    channel.publish(headers={"CC": ["copy"], "BCC": ["nowhere"]})
    channel.call("tx.commit", "tx.commit-ok")
    assert channel.bodies("copy") == [b"m"] and channel.bodies() == [b"m"]


def test_two_clients_transactions_do_not_mix(site: Site, channel: Channel) -> None:
    other = site.channel()
    other.call("tx.select", "tx.select-ok")
    channel.publish(body=b"a")
    other.publish(body=b"b")
    channel.run()
    other.run()
    other.call("tx.commit", "tx.commit-ok")
    channel.call("tx.rollback", "tx.rollback-ok")
    assert site.channel().bodies() == [b"b"]


def test_vhost_settings_apply_to_a_session() -> None:
    site = Site(vhost_settings=VhostSessionSettings(qos_spec=True))
    assert site.connect().session.qos_spec


def test_the_time_to_live_starts_at_the_commit(site: Site, channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    start = time.time()
    channel.publish(body=b"a", expiration="1000")
    channel.run()
    monkeypatch.setattr(time, "time", lambda: start + 2)
    channel.call("tx.commit", "tx.commit-ok")
    monkeypatch.setattr(time, "time", lambda: start + 2.9)
    assert site.channel().bodies() == [b"a"]


def test_copies_that_are_not_a_list_are_refused_at_once(site: Site, channel: Channel) -> None:
    channel.publish(headers={"CC": "q"})
    channel.run()
    assert channel.client.refusal()[0] == 406
    assert site.channel().bodies() == []
