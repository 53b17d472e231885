"""AMQP 0-9: differences from 0-9-1 in connection, channel, exchange, queue and basic."""

from __future__ import annotations

import pytest

from leveret.protocols.amqp09.settings import Amqp09Settings
from tests.protocols.amqp09.support import Channel, Client, connect
from tests.protocols.support import Site
from tests.support.queues import classic

IN_REQUESTS_TOO = True


def test_the_server_properties_are_texts(site: Site) -> None:
    client = connect(site)
    assert client.start is not None
    properties = client.start.arguments["server_properties"]
    assert properties["product"] == "Leveret (compatible with Apache Qpid)"
    assert all(isinstance(value, str) for value in properties.values())
    assert (client.start.arguments["version_major"], client.start.arguments["version_minor"]) == (0, 9)


def test_open_ok_names_the_known_hosts(site: Site) -> None:
    site.protocols.amqp09.settings = Amqp09Settings(known_hosts="one:5672,two:5672")
    client = connect(site)
    assert client.opened is not None
    assert client.opened.arguments["known_hosts"] == "one:5672,two:5672"


def test_a_client_that_does_not_insist_is_redirected(site: Site) -> None:
    site.protocols.amqp09.settings = Amqp09Settings(known_hosts="one:5672", redirect="two:5672")
    client = connect(site)
    redirect = client.take("connection.redirect")
    assert redirect is not None and redirect.arguments == {"host": "two:5672", "known_hosts": "one:5672"}
    assert not client.session.opened
    insisting = Client(site)
    insisting.vhost = "/"

    def insist() -> None:
        Client.open_vhost(insisting, True)

    insisting.open_vhost = insist  # type: ignore[method-assign, assignment]
    insisting.open()
    assert insisting.opened is not None


@pytest.mark.parametrize(("path", "name"), [("/", "/"), ("/orders", "orders"), ("orders", "orders")])
def test_a_vhost_is_a_path(site: Site, path: str, name: str) -> None:
    if name != "/":
        site.broker.add_vhost(name, site.vhost.settings)
        site.allow("other", name, site.users.get("user").permissions["/"])  # type: ignore[union-attr]
    client = connect(site, vhost=path, user="user" if name == "/" else "other")
    assert client.session.vhost_name == name


def test_an_unknown_vhost_is_an_invalid_path(site: Site) -> None:
    assert connect(site, vhost="/nowhere").refusal()[0] == 402


def test_a_channel_has_an_identity(site: Site) -> None:
    client = connect(site)
    first, second = client.channel(), client.channel()
    assert first.id and second.id and first.id != second.id


def test_ping_is_answered_with_ok_and_pong(channel: Channel) -> None:
    channel.call("channel.ping", "channel.ok")
    assert channel.client.take("channel.pong", channel.number) is not None
    channel.call("channel.pong", "channel.ok")


def test_messages_are_published_and_delivered(channel: Channel) -> None:
    channel.declare()
    channel.publish(body=b"one", message_id="1")
    tag = channel.consume()
    (delivery,) = channel.deliveries()
    assert (delivery.body, delivery.consumer_tag) == (b"one", tag.encode())
    channel.ack(delivery.delivery_tag)
    channel.run()
    assert channel.bodies() == []
    assert channel.client.is_open


def test_consumer_tags_are_those_of_the_connection(channel: Channel) -> None:
    other = channel.client.channel()
    channel.declare()
    channel.consume(tag="mine")
    other.call("basic.cancel", "basic.cancel-ok", consumer_tag="mine")
    channel.publish()
    assert channel.deliveries() == []
    channel.consume(tag="mine")
    other.send("basic.consume", queue="q", consumer_tag="mine")
    assert other.refused() == 530


def test_recover_has_no_answer_and_is_not_for_transactions(channel: Channel) -> None:
    channel.declare()
    channel.publish()
    channel.consume()
    assert len(channel.deliveries()) == 1
    channel.send("basic.recover", requeue=False)
    assert [item.redelivered for item in channel.deliveries()] == [True]
    assert channel.client.received == []
    channel.call("tx.select", "tx.select-ok")
    channel.send("basic.recover", requeue=True)
    assert channel.refused() == 406


def test_a_rejected_message_is_not_redelivered_to_its_channel(channel: Channel) -> None:
    channel.declare()
    channel.publish()
    channel.consume()
    channel.reject(channel.deliveries()[0].delivery_tag)
    assert channel.deliveries() == []
    other = channel.client.channel()
    other.consume()
    assert len(other.deliveries()) == 1


