"""Class tx, and RabbitMQ's confirms beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.conftest import Connect
from tests.support.peers.amqp091 import Basic, Channel, Confirm, Peer, Queue, Tx


def select(channel: Channel) -> None:
    channel.call(Tx.Select, Tx.SelectOk)


def commit(channel: Channel) -> None:
    channel.call(Tx.Commit, Tx.CommitOk)


def rollback(channel: Channel) -> None:
    channel.call(Tx.Rollback, Tx.RollbackOk)


@pytest.mark.rule("0-9-1", "tx.commit.transacted")
@pytest.mark.rule("0-9-1", "tx.select.text.before-use")
def test_commit_needs_a_transacted_channel(channel: Channel) -> None:
    channel.send(Tx.Commit)
    channel.expect_close(406, Tx.Commit)


@pytest.mark.rule("0-9-1", "tx.rollback.transacted")
@pytest.mark.rule("0-9-1", "tx.select.text.before-use")
def test_rollback_needs_a_transacted_channel(channel: Channel) -> None:
    channel.send(Tx.Rollback)
    channel.expect_close(406, Tx.Rollback)


@pytest.mark.rule("0-9-1", "basic.publish.text.routed")
@pytest.mark.rule("0-9-1", "tx.text.atomic")
def test_publishes_appear_with_the_commit(channel: Channel, other: Channel, name: str) -> None:
    channel.queue(name, exclusive=False)
    select(channel)
    select(channel)  # twice is once
    for number in range(3):
        channel.publish(b"%d" % number, name)
    channel.quiet()
    assert other.depth(name) == 0
    commit(channel)
    assert other.drain(name) == [b"0", b"1", b"2"]
    commit(channel)
    assert other.drain(name) == []
    other.call(Queue.Delete, Queue.DeleteOk, queue=name)


@pytest.mark.rule("0-9-1", "tx.text.atomic")
def test_publishes_vanish_with_the_rollback(channel: Channel, name: str) -> None:
    channel.queue(name)
    select(channel)
    channel.publish(b"no", name)
    rollback(channel)
    channel.publish(b"yes", name)
    commit(channel)
    assert channel.drain(name) == [b"yes"]


@pytest.mark.rule("0-9-1", "tx.text.single-queue")
def test_acknowledgements_count_with_the_commit(peer: Peer, name: str) -> None:
    channel = peer.channel()
    channel.queue(name)
    for number in range(4):
        channel.publish(b"%d" % number, name)
    channel.consume(name, "c")
    first, second, third, _ = channel.deliveries(4)
    select(channel)
    channel.ack(first.tag)
    channel.reject(second.tag, requeue=False)
    commit(channel)
    channel.ack(third.tag)
    channel.close()
    # The third was not committed, the fourth not even acknowledged.
    contents = [peer.channel(2).get(name)]
    contents.append(Channel(peer, 2).get(name))
    assert [(content.body, content.redelivered) for content in contents if content] == [(b"2", True), (b"3", True)]
    assert Channel(peer, 2).get(name) is None


@pytest.mark.rule("0-9-1", "tx.rollback.text.no-redelivery")
def test_a_rollback_redelivers_no_message_and_tags_stay_valid(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.qos(2)
    channel.consume(name, "c")
    for number in range(3):
        channel.publish(b"%d" % number, name)
    first, second = channel.deliveries(2)
    select(channel)
    channel.ack(second.tag, multiple=True)
    rollback(channel)
    channel.quiet()
    channel.ack(first.tag)
    channel.ack(second.tag)
    commit(channel)
    assert channel.delivery().body == b"2"


@pytest.mark.rule("0-9-1", "tx.rollback.text.no-redelivery")
def test_after_a_rollback_recover_redelivers(peer: Peer, name: str) -> None:
    channel = peer.channel(1)
    channel.queue(name)
    select(channel)
    channel.consume(name, "c")
    peer.channel(2).publish(b"x", name)
    channel.ack(channel.delivery().tag)
    rollback(channel)
    channel.send(Basic.Recover, requeue=True)
    frames = [peer.read(1) for _ in range(4)]
    delivered = [frame for frame in frames if isinstance(frame, Basic.Deliver)]
    assert [frame.redelivered for frame in delivered] == [True]


@pytest.mark.rule("0-9-1", "tx.text.atomic")
def test_closing_a_channel_rolls_back(connect: Connect, name: str) -> None:
    watcher = connect().channel()
    watcher.queue(name, exclusive=False)
    for end in ("channel", "connection", "socket", "error"):
        peer = connect()
        channel = peer.channel()
        select(channel)
        channel.publish(b"lost", name)
        if end == "channel":
            channel.close()
        elif end == "connection":
            peer.close()
        elif end == "socket":
            peer.drop()
        else:
            channel.send(Queue.Declare, queue=name + ".none", passive=True)
            channel.expect_close(404)
    watcher.quiet()
    assert watcher.drain(name) == []
    watcher.call(Queue.Delete, Queue.DeleteOk, queue=name)


@pytest.mark.rule("0-9-1", "tx.not-multiple-queues")
def test_a_transaction_over_several_queues_is_atomic(channel: Channel, other: Channel, unique: Callable[[], str]) -> None:
    source, first, second = (channel.queue(unique(), exclusive=False) for _ in range(3))
    channel.publish(b"work", source)
    content = channel.get(source, no_ack=False)
    assert content is not None
    select(channel)
    for decision in (rollback, commit):
        channel.publish(b"to the first", first)
        channel.publish(b"to the second", second)
        channel.ack(content.tag)
        channel.quiet()
        assert [other.depth(queue) for queue in (first, second)] == [0, 0]
        decision(channel)
    assert [other.drain(queue) for queue in (first, second)] == [[b"to the first"], [b"to the second"]]
    channel.close()
    assert other.drain(source) == []
    for queue in (source, first, second):
        other.call(Queue.Delete, Queue.DeleteOk, queue=queue)


@pytest.mark.rule("0-9-1", "tx.not-immediate")
@pytest.mark.ahead_of_rabbitmq("immediate: 540")
def test_immediate_messages_of_a_transaction_are_returned_at_its_commit(channel: Channel, name: str) -> None:
    channel.queue(name)
    select(channel)
    channel.publish(b"no consumer", name, immediate=True)
    channel.quiet()
    channel.send(Tx.Commit)
    assert channel.expect_content(Basic.Return).method.reply_code == 313
    channel.expect(Tx.CommitOk)
    assert channel.depth(name) == 0


@pytest.mark.rule("0-9-1", "tx.not-mandatory")
def test_mandatory_messages_of_a_transaction_are_returned_at_its_commit(channel: Channel, name: str) -> None:
    select(channel)
    channel.publish(b"to nowhere", name, mandatory=True)
    channel.send(Tx.Commit)
    assert channel.expect_content(Basic.Return).method.reply_code == 312
    channel.expect(Tx.CommitOk)
    channel.publish(b"to nowhere", name, mandatory=True)
    rollback(channel)
    channel.quiet()


@pytest.mark.rule("0-9-1", "tx.select.text.before-use")
def test_confirms_and_transactions_exclude_each_other(peer: Peer) -> None:
    channel = peer.channel()
    select(channel)
    channel.send(Confirm.Select)
    channel.expect_close(406, Confirm.Select)
    channel = peer.channel()
    channel.confirm_select()
    channel.send(Tx.Select)
    channel.expect_close(406, Tx.Select)
