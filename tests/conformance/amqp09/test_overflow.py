"""Full queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.amqp09 import kinds
from tests.conformance.amqp09.conftest import Connect
from tests.conformance.amqp09.test_consume import each
from tests.support.peers.amqp09 import Channel

Moded = Callable[[], Channel]
TRANSIENT = ("basic", "message")


def fill(channel: Channel, kind: str, queue: str, count: int, **fields: Any) -> None:
    for number in range(count):
        kinds.publish(channel, kind, b"%d" % number, queue, **fields)
    channel.quiet()


@each("CLASS.02", TRANSIENT)
@pytest.mark.mode("strict")
def test_a_limit_discards_no_persistent_message(moded: Moded, name: str, kind: str) -> None:
    channel = moded()
    channel.queue(name, durable=True, arguments={"x-max-length": 5})
    dead = channel.depth("amq.dead") if channel.exists("amq.dead") else 0
    fill(channel, kind, name, 12, delivery_mode=2)
    assert channel.depth(name) + channel.depth("amq.dead") - dead == 12
    channel.call("queue.delete", queue=name)


@each("CLASS.02", TRANSIENT)
@pytest.mark.mode("rabbitmq")
def test_a_limit_that_the_user_set_drops_persistent_messages_too(moded: Moded, name: str, kind: str) -> None:
    channel = moded()
    channel.queue(name, durable=True, arguments={"x-max-length": 5})
    fill(channel, kind, name, 12, delivery_mode=2)
    kinds.consume(channel, kind, name, "c", no_ack=True)
    assert kinds.receive_all(channel, kind, 5) == [b"7", b"8", b"9", b"10", b"11"]
    channel.quiet()
    channel.call("queue.delete", queue=name)


@each("CLASS.02", TRANSIENT)
def test_without_a_limit_every_message_stays(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name, durable=True)
    for number in range(1000):
        kinds.publish(channel, kind, b"%d" % number * 100, name, delivery_mode=2)
    kinds.consume(channel, kind, name, "c", no_ack=True)
    assert kinds.receive_all(channel, kind, 1000) == [b"%d" % number * 100 for number in range(1000)]
    channel.call("queue.delete", queue=name)


@each("CLASS.04", TRANSIENT)
def test_more_transient_bytes_than_fit_in_memory_are_delivered(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name)
    body = b"z" * 50_000
    for number in range(600):
        kinds.publish(channel, kind, b"%06d" % number + body, name, delivery_mode=1)
    kinds.consume(channel, kind, name, "c", no_ack=True)
    for number in range(600):
        assert kinds.receive(channel, kind).body == b"%06d" % number + body


@each("CLASS.05", TRANSIENT)
def test_a_limit_drops_the_oldest_transient_messages(channel: Channel, name: str, kind: str) -> None:
    channel.queue(name, arguments={"x-max-length": 5})
    fill(channel, kind, name, 12, delivery_mode=1)
    kinds.consume(channel, kind, name, "c", no_ack=True)
    assert kinds.receive_all(channel, kind, 5) == [b"7", b"8", b"9", b"10", b"11"]
    channel.quiet()


@each("CLASS.05", TRANSIENT)
def test_messages_dropped_by_a_limit_may_be_dead_lettered(channel: Channel, name: str, kind: str) -> None:
    dead = channel.queue(name + ".dead")
    channel.queue(name, arguments={"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    fill(channel, kind, name, 3, delivery_mode=1)
    kinds.consume(channel, kind, dead, "c", no_ack=True)
    assert kinds.receive_all(channel, kind, 2) == [b"0", b"1"]


@pytest.mark.rule("0-9", "file.02")
def test_files_are_not_discarded_and_their_publishers_are_asked_to_pause(
    connect: Connect, channel: Channel, name: str
) -> None:
    channel.queue(name, arguments={"x-max-length": 2})
    for number in range(4):
        channel.publish_file(b"%d" % number, name, identifier=f"{name}.{number}")
    assert channel.peer.pick(1, "channel.flow").active is False
    reader = connect().open()
    assert reader.depth(name) == 4
    reader.consume(name, kind="file")
    assert [file.body for file in reader.files(4)] == [b"0", b"1", b"2", b"3"]
    reader.ack(0, multiple=True, kind="file")
    assert channel.expect("channel.flow").active is True
    channel.publish_file(b"4", name, identifier=f"{name}.4")
    assert reader.file().body == b"4"


@pytest.mark.rule("0-9", "file.02")
@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_other_messages_do_not_displace_files(channel: Channel, name: str, overflow: str) -> None:
    channel.queue(name, arguments={"x-max-length": 2, "x-overflow": overflow})
    for number in range(2):
        channel.publish_file(b"%d" % number, name, identifier=f"{name}.{number}")
    for number in range(5):
        channel.publish(b"basic %d" % number, name)
    channel.quiet()
    channel.consume(name, kind="file")
    assert [file.body for file in channel.files(2)] == [b"0", b"1"]


@pytest.mark.rule("0-9", "stream.01")
def test_stream_messages_are_discarded_by_priority(channel: Channel, name: str) -> None:
    channel.queue(name, arguments={"x-max-length": 3})
    for number, priority in enumerate((9, 0, 9, 0, 9, 0, 4)):
        kinds.publish(channel, "stream", b"%d" % number, name, priority=priority)
    channel.quiet()
    assert channel.depth(name) == 3
    channel.consume(name, kind="stream")
    assert kinds.receive_all(channel, "stream", 3) == [b"0", b"2", b"4"]
