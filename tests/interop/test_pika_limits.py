"""Queues with arguments as RabbitMQ means them: time to live, lengths, priorities, expiry of the queue itself."""

from __future__ import annotations

import time

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker, NackError

from tests.interop.conftest import Connect
from tests.interop.helpers import Collector, count, drain, empty, get, pass_time
from tests.support.polling import wait_until


def exists(connection: BlockingConnection, queue: str) -> bool:
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except ChannelClosedByBroker as error:
        assert error.reply_code == 404
        return False
    channel.close()
    return True


def test_queue_ttl(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-message-ttl": 500})
    channel.basic_publish("", name, b"in time")
    assert get(channel, name).body == b"in time"
    channel.confirm_delivery()
    channel.basic_publish("", name, b"short-lived")
    wait_until(lambda: count(channel, name) == 0)
    assert empty(channel, name)


def test_message_ttl(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish("", name, b"short-lived", pika.BasicProperties(expiration="100"))
    channel.basic_publish("", name, b"stays")
    wait_until(lambda: count(channel, name) == 1)
    assert get(channel, name).body == b"stays"


def test_message_ttl_behind_another(channel: BlockingChannel, name: str) -> None:
    """It is never delivered late, wherever it is in the queue."""
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish("", name, b"first")
    channel.basic_publish("", name, b"expires", pika.BasicProperties(expiration="50"))
    channel.basic_publish("", name, b"last")
    pass_time(channel, 150)
    assert get(channel, name).body == b"first"
    assert get(channel, name).body == b"last"


def test_the_shorter_ttl_counts(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-message-ttl": 100})
    channel.basic_publish("", name, b"", pika.BasicProperties(expiration="60000"))
    wait_until(lambda: count(channel, name) == 0)


@pytest.mark.parametrize("how", ["queue", "message"])
def test_ttl_of_zero(channel: BlockingChannel, name: str, how: str) -> None:
    """Delivered at once to a waiting consumer, or not at all."""
    channel.queue_declare(name, exclusive=True, arguments={"x-message-ttl": 0} if how == "queue" else None)
    properties = pika.BasicProperties(expiration="0" if how == "message" else None)
    channel.basic_publish("", name, b"no consumer", properties)
    assert empty(channel, name)
    collector = Collector(channel, name, auto_ack=True)
    channel.basic_publish("", name, b"a consumer", properties)
    assert collector.wait(1)[0].body == b"a consumer"


def test_expiration_is_kept_for_the_reader(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish("", name, b"", pika.BasicProperties(expiration="60000"))
    assert get(channel, name).properties.expiration == "60000"


def test_unacknowledged_messages_do_not_expire(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-message-ttl": 100})
    channel.basic_publish("", name, b"held")
    tag = get(channel, name, auto_ack=False).method.delivery_tag
    pass_time(channel, 200)
    channel.basic_ack(tag)
    channel.basic_publish("", name, b"requeued too late")
    tag = get(channel, name, auto_ack=False).method.delivery_tag
    pass_time(channel, 200)
    channel.basic_nack(tag, requeue=True)
    wait_until(lambda: empty(channel, name))


def test_queue_expires(connect: Connect, name: str) -> None:
    connection = connect()
    channel = connection.channel()
    channel.queue_declare(name, arguments={"x-expires": 300})
    channel.basic_publish("", name, b"goes with it")
    wait_until(lambda: not exists_quietly(connection, name))


def exists_quietly(connection: BlockingConnection, queue: str) -> bool:
    """Check whether a queue exists, rarely enough that the checks (a declare is a use) do not keep it alive."""
    channel = connection.channel()
    pass_time(channel, 600)
    channel.close()
    return exists(connection, queue)


def test_a_consumer_keeps_an_expiring_queue(connect: Connect, name: str) -> None:
    connection = connect()
    channel = connection.channel()
    channel.queue_declare(name, arguments={"x-expires": 200})
    collector = Collector(channel, name)
    pass_time(channel, 400)
    assert exists(connection, name)
    channel.basic_cancel(collector.tag)
    wait_until(lambda: not exists_quietly(connection, name))


def test_max_length_drops_the_head(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 3})
    for number in range(10):
        channel.basic_publish("", name, b"%d" % number)
    assert drain(channel, name) == [b"7", b"8", b"9"]


def test_max_length_counts_ready_messages(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 2})
    channel.basic_publish("", name, b"held")
    tag = get(channel, name, auto_ack=False).method.delivery_tag
    channel.confirm_delivery()
    for number in range(3):
        channel.basic_publish("", name, b"%d" % number)
    wait_until(lambda: count(channel, name) == 2)
    channel.basic_nack(tag, requeue=True)
    # Back in its old place it is the head, which is dropped.
    assert drain(channel, name) == [b"1", b"2"]


def test_max_length_of_zero(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 0})
    channel.basic_publish("", name, b"nowhere to wait")
    assert empty(channel, name)
    collector = Collector(channel, name, auto_ack=True)
    channel.basic_publish("", name, b"straight through")
    assert collector.wait(1)[0].body == b"straight through"


def test_max_length_bytes(channel: BlockingChannel, name: str) -> None:
    """Only bodies count."""
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length-bytes": 100})
    for number in range(5):
        channel.basic_publish("", name, b"%d" % number * 40, pika.BasicProperties(headers={"long": "x" * 500}))
    assert drain(channel, name) == [b"3" * 40, b"4" * 40]
    channel.basic_publish("", name, b"y" * 101)
    assert empty(channel, name)


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_reject_publish(channel: BlockingChannel, name: str, overflow: str) -> None:
    dead = f"{name}.dead"
    channel.queue_declare(dead, exclusive=True)
    channel.queue_declare(
        name,
        exclusive=True,
        arguments={
            "x-max-length": 2,
            "x-overflow": overflow,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead,
        },
    )
    channel.confirm_delivery()
    channel.basic_publish("", name, b"0")
    channel.basic_publish("", name, b"1")
    with pytest.raises(NackError):
        channel.basic_publish("", name, b"2")
    assert drain(channel, name) == [b"0", b"1"]
    if overflow == "reject-publish-dlx":
        got = get(channel, dead)
        assert got.body == b"2"
        assert got.properties.headers["x-death"][0]["reason"] == "maxlen"
    else:
        assert empty(channel, dead)


def test_reject_publish_of_one_of_two(channel: BlockingChannel, name: str) -> None:
    """A publish that one of its queues refuses is nacked, although the other queue has it."""
    channel.queue_declare(name + ".full", exclusive=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    channel.queue_declare(name + ".free", exclusive=True)
    channel.exchange_declare(name, "fanout", auto_delete=True)
    channel.queue_bind(name + ".full", name)
    channel.queue_bind(name + ".free", name)
    channel.confirm_delivery()
    with pytest.raises(NackError):
        channel.basic_publish(name, "", b"half")
    assert drain(channel, name + ".free") == [b"half"]


def test_priorities(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-priority": 5})
    for number, priority in enumerate([0, 5, None, 3, 200, 3]):
        channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(priority=priority))
    # 200 is capped to 5, no priority is 0, and equal priorities keep their order.
    assert drain(channel, name) == [b"1", b"4", b"3", b"5", b"0", b"2"]


def test_priority_property_is_delivered_uncapped(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-priority": 5})
    channel.basic_publish("", name, b"", pika.BasicProperties(priority=200))
    assert get(channel, name).properties.priority == 200


def test_priority_queue_with_length_drops_its_head(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-priority": 5, "x-max-length": 2})
    for number, priority in enumerate([5, 1, 3, 2]):
        channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(priority=priority))
    # The head is the message that would be delivered next, with the highest priority.
    assert drain(channel, name) == [b"3", b"1"]


def test_requeue_in_a_priority_queue(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-priority": 5})
    for number, priority in enumerate([1, 4]):
        channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(priority=priority))
    got = get(channel, name, auto_ack=False)
    assert got.body == b"1"
    channel.basic_nack(got.method.delivery_tag)
    channel.basic_publish("", name, b"2", pika.BasicProperties(priority=5))
    assert drain(channel, name) == [b"2", b"1", b"0"]


def test_delivery_limit(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 2})
    channel.basic_publish("", name, b"poison")
    attempts = 0
    while True:
        got = channel.basic_get(name)
        if got[0] is None:
            if attempts:
                break
            continue
        attempts += 1
        assert got[1].headers is None or got[1].headers.get("x-delivery-count", 0) == attempts - 1
        channel.basic_nack(got[0].delivery_tag, requeue=True)
        # The message is requeued before the next get is answered.
        channel.queue_declare(name, passive=True)
        time.sleep(0.05)
    assert attempts == 3
    channel.queue_delete(name)
