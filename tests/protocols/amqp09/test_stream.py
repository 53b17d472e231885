"""Class stream of AMQP 0-9: publish, deliver, return, rates and windows, drops at overflow."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.protocols.amqp09.contents.streams import AHEAD, Pace
from leveret.protocols.amqp09.realms import Realm, Realms
from leveret.storage.memory import MemoryLog
from leveret.wire.amqp0.commands import ContentMethod
from tests.protocols.amqp09.streaming import consume, delivered, deliveries, properties_of, publish, qos
from tests.protocols.amqp09.support import Channel, Clock, connect
from tests.protocols.support import Site, bytes_of
from tests.support.queues import classic

IN_REQUESTS_TOO = True


def count(site: Site, queue: str = "q") -> int:
    return site.vhost.queues[queue].ready_count


# Publishing and delivery


def test_a_message_is_published_and_delivered(channel: Channel) -> None:
    channel.declare()
    publish(channel, b"frame", content_type="video/h261", content_encoding="x", headers={"a": "b"}, priority=7, timestamp=3)
    tag = consume(channel, tag="here")
    (delivery,) = deliveries(channel)
    assert bytes_of(delivery.body) == b"frame"
    assert properties_of(delivery) == {
        "content_type": "video/h261",
        "content_encoding": "x",
        "headers": {"a": "b"},
        "priority": 7,
        "timestamp": 3,
    }
    assert delivery.arguments == {"consumer_tag": tag, "delivery_tag": 1, "exchange": "", "queue": "q"}
    assert tag == "here"


def test_a_message_has_the_exchange_and_the_queue_it_came_through(channel: Channel) -> None:
    channel.declare("other")
    channel.call("queue.bind", "queue.bind-ok", queue="other", exchange="amq.direct", routing_key="k")
    consume(channel, "other")
    publish(channel, exchange="amq.direct", key="k")
    (delivery,) = deliveries(channel)
    assert (delivery.arguments["exchange"], delivery.arguments["queue"]) == ("amq.direct", "other")


def test_delivered_messages_are_removed(site: Site, channel: Channel) -> None:
    channel.declare()
    consume(channel)
    publish(channel)
    assert delivered(channel) == [b"s"]
    queue = site.vhost.queues["q"]
    assert (queue.ready_count, queue.unacked, queue.counters.settled) == (0, 0, 1)
    channel.client.drop()
    assert count(site) == 0


def test_a_delivery_needs_no_acknowledgement(channel: Channel) -> None:
    channel.declare()
    consume(channel)
    publish(channel)
    tag = deliveries(channel)[0].arguments["delivery_tag"]
    channel.ack(tag)
    assert channel.refused() == 406


def test_a_window_of_class_basic_does_not_stop_a_stream(channel: Channel) -> None:
    channel.declare()
    channel.declare("basic")
    channel.qos(1)
    channel.consume("basic")
    channel.publish("basic")
    channel.publish("basic")
    assert channel.delivered() == [b"m"]
    consume(channel)
    publish(channel, b"1")
    publish(channel, b"2")
    assert delivered(channel) == [b"1", b"2"]


def test_tags_are_made_and_kept_apart(channel: Channel) -> None:
    channel.declare()
    made = consume(channel)
    assert made and consume(channel) != made
    other = channel.client.channel()
    other.send("stream.consume", queue="q", consumer_tag=made)
    assert other.refused() == 530


def test_an_empty_name_is_the_last_declared_queue(channel: Channel) -> None:
    channel.send("stream.consume", queue="")
    assert channel.refused() == 530


def test_the_last_declared_queue_is_used(channel: Channel) -> None:
    channel.declare("last")
    consume(channel, "")
    publish(channel, key="last")
    assert delivered(channel) == [b"s"]


def test_exclusive_consumers(channel: Channel) -> None:
    channel.declare()
    consume(channel, exclusive=True)
    other = channel.client.channel()
    other.send("stream.consume", queue="q")
    assert other.refused() == 405
    third = connect(channel.client.site).channel()
    third.declare("two")
    consume(third, "two")
    third.send("stream.consume", queue="two", exclusive=True)
    assert third.refused() == 405


def test_many_consumers_share_a_queue(channel: Channel) -> None:
    channel.declare()
    tags = {consume(channel) for _ in range(20)}
    for _ in range(20):
        publish(channel)
    assert {delivery.arguments["consumer_tag"] for delivery in deliveries(channel)} == tags


def test_own_messages_can_be_excluded(site: Site, channel: Channel) -> None:
    channel.declare()
    consume(channel, no_local=True)
    publish(channel, b"mine")
    publish(connect(site).channel(), b"its")
    other = connect(site).channel()
    publish(other, b"its")
    other.run()
    assert delivered(channel) == [b"its"]
    assert count(site) == 1


def test_no_reply_with_nowait(channel: Channel) -> None:
    channel.declare()
    channel.send("stream.consume", queue="q", consumer_tag="t", nowait=True)
    publish(channel)
    assert delivered(channel) == [b"s"]
    channel.send("stream.cancel", consumer_tag="t", nowait=True)
    publish(channel)
    assert delivered(channel) == []
    assert channel.client.received == []


def test_cancel_ends_a_consumer(site: Site, channel: Channel) -> None:
    channel.declare()
    tag = consume(channel)
    other = channel.client.channel()
    assert other.call("stream.cancel", "stream.cancel-ok", consumer_tag=tag) == {"consumer_tag": tag}
    publish(channel)
    assert delivered(channel) == [] and count(site) == 1
    assert channel.call("stream.cancel", "stream.cancel-ok", consumer_tag="unknown") == {"consumer_tag": "unknown"}


def test_a_queue_of_type_stream_has_no_consumers_of_the_class(site: Site, channel: Channel) -> None:
    channel.declare("log", durable=True, arguments={"x-queue-type": "stream"})
    publish(channel, b"kept there", "log")
    channel.run()
    reader = site.channel()
    reader.qos(10)
    reader.consume("log", arguments={"x-stream-offset": "first"})
    assert reader.delivered() == [b"kept there"]
    channel.send("stream.consume", queue="log")
    assert channel.refused() == 540


def test_large_messages(site: Site) -> None:
    channel = connect(site).channel()
    channel.declare()
    body = bytes(range(256)) * 8000
    publish(channel, body)
    consume(channel)
    assert delivered(channel) == [body]


def test_messages_are_in_memory_only(channel: Channel) -> None:
    site = channel.client.site
    channel.declare("kept", durable=True)
    publish(channel, key="kept")
    channel.run()
    assert classic(site.vhost.queues["kept"]).ready.backlog.head[0].message.row is None
    channel.publish("kept", delivery_mode=2)
    channel.run()
    assert classic(site.vhost.queues["kept"]).ready.backlog.head[1].message.row is not None


def test_a_persistent_message_of_0_9_1_is_settled_as_it_is_delivered() -> None:
    log = MemoryLog()
    site = Site(log)
    channel = connect(site).channel()
    channel.declare("kept", durable=True)
    there = site.channel()
    there.publish("kept", b"m", delivery_mode=2, content_type="text/plain")
    there.run()
    entry = classic(site.vhost.queues["kept"]).ready.backlog.head[0]
    consume(channel, "kept")
    (delivery,) = deliveries(channel)
    assert bytes_of(delivery.body) == b"m" and properties_of(delivery)["content_type"] == "text/plain"
    assert entry.state == 2 and count(site, "kept") == 0


def test_other_protocols_get_streams_as_class_basic(site: Site, channel: Channel) -> None:
    channel.declare()
    publish(channel, b"s", content_type="a/b", priority=3)
    channel.run()
    taken = site.channel().get()
    assert taken is not None and bytes_of(taken.body) == b"s"


def test_each_class_gets_its_own(site: Site, channel: Channel) -> None:
    channel.declare()
    publish(channel, b"stream")
    channel.publish(body=b"basic")
    consume(channel)
    assert delivered(channel) == [b"stream"]
    channel.consume(no_ack=True)
    assert channel.delivered() == [b"basic"]


# Routing


def test_unroutable_messages_are_returned(channel: Channel) -> None:
    publish(channel, b"lost", "nowhere", mandatory=True, content_type="a/b")
    publish(channel, b"dropped", "nowhere")
    channel.run()
    returned = channel.client.take("stream.return", channel.number)
    assert isinstance(returned, ContentMethod) and bytes_of(returned.body) == b"lost"
    assert returned.arguments == {"reply_code": 312, "reply_text": "NO_ROUTE", "exchange": "", "routing_key": "nowhere"}
    assert properties_of(returned) == {"content_type": "a/b"}
    assert channel.client.take("stream.return", channel.number) is None


def test_immediate_messages_without_a_consumer_are_returned(channel: Channel) -> None:
    channel.declare()
    publish(channel, b"late", immediate=True)
    channel.run()
    returned = channel.client.take("stream.return", channel.number)
    assert returned is not None and returned.arguments["reply_code"] == 313
    consume(channel)
    publish(channel, b"now", immediate=True)
    assert delivered(channel) == [b"now"]
    assert channel.client.take("stream.return", channel.number) is None


def test_an_unknown_exchange_is_not_found(channel: Channel) -> None:
    publish(channel, exchange="unknown")
    assert channel.refused() == 404
    assert channel.client.is_open


def test_internal_exchanges_refuse_publishes(channel: Channel) -> None:
    channel.call("exchange.declare", "exchange.declare-ok", exchange="inside", type="direct", internal=True)
    publish(channel, exchange="inside")
    assert channel.refused() == 403
    assert channel.client.is_open


def test_tickets(site: Site) -> None:
    rights = {"user": frozenset(("active", "write", "read", "passive"))}
    site.protocols.amqp09.realms["/"] = Realms({"/data": Realm("/data", ".*", rights)})
    channel = connect(site).channel()

    def ticket(**wanted: bool) -> int:
        number: int = channel.call("access.request", "access.request-ok", realm="/data", **wanted)["ticket"]
        return number

    channel.call("queue.declare", "queue.declare-ok", queue="q", ticket=ticket(active=True))
    reads = ticket(read=True)
    consume(channel, ticket=reads)
    publish(channel, ticket=ticket(write=True))
    assert delivered(channel) == [b"s"]
    publish(channel, ticket=ticket(read=True))
    assert channel.refused() == 403
    other = channel.client.channel(2)
    other.send("stream.consume", queue="q")
    assert other.refused() == 403


def test_transactions_delay_streams(site: Site, channel: Channel) -> None:
    channel.declare()
    channel.call("tx.select", "tx.select-ok")
    publish(channel, b"1")
    channel.call("tx.rollback", "tx.rollback-ok")
    publish(channel, b"2")
    channel.run()
    assert count(site) == 0
    channel.call("tx.commit", "tx.commit-ok")
    consume(channel)
    assert delivered(channel) == [b"2"]


def test_a_publisher_that_does_not_pause_is_throttled(site: Site, channel: Channel) -> None:
    channel.declare()
    publish(channel)
    channel.run()
    site.services.alarm = "memory"
    channel.client.session.alarm("memory")
    channel.run()
    assert channel.client.take("channel.flow", 1) is not None
    channel.send("channel.flow-ok", active=False)
    publish(channel)
    channel.run()
    assert not channel.client.peer.reading


# Rates and windows


def test_a_rate_is_kept(site: Site, channel: Channel, clock: Clock) -> None:
    channel.declare()
    qos(channel, 1000)
    consume(channel)
    for number in range(100):
        publish(channel, b"%02d" % number * 50)
    # 100 bytes each, and at most a tenth of a second ahead.
    got = len(delivered(channel))
    assert got <= 1000 * AHEAD // 1000 // 100 + 1
    for seconds in (1, 2, 3, 4):
        clock.advance(1000)
        got += len(delivered(channel))
        assert seconds * 10 <= got <= seconds * 10 + 2
    assert count(site) == 100 - got


def test_a_prefetch_window_counts_unconsumed_messages(channel: Channel, clock: Clock) -> None:
    channel.declare()
    qos(channel, 100, count=3)
    consume(channel)
    for _ in range(20):
        publish(channel, bytes(100))
    assert len(delivered(channel)) == 3
    clock.advance(999)
    assert delivered(channel) == []
    clock.advance(2)
    assert len(delivered(channel)) == 1


def test_a_prefetch_window_counts_bytes(channel: Channel, clock: Clock) -> None:
    channel.declare()
    qos(channel, 100, size=250)
    consume(channel)
    for _ in range(20):
        publish(channel, bytes(100))
    assert len(delivered(channel)) == 2
    clock.advance(501)
    assert len(delivered(channel)) == 1
    clock.advance(1001)
    assert len(delivered(channel)) == 1


def test_a_message_larger_than_the_window_is_delivered_alone(channel: Channel, clock: Clock) -> None:
    channel.declare()
    qos(channel, 100, size=10)
    consume(channel)
    publish(channel, bytes(100))
    publish(channel, bytes(100))
    assert len(delivered(channel)) == 1
    clock.advance(1001)
    assert len(delivered(channel)) == 1


def test_without_a_rate_windows_have_no_effect(channel: Channel) -> None:
    channel.declare()
    qos(channel, 0, size=10, count=1)
    consume(channel)
    for _ in range(50):
        publish(channel, bytes(100))
    assert len(delivered(channel)) == 50


def test_a_rate_is_that_of_its_channel(channel: Channel, clock: Clock) -> None:
    channel.declare()
    channel.declare("other")
    qos(channel, 10, count=1)
    other = channel.client.channel()
    consume(channel)
    consume(other, "other")
    for _ in range(5):
        publish(channel)
        publish(channel, key="other")
    assert len(delivered(channel)) == 1
    assert len(delivered(other)) == 5


def test_a_global_rate_is_that_of_the_connection(channel: Channel, clock: Clock) -> None:
    channel.declare()
    other = channel.client.channel()
    qos(other, 10, count=2, everywhere=True)
    consume(channel)
    consume(other)
    for _ in range(10):
        publish(channel, bytes(10))
    assert len(delivered(channel)) + len(delivered(other)) == 2
    clock.advance(2001)
    assert len(delivered(channel)) + len(delivered(other)) == 2


def test_a_new_qos_applies_to_existing_consumers(channel: Channel, clock: Clock) -> None:
    channel.declare()
    qos(channel, 10, count=1)
    consume(channel)
    for _ in range(5):
        publish(channel, bytes(100))
    assert len(delivered(channel)) == 1
    qos(channel)
    assert len(delivered(channel)) == 4


def test_a_channel_that_ends_leaves_no_timer(site: Site, channel: Channel, clock: Clock) -> None:
    channel.declare()
    qos(channel, 10, count=1)
    qos(channel, 10, count=1, everywhere=True)
    consume(channel)
    publish(channel)
    publish(channel)
    assert len(delivered(channel)) == 1
    timers = site.broker.timers
    assert any(isinstance(item[2], Pace) and item[2].due for item in timers.heap)
    channel.client.drop()
    assert not any(isinstance(item[2], Pace) and item[2].due for item in timers.heap)
    assert count(site) == 1


def test_a_message_that_waits_for_the_rate_is_not_delivered_at_once(channel: Channel, clock: Clock) -> None:
    channel.declare()
    qos(channel, 10, count=1)
    consume(channel)
    publish(channel, bytes(100), immediate=True)
    publish(channel, bytes(100), immediate=True)
    assert len(delivered(channel)) == 1
    returned = channel.client.take("stream.return", channel.number)
    assert returned is not None and returned.arguments["reply_code"] == 313


# Priorities, and drops at overflow


@pytest.mark.parametrize(("low", "high"), [(0, 5), (4, 5), (4, 9), (None, 5)])
def test_there_are_at_least_two_levels(channel: Channel, low: int | None, high: int) -> None:
    channel.declare(arguments={"x-max-length": 2})
    properties: dict[str, Any] = {} if low is None else {"priority": low}
    publish(channel, b"low", **properties)
    publish(channel, b"high", priority=high)
    consume(channel)
    assert delivered(channel) == [b"high", b"low"]


def test_higher_priorities_are_delivered_first(channel: Channel) -> None:
    channel.declare()
    for priority in (0, 4, 5, 9, 4, 5):
        publish(channel, b"%d" % priority, priority=priority)
    consume(channel)
    got = [int(body) for body in delivered(channel)]
    assert got == sorted(got, reverse=True)


def test_overflow_drops_the_lowest_priority_first(site: Site, channel: Channel) -> None:
    channel.declare(arguments={"x-max-length": 3})
    for name, priority in ((b"a9", 9), (b"b0", 0), (b"c5", 5), (b"d9", 9), (b"e4", 4), (b"f5", 5)):
        publish(channel, name, priority=priority)
    consume(channel)
    assert delivered(channel) == [b"a9", b"d9", b"f5"]


def test_the_oldest_of_equal_priority_is_dropped(channel: Channel) -> None:
    channel.declare(arguments={"x-max-length": 2})
    for body in (b"1", b"2", b"3"):
        publish(channel, body)
    consume(channel)
    assert delivered(channel) == [b"2", b"3"]


def test_a_queue_that_refuses_publishes_makes_room_for_higher_priorities(channel: Channel) -> None:
    channel.declare(arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    for body, priority in ((b"low", 1), (b"high", 8), (b"lower", 0), (b"higher", 9), (b"highest", 9), (b"too", 8)):
        publish(channel, body, priority=priority)
    consume(channel)
    assert delivered(channel) == [b"higher", b"highest"]


def test_streams_are_dropped_before_messages_of_class_basic(site: Site, channel: Channel) -> None:
    channel.declare(arguments={"x-max-length": 2})
    publish(channel, b"stream", priority=9)
    channel.publish(body=b"1")
    channel.publish(body=b"2")
    channel.run()
    channel.consume(no_ack=True)
    assert channel.delivered() == [b"1", b"2"]
    assert count(site) == 0


def test_a_stream_does_not_push_out_messages_of_class_basic(site: Site, channel: Channel) -> None:
    channel.declare(arguments={"x-max-length": 2})
    channel.publish(body=b"1")
    channel.publish(body=b"2")
    for _ in range(5):
        publish(channel, priority=9)
    channel.consume(no_ack=True)
    assert channel.delivered() == [b"1", b"2"]
    assert count(site) == 0


def test_streams_among_others_are_found_wherever_they_are(site: Site, channel: Channel) -> None:
    channel.declare(arguments={"x-max-length": 6})
    for number in range(12):
        if number % 2:
            publish(channel, b"%d" % number)
        else:
            channel.publish(body=b"%d" % number)
    channel.run()
    # The streams were dropped, oldest first, except those after the limit was reached by the others.
    assert count(site) == 6
    channel.consume()
    assert channel.delivered() == [b"0", b"2", b"4", b"6", b"8", b"10"]


def test_a_requeued_stream_message_is_dropped_like_others(site: Site, channel: Channel) -> None:
    channel.declare(arguments={"x-max-length": 2})
    publish(channel, b"old")
    channel.run()
    taker = site.channel()
    taker.consume()
    (delivery,) = taker.deliveries()
    channel.publish(body=b"1")
    publish(channel, b"new")
    taker.call("basic.cancel", "basic.cancel-ok", consumer_tag=delivery.consumer_tag.decode())
    channel.run()
    taker.reject(1, requeue=True)
    taker.run()
    assert [bytes_of(entry.message.body) for entry in classic(site.vhost.queues["q"]).ready.backlog.head] == [b"1", b"new"]


def test_dropped_messages_are_dead_lettered(site: Site, channel: Channel) -> None:
    channel.declare("dead")
    channel.declare(arguments={"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    publish(channel, b"high", priority=9)
    publish(channel, b"low", priority=1)
    consume(channel, "dead")
    (delivery,) = deliveries(channel)
    assert bytes_of(delivery.body) == b"low"
    assert properties_of(delivery)["headers"]["x-first-death-reason"] == "maxlen"


def test_a_slow_consumer_loses_the_lowest_priorities(site: Site, channel: Channel, clock: Clock) -> None:
    site.broker.droppable_backlog = 1000
    channel.declare()
    qos(channel, 100)
    consume(channel)
    for number in range(40):
        publish(channel, b"%02d" % number * 50, priority=9 if number % 4 == 0 else 1)
        channel.run()
    first = delivered(channel)
    assert site.vhost.queues["q"].ready_bytes == 1000
    clock.advance(60_000)
    got = first + delivered(channel)
    assert [body for body in got if int(body[:2]) % 4 == 0] == [b"%02d" % number * 50 for number in range(0, 40, 4)]


def test_the_limit_of_streams_does_not_affect_other_messages(site: Site, channel: Channel) -> None:
    site.broker.droppable_backlog = 1000
    channel.declare()
    for _ in range(20):
        channel.publish(body=bytes(100))
    publish(channel, bytes(100))
    channel.run()
    assert count(site) == 20
    assert len(channel.bodies()) == 20


def test_the_limit_of_streams_applies_to_transactions(site: Site, channel: Channel) -> None:
    site.broker.droppable_backlog = 1000
    channel.declare()
    channel.call("tx.select", "tx.select-ok")
    for _ in range(20):
        publish(channel, bytes(100))
    channel.call("tx.commit", "tx.commit-ok")
    assert count(site) == 10


def test_streams_that_were_paged_out_are_delivered() -> None:
    overflow = MemoryLog()
    site = Site(overflow=overflow)
    channel = connect(site).channel()
    channel.declare()
    site.broker.page_above = 20_000
    for number in range(500):
        publish(channel, b"%03d" % number)
    channel.run()
    for _ in range(3):
        site.broker.page_down()
        overflow.flush()
        site.run()
    assert classic(site.vhost.queues["q"]).ready.backlog.paged
    consume(channel)
    assert delivered(channel) == [b"%03d" % number for number in range(500)]
