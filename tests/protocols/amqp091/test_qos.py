"""Prefetch windows by count and size: of consumers, channels and connections."""

from __future__ import annotations

from tests.protocols.support import Channel, Site


def fill(channel: Channel, count: int, queue: str = "q", size: int = 1) -> None:
    channel.declare(queue)
    for number in range(count):
        channel.publish(queue, (b"%d" % number).ljust(size, b"."))
    channel.run()


class TestByConsumer:
    """RabbitMQ's global=false: each new consumer has a separate window."""

    def test_the_window_is_filled_and_moves_with_acks(self) -> None:
        channel = Site().channel()
        fill(channel, 10)
        channel.qos(3)
        channel.consume()
        assert channel.delivered() == [b"0", b"1", b"2"]
        channel.ack(2)
        assert channel.delivered() == [b"3"]
        channel.ack(4, multiple=True)
        assert channel.delivered() == [b"4", b"5", b"6"]
        channel.nack(5, requeue=False)
        assert channel.delivered() == [b"7"]

    def test_consumers_do_not_share_the_window(self) -> None:
        channel = Site().channel()
        fill(channel, 10)
        channel.qos(2)
        channel.consume(tag="a")
        channel.consume(tag="b")
        assert len(channel.deliveries()) == 4

    def test_a_window_applies_to_later_consumers(self) -> None:
        channel = Site().channel()
        fill(channel, 10)
        channel.qos(2)
        channel.consume(tag="a")
        channel.qos(3)
        channel.consume(tag="b")
        tags = [item.consumer_tag for item in channel.deliveries()]
        assert (tags.count(b"a"), tags.count(b"b")) == (2, 3)

    def test_no_ack_consumers_have_no_window(self) -> None:
        channel = Site().channel()
        fill(channel, 10)
        channel.qos(2)
        channel.consume(no_ack=True)
        assert len(channel.deliveries()) == 10

    def test_zero_means_no_limit(self) -> None:
        channel = Site().channel()
        fill(channel, 10)
        channel.qos(0)
        channel.consume()
        assert len(channel.deliveries()) == 10

    def test_a_window_by_size(self) -> None:
        channel = Site().channel()
        fill(channel, 10, size=100)
        channel.qos(0, 250)
        channel.consume()
        assert len(channel.deliveries()) == 2
        channel.ack(1)
        assert len(channel.deliveries()) == 1

    def test_a_message_larger_than_the_window_is_delivered(self) -> None:
        channel = Site().channel()
        fill(channel, 3, size=100)
        channel.qos(0, 50)
        channel.consume()
        for tag in (1, 2, 3):
            assert len(channel.deliveries()) == 1
            channel.ack(tag)

    def test_a_message_from_get_does_not_count_for_a_consumer(self) -> None:
        channel = Site().channel()
        fill(channel, 5)
        channel.get(no_ack=False)
        channel.get(no_ack=False)
        channel.qos(2)
        channel.consume()
        assert channel.delivered() == [b"2", b"3"]


class TestByChannel:
    """RabbitMQ's global=true: the consumers of a channel share a window."""

    def test_consumers_share_the_window(self) -> None:
        channel = Site().channel()
        fill(channel, 10)
        channel.qos(3, everywhere=True)
        channel.consume(tag="a")
        channel.consume(tag="b")
        assert len(channel.deliveries()) == 3
        channel.ack(1)
        assert len(channel.deliveries()) == 1

    def test_returned_credit_wakes_the_others(self) -> None:
        channel = Site().channel()
        fill(channel, 1, "one")
        fill(channel, 5, "two")
        channel.qos(1, everywhere=True)
        channel.consume("one", tag="a")
        channel.consume("two", tag="b")
        assert [item.consumer_tag for item in channel.deliveries()] == [b"a"]
        channel.ack(1)
        assert [item.consumer_tag for item in channel.deliveries()] == [b"b"]

    def test_a_larger_window_allows_more_deliveries_at_once(self) -> None:
        channel = Site().channel()
        fill(channel, 10)
        channel.qos(1, everywhere=True)
        channel.consume()
        assert len(channel.deliveries()) == 1
        channel.qos(4, everywhere=True)
        assert len(channel.deliveries()) == 3

    def test_a_window_by_size(self) -> None:
        channel = Site().channel()
        fill(channel, 10, size=100)
        channel.qos(0, 300, everywhere=True)
        channel.consume(tag="a")
        channel.consume(tag="b")
        assert len(channel.deliveries()) == 3

    def test_a_full_window_also_stops_no_ack_consumers(self) -> None:
        channel = Site().channel()
        fill(channel, 3, "counted")
        fill(channel, 5, "free")
        channel.qos(2, everywhere=True)
        channel.consume("free", tag="free", no_ack=True)
        assert len(channel.deliveries()) == 5
        channel.consume("counted", tag="counted")
        assert len(channel.deliveries()) == 2
        fill(channel, 4, "free")
        assert channel.deliveries() == []
        channel.ack(7, multiple=True)
        assert [item.consumer_tag for item in channel.deliveries()].count(b"free") == 4

    def test_a_full_window_does_not_stop_direct_replies(self) -> None:
        site = Site()
        channel = site.channel()
        channel.qos(1, everywhere=True)
        channel.consume("amq.rabbitmq.reply-to", no_ack=True)
        (reply_to,) = site.vhost.queues
        fill(channel, 1)
        channel.consume()
        assert len(channel.deliveries()) == 1
        channel.publish(reply_to, b"an answer")
        assert channel.delivered() == [b"an answer"]

    def test_acks_of_a_transaction_count_when_it_commits(self) -> None:
        channel = Site().channel()
        fill(channel, 10)
        channel.qos(2, everywhere=True)
        channel.call("tx.select", "tx.select-ok")
        channel.consume()
        assert len(channel.deliveries()) == 2
        channel.ack(2, multiple=True)
        channel.publish(body=b"more")
        other = channel.client.channel()
        other.publish(body=b"wakes the queue up")
        assert channel.deliveries() == []
        channel.call("tx.commit", "tx.commit-ok")
        assert len(channel.deliveries()) == 2


