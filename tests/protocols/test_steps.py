"""Large methods and the end of a large connection run in steps, without changing the order."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from leveret.broker.jobs import STEP_WORK
from leveret.broker.queues.queue import Queue
from leveret.protocols.amqp091.channel.channel import MAX_SETTLED_AT_ONCE
from leveret.wire.amqp0.commands import Method
from tests.protocols.amqp09.support import Client as Client09
from tests.protocols.support import Channel, Client, Site, bytes_of
from tests.support.queues import classic

MANY = 5000
CLOSE = {"reply_code": 200, "reply_text": "", "class_id": 0, "method_id": 0}


class Probe:
    """An object in a queue that shows when the queue is freed."""


@pytest.fixture
def site() -> Site:
    return Site()


def queue_of(site: Site) -> Queue:
    return site.broker.vhosts["/"].queues["q"]


def holding(site: Site, count: int = MANY) -> Channel:
    """Return a channel that has all messages of a queue unacked."""
    publisher = site.channel()
    publisher.declare("q")
    for number in range(count):
        publisher.publish("q", b"%d" % number)
    publisher.run()
    channel = site.channel()
    channel.consume("q", tag="c")
    assert len(channel.delivered()) == count
    return channel


def bodies(queue: Queue) -> list[bytes]:
    return [bytes_of(entry.message.body) for entry in classic(queue).ready.backlog.head]


def test_a_large_acknowledgement_runs_in_steps_and_later_methods_wait(site: Site) -> None:
    channel = holding(site)
    queue = queue_of(site)
    channel.ack(MANY - 1, multiple=True)
    channel.send("queue.declare", queue="after")
    channel.client.flush()
    assert MANY - STEP_WORK <= queue.unacked < MANY
    assert "after" not in site.broker.vhosts["/"].queues
    channel.run()
    assert queue.unacked == 1 and channel.client.take("queue.declare-ok", channel.number) is not None
    channel.ack(MANY, multiple=False)
    channel.run()
    assert queue.unacked == 0


def test_an_unknown_tag_is_still_refused(site: Site) -> None:
    channel = holding(site)
    channel.ack(MANY + 1, multiple=True)
    channel.run()
    assert channel.client.refusal()[0] == 406
    assert bodies(queue_of(site)) == [b"%d" % number for number in range(MANY)]


@pytest.mark.parametrize("how", ["nack", "recover", "close", "drop"])
def test_messages_requeued_in_steps_are_delivered_in_order(site: Site, how: str) -> None:
    channel = holding(site)
    queue = queue_of(site)
    other = site.channel()
    other.qos(5)
    if how == "nack":
        channel.call("basic.cancel", "basic.cancel-ok", consumer_tag="c")
        other.consume("q")
        channel.nack(0, multiple=True)
        channel.client.flush()
    elif how == "recover":
        channel.call("basic.cancel", "basic.cancel-ok", consumer_tag="c")
        other.consume("q")
        channel.send("basic.recover", requeue=True)
        channel.client.flush()
    else:
        other.consume("q")
        if how == "close":
            channel.send("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)
            channel.client.flush()
        else:
            channel.client.peer.closed = True
            channel.client.session.connection_lost()
    assert classic(queue).dispatcher.frozen and 0 < queue.ready_count < MANY
    site.broker.end_turn()
    assert not other.deliveries() or not classic(queue).dispatcher.frozen
    channel.run()
    other.run()
    assert not classic(queue).dispatcher.frozen and queue.ready_count == MANY - 5
    first = list(other.client.session.channels[other.number].unacked.entries.values())
    assert [bytes_of(entry.message.body) for entry in first] == [b"%d" % number for number in range(5)]
    assert bodies(queue) == [b"%d" % number for number in range(5, MANY)]


def test_an_acknowledgement_counts_even_if_the_connection_ends_right_after_it(site: Site) -> None:
    channel = holding(site)
    channel.ack(0, multiple=True)
    channel.client.flush()
    channel.client.drop()
    assert (queue_of(site).ready_count, queue_of(site).unacked) == (0, 0)


def test_a_connection_with_many_channels_and_queues_ends_in_steps(site: Site) -> None:
    client = site.connect()
    channel = client.channel()
    for number in range(600):
        channel.send("queue.declare", queue=f"own{number}", exclusive=True, no_wait=True)
    channel.run()
    client.peer.closed = True
    client.session.connection_lost()
    left = len(site.broker.vhosts["/"].queues)
    assert 0 < left < 600
    site.run()
    assert not site.broker.vhosts["/"].queues and not site.broker.vhosts["/"].exclusive


@pytest.mark.parametrize("how", ["close", "drop"])
def test_commands_after_a_stalled_reply_end_with_their_connection(site: Site, how: str) -> None:
    count = MAX_SETTLED_AT_ONCE + 100
    holding(site, 2 * count).client.drop()
    client = site.connect()
    channels = client.channel(), client.channel()
    for channel in channels:  # the first one takes a step to close
        channel.qos(count)
        channel.consume("q")
        assert len(channel.delivered()) == count
    channel.declare("other")
    channel.publish("other", b"before")
    channel.ack(0, multiple=True)
    client.flush()
    channel.send("queue.declare", queue="after")
    channel.publish("other", b"after")
    client.flush()
    assert client.session.channels[channel.number].stalled
    if how == "close":
        client.engine.send(0, "connection.close", CLOSE)
        client.flush()
    else:
        client.peer.closed = True
        client.session.connection_lost()
    site.run()
    assert "after" not in site.vhost.queues
    assert bodies(site.vhost.queues["other"]) == [b"before"]
    assert (queue_of(site).ready_count, queue_of(site).unacked) == (count, 0)


def test_channel_close_is_answered_after_the_consumers_are_removed(site: Site) -> None:
    publisher = site.channel()
    publisher.declare("q")
    for _ in range(MANY):
        publisher.publish("q")
    publisher.run()
    channel = site.channel()
    channel.consume("q", exclusive=True)
    channel.run()
    channel.send("channel.close", **CLOSE)
    channel.client.flush()
    client = channel.client
    while client.take("channel.close-ok", channel.number) is None:
        assert queue_of(site).consumers
        if site.posted:
            site.posted.pop(0)()
        site.broker.end_turn()
        client._read()
    assert not queue_of(site).consumers and not queue_of(site).unacked
    site.channel().consume("q", exclusive=True)


def own_queues(site: Site, count: int) -> Channel:
    """A channel whose connection has exclusive queues `own0`, `own1`, ..."""
    channel = site.channel()
    for number in range(count):
        channel.send("queue.declare", queue=f"own{number}", exclusive=True, no_wait=True)
    channel.run()
    return channel


def test_connection_close_is_answered_when_exclusive_queues_are_deleted(site: Site) -> None:
    channel = own_queues(site, 600)
    client = channel.client
    client.engine.send(0, "connection.close", CLOSE)
    client.flush()
    while client.take("connection.close-ok") is None:
        assert site.vhost.queues and not client.peer.closed
        if site.posted:
            site.posted.pop(0)()
        site.broker.end_turn()
        client._read()
    assert not site.vhost.queues and not site.vhost.exclusive and client.peer.closed


@pytest.mark.parametrize("kind", [Client, Client09])
def test_exclusive_queues_can_be_declared_again_right_after_a_lost_socket(site: Site, kind: type[Client]) -> None:
    channel = own_queues(site, 600)
    again = kind(site)
    again.open()
    other = again.channel()
    channel.client.peer.closed = True
    channel.client.session.connection_lost()
    assert site.vhost.queues["own599"].lifetime.exclusive_owner is channel.client.session
    other.send("queue.declare", queue="own599", exclusive=True)
    again.flush()
    assert site.vhost.queues["own599"].lifetime.exclusive_owner is again.session
    site.run()
    assert list(site.vhost.queues) == ["own599"] and not site.vhost.departed
    assert not again.refusal()[0]


def test_an_exchange_is_unused_when_its_queue_was_deleted(site: Site) -> None:
    holding(site).client.drop()
    other = site.channel()
    other.call("exchange.declare", "exchange.declare-ok", exchange="x", type="direct")
    other.declare("bound")
    other.call("queue.bind", "queue.bind-ok", queue="bound", exchange="x", routing_key="k")
    other.send("queue.delete", queue="q", no_wait=True)  # its messages delay the removal of the binding
    other.send("queue.delete", queue="bound", no_wait=True)
    other.send("exchange.delete", exchange="x", if_unused=True, no_wait=True)
    other.client.flush()
    while "x" in site.vhost.exchanges:
        assert step(site)
    assert site.broker.jobs.removals.pending
    other.run()
    assert not other.client.refusal()[0]


def step(site: Site) -> bool:
    """One pass of the event loop; False if there is nothing left to do."""
    site.broker.end_turn()
    if not site.posted:
        return False
    site.posted.pop(0)()
    return True


@pytest.mark.parametrize("requeue", [False, True])
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_recover_in_steps_keeps_the_window_of_the_channel(site: Site, requeue: bool, cancelled: bool) -> None:
    publisher = site.channel()
    publisher.declare("q")
    publisher.declare("r")
    for _ in range(MANY):
        publisher.publish("q")
    publisher.run()
    channel = site.channel()
    channel.qos(MANY, everywhere=True)
    channel.consume("q", tag="c")
    assert len(channel.delivered()) == MANY
    if cancelled:
        channel.call("basic.cancel", "basic.cancel-ok", consumer_tag="c")
    channel.consume("r")
    queues = site.vhost.queues
    channel.send("basic.recover", requeue=requeue)
    channel.client.flush()
    assert channel.client.session.channels[channel.number].stalled
    for _ in range(MANY):
        publisher.publish("r")
    publisher.client.flush()
    while step(site):
        assert queues["q"].unacked + queues["r"].unacked <= MANY
    channel.run()
    session = channel.client.session.channels[channel.number]
    assert not session.stalled and len(session.unacked) == queues["q"].unacked + queues["r"].unacked <= MANY


def test_messages_that_recover_cannot_redeliver_are_requeued_in_order(site: Site) -> None:
    channel = holding(site)
    channel.call("basic.cancel", "basic.cancel-ok", consumer_tag="c")
    other = site.channel()
    other.qos(5)
    other.consume("q")
    channel.send("basic.recover", requeue=False)
    channel.client.flush()
    while step(site):
        pass
    held = other.client.session.channels[other.number].unacked.entries
    assert [bytes_of(entry.message.body) for entry in held.values()] == [b"%d" % number for number in range(5)]
    assert bodies(queue_of(site)) == [b"%d" % number for number in range(5, MANY)]


@pytest.mark.parametrize("kind", [Client, Client09])
@pytest.mark.parametrize("count", [10, 2 * MANY])
def test_own_consumers_are_cancelled_after_the_delete_ok(site: Site, kind: type[Client], count: int) -> None:
    client = kind(site)
    client.open()
    channel, deleting = client.channel(), client.channel()
    channel.declare("q")
    channel.declare("other")
    for _ in range(count):
        channel.publish("q")
    channel.run()
    for tag in ("a", "b"):
        channel.qos(1)
        channel.consume("q", tag=tag)
    channel.consume("other", tag="c")
    channel.deliveries()
    deleting.send("queue.delete", queue="q")
    client.flush()
    site.channel().call("queue.delete", "queue.delete-ok", queue="other")
    client.run()
    told = [item.name for item in client.received if isinstance(item, Method)]
    if kind is Client09:
        told = [name for name in told if name != "basic.cancel"]
        assert told == ["queue.delete-ok"]
        return
    tags = [
        item.arguments["consumer_tag"]
        for item in client.received
        if isinstance(item, Method) and item.name == "basic.cancel"
    ]
    assert sorted(tags) == ["a", "b", "c"]
    assert told.index("queue.delete-ok") < min(
        index
        for index, item in enumerate(item for item in client.received if isinstance(item, Method))
        if item.name == "basic.cancel" and item.arguments["consumer_tag"] in "ab"
    )
    assert not client.session.pending_cancels


def test_own_consumers_are_cancelled_even_if_the_deleting_channel_closes(site: Site) -> None:
    client = site.connect()
    channel, deleting = client.channel(), client.channel()
    channel.declare("q")
    for _ in range(2 * MANY):
        channel.publish("q")
    channel.qos(1)
    channel.consume("q", tag="a")
    channel.deliveries()
    deleting.send("queue.delete", queue="q")
    client.flush()
    session = client.session.channels[deleting.number]
    client.session.refuse(session, 406, "closed by the broker", 0, 0)
    client.run()
    told = client.take("basic.cancel", channel.number)
    assert told is not None and told.arguments["consumer_tag"] == "a"


def dying(site: Site, how: str, exclusive: bool) -> None:
    """A closing connection whose second channel has a consumer of the queue `wanted`."""
    count = 2 * STEP_WORK
    client = holding(site, count).client
    second = client.channel()
    second.declare("wanted")
    second.consume("wanted", exclusive=exclusive)
    if how == "close":
        client.engine.send(0, "connection.close", CLOSE)
        client.flush()
    else:
        client.peer.closed = True
        client.session.connection_lost()
    assert site.vhost.queues["wanted"].consumers and queue_of(site).unacked


@pytest.mark.parametrize("kind", [Client, Client09])
@pytest.mark.parametrize("how", ["close", "drop"])
@pytest.mark.parametrize("before", [False, True])
def test_the_right_of_an_exclusive_consumer_ends_at_once_with_its_connection(
    site: Site, kind: type[Client], how: str, before: bool
) -> None:
    again = kind(site)
    again.open()
    channel = again.channel()
    dying(site, how, before)
    channel.send("basic.consume", queue="wanted", consumer_tag="new", exclusive=not before)
    again.flush()
    queue = site.vhost.queues["wanted"]
    assert len(queue.consumers) == 2 and not again.session.channels[channel.number].closing
    site.run()
    assert [consumer.tag for consumer in queue.consumers] == ["new"]
    assert (queue.consumers.exclusive_consumer is not None) is not before
    channel.publish("wanted", b"m")
    assert channel.delivered() == [b"m"]


@pytest.mark.parametrize("how", ["close", "drop"])
def test_an_exclusive_consumer_follows_an_exclusive_one_at_once(site: Site, how: str) -> None:
    channel = site.channel()
    dying(site, how, True)
    channel.send("basic.consume", queue="wanted", consumer_tag="new", exclusive=True)
    channel.client.flush()
    site.run()
    other = site.channel()
    other.send("basic.consume", queue="wanted")
    other.run()
    assert other.client.refusal()[0] == 403 and channel.client.is_open


def test_a_queue_is_unused_as_soon_as_its_consumers_connection_closes(site: Site) -> None:
    channel = site.channel()
    dying(site, "drop", False)
    channel.send("queue.delete", queue="wanted", if_unused=True)
    channel.client.flush()
    assert "wanted" not in site.vhost.queues
    channel.run()
    assert not channel.client.refusal()[0]


def test_exclusive_queues_and_channels_are_freed_in_steps(site: Site) -> None:
    client = site.connect()
    channels = [client.channel() for _ in range(2)]
    for number in range(600):
        channels[0].send(
            "queue.declare", queue=f"own{number}", exclusive=True, no_wait=True, arguments={"x-max-length": 1000}
        )
    channels[0].run()
    probe: Any = Probe()
    queue = site.vhost.queues["own0"]
    queue.arguments["probe"] = probe
    gone = weakref.ref(probe)
    del queue, probe
    client.peer.closed = True
    client.session.connection_lost()
    assert 0 < len(site.vhost.queues) < 600
    assert gone() is None
    site.run()
