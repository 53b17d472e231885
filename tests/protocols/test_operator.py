"""Operator actions while clients are connected: deletion of vhosts and users, an orderly stop."""

from __future__ import annotations

import pytest

from leveret.broker.broker import VhostSettings
from leveret.security.permissions import Permission
from tests.protocols.support import Site


@pytest.fixture
def site() -> Site:
    return Site()


def test_deleting_a_vhost_closes_its_connections(site: Site) -> None:
    site.broker.add_vhost("other", VhostSettings())
    site.allow("guest2", "other", Permission(".*", ".*", ".*"))
    inside = site.channel(user="guest2", vhost="other")
    inside.declare(durable=True)
    inside.consume()
    outside = site.channel()
    site.broker.remove_vhost("other")
    inside.run()
    code, text = inside.client.refusal()
    assert code == 320 and "other" in text
    assert outside.client.is_open
    assert site.connect(user="guest2", vhost="other").refusal()[0] == 530


def test_a_recreated_vhost_is_a_new_one(site: Site) -> None:
    site.broker.add_vhost("other", VhostSettings())
    site.allow("guest2", "other", Permission(".*", ".*", ".*"))
    channel = site.channel(user="guest2", vhost="other")
    channel.declare()
    channel.publish()
    channel.run()
    site.broker.remove_vhost("other")
    again = site.broker.add_vhost("other", VhostSettings())
    assert again.queues == {} and again.connections == 0


def test_a_deleted_user_is_disconnected(site: Site) -> None:
    site.allow("leaver", "/", Permission(".*", ".*", ".*"))
    leaver, stayer = site.channel(user="leaver"), site.channel()
    leaver.declare()
    leaver.consume()
    site.users.declare({name: user for name, user in site.declared.items() if name != "leaver"})
    leaver.run()
    assert leaver.client.refusal()[0] == 320
    assert stayer.client.is_open
    stayer.publish()
    stayer.run()
    assert leaver.deliveries() == []


def test_a_stop_closes_connections_with_320(site: Site) -> None:
    channel = site.channel()
    site.services.sessions.copy()
    channel.client.session.shut_down("the broker stops")
    channel.run()
    code, text = channel.client.refusal()
    assert code == 320 and "the broker stops" in text


def test_connection_limits() -> None:
    site = Site(connections_per_user=2)
    first, second = site.connect(), site.connect()
    assert first.is_open and second.is_open
    assert site.connect().refusal()[0] == 530
    first.drop()
    assert site.connect().is_open


def test_vhost_limits(site: Site) -> None:
    site.broker.add_vhost("/", VhostSettings(max_connections=1, max_queues=2))
    channel = site.channel()
    assert site.connect().refusal()[0] == 530
    channel.declare("one")
    channel.declare("two")
    channel.send("queue.declare", queue="three")
    channel.run()
    code, text = channel.client.refusal()
    assert code == 406 and "max_queues" in text
    assert channel.client.is_open


def test_strict_mode_closes_a_connection_that_declares_too_many_queues() -> None:
    site = Site(strict=True)
    site.broker.add_vhost("/", VhostSettings(strict=True, max_queues=1))
    channel = site.channel()  # one of them is amq.dead
    channel.send("queue.declare", queue="another")
    channel.run()
    assert channel.client.refusal()[0] == 506
    assert not channel.client.is_open


def test_channel_and_consumer_limits() -> None:
    from leveret.security.users import UserLimits

    site = Site(consumers_per_channel=2)
    site.allow("few", "/", Permission(".*", ".*", ".*"), limits=UserLimits(max_channels=2))
    client = site.connect(user="few")
    channel = client.channel()
    client.channel()
    client.engine.send(3, "channel.open", {})
    client.run()
    assert client.refusal()[0] == 530
    channel = site.channel()
    channel.declare()
    channel.consume()
    channel.consume()
    channel.send("basic.consume", queue="q")
    channel.run()
    assert channel.client.refusal()[0] == 506
