"""A large transaction commits in steps: with one log record, visible all at once, and in order."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import Entry
from leveret.broker.transactions.transaction import LARGE
from tests.broker.support import HeldLog
from tests.protocols.amqp09.support import Client as Client09
from tests.protocols.support import Channel, Client, Site, bytes_of
from tests.support.queues import classic

MANY = 3 * LARGE
CLOSE = {"reply_code": 200, "reply_text": "", "class_id": 0, "method_id": 0}


class FailingLog(HeldLog):
    """A log in which the settlement after `calls` others fails; -1 for none."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = -1

    def settle(self, entry: Entry) -> None:
        if self.calls >= 0:
            self.calls -= 1
            if self.calls < 0:
                raise RuntimeError("a mistake")
        super().settle(entry)


@pytest.fixture
def log() -> FailingLog:
    return FailingLog()


@pytest.fixture
def site(log: FailingLog) -> Site:
    return Site(log)


def step(site: Site) -> bool:
    """One pass of the event loop; False if there is nothing left to do."""
    site.broker.end_turn()
    if not site.posted:
        return False
    site.posted.pop(0)()
    return True


def transaction(site: Site, kind: type[Client] = Client, prefetch: int = 0, **publish: Any) -> Channel:
    """Return a channel that, in a transaction, has acknowledged all messages of `from` and published as many to `to`."""
    filling = site.channel()
    filling.declare("from", durable=True)
    filling.declare("to", durable=True)
    for number in range(MANY):
        filling.publish("from", b"%d" % number, delivery_mode=2)
    filling.run()
    client = kind(site)
    client.open()
    channel = client.channel()
    channel.call("tx.select", "tx.select-ok")
    if prefetch:
        channel.qos(prefetch, everywhere=kind is Client)
    channel.consume("from")
    assert len(channel.deliveries()) == MANY
    for number in range(MANY):
        channel.publish("to", b"%d" % number, delivery_mode=2, **publish)
    for number in range(MANY):
        channel.ack(number + 1)
    channel.run()
    return channel


def commit(channel: Channel) -> None:
    channel.send("tx.commit")
    channel.client.flush()
    assert channel.client.session.channels[channel.number].stalled


def counts(site: Site, log: HeldLog) -> tuple[int, int]:
    """Return the number of messages that both queues would have after a restart."""
    queues = site.vhost.queues
    return tuple(sum(queue_id == queues[name].id for queue_id, _ in log.kept) for name in ("from", "to"))  # type: ignore[return-value]


@pytest.mark.parametrize("kind", [Client, Client09])
def test_a_large_commit_is_one_log_record(site: Site, log: FailingLog, kind: type[Client]) -> None:
    channel = transaction(site, kind)
    other = site.channel()
    other.call("confirm.select", "confirm.select-ok")
    commit(channel)
    seen = set()
    steps = 0
    while step(site):
        steps += 1
        acknowledged, published = counts(site, log)
        seen.add(acknowledged)
        assert (acknowledged == 0) == (published >= MANY)
        assert acknowledged == 0 or published <= steps
        other.publish("to", b"other", delivery_mode=2)
        other.client.flush()
        if steps > 50:
            break
    assert seen == {MANY, 0}
    channel.run()
    assert channel.client.take("tx.commit-ok", channel.number) is not None
    other.run()
    assert sum(tag[0] == "ack" for tag in other.confirms())
    bodies = [body for body in other.bodies("to") if body != b"other"]
    assert bodies == [b"%d" % number for number in range(MANY)]
    assert (site.vhost.queues["from"].unacked, site.vhost.queues["from"].ready_count) == (0, 0)
    assert not site.vhost.queues["to"].hidden.bytes