def test_the_rejecting_channels_of_a_message_are_limited(channel: Channel) -> None:
    channel.declare()
    channel.publish()
    staying = channel.client.channel()
    staying.consume()
    staying.reject(staying.deliveries()[0].delivery_tag)
    for _ in range(20):
        other = channel.client.channel()
        other.consume()
        other.reject(other.deliveries()[0].delivery_tag)
        other.close()
    (entry,) = classic(channel.client.site.vhost.queues["q"]).ready.backlog.head
    assert entry.overlay is not None and len(entry.overlay.refused) == 2
    assert staying.deliveries() == []


def test_properties_of_queues_and_exchanges_stay_as_they_were(channel: Channel) -> None:
    channel.call("exchange.declare", "exchange.declare-ok", exchange="x", type="direct", durable=True)
    channel.call("exchange.declare", "exchange.declare-ok", exchange="x", type="direct", auto_delete=True)
    assert channel.client.site.vhost.exchanges["x"].durable
    channel.declare(durable=True)
    channel.declare(auto_delete=True)
    queue = channel.client.site.vhost.queues["q"]
    assert queue.durable and not queue.lifetime.auto_delete
    channel.send("exchange.declare", exchange="x", type="fanout")
    assert channel.refused() == 530


@pytest.mark.parametrize("strict", [False, True])
def test_an_exclusive_queue_deletes_itself_in_strict_mode(strict: bool) -> None:
    channel = connect(Site(strict=strict)).channel()
    channel.declare(exclusive=True)
    tag = channel.consume()
    channel.call("basic.cancel", "basic.cancel-ok", consumer_tag=tag)
    assert ("q" in channel.client.site.vhost.queues) is not strict


@pytest.mark.parametrize(("strict", "code"), [(False, 405), (True, 504)])
def test_another_connections_exclusive_queue_is_locked(strict: bool, code: int) -> None:
    site = Site(strict=strict)
    connect(site).channel().declare(exclusive=True)
    other = connect(site).channel()
    other.send("queue.declare", queue="q", exclusive=True)
    assert other.refused() == code


@pytest.mark.parametrize(
    ("method", "arguments", "code"),
    [
        ("queue.declare", {"queue": "amq.mine"}, 530),
        ("exchange.declare", {"exchange": "amq.mine", "type": "direct"}, 403),
        ("exchange.declare", {"exchange": "x", "type": "nonsense"}, 503),
        ("exchange.delete", {"exchange": "nowhere"}, 404),
        ("queue.delete", {"queue": "nowhere"}, 404),
        ("queue.purge", {"queue": ""}, 530),
        ("queue.delete", {"queue": ""}, 530),
        ("queue.bind", {"queue": "", "exchange": "amq.direct"}, 530),
        ("queue.unbind", {"queue": "durable", "exchange": "nowhere"}, 404),
        ("basic.get", {"queue": ""}, 530),
        ("basic.consume", {"queue": ""}, 530),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_refusals(site: Site, method: str, arguments: dict[str, str], code: int) -> None:
    connect(site).channel().declare("durable", durable=True)
    channel = connect(site).channel()
    channel.send(method, **arguments)
    assert channel.refused() == code


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"queue": "durable", "exchange": "transient"}, 530),
        ({"queue": "nowhere", "exchange": "amq.direct"}, 404),
        ({"queue": "durable", "exchange": "nowhere"}, 404),
        ({"queue": "durable", "exchange": "inner"}, 530),
    ],
    ids=["transient", "no-queue", "no-exchange", "internal"],
)
def test_a_bind_that_fails(strict: bool, arguments: dict[str, str], code: int) -> None:
    channel = connect(Site(strict=strict)).channel()
    channel.declare("durable", durable=True)
    channel.call("exchange.declare", "exchange.declare-ok", exchange="transient", type="direct")
    channel.call("exchange.declare", "exchange.declare-ok", exchange="inner", type="direct", durable=True, internal=True)
    channel.send("queue.bind", **arguments)
    channel.run()
    hard = strict or code == 530
    close = channel.client.take("connection.close") if hard else channel.client.take("channel.close", channel.number)
    assert close is not None and close.arguments["reply_code"] == code


def test_a_channel_is_not_opened_for_out_of_band_transfers(site: Site) -> None:
    client = connect(site)
    client.engine.send(1, "channel.open", {"out_of_band": "udp:1234"})
    client.run()
    assert client.refusal()[0] == 502
