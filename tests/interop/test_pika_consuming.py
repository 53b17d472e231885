"""Consuming with pika: acknowledgement, prefetch, cancel, exclusivity, priorities of consumers."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from tests.interop.conftest import Connect
from tests.interop.helpers import Collector, channel_error, count, drain, empty, get, pump
from tests.support.polling import wait_until


def fill(channel: BlockingChannel, queue: str, number: int) -> None:
    for index in range(number):
        channel.basic_publish("", queue, b"%d" % index)


def test_order(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    fill(channel, name, 500)
    collector = Collector(channel, name)
    messages = collector.wait(500)
    assert [int(message.body) for message in messages] == list(range(500))
    assert [message.method.delivery_tag for message in messages] == list(range(1, 501))
    assert not any(message.method.redelivered for message in messages)
    channel.basic_ack(500, multiple=True)
    assert count(channel, name) == 0


def test_delivery_names_consumer_and_route(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "topic", auto_delete=True)
    channel.queue_declare(name, exclusive=True)
    channel.queue_bind(name, name, "a.#")
    collector = Collector(channel, name, consumer_tag="tag-ü")
    channel.basic_publish(name, "a.b.ü", b"")
    method = collector.wait(1)[0].method
    assert (method.consumer_tag, method.exchange, method.routing_key) == ("tag-ü", name, "a.b.ü")


def test_ack_multiple_and_single(connection: BlockingConnection, name: str) -> None:
    channel, watcher = connection.channel(), connection.channel()
    watcher.queue_declare(name, exclusive=True)
    fill(watcher, name, 10)
    collector = Collector(channel, name)
    collector.wait(10)
    channel.basic_ack(7)
    channel.basic_ack(3, multiple=True)
    channel.basic_ack(9)
    channel.close()
    wait_until(lambda: count(watcher, name) == 5)
    assert drain(watcher, name) == [b"3", b"4", b"5", b"7", b"9"]


def test_nack_multiple_requeues_to_the_old_places(connection: BlockingConnection, name: str) -> None:
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    fill(channel, name, 6)
    for _ in range(4):
        last = get(channel, name, auto_ack=False).method.delivery_tag
    channel.basic_nack(last, multiple=True, requeue=True)
    got = [get(channel, name) for _ in range(6)]
    assert [message.body for message in got] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert [message.method.redelivered for message in got] == [True] * 4 + [False] * 2


def test_nack_zero_means_all(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    fill(channel, name, 3)
    for _ in range(3):
        get(channel, name, auto_ack=False)
    channel.basic_nack(0, multiple=True, requeue=False)
    assert count(channel, name) == 0
    # Without unacked messages it is no error either.
    channel.basic_ack(0, multiple=True)
    assert empty(channel, name)


@pytest.mark.parametrize("how", ["reject", "nack"])
def test_reject(channel: BlockingChannel, name: str, how: str) -> None:
    channel.queue_declare(name, exclusive=True)
    fill(channel, name, 2)
    refuse = channel.basic_reject if how == "reject" else channel.basic_nack
    refuse(get(channel, name, auto_ack=False).method.delivery_tag, requeue=False)
    refuse(get(channel, name, auto_ack=False).method.delivery_tag, requeue=True)
    got = get(channel, name)
    assert (got.body, got.method.redelivered) == (b"1", True)
    assert empty(channel, name)


def test_recover_with_requeue(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    fill(channel, name, 3)
    for _ in range(3):
        get(channel, name, auto_ack=False)
    channel.basic_recover(requeue=True)
    got = [get(channel, name) for _ in range(3)]
    assert [(message.body, message.method.redelivered) for message in got] == [(b"0", True), (b"1", True), (b"2", True)]


def test_get_empty_and_counts(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    assert channel.basic_get(name)[0] is None
    fill(channel, name, 3)
    method = get(channel, name, auto_ack=False).method
    assert (method.message_count, method.exchange, method.routing_key) == (2, "", name)


def test_prefetch(connection: BlockingConnection, name: str) -> None:
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    fill(channel, name, 10)
    channel.basic_qos(prefetch_count=3)
    collector = Collector(channel, name)
    collector.wait(3)
    assert len(collector.arrived()) == 3
    channel.basic_ack(collector.messages[1].method.delivery_tag)
    collector.wait(4)
    assert len(collector.arrived()) == 4
    channel.basic_ack(0, multiple=True)
    collector.wait(7)
    assert len(collector.arrived()) == 7


def test_prefetch_is_per_consumer(channel: BlockingChannel, name: str) -> None:
    """RabbitMQ's meaning of global=false: each new consumer has its own window."""
    channel.queue_declare(name, exclusive=True)
    channel.basic_qos(prefetch_count=2)
    first = Collector(channel, name)
    channel.basic_qos(prefetch_count=3)
    second = Collector(channel, name)
    fill(channel, name, 20)
    second.wait(3)
    first.wait(2)
    assert (len(first.arrived()), len(second.messages)) == (2, 3)


