"""Changes of objects and their counters, as readers of `statistics.changes` get them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leveret.broker.broker import VhostSettings
from leveret.broker.queues.queue import Queue
from leveret.broker.statistics import QUEUE_COUNTERS, QUEUE_GAUGES
from leveret.management import feed
from leveret.management.feed import Feeds
from tests.broker.support import Taker, World
from tests.management.harness import FakeSession, Harness


class Reader:
    """A reader of the changes of a broker."""

    def __init__(self, harness: Harness, feeds: Feeds | None = None) -> None:
        self.feed = (feeds or Feeds()).feed("reader")
        self.harness = harness

    def __call__(self) -> dict[tuple[str, Any], Any]:
        """Return the changes by kind and key, except those of the process and of the vhosts."""
        found = [change for change in self.feed.changes(self.harness.managed) if change is not None]
        assert (found[0].kind, found[-1].kind) == ("begin", "end")
        changes = {(change.kind, change.key): change.value for change in found}
        return {key: value for key, value in changes.items() if key[0] not in ("begin", "node", "end", "vhost.sample")}


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness()
    harness.broker.add_vhost("/", VhostSettings())
    yield harness
    harness.close()


def declare(harness: Harness, name: str, **options: Any) -> Queue:
    return harness.broker.vhost("/").declare_queue(name, None, **options)


def named(sample: Any) -> dict[str, int]:
    """Return a sample of a queue by its names, without zeros."""
    names = (*QUEUE_COUNTERS, *QUEUE_GAUGES, "revision")
    return {name: value for name, value in zip(names, sample, strict=False) if value}


def test_a_new_reader_gets_everything_and_then_changes(harness: Harness) -> None:
    queue = declare(harness, "q")
    idle = declare(harness, "idle")
    read = Reader(harness)
    first = read()
    assert first["queue", queue.id].name == "q"
    assert first["exchange", ("/", "amq.topic")].type == "topic"
    assert read() == {}
    world = World()
    queue.push(world.message("abc"))
    changed = read()
    assert changed.keys() == {("queue.sample", queue.id), ("queue.head", queue.id)}
    sample = named(changed["queue.sample", queue.id])
    assert sample.pop("memory") > 0
    assert sample == {"publish": 1, "ready": 1, "ready_bytes": 3}
    harness.broker.vhost("/").remove_queue(idle)
    assert read() == {("queue.gone", idle.id): None}


def test_the_first_ready_messages_are_sent_once_until_they_change(harness: Harness) -> None:
    queue = declare(harness, "q")
    read = Reader(harness)
    read()
    message = World().message("abc")
    queue.push(message)
    since, timestamp = read()["queue.head", queue.id]
    assert harness.broker.timers.unix() - 60_000 < since <= harness.broker.timers.unix() and timestamp is None
    queue.push(message)
    assert read().keys() == {("queue.sample", queue.id)}
    queue.redefined()
    assert read()["queue.head", queue.id] == (since, None)
    other = Reader(harness)
    assert other()["queue.head", queue.id] == (since, None)
    queue.purge()
    assert read()["queue.head", queue.id] == (0, None)
    assert read() == {}


def test_a_changed_definition_is_sent_again(harness: Harness) -> None:
    queue = declare(harness, "q")
    read = Reader(harness)
    read()
    queue.lifetime.delete_when_unused()
    queue.redefined()
    assert read()["queue", queue.id].auto_delete


def test_changed_policies_are_sent_again(harness: Harness) -> None:
    vhost = harness.broker.vhost("/")
    queue = declare(harness, "ruled")
    declare(harness, "other")
    read = Reader(harness)
    read()
    policies = vhost.policies
    policies.set(policies.user, "short", "^ruled", {"max-length": 3})
    policies.set(policies.operator, "cap", "^ruled", {"max-length": 2})
    changed = read()
    assert {key for key in changed if key[0] == "queue"} == {("queue", queue.id)}
    found = changed["queue", queue.id]
    assert (found.policy, found.operator_policy) == ("short", "cap")
    assert found.effective_policy_definition.fields == {"max-length": 2}
    policies.set(policies.user, "short", "^ruled", {"max-length": 1})
    assert read()["queue", queue.id].effective_policy_definition.fields == {"max-length": 1}
    policies.set(policies.user, "unrelated", "^none", {"max-length": 1})
    assert read() == {}
    policies.set(policies.user, "alternate", "^amq.topic$", {"alternate-exchange": "amq.fanout"})
    found = read()["exchange", ("/", "amq.topic")]
    assert (found.policy, found.effective_policy_definition.fields) == ("alternate", {"alternate-exchange": "amq.fanout"})


def test_the_active_consumer_is_part_of_the_definition(harness: Harness) -> None:
    queue = declare(harness, "q", arguments={"x-single-active-consumer": True})
    read = Reader(harness)
    read()
    first, second = Taker(queue, "a"), Taker(queue, "b")
    assert read()["queue", queue.id].active_consumer == "a"
    queue.remove_consumer(first)
    Taker(queue, "c")
    assert read()["queue", queue.id].active_consumer == second.tag


def test_publishes_are_folded_into_their_exchange(harness: Harness) -> None:
    declare(harness, "q")
    read = Reader(harness)
    read()
    vhost = harness.broker.vhost("/")
    vhost.route(World().message(key="q").address).published += 2
    assert read() == {("exchange.sample", ("/", "")): (2, 2, 0, 0)}


def test_an_exchange_that_is_declared_again_is_sent_again(harness: Harness) -> None:
    vhost = harness.broker.vhost("/")
    vhost.declare_exchange("x", "direct")
    read = Reader(harness)
    read()
    vhost.delete_exchange("x")
    vhost.declare_exchange("x", "fanout")
    changed = read()
    assert [key for key in changed if key[1] == ("/", "x")] == [
        ("exchange.gone", ("/", "x")),
        ("exchange", ("/", "x")),
        ("exchange.sample", ("/", "x")),
    ]
    assert changed["exchange", ("/", "x")].type == "fanout"


def test_a_vhost_that_is_added_again_is_sent_again(harness: Harness) -> None:
    harness.broker.add_vhost("again", VhostSettings())
    read = Reader(harness)
    read()
    harness.broker.remove_vhost("again")
    harness.broker.add_vhost("again", VhostSettings())
    feed = [(change.kind, change.key) for change in read.feed.changes(harness.managed) if change is not None]
    assert [kind for kind, key in feed if key == "again"] == ["vhost.gone", "vhost.sample"]
    assert not [key for key in read() if key[1] == "again"]


def test_connections_and_channels(harness: Harness) -> None:
    read = Reader(harness)
    read()
    harness.sessions.append(FakeSession(5, "alice", "/"))
    changed = read()
    assert changed["connection", 5].user == "alice"
    assert changed["connection.sample", 5] == (1, 0, 2, 0, 2, 0)
    assert changed["channel", (5, 1)].unacked == 2
    assert read() == {}
    harness.sessions.clear()
    assert read() == {("connection.gone", 5): None, ("channel.gone", (5, 1)): None, ("channel.gone", (5, 2)): None}


def test_objects_that_change_during_a_pass(harness: Harness) -> None:
    queues = [declare(harness, f"q{number}") for number in range(10)]
    read = Reader(harness)
    changes = read.feed.changes(harness.managed)
    while (change := next(changes)) is None or change.kind != "queue.sample":
        pass
    vhost = harness.broker.vhost("/")
    for queue in queues[:5]:
        vhost.remove_queue(queue)
    declare(harness, "new")
    found = {change.key for change in changes if change is not None and change.kind == "queue"} | {queues[0].id}
    assert found >= {queue.id for queue in queues[5:]}
    later = read()
    assert later["queue.gone", queues[0].id] is None
    found |= {key for kind, key in later if kind == "queue"}
    assert vhost.queues["new"].id in found


def test_idle_queues_are_compared_in_batches(harness: Harness) -> None:
    """A reader waits for one comparison of many queues, not for each of them."""
    for number in range(2 * feed.QUEUE_BATCH):
        declare(harness, f"q{number}")
    read = Reader(harness)
    read()
    idle = len(list(read.feed.changes(harness.managed)))
    for number in range(feed.QUEUE_BATCH):
        declare(harness, f"more{number}")
    read()
    assert len(list(read.feed.changes(harness.managed))) == idle + 1


def test_deleted_queues_among_many(harness: Harness) -> None:
    queues = [declare(harness, f"q{number}") for number in range(2 * feed.GONE_BATCH)]
    read = Reader(harness)
    read()
    deleted = queues[:: feed.GONE_BATCH // 2]
    for queue in deleted:
        harness.broker.vhost("/").remove_queue(queue)
    assert read() == {("queue.gone", queue.id): None for queue in deleted}
    assert read() == {}


def test_a_queue_that_is_deleted_after_its_comparison_is_gone_in_the_next_pass(harness: Harness) -> None:
    queues = [declare(harness, f"q{number}") for number in range(3)]
    read = Reader(harness)
    changes = read.feed.changes(harness.managed)
    while (change := next(changes)) is None or change.kind != "queue.sample":
        pass
    harness.broker.vhost("/").remove_queue(queues[2])
    sent = [change.key for change in changes if change is not None and change.kind == "queue"]
    assert sent == [queues[1].id, queues[2].id]
    assert read() == {("queue.gone", queues[2].id): None}


def test_forgotten_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("leveret.management.feed.time.monotonic", lambda: now)
    feeds = Feeds()
    first = feeds.feed("first")
    assert feeds.feed("first") is first
    for number in range(feed.MAX_FEEDS):
        feeds.feed(str(number))
    assert feeds.feed("first") is not first
    kept = feeds.feed("7")
    now += feed.FEED_TIMEOUT
    assert feeds.feed("7") is kept
    now += feed.FEED_TIMEOUT + 1
    assert feeds.feed("7") is not kept