class TestSpecification:
    """global=false limits the channel, global=true the connection (0-9-1 basic.qos)."""

    def test_global_false_limits_the_channel(self) -> None:
        channel = Site(qos_spec=True).channel()
        fill(channel, 10)
        channel.consume(tag="a")
        assert len(channel.deliveries()) == 10
        fill(channel, 10, "two")
        channel.qos(12)
        channel.consume("two", tag="b")
        assert len(channel.deliveries()) == 2

    def test_no_ack_consumers_have_no_window(self) -> None:
        channel = Site(qos_spec=True).channel()
        fill(channel, 3, "counted")
        fill(channel, 5, "free")
        channel.qos(1)
        channel.consume("counted")
        assert len(channel.deliveries()) == 1
        channel.consume("free", no_ack=True)
        assert len(channel.deliveries()) == 5

    def test_global_true_limits_the_connection(self) -> None:
        one = Site(qos_spec=True).channel()
        two = one.client.channel()
        fill(one, 10)
        one.qos(3, everywhere=True)
        one.consume()
        two.consume()
        assert len(one.deliveries()) + len(two.deliveries()) == 3

    def test_global_true_applies_to_channels_opened_later(self) -> None:
        one = Site(qos_spec=True).channel()
        fill(one, 10)
        one.qos(3, everywhere=True)
        two = one.client.channel()
        two.consume()
        assert len(two.deliveries()) == 3

    def test_returned_credit_on_one_channel_wakes_another(self) -> None:
        one = Site(qos_spec=True).channel()
        two = one.client.channel()
        fill(one, 1, "one")
        fill(one, 5, "two")
        one.qos(1, everywhere=True)
        one.consume("one")
        two.consume("two")
        assert len(one.deliveries()) == 1
        one.ack(1)
        one.run()
        assert len(two.deliveries()) == 1

    def test_a_larger_window_wakes_other_channels(self) -> None:
        one = Site(qos_spec=True).channel()
        two = one.client.channel()
        fill(one, 5)
        one.qos(1, everywhere=True)
        two.consume()
        assert len(two.deliveries()) == 1
        one.qos(3, everywhere=True)
        assert len(two.deliveries()) == 2

    def test_closing_a_channel_frees_its_share(self) -> None:
        one = Site(qos_spec=True).channel()
        two = one.client.channel()
        fill(one, 5)
        one.qos(2, everywhere=True)
        one.consume()
        assert len(one.deliveries()) == 2
        two.consume()
        assert two.deliveries() == []
        one.close()
        assert len(two.deliveries()) == 2

    def test_a_window_by_size_over_channels(self) -> None:
        one = Site(qos_spec=True).channel()
        two = one.client.channel()
        fill(one, 10, size=100)
        one.qos(0, 350, everywhere=True)
        one.consume()
        two.consume()
        assert len(one.deliveries()) + len(two.deliveries()) == 3


class TestFairness:
    """Consumers that share a window of one message alternate."""

    def taken_by(self, channel: Channel, count: int) -> list[bytes]:
        tags = []
        for _ in range(count):
            (item,) = channel.deliveries()
            tags.append(item.consumer_tag)
            channel.ack(item.delivery_tag)
        return tags

    def test_consumers_of_one_queue_alternate(self) -> None:
        channel = Site().channel()
        channel.qos(1, everywhere=True)
        fill(channel, 10)
        channel.consume(tag="a")
        channel.consume(tag="b")
        assert sorted(self.taken_by(channel, 6)) == [b"a"] * 3 + [b"b"] * 3

    def test_consumers_of_several_queues_alternate(self) -> None:
        channel = Site().channel()
        channel.qos(1, everywhere=True)
        for name in ("a", "b", "c"):
            fill(channel, 10, name)
            channel.consume(name, tag=name)
        tags = self.taken_by(channel, 9)
        assert [tags.count(tag) for tag in (b"a", b"b", b"c")] == [3, 3, 3]


class TestGets:
    """Messages from basic.get do not count in a window."""

    def test_gets_do_not_count_in_the_channels_window(self) -> None:
        channel = Site().channel()
        fill(channel, 10)
        assert channel.get(no_ack=False) is not None
        channel.qos(1, everywhere=True)
        channel.consume()
        assert channel.delivered() == [b"1"]
        assert channel.get(no_ack=False) is not None
        channel.ack(2)
        assert channel.delivered() == [b"3"]
        channel.ack(1)
        assert channel.delivered() == []
        channel.nack(3, requeue=False)
        channel.ack(4)
        assert channel.delivered() == [b"4"]

    def test_a_multiple_acknowledgement_keeps_the_count_of_gets(self) -> None:
        channel = Site().channel()
        fill(channel, 10)
        channel.qos(2, everywhere=True)
        channel.get(no_ack=False)
        channel.consume()
        assert channel.delivered() == [b"1", b"2"]
        channel.ack(0, multiple=True)
        assert channel.delivered() == [b"3", b"4"]
        channel.run()
        assert channel.delivered() == []

    def test_gets_do_not_count_in_the_connections_window(self) -> None:
        channel = Site(qos_spec=True).channel()
        fill(channel, 10)
        channel.get(no_ack=False)
        channel.qos(1, everywhere=True)
        channel.consume()
        assert channel.delivered() == [b"1"]
