"""Realms and access tickets (0-9 class access)."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.message import make_address
from leveret.protocols.amqp09.realms import Realm, Realms
from leveret.wire.record_batches import EXCHANGE, encode
from tests.protocols.amqp09.support import Channel, connect
from tests.protocols.support import Site

IN_REQUESTS_TOO = True

ALL = frozenset(("passive", "active", "write", "read", "exclusive"))


@pytest.fixture
def site() -> Site:
    site = Site()
    site.vhost.declare_queue("data.q", None)
    site.protocols.amqp09.realms["/"] = Realms(
        {
            "/data": Realm("/data", r"data\..*|", {"user": ALL}),
            "/admin": Realm("/admin", ".*", {"other": ALL}),
        }
    )
    return site


def ticket(channel: Channel, realm: str = "/data", **rights: bool) -> int:
    answer = channel.call("access.request", "access.request-ok", realm=realm, **rights)
    return int(answer["ticket"])


def test_without_realms_every_ticket_is_granted() -> None:
    channel = connect(Site()).channel()
    number = ticket(channel, "/whatever", active=True)
    assert number
    channel.call("queue.declare", "queue.declare-ok", queue="q", ticket=number)
    channel.call("queue.declare", "queue.declare-ok", queue="q", ticket=0)
    channel.publish(ticket=number)
    assert channel.bodies() == [b"m"]


def test_a_ticket_that_was_never_granted_is_refused_everywhere() -> None:
    channel = connect(Site()).channel()
    channel.publish(ticket=7)
    assert channel.refused() == 403


@pytest.mark.parametrize(
    ("method", "arguments", "right"),
    [
        ("queue.declare", {"queue": "data.q"}, "active"),
        ("queue.declare", {"queue": "data.q", "passive": True}, "passive"),
        ("queue.purge", {"queue": "data.q"}, "read"),
        ("queue.delete", {"queue": "data.q"}, "active"),
        ("exchange.declare", {"exchange": "data.x", "type": "direct"}, "active"),
        ("basic.consume", {"queue": "data.q"}, "read"),
    ],
    ids=["declare", "passive", "purge", "delete", "exchange", "consume"],
)
def test_methods_need_their_right(site: Site, method: str, arguments: dict[str, Any], right: str) -> None:
    channel = connect(site).channel()
    own: dict[str, Any] = {right: True}
    good = ticket(channel, **own)
    channel.call(method, f"{method}-ok", ticket=good, **arguments)
    site.vhost.declare_queue("data.q", None)
    others: dict[str, Any] = {name: True for name in ("active", "passive", "read", "write") if name != right}
    bad = ticket(channel, **others)
    channel.send(method, ticket=bad, **arguments)
    assert channel.refused() == 403


def test_publishing_needs_a_ticket_to_write(site: Site) -> None:
    channel = connect(site).channel()
    channel.publish("data.q", ticket=ticket(channel, write=True))
    channel.run()
    assert site.vhost.queues["data.q"].ready_count == 1
    channel.publish("data.q", ticket=ticket(channel, read=True))
    assert channel.refused() == 403
    other = connect(site).channel()
    other.publish("data.q")
    assert other.refused() == 403


def test_rows_of_a_record_batch_need_a_ticket_for_their_exchange(site: Site) -> None:
    def publish(channel: Channel, exchange: str, number: int) -> None:
        batch = encode([make_address("", "data.q"), make_address(exchange, "data.q")], b"\0\0", [b"", b""])
        channel.publish("", batch, exchange=EXCHANGE, ticket=number)
        channel.run()

    channel = connect(site).channel()
    writing = ticket(channel, write=True)
    publish(channel, "", writing)
    assert site.vhost.queues["data.q"].ready_count == 2
    publish(channel, "amq.direct", writing)
    code, text = channel.client.refusal()
    assert code == 403 and "row 1 of the record batch: 'amq.direct' is not in realm '/data'" in text
    other = connect(site).channel()
    publish(other, "", 0)
    assert other.client.refusal()[0] == 403
    assert site.vhost.queues["data.q"].ready_count == 2


def test_objects_outside_the_realm_are_refused(site: Site) -> None:
    channel = connect(site).channel()
    channel.send("queue.declare", queue="elsewhere", ticket=ticket(channel, active=True))
    assert channel.refused() == 403


def test_unknown_and_forbidden_realms_are_refused_alike(site: Site) -> None:
    texts = []
    for realm in ("/admin", "/nosuch"):
        client = connect(site)
        client.channel().send("access.request", realm=realm, read=True)
        client.run()
        close = client.take("connection.close")
        assert close is not None and close.arguments["reply_code"] == 403
        texts.append(close.arguments["reply_text"].replace(realm, ""))
    assert texts[0] == texts[1]


def test_a_ticket_is_for_its_channel_only(site: Site) -> None:
    client = connect(site)
    number = ticket(client.channel(), read=True)
    other = client.channel()
    other.send("basic.get", queue="data.q", ticket=number)
    assert other.refused() == 530


def test_a_new_ticket_replaces_the_previous_one(site: Site) -> None:
    channel = connect(site).channel()
    before = ticket(channel, read=True)
    ticket(channel, read=True)
    channel.send("basic.get", queue="data.q", ticket=before)
    assert channel.refused() == 403


def test_exclusive_access_is_limited_to_one_channel(site: Site) -> None:
    first = connect(site).channel()
    ticket(first, read=True)
    ticket(first, read=True, exclusive=True)  # it had the only ticket
    second = connect(site).channel()
    second.send("access.request", realm="/data", read=True)
    assert second.refused() == 403
    first.close()
    third = connect(site).channel()
    assert ticket(third, read=True)
    fourth = connect(site).channel()
    fourth.send("access.request", realm="/data", exclusive=True)
    assert fourth.refused() == 403
