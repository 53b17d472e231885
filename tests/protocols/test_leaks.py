"""No state outlives its connection or accumulates on a long-lived one."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.arguments import MAX_NOTED
from leveret.protocols.amqp091.channel.consumers import MAX_CANCELLED_TAGS
from tests.protocols.census import census
from tests.protocols.support import Channel, Site
from tests.support.queues import classic

KINDS = (
    "Connection",
    "Channel",
    "ChannelConsumer",
    "Engine",
    "Queue",
    "Entry",
    "Message",
    "Route",
    "Binding",
    "WireChannel",
    "ConsumerTimeout",
    "PendingPublish",
    "MemoryRow",
)


@pytest.fixture(params=[False, True], ids=["default", "strict"])
def site(request: pytest.FixtureRequest) -> Site:
    return Site(strict=request.param)


def work(channel: Channel) -> None:
    """Perform one of each operation on a channel, most of them unfinished."""
    name = channel.declare(
        "",
        exclusive=True,
        auto_delete=False,
        arguments={"x-expires": 10**9, "x-message-ttl": 10**8, "x-dead-letter-exchange": ""},
    )
    channel.call("queue.bind", "queue.bind-ok", queue=name, exchange="amq.topic", routing_key="#")
    channel.qos(5)
    channel.consume("shared")
    channel.consume(name, arguments={"x-consumer-timeout": 10**8})
    for number in range(20):
        channel.publish("shared", b"%d" % number)
        channel.publish(name)
        channel.publish("k", exchange="amq.topic")
    tags = [item.delivery_tag for item in channel.deliveries()]
    channel.ack(tags[0])
    channel.reject(tags[1], requeue=False)
    channel.reject(tags[2], requeue=True)
    channel.consume("amq.rabbitmq.reply-to", no_ack=True)
    channel.publish("shared", b"with reply", reply_to="amq.rabbitmq.reply-to")
    channel.run()


def empty(site: Site) -> None:
    """Purge the remaining queues. Strict mode has one for rejected messages."""
    for name in ("shared", "amq.dead"):
        queue = site.vhost.queues.get(name)
        if queue is not None:
            queue.purge()
    site.run()


@pytest.mark.parametrize("how", ["close", "drop", "refused"])
def test_opened_and_closed_connections(site: Site, how: str) -> None:
    keeper = site.channel()
    keeper.declare("shared")

    def once() -> None:
        channel = site.channel()
        work(channel)
        transacted = channel.client.channel()
        transacted.call("tx.select", "tx.select-ok")
        transacted.publish("shared")
        transacted.get("shared", no_ack=False)
        transacted.ack(1)
        transacted.run()
        if how == "close":
            channel.client.call(0, "connection.close", "connection.close-ok", {"reply_code": 200})
            channel.client.session.connection_lost()
        elif how == "drop":
            channel.client.drop()
        else:
            channel.ack(999)
            channel.run()
            channel.client.drop()
        site.run()
        site.later.clear()
        empty(site)

    once()
    before = census(site, KINDS)
    for _ in range(5):
        once()
    after = census(site, KINDS)
    assert after == before
    assert not site.services.by_user.get("unknown") and len(site.services.sessions) == 1


def test_requeued_messages_do_not_refer_to_closed_connections(site: Site) -> None:
    keeper = site.channel()
    keeper.declare("shared")
    for number in range(6):
        keeper.publish("shared", b"%d" % number)
    keeper.run()

    def once(number: int) -> None:
        channel = site.channel()
        channel.qos(number + 1)
        channel.consume("shared")
        tags = [item.delivery_tag for item in channel.deliveries()]
        channel.reject(tags[-1], requeue=True)
        channel.client.drop()

    once(0)
    before = census(site, KINDS)["Connection"]
    for number in range(5):
        once(number)
    assert census(site, KINDS)["Connection"] == before


def test_opened_and_closed_channels_of_one_connection(site: Site) -> None:
    client = site.connect()
    client.channel(1).declare("shared")

    def once() -> None:
        channel = client.channel(2)
        work(channel)
        channel.close()
        client.received.clear()
        empty(site)
        for name in list(site.vhost.queues):
            if name.startswith("amq.gen"):
                client.channels[1].call("queue.delete", "queue.delete-ok", queue=name)

    for _ in range(2):
        once()
    before = census(site, KINDS)
    for _ in range(5):
        once()
    assert census(site, KINDS) == before


def test_declared_and_deleted_exclusive_queues(site: Site) -> None:
    """Like an RPC client with one reply queue per call."""
    channel = site.channel()

    def once(count: int) -> None:
        for _ in range(count):
            name = channel.declare("", exclusive=True, auto_delete=True)
            tag = channel.consume(name)
            channel.call("basic.cancel", "basic.cancel-ok", consumer_tag=tag)
        channel.declare("x", exclusive=True, arguments={"x-expires": 1000})
        channel.call("queue.delete", "queue.delete-ok", queue="x")

    once(20)
    before = census(site, KINDS)
    once(100)
    after = census(site, KINDS)
    assert after["Queue"] <= before["Queue"] + 20, (before, after)


def test_added_and_cancelled_consumers(site: Site) -> None:
    channel = site.channel()
    channel.declare("shared")

    def once() -> None:
        tag = channel.consume("shared")
        channel.publish("shared")
        channel.run()
        for item in channel.deliveries():
            channel.ack(item.delivery_tag)
        channel.call("basic.cancel", "basic.cancel-ok", consumer_tag=tag)

    once()
    before: dict[str, Any] = census(site, KINDS)
    for _ in range(10):
        once()
    assert census(site, KINDS) == before
    assert len(classic(site.vhost.queues["shared"]).dispatcher.rings) <= 1


def test_added_and_removed_consumer_priorities(site: Site) -> None:
    channel = site.channel()
    channel.declare("shared")
    for priority in range(300):
        tag = channel.consume("shared", arguments={"x-priority": priority})
        channel.call("basic.cancel", "basic.cancel-ok", consumer_tag=tag)
    assert len(classic(site.vhost.queues["shared"]).dispatcher.rings) <= 1


def test_uncancelled_consumers_of_deleted_queues(site: Site) -> None:
    channel = site.channel()
    for number in range(MAX_CANCELLED_TAGS + 10):
        channel.declare("x")
        channel.consume("x", tag=f"tag-{number}")
        channel.call("queue.delete", "queue.delete-ok", queue="x")
    channel.client.received.clear()
    session = channel.client.session
    remembered = session.channels[channel.number].consumers.cancelled
    assert len(remembered or ()) == (MAX_CANCELLED_TAGS if site.vhost.strict else 0)
    # The last of them are remembered nevertheless.
    channel.call("basic.cancel", "basic.cancel-ok", consumer_tag=f"tag-{MAX_CANCELLED_TAGS + 9}")
    assert channel.client.is_open


def test_unknown_arguments() -> None:
    site = Site()
    channel = site.channel()
    for number in range(MAX_NOTED + 10):
        channel.declare("x", arguments={f"x-{number}": 1})
        channel.call("queue.delete", "queue.delete-ok", queue="x")
    assert 0 < len(site.broker.unknown_arguments.noted) <= MAX_NOTED
