"""Every call of the sync API, against each server."""

from __future__ import annotations

import pytest

import leveret
from leveret import sync
from leveret.client.errors import (
    ChannelClosed,
    ConnectionClosed,
    ConsumerCancelled,
    InvalidMessage,
    Nacked,
    NotFound,
    PreconditionFailed,
    Returned,
    Timeout,
)
from tests.client.sync.conftest import Open


def drained(channel: sync.Channel, queue: str) -> list[bytes]:
    bodies = []
    while (message := channel.get(queue, no_ack=True)) is not None:
        bodies.append(message.body)
    return bodies


def test_publish_and_consume(connect: Open, name: str) -> None:
    with connect() as connection, connection.channel() as channel:
        queue = channel.declare_queue(name, exclusive=True)
        assert (queue.name, queue.message_count, queue.consumer_count) == (name, 0, 0)
        channel.publish(
            "grüße", name, persistent=True, headers={"n": [1, {"a": None}]}, correlation_id="c", expiration=60000
        )
        message = queue.get()
        assert message is not None
        assert message.text() == "grüße"
        assert message.properties == leveret.Properties(
            delivery_mode=2, headers={"n": [1, {"a": None}]}, correlation_id="c", expiration=60000
        )
        assert (message.exchange, message.routing_key, message.redelivered, message.message_count) == ("", name, False, 0)
        message.nack()
        again = queue.get()
        assert again is not None and again.redelivered
        again.ack()
        with pytest.raises(RuntimeError, match="already settled"):
            again.ack()
        assert queue.get() is None


def test_topology_calls(connect: Open, name: str) -> None:
    channel = connect().channel()
    exchange = channel.declare_exchange(f"{name}.x", "topic")
    second = channel.declare_exchange(f"{name}.y", "fanout")
    queue = channel.declare_queue(exclusive=True)
    queue.bind(exchange, "a.#")
    second.bind(exchange, "b.#")
    queue.bind(second)
    for key in ("a.1", "b.1", "c.1"):
        exchange.publish(key, key)
    assert drained(channel, queue.name) == [b"a.1", b"b.1"]
    queue.unbind(exchange, "a.#")
    second.unbind(exchange, "b.#")
    with pytest.raises(Returned):
        exchange.publish("a", "a.1", mandatory=True)
    channel.publish("x", queue.name)
    assert queue.purge() == 1
    channel.publish("y", queue.name)
    assert queue.delete() == 1
    second.delete()
    exchange.delete()
    with pytest.raises(NotFound) as caught:
        channel.declare_exchange(f"{name}.y", passive=True)
    assert (caught.value.reply_code, caught.value.method) == (404, "exchange.declare")


def test_error_closes_only_its_channel(connect: Open, name: str) -> None:
    connection = connect()
    first, second = connection.channel(), connection.channel()
    first.declare_queue(name, exclusive=True)
    with pytest.raises(PreconditionFailed):
        first.declare_queue(name, exclusive=True, arguments={"x-max-length": 1})
    assert not first.is_open
    with pytest.raises(PreconditionFailed):
        first.publish("x", name)
    second.publish("x", name)
    assert drained(second, name) == [b"x"]