def test_prefetch_global_is_per_channel(channel: BlockingChannel, name: str) -> None:
    """RabbitMQ's meaning of global=true: one window for all consumers of the channel."""
    channel.queue_declare(name, exclusive=True)
    channel.basic_qos(prefetch_count=3, global_qos=True)
    first, second = Collector(channel, name), Collector(channel, name)
    fill(channel, name, 20)
    pump(channel.connection, lambda: len(first.messages) + len(second.messages) == 3)
    first.arrived()
    assert len(first.messages) + len(second.messages) == 3
    channel.basic_ack(0, multiple=True)
    pump(channel.connection, lambda: len(first.messages) + len(second.messages) == 6)


def test_prefetch_does_not_limit_get_and_no_ack(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.basic_qos(prefetch_count=1)
    fill(channel, name, 10)
    for _ in range(5):
        get(channel, name, auto_ack=False)
    collector = Collector(channel, name, auto_ack=True)
    assert len(collector.wait(5)) == 5


def test_a_full_window_of_the_channel_stops_no_ack_consumers(channel: BlockingChannel, name: str) -> None:
    free = name + ".free"
    channel.queue_declare(name, exclusive=True)
    channel.queue_declare(free, exclusive=True)
    channel.basic_qos(prefetch_count=2, global_qos=True)
    fill(channel, name, 2)
    counted = Collector(channel, name)
    counted.wait(2)
    uncounted = Collector(channel, free, auto_ack=True)
    fill(channel, free, 5)
    assert uncounted.arrived() == []
    channel.basic_ack(1)
    uncounted.wait(5)  # delivered no-ack messages are not counted


def test_round_robin(connect: Connect, name: str) -> None:
    keeper = connect().channel()
    keeper.queue_declare(name, auto_delete=True)
    collectors = [Collector(connect().channel(), name, auto_ack=True) for _ in range(3)]
    fill(keeper, name, 30)
    for collector in collectors:
        collector.wait(10)
    wait_until(lambda: count(keeper, name) == 0)
    assert [len(collector.arrived()) for collector in collectors] == [10, 10, 10]


def test_cancel(connection: BlockingConnection, name: str) -> None:
    """After cancel-ok nothing is delivered; delivered messages stay with the channel until they are settled."""
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    fill(channel, name, 2)
    collector = Collector(channel, name)
    collector.wait(2)
    assert channel.basic_cancel(collector.tag) == []
    fill(channel, name, 2)
    assert len(collector.arrived()) == 2
    assert count(channel, name) == 2
    channel.basic_ack(2, multiple=True)
    channel.basic_recover(requeue=True)
    assert count(channel, name) == 2


def test_cancel_of_an_unknown_tag(channel: BlockingChannel) -> None:
    """RabbitMQ answers cancel-ok."""
    ok: list[pika.frame.Method] = []
    channel._impl._rpc(pika.spec.Basic.Cancel(consumer_tag="unknown"), ok.append, [pika.spec.Basic.CancelOk])
    pump(channel.connection, lambda: ok)
    assert ok[0].method.consumer_tag == "unknown"


def test_cancel_notification(connect: Connect, name: str) -> None:
    channel, other = connect().channel(), connect().channel()
    channel.queue_declare(name)
    collector = Collector(channel, name)
    cancelled: list[Any] = []
    channel.add_on_cancel_callback(cancelled.append)
    other.queue_delete(name)
    pump(channel.connection, lambda: cancelled)
    assert cancelled[0].method.consumer_tag == collector.tag
    assert channel.is_open
    assert channel.consumer_tags == []


def test_deleting_an_auto_delete_queue(connect: Connect, name: str) -> None:
    """It is deleted with its last consumer, not before its first."""
    channel, watcher = connect().channel(), connect()
    channel.queue_declare(name, auto_delete=True)
    fill(channel, name, 1)
    assert empty(channel, name) is False
    first, second = Collector(channel, name), Collector(channel, name)
    channel.basic_cancel(first.tag)
    assert watcher.channel().queue_declare(name, passive=True).method.consumer_count == 1
    channel.basic_cancel(second.tag)
    gone = watcher.channel()
    with channel_error(gone, 404):
        gone.queue_declare(name, passive=True)


def test_exclusive_consumer(connect: Connect, name: str) -> None:
    first, second = connect().channel(), connect().channel()
    first.queue_declare(name, auto_delete=True)
    Collector(first, name, exclusive=True)
    with channel_error(second, 403):
        second.basic_consume(name, lambda *_: None)


def test_exclusive_consumer_of_a_busy_queue(connect: Connect, name: str) -> None:
    first, second = connect().channel(), connect().channel()
    first.queue_declare(name, auto_delete=True)
    Collector(first, name)
    with channel_error(second, 403):
        second.basic_consume(name, lambda *_: None, exclusive=True)


def test_single_active_consumer(connect: Connect, name: str) -> None:
    keeper = connect().channel()
    keeper.queue_declare(name, arguments={"x-single-active-consumer": True})
    first = Collector(connect().channel(), name)
    second = Collector(connect().channel(), name)
    fill(keeper, name, 3)
    first.wait(3)
    assert second.arrived() == []
    first.channel.basic_ack(1)
    first.channel.basic_cancel(first.tag)
    first.channel.basic_recover(requeue=True)
    second.wait(2)
    fill(keeper, name, 1)
    second.wait(3)
    assert second.bodies == [b"1", b"2", b"0"]
    keeper.queue_delete(name)


def test_consumer_priority(connect: Connect, name: str) -> None:
    """The consumer with the higher priority gets everything until its window is full."""
    keeper = connect().channel()
    keeper.queue_declare(name, auto_delete=True)
    low_channel, high_channel = connect().channel(), connect().channel()
    low_channel.basic_qos(prefetch_count=10)
    high_channel.basic_qos(prefetch_count=5)
    low = Collector(low_channel, name)
    high = Collector(high_channel, name, arguments={"x-priority": 10})
    fill(keeper, name, 8)
    high.wait(5)
    low.wait(3)
    assert high.bodies == [b"0", b"1", b"2", b"3", b"4"]
    assert low.bodies == [b"5", b"6", b"7"]


def test_requeue_goes_to_another_consumer(connect: Connect, name: str) -> None:
    keeper = connect().channel()
    keeper.queue_declare(name, auto_delete=True)
    first, second = Collector(connect().channel(), name), Collector(connect().channel(), name)
    fill(keeper, name, 1)
    wait_until(lambda: first.arrived() or second.arrived())
    holder, other = (first, second) if first.messages else (second, first)
    holder.channel.basic_nack(holder.messages[0].method.delivery_tag, requeue=True)
    holder.arrived()
    got = other.wait(1)[0]
    assert got.method.redelivered


@pytest.mark.parametrize("tag", [1, 77])
@pytest.mark.parametrize("method", ["basic_ack", "basic_nack", "basic_reject"])
def test_unknown_delivery_tag(channel: BlockingChannel, method: str, tag: int) -> None:
    with channel_error(channel, 406):
        getattr(channel, method)(tag)


def test_double_ack(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    fill(channel, name, 1)
    tag = get(channel, name, auto_ack=False).method.delivery_tag
    channel.basic_ack(tag)
    with channel_error(channel, 406):
        channel.basic_ack(tag)


def test_tags_belong_to_their_channel(connection: BlockingConnection, name: str) -> None:
    one, two = connection.channel(), connection.channel()
    one.queue_declare(name, exclusive=True)
    fill(one, name, 1)
    tag = get(one, name, auto_ack=False).method.delivery_tag
    with channel_error(two, 406):
        two.basic_ack(tag)
    one.basic_ack(tag)
    assert one.is_open


def test_channel_close_requeues(connect: Connect, name: str) -> None:
    connection = connect()
    keeper, channel = connection.channel(), connection.channel()
    keeper.queue_declare(name, exclusive=True)
    fill(keeper, name, 3)
    get(channel, name, auto_ack=False)
    get(channel, name, auto_ack=False)
    channel.close()
    got = [get(keeper, name) for _ in range(3)]
    assert [(message.body, message.method.redelivered) for message in got] == [
        (b"0", True),
        (b"1", True),
        (b"2", False),
    ]


def test_consuming_iterator(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    fill(channel, name, 5)
    bodies = []
    for method, _, body in channel.consume(name, inactivity_timeout=60):
        assert method is not None
        channel.basic_ack(method.delivery_tag)
        bodies.append(body)
        if len(bodies) == 5:
            break
    assert channel.cancel() == 0
    assert bodies == [b"0", b"1", b"2", b"3", b"4"]


def test_consume_from_a_missing_queue(channel: BlockingChannel, name: str) -> None:
    with channel_error(channel, 404):
        channel.basic_consume(name, lambda *_: None)


def test_get_from_a_missing_queue(channel: BlockingChannel, name: str) -> None:
    with channel_error(channel, 404):
        channel.basic_get(name)
