"""queue.purge and queue.delete."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import Connect
from tests.support.peers.amqp091 import Basic, Channel, Queue


@pytest.mark.rule("0-9-1", "queue.purge.02")
def test_a_purge_keeps_unacknowledged_messages(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.qos(2)
    channel.consume(name, "c")
    for number in range(5):
        channel.publish(b"%d" % number, name)
    first, second = channel.deliveries(2)
    assert channel.call(Queue.Purge, Queue.PurgeOk, queue=name).message_count == 3
    channel.ack(first.tag)
    channel.quiet()
    channel.call(Basic.Cancel, Basic.CancelOk, consumer_tag="c")
    channel.reject(second.tag, requeue=True)
    # With compat.strict, never to the channel that rejected it.
    content = channel.peer.channel(2).get(name)
    assert content is not None
    assert (content.body, content.redelivered) == (b"1", True)
    assert channel.depth(name) == 0


@pytest.mark.rule("0-9-1", "queue.purge.response.purge-ok")
def test_a_purge_counts(channel: Channel, name: str) -> None:
    channel.queue(name)
    assert channel.call(Queue.Purge, Queue.PurgeOk, queue=name).message_count == 0
    for _ in range(7):
        channel.publish(b"x", name)
    assert channel.call(Queue.Purge, Queue.PurgeOk, queue=name).message_count == 7
    assert channel.get(name) is None
    channel.publish(b"later", name)
    assert channel.drain(name) == [b"later"]


@pytest.mark.rule("0-9-1", "queue.purge.queue.queue-known")
def test_purging_an_unnamed_queue_needs_a_declared_one(channel: Channel) -> None:
    channel.send(Queue.Purge, queue="")
    channel.expect_close(404, Queue.Purge)


@pytest.mark.rule("0-9-1", "queue.purge.queue.must-exist")
def test_purging_a_queue_that_does_not_exist(channel: Channel, name: str) -> None:
    channel.send(Queue.Purge, queue=name)
    channel.expect_close(404, Queue.Purge)


@pytest.mark.rule("0-9-1", "queue.delete.01")
@pytest.mark.rule("0-9-1", "queue.delete.text.pending-and-consumers")
@pytest.mark.mode("strict")
def test_pending_messages_of_a_deleted_queue_are_dead_lettered(channel: Channel, name: str) -> None:
    channel.call(Queue.Purge, Queue.PurgeOk, queue="amq.dead")
    channel.queue(name)
    for number in range(3):
        channel.publish(b"%d" % number, name, message_id=name)
    assert channel.call(Queue.Delete, Queue.DeleteOk, queue=name).message_count == 3
    assert channel.drain("amq.dead") == [b"0", b"1", b"2"]


@pytest.mark.rule("0-9-1", "queue.delete.01")
@pytest.mark.mode("rabbitmq")
@pytest.mark.rule("0-9-1", "queue.delete.text.pending-and-consumers")
def test_pending_messages_are_deleted_with_their_queue(channel: Channel, name: str) -> None:
    channel.queue(name + ".dead")
    channel.queue(name, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name + ".dead"})
    channel.publish(b"x", name)
    assert channel.call(Queue.Delete, Queue.DeleteOk, queue=name).message_count == 1
    channel.queue(name)
    assert channel.drain(name) == []
    assert channel.drain(name + ".dead") == []


@pytest.mark.rule("0-9-1", "queue.delete.queue.queue-known")
def test_deleting_an_unnamed_queue_needs_a_declared_one(channel: Channel) -> None:
    channel.send(Queue.Delete, queue="")
    channel.expect_close(404, Queue.Delete)


@pytest.mark.rule("0-9-1", "queue.delete.queue.must-exist")
@pytest.mark.mode("strict")
def test_deleting_a_missing_object_is_404(channel: Channel, name: str) -> None:
    channel.send(Queue.Delete, queue=name)
    channel.expect_close(404, Queue.Delete)


@pytest.mark.rule("0-9-1", "queue.delete.queue.must-exist")
@pytest.mark.mode("rabbitmq")
def test_deleting_a_missing_object_succeeds(channel: Channel, name: str) -> None:
    assert channel.call(Queue.Delete, Queue.DeleteOk, queue=name).message_count == 0


@pytest.mark.rule("0-9-1", "queue.delete.if-unused.in-use")
@pytest.mark.rule("0-9-1", "queue.delete.if-unused.text.only-unused")
@pytest.mark.rule("0-9-1", "queue.delete.if-unused.text.else-error")
def test_if_unused_keeps_a_queue_with_consumers(channel: Channel, other: Channel, name: str) -> None:
    channel.queue(name, exclusive=False)
    other.consume(name, "c")
    channel.send(Queue.Delete, queue=name, if_unused=True)
    channel.expect_close(406, Queue.Delete)
    channel = channel.reopen()
    channel.publish(b"still", name)
    assert other.delivery().body == b"still"
    other.call(Basic.Cancel, Basic.CancelOk, consumer_tag="c")
    channel.call(Queue.Delete, Queue.DeleteOk, queue=name, if_unused=True)
    assert not channel.exists(name)


@pytest.mark.rule("0-9-1", "queue.delete.if-empty.not-empty")
@pytest.mark.rule("0-9-1", "queue.delete.if-empty.text.only-empty")
def test_if_empty_keeps_a_queue_with_messages(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.bind(name, "amq.direct", name)
    channel.publish(b"1", name, "amq.direct")
    channel.publish(b"2", name)
    channel.send(Queue.Delete, queue=name, if_empty=True)
    channel.expect_close(406, Queue.Delete)
    channel = channel.reopen()
    assert channel.drain(name) == [b"1", b"2"]
    channel.call(Queue.Delete, Queue.DeleteOk, queue=name, if_empty=True)
    assert not channel.exists(name)


@pytest.mark.rule("0-9-1", "queue.delete.text.pending-and-consumers")
def test_deleting_a_queue_ends_its_consumers_and_bindings(connect: Connect, name: str) -> None:
    channel = connect().channel()
    told = connect(properties={"capabilities": {"consumer_cancel_notify": True}}).channel()
    channel.queue(name, exclusive=False)
    channel.bind(name, "amq.fanout")
    told.consume(name, "c")
    channel.call(Queue.Delete, Queue.DeleteOk, queue=name)
    assert told.expect(Basic.Cancel).consumer_tag == "c"
    channel.queue(name)
    channel.publish(b"x", "", "amq.fanout")
    assert channel.drain(name) == []