def test_a_large_commit_becomes_visible_at_once(site: Site) -> None:
    channel = transaction(site)
    reader = site.channel()
    reader.consume("to", no_ack=True)
    queue = site.vhost.queues["to"]
    commit(channel)
    partly = False
    while step(site):
        partly = partly or 0 < queue.ready_count < MANY
        assert queue.counters.delivered == 0 or not classic(queue).dispatcher.frozen
        assert queue.counters.delivered + queue.ready_count in (0, MANY) or classic(queue).dispatcher.frozen
    assert partly
    assert reader.delivered() == [b"%d" % number for number in range(MANY)]


@pytest.mark.parametrize("page_above", [64 << 20, 1 << 20])
@pytest.mark.parametrize("priorities", [False, True])
def test_concurrent_publishes_keep_their_order(site: Site, page_above: int, priorities: bool) -> None:
    site.broker.page_above = page_above
    properties: dict[str, Any] = {"priority": 3} if priorities else {}
    channel = transaction(site, **properties)
    other = site.channel()
    commit(channel)
    expected = site.vhost.queues["to"].next_seq
    sent = 0
    while step(site):
        if sent < 50:
            other.publish("to", b"other %d" % sent, delivery_mode=2)
            other.client.flush()
            sent += 1
    queue = site.vhost.queues["to"]
    assert queue.ready_count == MANY + sent and queue.next_seq >= expected
    for level in classic(queue).ready.all_levels():
        seqs = [entry.seq for entry in level.head]
        for chunk in level.chunks:
            seqs += chunk.seqs
        seqs += [entry.seq for entry in level.young or ()]
        assert seqs == sorted(seqs)
    bodies = other.bodies("to")
    assert [body for body in bodies if not body.startswith(b"other")] == [b"%d" % number for number in range(MANY)]
    assert [body for body in bodies if body.startswith(b"other")] == [b"other %d" % number for number in range(sent)]
    assert queue.paging.memory() == 0


def test_the_window_is_free_when_a_large_commit_has_settled(site: Site) -> None:
    channel = transaction(site, prefetch=MANY)
    channel.consume("to")
    filling = site.channel()
    commit(channel)
    for _ in range(MANY):
        filling.publish("from", delivery_mode=2)
    filling.client.flush()
    queues = site.vhost.queues
    while step(site):
        assert queues["from"].unacked + queues["to"].unacked <= MANY
    channel.run()
    assert queues["from"].unacked + queues["to"].unacked == MANY


@pytest.mark.parametrize("how", ["channel", "connection", "socket"])
@pytest.mark.parametrize("steps", [0, 4])
def test_a_large_commit_completes_if_the_channel_closes_after_it(site: Site, log: FailingLog, how: str, steps: int) -> None:
    channel = transaction(site)
    client = channel.client
    commit(channel)
    for _ in range(steps):
        step(site)
    if how == "channel":
        client.session.refuse(client.session.channels[channel.number], 406, "closed by the broker", 0, 0)
    elif how == "connection":
        client.engine.send(0, "connection.close", CLOSE)
        client.flush()
    else:
        client.peer.closed = True
        client.session.connection_lost()
    site.run()
    assert counts(site, log) == (0, MANY)
    assert site.vhost.queues["to"].ready_count == MANY and site.vhost.queues["from"].unacked == 0
    assert not classic(site.vhost.queues["from"]).dispatcher.frozen and not client.session.releasing


@pytest.mark.parametrize("closing", [False, True])
def test_a_large_commit_is_rolled_back_if_a_message_cannot_be_routed(site: Site, log: FailingLog, closing: bool) -> None:
    filling = site.channel()
    filling.call("exchange.declare", "exchange.declare-ok", exchange="x", type="headers")
    filling.declare("h")
    filling.call("queue.bind", "queue.bind-ok", queue="h", exchange="x", arguments={"a": 1})
    channel = transaction(site)
    channel.publish("", b"costly", exchange="x", headers={"a": 1})
    channel.run()
    site.broker.max_routing_steps = 5
    commit(channel)
    step(site)
    if closing:
        channel.client.peer.closed = True
        channel.client.session.connection_lost()
    site.run()
    channel.run()
    if not closing:
        assert channel.client.refusal()[0] == 406
    assert counts(site, log) == (MANY, 0)
    queue = site.vhost.queues["from"]
    assert (queue.ready_count, queue.unacked) == (MANY, 0) and not site.vhost.queues["to"].hidden.bytes
    assert [bytes_of(entry.message.body) for entry in classic(queue).ready.backlog.head] == [
        b"%d" % number for number in range(MANY)
    ]


