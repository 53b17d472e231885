"""An internal error in a later step of an operation closes its connection; no queue stays frozen, no entry acquired."""

from __future__ import annotations

import pytest

from leveret.broker.message import Entry
from leveret.broker.queues.queue import Queue
from leveret.storage.memory import MemoryLog
from tests.protocols.support import Channel, Site
from tests.support.queues import classic

MANY = 5000
# The call of the log that fails, in the second step.
LATE = 3000
CLOSE = {"reply_code": 200, "reply_text": "", "class_id": 0, "method_id": 0}


class FailingLog(MemoryLog):
    """A log in which the call after `calls` others fails; -1 for none."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = -1

    def _count(self) -> None:
        if self.calls >= 0:
            self.calls -= 1
            if self.calls < 0:
                raise RuntimeError("a mistake")

    def settle(self, entry: Entry) -> None:
        self._count()
        super().settle(entry)

    def update(self, entry: Entry) -> None:
        self._count()
        super().update(entry)


@pytest.fixture
def log() -> FailingLog:
    return FailingLog()


@pytest.fixture
def site(log: FailingLog) -> Site:
    return Site(log)


def queue_of(site: Site) -> Queue:
    return site.vhost.queues["q"]


def holding(site: Site) -> Channel:
    publisher = site.channel()
    publisher.declare("q", durable=True)
    for number in range(MANY):
        publisher.publish("q", b"%d" % number, delivery_mode=2)
    publisher.run()
    channel = site.channel()
    channel.consume("q", tag="c")
    assert len(channel.delivered()) == MANY
    return channel


@pytest.mark.parametrize("how", ["ack", "reject", "nack", "recover", "deliver again"])
def test_a_failure_in_a_later_step_ends_the_connection(site: Site, log: FailingLog, how: str) -> None:
    channel = holding(site)
    queue = queue_of(site)
    other = site.channel()
    other.consume("q")
    if how == "deliver again":
        channel.call("basic.cancel", "basic.cancel-ok", consumer_tag="c")
    log.calls = LATE
    if how == "ack":
        channel.ack(0, multiple=True)
    elif how in ("reject", "nack"):
        channel.nack(0, multiple=True, requeue=how == "nack")
    else:
        channel.send("basic.recover", requeue=how == "recover")
    channel.client.flush()
    assert log.calls > 0 and channel.client.session.channels[channel.number].stalled
    channel.run()
    assert log.calls == -1
    assert channel.client.refusal() == (541, "INTERNAL_ERROR - internal error; see the broker's log")
    gone = LATE + 1 if how in ("ack", "reject") else 1
    assert not classic(queue).dispatcher.frozen and queue.unacked == MANY - gone
    assert len(other.deliveries()) == MANY - gone


@pytest.mark.parametrize("how", ["channel", "connection", "socket"])
def test_a_failure_while_a_channel_closes_affects_one_entry(site: Site, log: FailingLog, how: str) -> None:
    channel = holding(site)
    client = channel.client
    log.calls = LATE
    if how == "channel":
        channel.call("channel.close", "channel.close-ok", **CLOSE)
    elif how == "connection":
        client.call(0, "connection.close", "connection.close-ok", CLOSE)
        assert client.peer.closed
    else:
        client.drop()
    queue = queue_of(site)
    assert log.calls == -1
    assert not classic(queue).dispatcher.frozen and not queue.unacked and not queue.consumers
    assert queue.ready_count == MANY - 1
    assert not client.session.releasing
