"""Consumers of a channel: tags, exclusive and single active ones, no-local, cancellation, flow, recover."""

from __future__ import annotations

import pytest

from leveret.wire.amqp0.commands import Method
from tests.protocols.support import Channel, Client, Site, properties_of


@pytest.fixture
def site() -> Site:
    return Site()


def publish(channel: Channel, *bodies: bytes, queue: str = "q") -> None:
    for body in bodies:
        channel.publish(queue, body)
    channel.run()


@pytest.mark.parametrize("name", ["x-prioritty", "x-own"])
def test_misspelt_arguments_are_logged_once(site: Site, caplog: pytest.LogCaptureFixture, name: str) -> None:
    channel = site.channel()
    channel.declare()
    for _ in range(2):
        channel.consume(arguments={name: 1})
    known = ["did you mean 'x-priority'?"] if name == "x-prioritty" else []
    assert [text for text in known if text in caplog.text] == known
    assert caplog.text.count(name) == len(known)


class TestTags:
    def test_the_server_generates_a_missing_tag(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        tags = {channel.consume() for _ in range(3)}
        assert len(tags) == 3 and all(tag.startswith("amq.ctag-") for tag in tags)

    def test_a_tag_cannot_be_used_twice_on_a_channel(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        channel.consume(tag="t")
        channel.send("basic.consume", queue="q", consumer_tag="t")
        channel.run()
        assert channel.client.refusal()[0] == 530

    def test_a_reused_tag_is_refused_even_if_the_queue_does_not_exist(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        channel.consume(tag="t")
        channel.send("basic.consume", queue="missing", consumer_tag="t")
        channel.run()
        assert channel.client.refusal()[0] == 530

    def test_a_tag_can_be_used_on_another_channel(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        channel.consume(tag="t")
        other = channel.client.channel()
        assert other.consume(tag="t") == "t"

    def test_a_tag_can_be_used_again_after_cancel(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        channel.consume(tag="t")
        channel.call("basic.cancel", "basic.cancel-ok", consumer_tag="t")
        channel.consume(tag="t")
        publish(channel, b"a")
        assert channel.delivered() == [b"a"]


class TestExclusive:
    def test_an_exclusive_consumer_excludes_others(self, site: Site) -> None:
        first, second = site.channel(), site.channel()
        first.declare()
        first.consume(exclusive=True)
        second.send("basic.consume", queue="q")
        second.run()
        assert second.client.refusal()[0] == 403

    def test_an_exclusive_consumer_cannot_join_others(self, site: Site) -> None:
        first, second = site.channel(), site.channel()
        first.declare()
        first.consume()
        second.send("basic.consume", queue="q", exclusive=True)
        second.run()
        assert second.client.refusal()[0] == 403

    def test_others_may_consume_after_its_cancel(self, site: Site) -> None:
        first, second = site.channel(), site.channel()
        first.declare()
        tag = first.consume(exclusive=True)
        first.call("basic.cancel", "basic.cancel-ok", consumer_tag=tag)
        second.consume()

    def test_a_queue_of_another_connection_is_locked(self, site: Site) -> None:
        first, second = site.channel(), site.channel()
        first.declare(exclusive=True)
        second.send("basic.get", queue="q")
        second.run()
        assert second.client.refusal()[0] == 405

    def test_an_exclusive_queue_ends_with_its_connection(self, site: Site) -> None:
        first = site.channel()
        first.declare(exclusive=True)
        first.client.drop()
        assert site.vhost.queues == {}


class TestSingleActive:
    ARGUMENTS = {"x-single-active-consumer": True}

    @pytest.mark.parametrize("how", ["cancel", "channel", "connection"])
    def test_the_next_consumer_becomes_active(self, site: Site, how: str) -> None:
        first, second = site.channel(), site.channel()
        first.declare(arguments=self.ARGUMENTS)
        first.consume(tag="t")
        second.consume()
        publish(first, b"a")
        assert first.delivered() == [b"a"] and second.delivered() == []
        if how == "cancel":
            first.call("basic.cancel", "basic.cancel-ok", consumer_tag="t")
        elif how == "channel":
            first.close()
        else:
            first.client.drop()
        publish(second, b"b")
        assert second.delivered() == ([b"b"] if how == "cancel" else [b"a", b"b"])

    def test_the_next_consumer_becomes_active_when_the_channel_closes(self, site: Site) -> None:
        first, second = site.channel(), site.channel()
        first.declare(arguments=self.ARGUMENTS)
        first.consume()
        first.consume()
        second.consume()
        publish(first, b"a")
        first.close()
        assert second.delivered() == [b"a"]
        assert site.vhost.queues["q"].unacked == 1


class TestNoLocal:
    def test_own_messages_are_not_delivered(self, site: Site) -> None:
        mine, other = site.channel(), site.channel()
        mine.declare()
        mine.consume(no_local=True)
        publish(mine, b"mine")
        publish(mine.client.channel(), b"mine too")
        publish(other, b"other")
        assert mine.delivered() == [b"other"]
        assert other.bodies() == [b"mine", b"mine too"]

    def test_an_immediate_own_message_has_no_consumer(self, site: Site) -> None:
        mine = site.channel()
        mine.declare()
        mine.consume(no_local=True)
        mine.publish(immediate=True)
        mine.run()
        returned = mine.client.take("basic.return", mine.number)
        assert returned is not None and returned.arguments["reply_code"] == 313


class TestCancellation:
    def test_consumers_are_notified_of_the_deletion(self, site: Site) -> None:
        consumer, other = site.channel(), site.channel()
        consumer.declare()
        consumer.consume(tag="t")
        other.call("queue.delete", "queue.delete-ok", queue="q")
        consumer.run()
        told = consumer.client.take("basic.cancel", consumer.number)
        assert told is not None and told.arguments["consumer_tag"] == "t"

    def test_a_client_without_the_capability_is_not_notified(self, site: Site) -> None:
        consumer, other = site.channel(capabilities={"consumer_cancel_notify": False}), site.channel()
        consumer.declare()
        consumer.consume(tag="t")
        other.call("queue.delete", "queue.delete-ok", queue="q")
        consumer.run()
        assert consumer.client.received == []

    def test_an_unknown_tag_is_answered(self, site: Site) -> None:
        channel = site.channel()
        assert channel.call("basic.cancel", "basic.cancel-ok", consumer_tag="no such") == {"consumer_tag": "no such"}

    def test_deliveries_can_still_be_acknowledged(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        channel.consume(tag="t")
        publish(channel, b"a", b"b")
        assert len(channel.deliveries()) == 2
        channel.call("basic.cancel", "basic.cancel-ok", consumer_tag="t")
        channel.ack(1)
        channel.reject(2)
        channel.run()
        assert channel.bodies() == [b"b"]
        assert site.vhost.queues["q"].unacked == 0


class TestFlow:
    def test_the_client_stops_deliveries(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        channel.consume()
        assert channel.call("channel.flow", "channel.flow-ok", active=False) == {"active": False}
        publish(channel, b"a")
        assert channel.deliveries() == []
        other = channel.client.channel()
        other.consume()
        publish(channel, b"b")
        assert other.delivered() == [b"a", b"b"]
        publish(channel, b"c")
        channel.call("channel.flow", "channel.flow-ok", active=True)
        publish(channel, b"d")
        assert sorted(channel.delivered() + other.delivered()) == [b"c", b"d"]

    def test_a_full_socket_gets_no_more_deliveries(self, site: Site) -> None:
        slow, fast = site.channel(), site.channel()
        slow.declare()
        slow.consume(no_ack=True)
        slow.client.session.pause_writing()
        publish(fast, b"a")
        assert slow.deliveries() == []
        fast.consume(no_ack=True)
        assert fast.delivered() == [b"a"]
        publish(fast, b"b", b"c")
        assert len(fast.deliveries()) == 2
        slow.client.session.resume_writing()
        publish(fast, b"d", b"e")
        assert len(slow.deliveries()) == 1

    def test_deliveries_to_one_connection_per_turn_are_limited(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        publish(channel, *(bytes(100_000) for _ in range(20)))
        channel.send("basic.consume", queue="q", no_ack=True)
        channel.client.flush()
        assert 10 <= site.vhost.queues["q"].counters.delivered <= 12
        assert len(channel.deliveries()) == 20


class TestRecover:
    def test_recover_with_requeue(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        publish(channel, b"a", b"b")
        channel.get(no_ack=False)
        channel.get(no_ack=False)
        channel.call("basic.recover", "basic.recover-ok", requeue=True)
        first = channel.get()
        assert first is not None and first.body == b"a" and first.arguments["redelivered"]

    def test_recover_without_requeue_redelivers_to_the_same_consumer(self, site: Site) -> None:
        channel, other = site.channel(), site.channel()
        channel.declare()
        channel.consume()
        publish(channel, b"a", b"b")
        channel.deliveries()
        other.consume()
        channel.call("basic.recover", "basic.recover-ok", requeue=False)
        again = channel.deliveries()
        assert [(item.body, item.delivery_tag, item.redelivered) for item in again] == [(b"a", 3, True), (b"b", 4, True)]
        channel.ack(4, multiple=True)
        channel.run()
        assert channel.client.is_open and site.vhost.queues["q"].unacked == 0

    def test_old_tags_are_invalid_after_recover(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        channel.consume()
        publish(channel, b"a")
        channel.deliveries()
        channel.call("basic.recover", "basic.recover-ok", requeue=True)
        channel.ack(1)
        channel.run()
        assert channel.client.refusal()[0] == 406

    def test_recover_does_not_change_window_credit(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        channel.qos(2)
        channel.consume()
        publish(channel, *(b"%d" % number for number in range(5)))
        assert len(channel.deliveries()) == 2
        for _ in range(3):
            channel.call("basic.recover", "basic.recover-ok", requeue=False)
            assert [item.body for item in channel.deliveries()] == [b"0", b"1"]


class TestAcknowledgement:
    @pytest.mark.parametrize(("tag", "multiple"), [(1, False), (1, True), (99, False), (99, True), (0, False)])
    def test_an_unknown_tag(self, site: Site, tag: int, multiple: bool) -> None:
        channel = site.channel()
        channel.ack(tag, multiple)
        channel.run()
        assert channel.client.refusal()[0] == 406

    def test_acknowledging_a_tag_twice(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        channel.consume()
        publish(channel, b"a", b"b")
        channel.deliveries()
        channel.ack(1)
        channel.ack(1)
        channel.run()
        assert channel.client.refusal()[0] == 406
        assert site.vhost.queues["q"].ready_count == 1

    def test_tag_0_multiple_acknowledges_everything(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        channel.ack(0, multiple=True)
        channel.consume()
        publish(channel, b"a", b"b")
        channel.deliveries()
        channel.ack(0, multiple=True)
        channel.run()
        assert channel.client.is_open and site.vhost.queues["q"].unacked == 0

    def test_acknowledgements_in_any_order(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        channel.consume()
        publish(channel, *(b"%d" % number for number in range(10)))
        channel.deliveries()
        for tag in (7, 2, 9):
            channel.ack(tag)
        channel.ack(6, multiple=True)
        channel.nack(10, multiple=True, requeue=False)
        channel.run()
        assert channel.client.is_open and site.vhost.queues["q"].unacked == 0

    def test_a_multiple_nack_restores_the_order(self, site: Site) -> None:
        channel = site.channel()
        channel.declare()
        bodies = [b"%d" % number for number in range(6)]
        channel.consume(tag="t")
        publish(channel, *bodies)
        channel.deliveries()
        channel.call("basic.cancel", "basic.cancel-ok", consumer_tag="t")
        channel.ack(2)
        channel.nack(6, multiple=True)
        channel.run()
        assert channel.bodies() == [b"0", b"2", b"3", b"4", b"5"]


def test_a_lost_connection_requeues_everything_in_order(site: Site) -> None:
    first, second = site.channel(), site.channel()
    first.declare()
    first.consume()
    publish(second, b"a", b"b", b"c")
    first.deliveries()
    first.get()
    first.client.drop()
    second.consume()
    again = second.deliveries()
    assert [(item.body, item.redelivered) for item in again] == [(b"a", True), (b"b", True), (b"c", True)]


def test_dead_letters_are_delivered_with_their_headers(site: Site) -> None:
    channel = site.channel()
    channel.declare("dead")
    channel.declare(arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    channel.publish(headers={"own": 1}, expiration="100000")
    channel.get(no_ack=False)
    channel.reject(1, requeue=False)
    taken = channel.get("dead")
    assert taken is not None and taken.arguments["routing_key"] == "dead"
    properties = properties_of(taken)
    assert "expiration" not in properties
    death = properties["headers"]["x-death"][0]
    assert (death["queue"], death["reason"], death["count"], death["original-expiration"]) == ("q", "rejected", 1, "100000")
    assert properties["headers"]["own"] == 1


@pytest.mark.parametrize(
    "deaths",
    [
        [{"queue": "x"}],
        [{"queue": "q", "reason": "rejected", "count": "many"}],
        [{"count": 2**63 - 1, "queue": "q", "reason": "rejected"}],
        "text",
        [1, 2],
        [[]],
        [{"count": None}],
        [{"count": 1.5}],
        [{"count": True}],
    ],
    ids=str,
)
def test_invalid_x_death_headers_are_harmless(site: Site, deaths: object) -> None:
    channel = site.channel()
    channel.declare("dead")
    channel.declare(arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    channel.publish(headers={"x-death": deaths})
    channel.get(no_ack=False)
    channel.reject(1, requeue=False)
    channel.consume("dead", no_ack=True)
    delivered = channel.deliveries()
    assert len(delivered) == 1 and channel.client.is_open
    assert properties_of(delivered[0])["headers"]["x-death"]


def test_commands_after_a_refused_one_are_discarded(site: Site) -> None:
    channel = site.channel()
    channel.declare()
    channel.publish("k", exchange="missing")
    channel.publish(body=b"lost")
    channel.run()
    assert channel.client.refusal()[0] == 404
    assert site.vhost.queues["q"].ready_count == 0
    assert channel.client.is_open
    client: Client = channel.client
    channel = client.channel(channel.number)
    channel.publish(body=b"found")
    channel.run()
    assert channel.bodies() == [b"found"]
    assert [item for item in client.received if isinstance(item, Method)] == []


@pytest.mark.parametrize("durable", [False, True])
def test_the_delete_ok_precedes_the_cancel_of_own_consumers(site: Site, durable: bool) -> None:
    client = site.connect()
    channel, other = client.channel(), client.channel()
    channel.declare(durable=durable)
    channel.consume(tag="own")
    other.consume(tag="other")
    channel.send("queue.delete", queue="q")
    channel.run()
    names = [item.name for item in client.received if isinstance(item, Method)]
    assert names == ["queue.delete-ok", "basic.cancel", "basic.cancel"]


def test_a_queue_with_a_single_active_consumer_refuses_exclusive_ones(site: Site) -> None:
    channel = site.channel()
    channel.declare(arguments={"x-single-active-consumer": True})
    channel.send("basic.consume", queue="q", exclusive=True)
    channel.run()
    assert channel.client.refusal()[0] == 403


@pytest.mark.parametrize("strict", [False, True])
def test_a_queue_with_only_unacked_messages_is_empty_except_in_strict_mode(strict: bool) -> None:
    channel = Site(strict=strict).channel()
    channel.declare()
    channel.publish()
    channel.get(no_ack=False)
    channel.send("queue.delete", queue="q", if_empty=True)
    channel.run()
    assert channel.client.refusal()[0] == (406 if strict else 0)