def test_failed_publish_raises(connect: Open, name: str) -> None:
    channel = connect().channel()
    channel.declare_queue(name, exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.publish("1", name)
    with pytest.raises(Nacked) as nacked:
        channel.publish("2", name)
    assert [(message.routing_key, message.body) for message in nacked.value.messages] == [(name, b"2")]
    with pytest.raises(Returned) as returned:
        channel.publish("3", f"{name}.nowhere", mandatory=True)
    assert returned.value.reply_code == 312
    with pytest.raises(InvalidMessage, match="headers"):
        channel.publish("4", name, headers={"x": object()})
    with pytest.raises(TypeError):
        channel.publish("5", name, nonsense=1)
    assert drained(channel, name) == [b"1"]


def test_publisher_reports_failed_messages(connect: Open, name: str) -> None:
    channel = connect().channel()
    channel.declare_queue(name, exclusive=True)
    with channel.publisher(routing_key=name, window=10, mandatory=True, persistent=True) as publisher:
        for number in range(100):
            publisher.publish(str(number))
            assert publisher.unconfirmed <= 10
    assert drained(channel, name) == [str(number).encode() for number in range(100)]
    publisher = channel.publisher(routing_key=name, mandatory=True)
    publisher.publish("lost", f"{name}.nowhere")
    publisher.publish("lost too", f"{name}.nowhere")
    with pytest.raises(Returned) as caught:
        publisher.flush()
    assert [message.body for message in caught.value.messages] == [b"lost", b"lost too"]
    publisher.flush()


def test_consuming(connect: Open, name: str) -> None:
    channel = connect().channel()
    queue = channel.declare_queue(name, exclusive=True)
    with channel.publisher(routing_key=name) as publisher:
        for number in range(20):
            publisher.publish(str(number))
    bodies = []
    with queue.consume(prefetch=5) as consumer:
        assert consumer.tag
        for message in consumer:
            bodies.append(int(message.body))
            if message.body == b"7":
                break
            message.ack()
    # Taken messages are still unacked on the channel; untaken ones are requeued.
    channel.recover()
    assert sorted(map(int, drained(channel, name))) == list(range(7, 20))
    assert bodies == list(range(8))


def test_next_times_out(connect: Open, name: str) -> None:
    channel = connect().channel()
    consumer = channel.declare_queue(name, exclusive=True).consume()
    with pytest.raises(Timeout):
        consumer.next(timeout=0.05)
    channel.publish("x", name)
    assert consumer.next(timeout=60).body == b"x"


def test_consumer_of_a_deleted_queue(connect: Open, name: str) -> None:
    channel = connect().channel()
    consumer = channel.declare_queue(name).consume().start()
    channel.publish("last", name)
    assert consumer.next(timeout=60).body == b"last"
    channel.delete_queue(name)
    with pytest.raises(ConsumerCancelled) as caught:
        consumer.next(timeout=60)
    assert caught.value.consumer_tag == consumer.tag


def test_process_acks_or_rejects(connect: Open, name: str) -> None:
    channel = connect().channel()
    queue = channel.declare_queue(name, exclusive=True)
    for body in ("good", "bad", "again"):
        channel.publish(body, name)
    for requeue in (False, False, True):
        message = queue.get()
        assert message is not None
        try:
            with message.process(requeue=requeue):
                if message.body != b"good":
                    raise ValueError("no")
        except ValueError:
            pass
    assert drained(channel, name) == [b"again"]


def test_transactions(connect: Open, name: str) -> None:
    connection = connect()
    channel, other = connection.channel(transactional=True), connection.channel()
    channel.declare_queue(name, exclusive=True)
    with channel.transaction():
        channel.publish("1", name)
        channel.publish("2", name)
        assert other.get(name) is None
    with pytest.raises(ValueError), channel.transaction():
        channel.publish("3", name)
        message = channel.get(name)
        assert message is not None
        message.ack()
        raise ValueError("undo")
    channel.recover()
    assert drained(other, name) == [b"1", b"2"]
    with pytest.raises(RuntimeError, match="transactional=True"), other.transaction():
        pass


def test_settle_by_tag(connect: Open, name: str) -> None:
    channel = connect().channel()
    channel.declare_queue(name, exclusive=True)
    for number in range(4):
        channel.publish(str(number), name)
    tags = []
    for _ in range(4):
        message = channel.get(name)
        assert message is not None
        tags.append(message.delivery_tag)
    channel.ack(tags[1], multiple=True)
    channel.nack(tags[2])
    channel.reject(tags[3])
    assert drained(channel, name) == [b"2"]
    channel.ack(99)
    with pytest.raises(PreconditionFailed):
        channel.get(name)


def test_after_close(connect: Open, name: str) -> None:
    connection = connect()
    channel = connection.channel()
    channel.close()
    channel.close()
    with pytest.raises(ChannelClosed):
        channel.declare_queue(name)
    connection.close()
    connection.close()
    assert connection.is_closed and not connection.is_open
    connection.wait_closed(1)
    with pytest.raises(ConnectionClosed):
        connection.channel()


def test_large_and_empty_bodies(connect: Open, name: str) -> None:
    channel = connect().channel()
    channel.declare_queue(name, exclusive=True)
    large = bytes(range(256)) * 40_000
    channel.publish(large, name)
    channel.publish(b"", name)
    assert drained(channel, name) == [large, b""]