def test_a_failure_closes_the_connection_and_others_continue(site: Site, log: FailingLog) -> None:
    channel = transaction(site)
    second = site.channel()
    second.call("tx.select", "tx.select-ok")
    for _ in range(MANY):
        second.publish("to", delivery_mode=2)
    second.run()
    log.calls = LARGE + 100
    commit(channel)
    commit(second)
    site.run()
    channel.run()
    assert log.calls == -1 and channel.client.refusal()[0] == 541
    assert counts(site, log) == (MANY, MANY)  # nothing of the first one, all of the second one
    assert [bytes_of(entry.message.body) for entry in classic(site.vhost.queues["from"]).ready.backlog.head] == [
        b"%d" % number for number in range(MANY)
    ]
    assert not site.vhost.queues["to"].hidden.bytes
    assert second.client.take("tx.commit-ok", second.number) is not None
    assert not any(classic(queue).dispatcher.frozen for queue in site.vhost.queues.values()) and log.completion is None
    assert site.vhost.queues["from"].unacked == 0


@pytest.mark.parametrize("kind", [Client, Client09])
def test_a_large_transaction_is_rolled_back_in_steps(site: Site, log: FailingLog, kind: type[Client]) -> None:
    channel = transaction(site, kind)
    rolled_back = channel.client.session.channels[channel.number]
    channel.send("tx.rollback")
    channel.client.flush()
    assert rolled_back.stalled
    before = len(rolled_back.transaction)
    assert before >= 2 * MANY - STEP_WORK
    while step(site):
        held = len(rolled_back.transaction)
        assert before - held <= STEP_WORK + 1
        before = held
    channel.run()
    assert channel.client.take("tx.rollback-ok", channel.number) is not None
    assert before == 0 and rolled_back.transaction.size == 0
    # 0-9 returns the settled deliveries to their queue, which delivers them again under new tags.
    first = MANY + 1 if kind is Client09 else 1
    assert list(rolled_back.unacked.entries) == list(range(first, first + MANY))
    assert [int(bytes_of(entry.message.body)) for entry in rolled_back.unacked.entries.values()] == list(range(MANY))
    assert counts(site, log) == (MANY, 0)


def test_a_commit_counts_as_work_of_the_turn(site: Site) -> None:
    client = site.connect()
    channels = [client.channel() for _ in range(6)]
    channels[0].declare("to", durable=True)
    for channel in channels:
        channel.call("tx.select", "tx.select-ok")
        for _ in range(LARGE):
            channel.publish("to", delivery_mode=2)
        channel.run()
    for channel in channels:
        channel.send("tx.commit")
    client.flush()
    assert 0 < len(client.session.rest) < len(channels)
    site.run()
    assert site.vhost.queues["to"].ready_count == 6 * LARGE


def test_large_transactions_are_written_one_after_the_other(site: Site, log: FailingLog) -> None:
    channels = [site.channel() for _ in range(3)]
    channels[0].declare("to", durable=True)
    for channel in channels:
        channel.call("tx.select", "tx.select-ok")
        for _ in range(MANY):
            channel.publish("to", b"%d" % channel.client.session.number, delivery_mode=2)
        channel.run()
    for channel in channels:
        commit(channel)
    seen = []
    queue = site.vhost.queues["to"]
    while step(site):
        count = sum(queue_id == queue.id for queue_id, _ in log.kept)
        if count not in seen:
            seen.append(count)
    assert seen == [0, MANY, 2 * MANY, 3 * MANY]
    assert channels[0].bodies("to") == [b"%d" % channel.client.session.number for channel in channels for _ in range(MANY)]
