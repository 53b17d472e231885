"""Differences between AMQP 0-9 and 0-9-1, row by row of the table in docs/amqp-0-9.md unless tested elsewhere."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from leveret.security.permissions import Permission
from leveret.wire.amqp0.specs import V0_9_1
from tests.protocols.amqp09.support import Channel, Client
from tests.protocols.support import Channel as Channel091
from tests.protocols.support import Site


@pytest.fixture
def old(site: Site) -> Channel091:
    """A channel of 0-9-1."""
    return site.channel()


@pytest.mark.parametrize(
    ("read", "may"), [("^$", False), (r"^(mine|amq\.default)$", False), (r"^(other|amq\.default)$", True)]
)
def test_a_binding_to_the_default_exchange_needs_permission_to_read_its_key(site: Site, read: str, may: bool) -> None:
    """Otherwise it would copy the messages of a queue that the user may not consume from."""
    site.allow("limited", "/", Permission("^mine$", "^mine$", read))
    client = Client(site, user="limited", password="limited")
    client.open()
    channel = client.channel()
    channel.declare("mine")
    channel.send("queue.bind", queue="mine", exchange="", routing_key="other")
    channel.run()
    assert client.refusal()[0] == (0 if may else 403)


def test_unbinding_a_missing_binding(channel: Channel, old: Channel091) -> None:
    channel.declare()
    old.call("queue.unbind", "queue.unbind-ok", queue="q", exchange="amq.direct", routing_key="k")
    channel.send("queue.unbind", queue="q", exchange="amq.direct", routing_key="k")
    channel.run()
    close = channel.client.take("connection.close")
    assert close is not None and close.arguments["reply_code"] == 404


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("queue.delete", {"queue": "nowhere"}),
        ("exchange.delete", {"exchange": "nowhere"}),
    ],
    ids=["queue", "exchange"],
)
def test_deleting_a_missing_object(channel: Channel, old: Channel091, method: str, arguments: dict[str, Any]) -> None:
    old.call(method, f"{method}-ok", **arguments)
    channel.send(method, **arguments)
    assert channel.refused() == 404
    assert channel.client.is_open


@pytest.mark.parametrize("everywhere", [False, True], ids=["channel", "connection"])
def test_a_window_is_that_of_the_channel_or_the_connection(channel: Channel, everywhere: bool) -> None:
    other = channel.client.channel()
    for queue in ("a", "b"):
        channel.declare(queue)
        for number in range(3):
            channel.publish(queue, b"%d" % number)
    channel.qos(2, everywhere=everywhere)
    channel.consume("a")
    channel.consume("b")
    assert len(channel.deliveries()) == 2, "the consumers of a channel share its window"
    other.consume("a")
    other.consume("b")
    # Another channel has no separate window; that of the connection is full.
    assert len(other.deliveries()) == (0 if everywhere else 4)


def test_unacked_messages_of_the_connection_count_for_each_channel(channel: Channel) -> None:
    other = channel.client.channel()
    channel.declare()
    for number in range(3):
        channel.publish(body=b"%d" % number)
    channel.qos(1, everywhere=True)
    channel.consume()
    other.consume()
    (first,) = channel.deliveries() + other.deliveries()
    (channel if first.channel == channel.number else other).ack(first.delivery_tag)
    channel.run()
    assert len(channel.deliveries() + other.deliveries()) == 1


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("confirm.select", 540),
        ("exchange.unbind", 540),
        ("basic.nack", 540),
        ("connection.update-secret", 540),
        ("exchange.bind", 502),  # it has the number of `exchange.query`, as Qpid's peers know it
    ],
)
def test_methods_that_0_9_does_not_have(channel: Channel, name: str, code: int) -> None:
    spec = V0_9_1.by_name[name]
    payload = struct.pack(">HH", spec.class_id, spec.method_id) + bytes(40)
    number = 0 if spec.class_id == 10 else channel.number
    channel.client.session.data_received(b"\x01" + struct.pack(">HI", number, len(payload)) + payload + b"\xce")
    channel.run()
    close = channel.client.take("connection.close")
    assert close is not None and close.arguments["reply_code"] == code


def test_publishers_are_asked_to_pause_by_flow(site: Site, channel: Channel, old: Channel091) -> None:
    for one in (channel, old):
        one.declare()
        one.publish()
        one.run()
    site.services.set_alarm("memory")
    channel.run()
    flow = channel.client.take("channel.flow", channel.number)
    assert flow is not None and flow.arguments == {"active": False}
    assert channel.client.take("connection.blocked") is None
    old.publish()
    old.run()
    assert old.client.take("connection.blocked") is not None


def test_a_publisher_can_get_and_settle_in_an_alarm(site: Site, channel: Channel) -> None:
    channel.declare()
    for _ in range(4):
        channel.publish()
    channel.run()
    site.services.set_alarm("memory")
    channel.run()
    assert channel.get(no_ack=False) is not None
    channel.call("tx.select", "tx.select-ok")
    channel.ack(1)
    channel.call("tx.commit", "tx.commit-ok")
    channel.consume()
    assert channel.delivered() == [b"m"] * 3
    channel.ack(4, multiple=True)
    channel.call("tx.commit", "tx.commit-ok")
    queue = site.vhost.queues["q"]
    assert (queue.ready_count, queue.unacked) == (0, 0)


def test_an_unexpected_frame(channel: Channel, old: Channel091) -> None:
    """A body without a header before it."""
    for one, code in ((channel, 501), (old, 505)):
        one.client.session.data_received(b"\x03" + struct.pack(">HI", one.number, 1) + b"x\xce")
        one.run()
        close = one.client.take("connection.close")
        assert close is not None and close.arguments["reply_code"] == code


def test_redeclaring_succeeds_with_any_fields(channel: Channel, old: Channel091) -> None:
    channel.declare("q", durable=True, arguments={"x-max-length": 5})
    channel.declare("q")
    old.send("queue.declare", queue="q")
    old.run()
    assert old.client.refusal()[0] == 406
