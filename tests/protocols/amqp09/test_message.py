"""Class message of AMQP 0-9: inline transfers, consumers, gets, responses and settlement."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.protocols.amqp09.realms import Realm, Realms
from leveret.storage.memory import MemoryLog
from leveret.wire.amqp0.commands import Method
from leveret.wire.amqp0.properties import decode_header
from tests.broker.support import HeldLog
from tests.protocols.amqp09.support import Channel, Clock, connect
from tests.protocols.support import Channel as Channel091
from tests.protocols.support import Site, bytes_of
from tests.support.queues import classic

BODY = b"abcdefghij"


def answers(channel: Channel) -> list[str]:
    """Remove and return the names of the received responses, in order."""
    channel.run()
    names = ("message.ok", "message.reject", "message.empty", "message.offset")
    mine = [
        item
        for item in channel.client.received
        if isinstance(item, Method) and item.channel == channel.number and item.name in names
    ]
    channel.client.received = [item for item in channel.client.received if item not in mine]
    return [item.name.removeprefix("message.") for item in mine]


def put(channel: Channel, body: bytes = BODY, key: str = "q", exchange: str = "", **arguments: Any) -> None:
    """Send a transfer, and expect message.ok."""
    channel.send("message.transfer", destination=exchange, routing_key=key, body=(0, body), **arguments)
    assert answers(channel) == ["ok"]


def consume(channel: Channel, queue: str = "q", destination: str = "here", **arguments: Any) -> None:
    channel.call("message.consume", "message.ok", queue=queue, destination=destination, **arguments)
    channel.run()


def take(channel: Channel) -> dict[str, Any] | None:
    """Return the next received transfer."""
    channel.run()
    command = channel.client.take("message.transfer", channel.number)
    return None if command is None else command.arguments


def got(channel: Channel) -> dict[str, Any]:
    taken = take(channel)
    assert taken is not None
    return taken


def bodies(channel: Channel) -> list[bytes]:
    """Return the contents of all received transfers."""
    found = []
    while (taken := take(channel)) is not None:
        found.append(taken["body"][1])
    return found


def count(site: Site, queue: str = "q") -> int:
    return site.vhost.queues[queue].ready_count


def unacked(site: Site, queue: str = "q") -> int:
    return site.vhost.queues[queue].unacked


# Publish


def test_a_message_is_published_and_delivered(site: Site, channel: Channel) -> None:
    Clock(site).time = 1_700_000_000_500
    channel.declare()
    fields: dict[str, Any] = {
        "priority": 7,
        "delivery_mode": 1,
        "message_id": "m",
        "correlation_id": "c",
        "reply_to": "r",
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "user_id": "user",
        "app_id": "a",
        "transaction_id": "t",
        "security_token": "secret",
        "application_headers": {"n": 1, "s": "x"},
    }
    put(channel, ttl=5000, timestamp=1, expiration=2, **fields)
    consume(channel)
    assert got(channel) == {
        "ticket": 0,
        "destination": "here",
        "redelivered": False,
        "immediate": False,
        "ttl": 5000,
        "exchange": "",
        "routing_key": "q",
        "timestamp": 1_700_000_000,
        "expiration": 1_700_000_006,
        "body": (0, BODY),
        **fields,
    }


def test_an_empty_message_is_valid(channel: Channel) -> None:
    channel.declare()
    put(channel, b"")
    consume(channel)
    assert got(channel)["body"] == (0, b"")


def test_the_destination_is_an_exchange(channel: Channel) -> None:
    channel.declare()
    channel.call("queue.bind", "queue.bind-ok", queue="q", exchange="amq.topic", routing_key="a.*")
    put(channel, key="a.b", exchange="amq.topic")
    consume(channel)
    taken = got(channel)
    assert (taken["exchange"], taken["routing_key"]) == ("amq.topic", "a.b")


def test_an_exchange_that_does_not_exist(channel: Channel) -> None:
    channel.send("message.transfer", destination="nowhere", body=(0, BODY))
    assert channel.refused() == 404


def test_an_internal_exchange(channel: Channel) -> None:
    channel.call("exchange.declare", "exchange.declare-ok", exchange="inner", type="fanout", internal=True)
    channel.send("message.transfer", destination="inner", body=(0, BODY))
    assert channel.refused() == 403


def test_an_unroutable_message_is_dropped_and_answered(channel: Channel) -> None:
    put(channel, key="nowhere")


def test_an_immediate_message_needs_a_consumer(site: Site, channel: Channel) -> None:
    channel.declare()
    for key in ("q", "nowhere"):
        channel.send("message.transfer", routing_key=key, immediate=True, body=(0, BODY))
        rejected = channel.client
        channel.run()
        method = rejected.take("message.reject", 1)
        assert method is not None and method.arguments == {"code": 1, "text": "NO_CONSUMERS"}
    consume(channel)
    put(channel, immediate=True)
    assert got(channel)["body"] == (0, BODY) and count(site) == 0


def test_an_immediate_message_in_a_transaction_is_refused_at_once(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.call("tx.select", "tx.select-ok")
    channel.send("message.transfer", routing_key="q", immediate=True, body=(0, BODY))
    assert answers(channel) == ["reject"]
    channel.call("tx.commit", "tx.commit-ok")
    assert count(site) == 0


def test_a_message_for_a_full_queue_is_rejected(site: Site, channel: Channel) -> None:
    channel.declare(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    put(channel)
    channel.send("message.transfer", routing_key="q", body=(0, BODY))
    channel.run()
    method = channel.client.take("message.reject", 1)
    assert method is not None and method.arguments["code"] == 0 and count(site) == 1


def test_the_ttl(site: Site, channel: Channel) -> None:
    clock = Clock(site)
    channel.declare()
    put(channel, ttl=1000)
    put(channel, b"stays")
    clock.advance(1001)
    consume(channel)
    assert bodies(channel) == [b"stays"]


def test_a_ttl_above_the_maximum(channel: Channel) -> None:
    channel.declare()
    channel.send("message.transfer", routing_key="q", ttl=2**63, body=(0, BODY))
    assert channel.refused() == 406


def test_a_body_that_is_too_large() -> None:
    channel = connect(Site(max_message_size=10)).channel()
    channel.declare()
    put(channel)
    channel.send("message.transfer", routing_key="q", body=(0, BODY + b"!"))
    assert channel.refused() == 311


def test_another_users_id(channel: Channel) -> None:
    channel.declare()
    channel.send("message.transfer", routing_key="q", user_id="other", body=(0, BODY))
    assert channel.refused() == 406


def test_a_persistent_message_is_answered_when_it_is_on_disk() -> None:
    log = HeldLog()
    channel = connect(Site(log)).channel()
    channel.declare(durable=True)
    put(channel)
    log.held = True
    channel.send("message.transfer", routing_key="q", delivery_mode=2, body=(0, BODY))
    # Any later frame waits for its turn.
    channel.send("message.transfer", routing_key="q", body=(0, BODY))
    channel.send("message.qos", prefetch_count=5)
    assert answers(channel) == []
    log.release_all()
    assert answers(channel) == ["ok", "ok", "ok"]


def test_a_persistent_message_is_persistent(site: Site, channel: Channel) -> None:
    channel.declare(durable=True)
    put(channel, delivery_mode=2)
    put(channel, delivery_mode=1)
    assert [entry.row is not None for entry in classic(site.vhost.queues["q"]).ready.backlog.head] == [True, False]


def test_priorities(channel: Channel) -> None:
    channel.declare()
    for priority in (1, 9, 4, 7):
        put(channel, str(priority).encode(), priority=priority)
    consume(channel)
    assert bodies(channel) == [b"9", b"7", b"4", b"1"]


# Consume


def test_destinations_are_local_to_the_connection(channel: Channel) -> None:
    channel.declare()
    consume(channel)
    other = channel.client.channel()
    other.send("message.consume", queue="q", destination="here")
    assert other.refused() == 530


def test_any_number_of_consumers_has_no_destination(site: Site, channel: Channel) -> None:
    channel.declare()
    for _ in range(2):
        consume(channel, destination="")
    assert len(site.vhost.queues["q"].consumers) == 2
    put(channel)
    assert got(channel)["destination"] == ""
    channel.call("message.cancel", "message.ok", destination="")
    assert not site.vhost.queues["q"].consumers


def test_cancel(site: Site, channel: Channel) -> None:
    channel.declare()
    consume(channel)
    channel.call("message.cancel", "message.ok", destination="here")
    channel.call("message.cancel", "message.ok", destination="unknown")
    put(channel)
    assert take(channel) is None and count(site) == 1


def test_the_destination_of_another_channel(channel: Channel) -> None:
    channel.declare()
    consume(channel)
    other = channel.client.channel()
    other.send("message.cancel", destination="here")
    assert other.refused() == 530


def test_exclusive(site: Site, channel: Channel) -> None:
    channel.declare()
    consume(channel)
    other = connect(site).channel()
    other.send("message.consume", queue="q", exclusive=True)
    assert other.refused() == 403


def test_no_queue_was_declared(channel: Channel) -> None:
    channel.send("message.consume")
    assert channel.refused() == 530
    again = connect(channel.client.site).channel()
    again.send("message.get")
    assert again.refused() == 530


def test_no_local(site: Site, channel: Channel) -> None:
    channel.declare()
    consume(channel, no_local=True)
    put(channel)
    assert take(channel) is None
    put(connect(site).channel(), b"of another")
    assert bodies(channel) == [b"of another"]


# Settlement by ok and reject


def test_an_ok_settles_the_oldest_transfer(site: Site, channel: Channel) -> None:
    channel.declare()
    for body in (b"1", b"2", b"3"):
        put(channel, body)
    consume(channel)
    assert bodies(channel) == [b"1", b"2", b"3"]
    channel.send("message.ok")
    channel.send("message.reject", code=0, text="no")
    channel.run()
    assert unacked(site) == 1
    channel.client.drop()
    other = connect(site).channel()
    consume(other)
    taken = got(other)
    assert taken["body"] == (0, b"3") and taken["redelivered"] and take(other) is None


def test_rejected_messages_are_dead_lettered(channel: Channel) -> None:
    channel.declare("dead")
    channel.declare(arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    put(channel, application_headers={"a": 1}, content_type="t")
    consume(channel)
    got(channel)
    channel.send("message.reject", code=0, text="no")
    consume(channel, "dead", "there")
    taken = got(channel)
    assert taken["body"] == (0, BODY) and taken["content_type"] == "t" and taken["routing_key"] == "dead"
    assert taken["application_headers"]["a"] == 1
    assert taken["application_headers"]["x-death"][0]["reason"] == "rejected"


@pytest.mark.parametrize("answer", ["message.ok", "message.reject", "message.empty"])
def test_a_response_without_a_request(channel: Channel, answer: str) -> None:
    channel.send(answer)
    assert channel.refused() == 503


def test_transfers_without_acknowledgement_get_no_response(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.declare("other")
    consume(channel, destination="automatic", no_ack=True)
    consume(channel, "other", "explicit")
    put(channel)
    put(channel, b"explicit", "other")
    assert bodies(channel) == [BODY, b"explicit"] and unacked(site) == 0 and unacked(site, "other") == 1
    channel.send("message.ok")
    channel.run()
    assert unacked(site, "other") == 0
    channel.send("message.ok")
    assert channel.refused() == 503


@pytest.mark.parametrize("everywhere", [False, True], ids=["channel", "connection"])
def test_the_prefetch_window(channel: Channel, everywhere: bool) -> None:
    channel.declare()
    for body in (b"1", b"2", b"3"):
        put(channel, body)
    channel.call("message.qos", "message.ok", prefetch_count=2, **{"global": everywhere})
    consume(channel)
    assert bodies(channel) == [b"1", b"2"]
    channel.send("message.ok")
    assert bodies(channel) == [b"3"]


def test_the_prefetch_window_in_bytes(channel: Channel) -> None:
    channel.declare()
    for body in (b"12345678", b"1234", b"5678"):
        put(channel, body)
    channel.call("message.qos", "message.ok", prefetch_size=4)
    consume(channel)
    assert bodies(channel) == [b"12345678"]
    channel.send("message.ok")
    assert bodies(channel) == [b"1234"]
    channel.send("message.ok")
    assert bodies(channel) == [b"5678"]


@pytest.mark.parametrize("requeue", [False, True])
def test_recover(site: Site, channel: Channel, requeue: bool) -> None:
    channel.declare()
    for body in (b"1", b"2"):
        put(channel, body)
    consume(channel)
    assert bodies(channel) == [b"1", b"2"]
    channel.send("message.recover", requeue=requeue)
    again = [got(channel), got(channel)]
    assert answers(channel) == ["ok"]
    assert [(taken["body"][1], taken["redelivered"]) for taken in again] == [(b"1", True), (b"2", True)]
    for _ in range(2):
        channel.send("message.ok")
    channel.run()
    assert unacked(site) == 0 and count(site) == 0


def test_recover_is_not_for_transactions(channel: Channel) -> None:
    channel.call("tx.select", "tx.select-ok")
    channel.send("message.recover")
    assert channel.refused() == 406


# Get


def test_get(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.call("message.get", "message.empty", queue="q", destination="d")
    put(channel, b"1")
    put(channel, b"2")
    channel.call("message.get", "message.ok", queue="q", destination="d")
    assert got(channel)["destination"] == "d" and unacked(site) == 1
    channel.call("message.get", "message.ok", queue="q", destination="d", no_ack=True)
    assert got(channel)["body"] == (0, b"2") and unacked(site) == 1
    channel.send("message.ok")
    channel.run()
    assert unacked(site) == 0


def test_a_get_waits_for_earlier_responses() -> None:
    log = HeldLog()
    channel = connect(Site(log)).channel()
    channel.declare(durable=True)
    put(channel)
    log.held = True
    channel.send("message.transfer", routing_key="q", delivery_mode=2, body=(0, b"2"))
    channel.send("message.get", queue="q", destination="d", no_ack=True)
    channel.send("message.get", queue="q", destination="e", no_ack=True)
    channel.send("message.get", queue="q", destination="f", no_ack=True)
    channel.run()
    assert channel.client.received == []
    log.release_all()
    channel.run()
    seen = [item.arguments.get("destination", item.name) for item in channel.client.received if isinstance(item, Method)]
    assert seen == ["message.ok", "message.ok", "d", "message.ok", "e", "message.empty"]


def test_a_get_from_a_stream_does_not_wait_for_earlier_responses() -> None:
    log = HeldLog()
    channel = connect(Site(log)).channel()
    channel.declare(durable=True)
    channel.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    log.held = True
    channel.send("message.transfer", routing_key="q", delivery_mode=2, body=(0, b"1"))
    channel.send("message.get", queue="s", destination="d")
    assert channel.refused() == 540
    log.release_all()
    channel.run()


def test_get_loads_messages_from_disk() -> None:
    site = Site(overflow=MemoryLog())
    site.broker.page_above = 20_000
    channel = connect(site).channel()
    channel.declare(durable=True)
    for number in range(100):
        put(channel, b"%d" % number, delivery_mode=2)
    assert classic(site.vhost.queues["q"]).ready.backlog.chunks
    for number in range(100):
        channel.call("message.get", "message.ok", queue="q", no_ack=True)
        assert got(channel)["body"] == (0, b"%d" % number)
    channel.call("message.get", "message.empty", queue="q")


# Transactions


def test_a_transaction(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.call("tx.select", "tx.select-ok")
    put(channel)
    assert count(site) == 0
    channel.call("tx.rollback", "tx.rollback-ok")
    put(channel, b"2")
    channel.call("tx.commit", "tx.commit-ok")
    consume(channel)
    assert bodies(channel) == [b"2"]
    channel.send("message.ok")
    channel.run()
    assert unacked(site) == 1
    channel.call("tx.commit", "tx.commit-ok")
    assert unacked(site) == 0


def test_after_a_rollback_answered_transfers_are_sent_again(site: Site, channel: Channel) -> None:
    channel.declare()
    for body in (b"1", b"2", b"3"):
        put(channel, body)
    channel.call("tx.select", "tx.select-ok")
    consume(channel)
    assert bodies(channel) == [b"1", b"2", b"3"]
    for _ in range(2):
        channel.send("message.ok")
    channel.call("tx.rollback", "tx.rollback-ok")
    assert bodies(channel) == [b"1", b"2"]
    for _ in range(2):  # the third transfer was not answered, and is the oldest one
        channel.send("message.ok")
    channel.call("tx.commit", "tx.commit-ok")
    channel.client.drop()
    other = connect(site).channel()
    consume(other)
    assert bodies(other) == [b"2"]


def test_a_branch(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.call("dtx.select", "dtx.select-ok")
    channel.call("dtx.start", "dtx.start-ok", dtx_identifier="one")
    put(channel)
    branches = site.vhost.branches
    done: list[int] = []
    branches.prepare(branches.find("one", "user"), done.append)
    site.run()
    assert count(site) == 0
    branches.commit(branches.find("one", "user"), False, done.append)
    site.run()
    assert count(site) == 1 and len(done) == 2


# The others


def test_each_class_has_its_own_consumers(site: Site, channel: Channel) -> None:
    channel.declare()
    put(channel, b"message")
    channel.publish(body=b"basic")
    channel.run()
    assert channel.bodies() == [b"basic"]
    channel.call("message.get", "message.ok", queue="q", no_ack=True)
    assert got(channel)["body"] == (0, b"message")


def test_messages_and_0_9_1(site: Site, channel: Channel) -> None:
    channel.declare()
    old: Channel091 = site.channel()
    put(channel, priority=3, message_id="1", application_headers={"a": "b"}, delivery_mode=1)
    (taken,) = [old.get()]
    assert taken is not None and bytes_of(taken.body) == BODY
    properties = decode_header(taken.header)[2]
    assert properties.pop("timestamp") > 0
    assert properties == {"message_id": "1", "headers": {"a": "b"}, "priority": 3, "delivery_mode": 1}
    old.publish(body=b"from 0-9-1", message_id="2", expiration="60000", headers={"list": [1, {"x": "y"}]})
    old.run()
    consume(channel)
    arrived = got(channel)
    assert arrived["body"] == (0, b"from 0-9-1") and arrived["message_id"] == "2" and arrived["ttl"] == 60000
    assert arrived["application_headers"] == {"list": [1, {"x": "y"}]}


def test_messages_need_tickets_if_the_vhost_has_realms(site: Site) -> None:
    site.vhost.declare_queue("data.q", None)
    site.protocols.amqp09.realms["/"] = Realms(
        {"/data": Realm("/data", r"data\..*|", {"user": frozenset(("write", "read"))})}
    )
    channel = connect(site).channel()
    write = channel.call("access.request", "access.request-ok", realm="/data", write=True)["ticket"]
    put(channel, key="data.q", ticket=write)
    channel.send("message.consume", queue="data.q", ticket=write)
    assert channel.refused() == 403
    channel = connect(site).channel()
    read = channel.call("access.request", "access.request-ok", realm="/data", read=True)["ticket"]
    consume(channel, "data.q", ticket=read)
    assert got(channel)["body"] == (0, BODY)
    channel.send("message.get", queue="data.q", ticket=0)
    assert channel.refused() == 403
    channel = connect(site).channel()
    channel.send("message.transfer", routing_key="data.q", body=(0, BODY))
    assert channel.refused() == 403


def test_direct_replies(site: Site, channel: Channel) -> None:
    channel.declare()
    consume(channel, "amq.rabbitmq.reply-to", "replies", no_ack=True)
    put(channel, reply_to="amq.rabbitmq.reply-to")
    consume(channel)
    address = got(channel)["reply_to"]
    assert address.startswith("amq.rabbitmq.reply-to.")
    old = site.channel()
    old.publish(address, b"answer")
    old.run()
    assert got(channel)["body"] == (0, b"answer")


def test_a_stream_is_read(site: Site, channel: Channel) -> None:
    channel.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    put(channel, b"1", "s", application_headers={"a": 1})
    site.channel().publish("s", b"2")
    for body in (b"2", b"3"):
        put(channel, body, "s")
    channel.call("message.qos", "message.ok", prefetch_count=2)
    consume(channel, "s", filter={"x-stream-offset": "first"})
    first, second = got(channel), got(channel)
    assert first["body"] == (0, b"1") and first["application_headers"] == {"a": 1, "x-stream-offset": 0}
    assert second["application_headers"] == {"x-stream-offset": 1} and take(channel) is None
    channel.send("message.ok")
    assert bodies(channel) == [b"3"]
    channel.send("message.consume", queue="s", destination="there", no_ack=True)
    assert channel.refused() == 540


def test_a_publisher_that_continues_is_not_read(site: Site, channel: Channel) -> None:
    channel.declare()
    put(channel)
    site.services.set_alarm("disk")
    channel.run()
    asked = channel.client.take("channel.flow", 1)
    assert asked is not None and asked.arguments == {"active": False}
    channel.send("channel.flow-ok", active=False)
    channel.run()
    assert channel.client.peer.reading
    put(channel)
    assert not channel.client.peer.reading
    site.services.set_alarm("")
    channel.run()
    asked = channel.client.take("channel.flow", 1)
    assert asked is not None and asked.arguments == {"active": True} and channel.client.peer.reading


def test_messages_acknowledged_by_another_class_need_no_response(site: Site, channel: Channel) -> None:
    channel.declare()
    for body in (b"1", b"2", b"3"):
        put(channel, body)
    channel.call("message.qos", "message.ok", prefetch_count=2)
    consume(channel)
    assert bodies(channel) == [b"1", b"2"]
    channel.ack(2, multiple=True)
    assert bodies(channel) == [b"3"] and unacked(site) == 1
    channel.send("message.ok")
    channel.run()
    assert unacked(site) == 0


@pytest.mark.parametrize(
    "arguments",
    [{"no_ack": True, "filter": {"x-browse": True}}, {"filter": {"x-filter-no-consume": True}}],
    ids=["own", "qpid"],
)
def test_browsing(site: Site, channel: Channel, arguments: dict[str, Any]) -> None:
    channel.declare()
    for body in (b"1", b"2"):
        put(channel, body, application_headers={"a": 1})
    consume(channel, **arguments)
    assert got(channel)["application_headers"] == {"a": 1} and bodies(channel) == [b"2"]
    put(channel, b"3")
    assert bodies(channel) == [b"3"] and count(site) == 3 and unacked(site) == 0
    channel.call("message.cancel", "message.ok", destination="here")


def test_a_selector(channel: Channel) -> None:
    channel.declare()
    consume(channel, filter={"x-filter-jms-selector": "kind = 'a' AND JMSPriority > 3"}, no_ack=True)
    put(channel, b"1", application_headers={"kind": "a"}, priority=4)
    put(channel, b"2", application_headers={"kind": "b"}, priority=4)
    put(channel, b"3", application_headers={"kind": "a"}, priority=3)
    put(channel, b"4", application_headers={"kind": "a"}, priority=9)
    assert bodies(channel) == [b"1", b"4"]


@pytest.mark.parametrize("decision", ["commit", "rollback"])
def test_responses_in_a_branch(site: Site, channel: Channel, decision: str) -> None:
    channel.declare()
    for body in (b"1", b"2"):
        put(channel, body)
    working = connect(site).channel()
    working.call("dtx.select", "dtx.select-ok")
    working.call("dtx.start", "dtx.start-ok", dtx_identifier="one")
    consume(working)
    assert bodies(working) == [b"1", b"2"]
    working.send("message.ok")
    working.run()
    assert unacked(site) == 2
    branches = site.vhost.branches
    done: list[int] = []
    branches.prepare(branches.find("one", "user"), done.append)
    site.run()
    working.client.drop()
    assert (count(site), unacked(site)) == (1, 1)
    branch = branches.find("one", "user")
    if decision == "commit":
        branches.commit(branch, False, done.append)
    else:
        branches.rollback(branch, done.append)
    site.run()
    assert len(done) == 2 and unacked(site) == 0
    consume(channel)
    assert bodies(channel) == ([b"2"] if decision == "commit" else [b"1", b"2"])
