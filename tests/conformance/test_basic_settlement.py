"""Acknowledging, rejecting, recovering; which messages are redelivered, to which consumer, and how often."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pamqp.header import ContentHeader

from tests.conformance.conftest import Connect
from tests.support.peers.amqp091 import Basic, Channel, Peer, Queue, Tx

STRICT_LIMIT = 5


@pytest.mark.rule("0-9-1", "delivery-tag.channel-local")
def test_a_tag_is_unknown_on_another_channel(peer: Peer, name: str) -> None:
    first, second = peer.channel(1), peer.channel(2)
    first.queue(name)
    first.publish(b"x", name)
    first.consume(name, "c")
    content = first.delivery()
    second.ack(content.tag)
    second.expect_close(406, Basic.Ack)
    first.ack(content.tag)
    first.quiet()
    first.close()
    assert peer.channel(3).depth(name) == 0


@pytest.mark.rule("0-9-1", "basic.ack.multiple.exists")
@pytest.mark.parametrize("multiple", [False, True])
@pytest.mark.parametrize("tag", [2, 1 << 40, (1 << 63) - 1])
def test_an_unknown_tag_is_406(channel: Channel, name: str, tag: int, multiple: bool) -> None:
    channel.queue(name)
    channel.publish(b"x", name)
    channel.get(name, no_ack=False)
    channel.ack(tag, multiple=multiple)
    channel.expect_close(406, Basic.Ack)
    assert channel.reopen().drain(name) == [b"x"], "the channel's end gave it back"


@pytest.mark.rule("0-9-1", "basic.ack.multiple.exists")
@pytest.mark.parametrize("again", ["ack", "reject", "nack"])
def test_a_tag_is_settled_once(channel: Channel, name: str, again: str) -> None:
    channel.queue(name)
    for _ in range(2):
        channel.publish(b"x", name)
        channel.get(name, no_ack=False)
    channel.ack(1)
    kind = {"ack": Basic.Ack, "reject": Basic.Reject, "nack": Basic.Nack}[again]
    channel.send(kind, delivery_tag=1)
    channel.expect_close(406, kind)


@pytest.mark.rule("0-9-1", "basic.ack.multiple.exists")
def test_a_tag_without_acknowledgement_cannot_be_acknowledged(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.publish(b"x", name)
    content = channel.get(name, no_ack=True)
    assert content is not None
    channel.ack(content.tag)
    channel.expect_close(406, Basic.Ack)


@pytest.mark.rule("0-9-1", "basic.ack.multiple.exists")
def test_on_a_transacted_channel_it_is_checked_at_once(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.call(Tx.Select, Tx.SelectOk)
    channel.ack(7)
    channel.expect_close(406, Basic.Ack)


@pytest.mark.rule("0-9-1", "basic.ack.multiple.exists")
def test_on_a_transacted_channel_a_second_ack_is_checked_at_once(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.publish(b"x", name)
    content = channel.get(name, no_ack=False)
    assert content is not None
    channel.call(Tx.Select, Tx.SelectOk)
    channel.ack(content.tag)
    channel.ack(content.tag)
    channel.expect_close(406, Basic.Ack)
    assert channel.reopen().drain(name) == [b"x"], "neither was committed"


@pytest.mark.rule("0-9-1", "basic.ack.multiple.exists")
@pytest.mark.rule("0-9-1", "basic.ack.multiple.text.all")
def test_zero_with_multiple_means_all_even_if_there_are_none(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.ack(0, multiple=True)
    for _ in range(5):
        channel.publish(b"x", name)
        channel.get(name, no_ack=False)
    channel.ack(0, multiple=True)
    channel.ack(0, multiple=True)
    channel.quiet()
    channel.close()
    assert channel.reopen().drain(name) == []


@pytest.mark.rule("0-9-1", "basic.ack.multiple.exists")
@pytest.mark.rule("0-9-1", "basic.ack.multiple.text.up-to")
def test_multiple_means_up_to_and_including(channel: Channel, name: str) -> None:
    channel.queue(name)
    for number in range(5):
        channel.publish(b"%d" % number, name)
        channel.get(name, no_ack=False)
    channel.ack(1)
    channel.ack(3, multiple=True)
    channel.close()
    assert channel.reopen().drain(name) == [b"3", b"4"]


@pytest.mark.rule("0-9-1", "basic.reject.01")
def test_a_reject_is_processed_while_content_is_being_sent(connect: Connect, name: str) -> None:
    size = 30_000_000
    watcher = connect().channel()
    watcher.queue(name + ".dead", exclusive=False)
    watcher.queue(
        name, exclusive=False, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name + ".dead"}
    )
    watcher.publish(b"small", name)
    watcher.publish(b"x" * size, name)
    watcher.quiet()
    peer = connect(receive_buffer=65536)
    slow = peer.channel()
    slow.consume(name, "c")
    small = slow.delivery()
    slow.expect(Basic.Deliver)
    assert isinstance(peer.read(1), ContentHeader)
    # Much more is sent than the socket buffers hold.
    slow.reject(small.tag, requeue=False)
    watcher.consume(name + ".dead", "d", no_ack=True)
    assert watcher.delivery().body == b"small"
    missing = size
    while missing:
        missing -= len(peer.read(1).value)
    for queue in (name, name + ".dead"):
        watcher.call(Queue.Delete, Queue.DeleteOk, queue=queue)


@pytest.mark.rule("0-9-1", "basic.reject.02")
@pytest.mark.ahead_of_rabbitmq("does not prefer other consumers")
def test_a_requeued_message_is_delivered_to_another_consumer(channel: Channel, other: Channel, name: str) -> None:
    channel.queue(name, exclusive=False)
    channel.qos(1)
    channel.consume(name, "c")
    channel.publish(b"x", name)
    content = channel.delivery()
    assert not content.redelivered
    other.consume(name, "o")
    channel.reject(content.tag, requeue=True)
    again = other.delivery()
    assert (again.body, again.redelivered) == (b"x", True)
    other.ack(again.tag)
    other.call(Queue.Delete, Queue.DeleteOk, queue=name)


@pytest.mark.rule("0-9-1", "basic.reject.02")
@pytest.mark.rule("0-9-1", "basic.reject.requeue.text.requeued")
def test_a_requeued_message_returns_to_its_place(peer: Peer, name: str) -> None:
    channel = peer.channel()
    channel.queue(name)
    for number in range(4):
        channel.publish(b"%d" % number, name)
    contents = [channel.get(name, no_ack=False) for _ in range(3)]
    for content in (contents[1], contents[0], contents[2]):
        assert content is not None
        channel.reject(content.tag, requeue=True)
    channel.quiet()
    assert peer.channel(2).drain(name) == [b"0", b"1", b"2", b"3"]


@pytest.mark.rule("0-9-1", "basic.reject.requeue.text.discarded")
def test_without_requeue_a_message_is_discarded_or_dead_lettered(channel: Channel, name: str) -> None:
    dead = channel.queue(name + ".dead")
    channel.queue(name, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    channel.queue(name + ".plain")
    for queue in (name, name + ".plain"):
        channel.publish(b"x", queue)
        content = channel.get(queue, no_ack=False)
        assert content is not None
        channel.reject(content.tag, requeue=False)
    channel.quiet()
    assert channel.drain(name) == channel.drain(name + ".plain") == []
    letter = channel.get(dead)
    assert letter is not None
    assert letter.properties.headers["x-death"][0]["reason"] == "rejected"
    assert letter.properties.headers["x-death"][0]["queue"] == name


@pytest.mark.rule("0-9-1", "basic.reject.requeue.01")
@pytest.mark.mode("strict")
def test_a_requeued_message_is_not_redelivered_to_the_same_channel(peer: Peer, connect: Connect, name: str) -> None:
    channel, sibling = peer.channel(1), peer.channel(2)
    channel.queue(name, exclusive=False)
    channel.consume(name, "c")
    channel.publish(b"unwanted", name)
    content = channel.delivery()
    channel.reject(content.tag, requeue=True)
    channel.quiet()
    # It blocks no later message.
    channel.publish(b"next", name)
    following = channel.delivery()
    assert following.body == b"next"
    channel.ack(following.tag)
    # A new consumer on the channel does not get it either, another channel does.
    channel.consume(name, "again")
    channel.quiet()
    assert channel.depth(name) == 1
    sibling.consume(name, "s")
    again = sibling.delivery()
    assert (again.body, again.redelivered) == (b"unwanted", True)
    sibling.ack(again.tag)
    sibling.call(Queue.Delete, Queue.DeleteOk, queue=name)


@pytest.mark.rule("0-9-1", "basic.reject.requeue.01")
@pytest.mark.mode("strict")
def test_the_message_is_available_again_when_the_channel_is_closed(peer: Peer, name: str) -> None:
    channel, sibling = peer.channel(1), peer.channel(2)
    channel.queue(name)
    channel.consume(name, "c")
    channel.publish(b"unwanted", name)
    channel.reject(channel.delivery().tag, requeue=True)
    channel.quiet()
    channel.close()
    channel = channel.reopen()
    assert sibling.depth(name) == 1
    channel.consume(name, "c")
    assert channel.delivery().redelivered


@pytest.mark.rule("0-9-1", "basic.reject.requeue.01")
@pytest.mark.mode("rabbitmq")
def test_a_requeued_message_may_return_to_the_only_consumer(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.consume(name, "c")
    channel.publish(b"x", name)
    for attempt in range(20):
        content = channel.delivery()
        assert content.redelivered is (attempt > 0)
        channel.reject(content.tag, requeue=True)
    channel.ack(channel.delivery().tag)


@pytest.mark.rule("0-9-1", "basic.deliver.01")
@pytest.mark.mode("strict")
def test_after_some_failures_a_message_is_dead_lettered(connect: Connect, name: str) -> None:
    probe = connect().channel()
    probe.call(Queue.Purge, Queue.PurgeOk, queue="amq.dead")
    probe.queue(name, exclusive=False)
    probe.publish(b"poison", name, "", message_id=name)
    deliveries = 0
    while True:
        # A new client each time: the message is not redelivered to the old one.
        peer = connect()
        channel = peer.channel()
        content = channel.get(name, no_ack=False)
        if content is None:
            break
        deliveries += 1
        assert deliveries <= STRICT_LIMIT + 1
        assert content.redelivered is (deliveries > 1)
        channel.reject(content.tag, requeue=True)
        channel.quiet()
        peer.close()
    assert deliveries == STRICT_LIMIT + 1
    letter = probe.get("amq.dead")
    assert letter is not None
    assert letter.properties.message_id == name
    assert letter.properties.headers["x-death"][0]["reason"] == "delivery_limit"
    probe.call(Queue.Delete, Queue.DeleteOk, queue=name)


@pytest.mark.rule("0-9-1", "basic.deliver.01")
@pytest.mark.mode("rabbitmq")
def test_without_a_limit_a_message_is_redelivered_indefinitely(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.publish(b"x", name)
    for _ in range(50):
        content = channel.get(name, no_ack=False)
        assert content is not None
        channel.reject(content.tag, requeue=True)
    assert channel.depth(name) == 1


@pytest.mark.rule("0-9-1", "basic.deliver.01")
@pytest.mark.mode("rabbitmq")
@pytest.mark.ahead_of_rabbitmq("classic queues have no delivery limit")
@pytest.mark.parametrize("limit", [0, 3])
def test_with_a_limit_a_message_is_dead_lettered_after_it(channel: Channel, name: str, limit: int) -> None:
    dead = channel.queue(name + ".dead")
    channel.queue(
        name, arguments={"x-delivery-limit": limit, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    )
    channel.consume(name, "c")
    channel.publish(b"x", name)
    for attempt in range(limit + 1):
        content = channel.delivery()
        assert content.redelivered is (attempt > 0)
        channel.reject(content.tag, requeue=True)
    channel.quiet()
    letter = channel.get(dead)
    assert letter is not None
    assert letter.properties.headers["x-death"][0]["reason"] == "delivery_limit"


@pytest.mark.rule("0-9-1", "basic.deliver.01")
@pytest.mark.mode("rabbitmq")
def test_a_quorum_queue_has_a_limit_of_twenty(channel: Channel, name: str) -> None:
    channel.queue(name, exclusive=False, durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 20})
    channel.publish(b"x", name, delivery_mode=2)
    channel.consume(name, "c")
    for _ in range(21):
        channel.nack(channel.delivery().tag, requeue=True)
    channel.quiet()
    assert channel.call(Queue.Delete, Queue.DeleteOk, queue=name).message_count == 0


@pytest.mark.rule("0-9-1", "basic.recover.01")
@pytest.mark.rule("0-9-1", "basic.recover.requeue.text.requeued")
def test_recover_with_requeue_sets_the_redelivered_flag(channel: Channel, other: Channel, name: str) -> None:
    channel.queue(name, exclusive=False)
    for number in range(3):
        channel.publish(b"%d" % number, name)
    channel.consume(name, "c")
    tags = [content.tag for content in channel.deliveries(3)]
    channel.call(Basic.Cancel, Basic.CancelOk, consumer_tag="c")
    other.consume(name, "o")
    channel.call(Basic.Recover, Basic.RecoverOk, requeue=True)
    contents = other.deliveries(3)
    assert [(content.body, content.redelivered) for content in contents] == [(b"%d" % number, True) for number in range(3)]
    channel.ack(tags[0])  # no longer ours
    channel.expect_close(406, Basic.Ack)
    other.call(Queue.Delete, Queue.DeleteOk, queue=name)


@pytest.mark.rule("0-9-1", "basic.recover.01")
@pytest.mark.rule("0-9-1", "basic.recover.requeue.text.same-recipient")
@pytest.mark.rule("0-9-1", "basic.recover.text.any-number")
@pytest.mark.ahead_of_rabbitmq("540, not implemented")
def test_recover_without_requeue_redelivers_to_the_same_consumers(channel: Channel, other: Channel, name: str) -> None:
    channel.queue(name, exclusive=False)
    channel.consume(name, "a")
    channel.consume(name, "b")
    for number in range(4):
        channel.publish(b"%d" % number, name)
    before = channel.deliveries(4)
    other.consume(name, "o")
    channel.ack(before[0].tag)
    channel.send(Basic.Recover, requeue=False)
    frames = [channel.peer.read(1) for _ in range(10)]
    assert sum(isinstance(frame, Basic.RecoverOk) for frame in frames) == 1
    again = [frame for frame in frames if isinstance(frame, Basic.Deliver)]
    assert [frame.redelivered for frame in again] == [True] * 3
    assert [frame.consumer_tag for frame in again] == [content.method.consumer_tag for content in before[1:]]
    bodies = [frame.value for frame in frames if hasattr(frame, "value")]
    assert bodies == [b"1", b"2", b"3"]
    assert min(int(frame.delivery_tag or 0) for frame in again) > before[-1].tag
    other.quiet()
    channel.ack(0, multiple=True)
    channel.quiet()
    channel.call(Queue.Delete, Queue.DeleteOk, queue=name)


@pytest.mark.rule("0-9-1", "basic.recover.01")
@pytest.mark.rule("0-9-1", "basic.recover.text.any-number")
@pytest.mark.parametrize("requeue", [True, pytest.param(False, marks=pytest.mark.ahead_of_rabbitmq("540"))])
def test_recover_with_nothing_to_recover(channel: Channel, requeue: bool) -> None:
    channel.call(Basic.Recover, Basic.RecoverOk, requeue=requeue)


@pytest.mark.rule("0-9-1", "basic.recover-async.01")
@pytest.mark.mode("rabbitmq")
def test_recover_async_sets_the_redelivered_flag(channel: Channel, name: str) -> None:
    channel.queue(name)
    for number in range(3):
        channel.publish(b"%d" % number, name)
    channel.consume(name, "c")
    channel.deliveries(3)
    channel.send(Basic.RecoverAsync, requeue=True)
    assert [(content.body, content.redelivered) for content in channel.deliveries(3)] == [
        (b"%d" % number, True) for number in range(3)
    ]


@pytest.mark.rule("0-9-1", "basic.recover-async.01")
@pytest.mark.rule("0-9-1", "basic.recover-async.requeue.text.same-recipient")
@pytest.mark.rule("0-9-1", "basic.recover-async.text.any-number")
@pytest.mark.ahead_of_rabbitmq("540, not implemented")
def test_recover_async_without_requeue_sets_it_too(channel: Channel, name: str) -> None:
    channel.queue(name)
    channel.publish(b"x", name)
    channel.consume(name, "c")
    channel.delivery()
    channel.send(Basic.RecoverAsync, requeue=False)
    content = channel.delivery()
    assert (content.body, content.redelivered) == (b"x", True)
    channel.quiet()


# Full queues


@pytest.mark.rule("0-9-1", "basic.05")
def test_a_limit_drops_the_oldest_messages(channel: Channel, name: str) -> None:
    channel.queue(name, arguments={"x-max-length": 5, "x-overflow": "drop-head"})
    for number in range(12):
        channel.publish(b"%d" % number, name, delivery_mode=1)
    assert channel.drain(name) == [b"7", b"8", b"9", b"10", b"11"]


@pytest.mark.rule("0-9-1", "basic.05")
def test_a_limit_drops_the_head(channel: Channel, name: str) -> None:
    channel.queue(name, arguments={"x-max-length": 4, "x-max-priority": 9})
    for number, priority in enumerate((9, 1, 9, 1, 5, 9)):
        channel.publish(b"%d" % number, name, priority=priority)
    assert channel.drain(name) == [b"5", b"4", b"1", b"3"]


@pytest.mark.rule("0-9-1", "basic.02")
@pytest.mark.mode("strict")
def test_a_limit_discards_no_persistent_message(channel: Channel, name: str) -> None:
    channel.call(Queue.Purge, Queue.PurgeOk, queue="amq.dead")
    channel.queue(name, exclusive=False, durable=True, arguments={"x-max-length": 5})
    channel.confirm_select()
    for number in range(12):
        channel.publish(b"%d" % number, name, delivery_mode=2)
    accepted: set[bytes] = set()
    highest = 0
    while highest < 12:
        answer = channel.peer.read(1)
        tags = range(highest + 1, answer.delivery_tag + 1) if answer.multiple else [answer.delivery_tag]
        highest = max(highest, answer.delivery_tag)
        if isinstance(answer, Basic.Ack):
            accepted.update(b"%d" % (tag - 1) for tag in tags)
    channel.quiet()
    assert accepted <= {*channel.drain(name), *channel.drain("amq.dead")}
    channel.call(Queue.Delete, Queue.DeleteOk, queue=name)


@pytest.mark.rule("0-9-1", "basic.02")
@pytest.mark.mode("rabbitmq")
def test_a_limit_that_the_user_set_drops_persistent_messages_too(channel: Channel, name: str) -> None:
    channel.queue(name, exclusive=False, durable=True, arguments={"x-max-length": 5})
    for number in range(12):
        channel.publish(b"%d" % number, name, delivery_mode=2)
    assert channel.drain(name) == [b"7", b"8", b"9", b"10", b"11"]
    channel.call(Queue.Delete, Queue.DeleteOk, queue=name)


@pytest.mark.rule("0-9-1", "basic.02")
def test_without_a_limit_every_message_stays(channel: Channel, name: str, unique: Callable[[], str]) -> None:
    queue = channel.queue(unique(), exclusive=False, durable=True)
    channel.confirm_select()
    for number in range(2000):
        channel.publish(b"%d" % number * 100, queue, delivery_mode=2)
    channel.publish(b"end", queue, delivery_mode=2)
    acked = 0
    while acked < 2001:
        answer = channel.expect(Basic.Ack)
        acked = max(acked, int(answer.delivery_tag or 0))
    channel.consume(queue, "c", no_ack=True)
    bodies = [content.body for content in channel.deliveries(2001)]
    assert bodies == [*(b"%d" % number * 100 for number in range(2000)), b"end"]
    channel.call(Queue.Delete, Queue.DeleteOk, queue=queue)


@pytest.mark.rule("0-9-1", "basic.04")
def test_more_transient_bytes_than_fit_in_memory_are_delivered(connect: Connect, name: str) -> None:
    channel = connect().channel()
    channel.queue(name)
    body = b"z" * 50_000
    for number in range(600):
        channel.publish(b"%06d" % number + body, name, delivery_mode=1)
    channel.consume(name, "c", no_ack=True)
    for number in range(600):
        assert channel.delivery().body == b"%06d" % number + body
