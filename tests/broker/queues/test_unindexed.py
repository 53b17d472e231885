"""Queues whose recovered entries are indexed after the start."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker import metadata
from leveret.broker.errors import NotIndexed
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.queues.loading import Waiting
from tests.broker.support import HeldIndex, Taker, World, figures
from tests.support.queues import classic

OLD = [f"old{number}" for number in range(5)]


class Unindexed(World):
    """A broker over the committed log of another one, whose rows `index` indexes."""

    def __init__(
        self, before: World, *, clean: bool = True, occupied: frozenset[int] | None = None, **options: Any
    ) -> None:
        before.run()
        log, recovery = before.held_log.recovery(clean)
        recovery.occupied = occupied
        self.rows = HeldIndex(recovery)
        super().__init__(log=log, recovery=recovery, time=before.clock.time, **options)
        self.run()

    def old(self, name: str = "q") -> ClassicQueue:
        return classic(self.vhost.queues[name])

    def index(self) -> None:
        assert self.rows.done is not None
        self.rows.done()
        self.run()


class Waiter(Waiting):
    def __init__(self) -> None:
        self.calls = 0

    def loaded(self) -> None:
        self.calls += 1


@pytest.fixture
def before(world: World) -> World:
    world.push(world.queue(durable=True), *OLD, persistent=True)
    return world


def test_new_messages_follow_recovered_ones(before: World) -> None:
    world = Unindexed(before)
    queue = world.old()
    consumer = Taker(queue)
    world.push(queue, "new1", persistent=True)
    world.push(queue, "new2")
    world.run()
    assert queue.is_unindexed() and consumer.history == []
    world.index()
    assert not queue.is_unindexed()
    assert consumer.history == [*OLD, "new1", "new2"] and figures(queue) == (0, 0, 7)


def test_a_run_of_new_messages_follows_recovered_ones(before: World) -> None:
    world = Unindexed(before)
    queue = world.old()
    new = [f"new{number}" for number in range(3)]
    messages = [world.message(body, key="q", persistent=True) for body in new]
    assert queue.push_run(messages, 0, len(messages)) == len(messages)
    world.run()
    assert queue.ready_count == 3
    world.index()
    assert world.contents(queue) == [*OLD, *new]


def test_a_kill_before_the_index_is_complete_loses_nothing(before: World) -> None:
    first = Unindexed(before)
    first.push(first.old(), "new1", persistent=True)
    second = Unindexed(first)
    second.push(second.old(), "new2", persistent=True)
    second.index()
    assert second.contents(second.old()) == [*OLD, "new1", "new2"]


def test_what_needs_the_entries_waits(before: World) -> None:
    world = Unindexed(before)
    queue = world.old()
    waiter = Waiter()
    assert queue.get(True) is None and queue.paging.must_load()
    with pytest.raises(NotIndexed):
        queue.purge()
    with pytest.raises(NotIndexed):
        world.vhost.delete_queue("q", None, if_empty=True)
    assert not queue.can_deliver_now(world.message())
    queue.paging.wait_loaded(waiter)
    world.index()
    assert waiter.calls == 1
    assert world.get(queue) == OLD[0]
    assert queue.purge() == 4


def test_other_queues_serve_meanwhile(before: World) -> None:
    before.queue("empty", durable=True)
    world = Unindexed(before)
    empty = world.old("empty")
    new = world.queue("new", durable=True)
    for queue in (empty, new):
        consumer = Taker(queue)
        world.push(queue, "m", persistent=True)
        world.run()
        assert not queue.is_unindexed() and consumer.history == ["m"]
    assert world.old().is_unindexed() and world.broker.indexing.is_active()


def test_queues_that_were_empty_at_the_stop_serve_at_once(before: World) -> None:
    empty = before.queue("empty", durable=True)
    before.push(empty, "m", persistent=True)
    assert before.get(empty) == "m"
    world = Unindexed(before, occupied=frozenset((classic(before.vhost.queues["q"]).id,)))
    world.push(world.old("empty"), "new", persistent=True)
    assert world.get(world.old("empty")) == "new" and world.old().is_unindexed()


def test_messages_of_a_queue_that_seemed_to_be_empty_precede_new_ones(before: World) -> None:
    world = Unindexed(before, occupied=frozenset())
    world.push(world.old(), "new1", "new2", persistent=True)
    assert world.get(world.old()) == "new1"
    world.index()
    assert world.contents(world.old()) == [*OLD, "new2"]


def test_priorities_are_merged(world: World) -> None:
    queue = world.queue(durable=True, max_priority=5)
    for priority in (1, 3, 1):
        world.push(queue, f"old{priority}", persistent=True, priority=priority)
    after = Unindexed(world)
    for priority in (1, 3, 5):
        after.push(after.old(), f"new{priority}", persistent=True, priority=priority)
    after.index()
    assert after.contents(after.old()) == ["new5", "old3", "new3", "old1", "old1", "new1"]


def test_a_length_limit_drops_the_oldest_messages(world: World) -> None:
    world.push(world.queue("dead"))
    queue = world.queue(durable=True, max_length=6)
    world.push(queue, *OLD, persistent=True)
    after = Unindexed(world)
    after.push(after.old(), "new1", "new2", "new3", persistent=True)
    after.index()
    assert after.contents(after.old()) == [*OLD[2:], "new1", "new2", "new3"]


def test_expired_messages_are_dead_lettered_in_order(world: World) -> None:
    world.queue("dead", durable=True)
    queue = world.queue(durable=True, dead_letter_exchange="", dead_letter_routing_key="dead", message_ttl=1000)
    world.push(queue, "old1", persistent=True)
    after = Unindexed(world)
    after.push(after.old(), "new1", persistent=True)
    after.sleep(2000)
    assert after.old("dead").ready_count == 0
    after.index()
    after.sleep(1)
    assert after.contents(after.old("dead")) == ["old1", "new1"]


def test_a_deep_queue_pages_out_new_messages(world: World) -> None:
    world.push(world.queue(durable=True), *OLD, persistent=True)
    after = Unindexed(world, page_above=10_000)
    new = [f"{number:04}" for number in range(100)]
    for body in new:
        after.push(after.old(), body, persistent=True)
        after.run()
    assert after.old().ready.backlog.paged > 20
    after.index()
    assert after.contents(after.old()) == [*OLD, *new]


def test_recovered_messages_are_redelivered_after_an_unclean_stop(before: World) -> None:
    world = Unindexed(before, clean=False)
    consumer = Taker(world.old(), credit=10)
    world.push(world.old(), "new", persistent=True)
    world.index()
    assert [entry.acquired_count for entry in consumer.taken] == [2, 2, 2, 2, 2, 1]


@pytest.mark.parametrize("kill", [False, True])
def test_the_entries_of_a_queue_that_expires_meanwhile_are_removed(world: World, kill: bool) -> None:
    queue = world.queue(durable=True, expires=1000)
    world.push(queue, *OLD, persistent=True)
    after = Unindexed(world)
    after.push(after.old(), "new", persistent=True)
    waiter = Waiter()
    after.old().paging.wait_loaded(waiter)
    after.sleep(1000)
    assert "q" not in after.vhost.queues and waiter.calls == 1
    if kill:
        after = Unindexed(after)
    again = after.queue(durable=True)
    after.push(again, "again", persistent=True)
    after.index()
    assert after.contents(again) == ["again"]
    after.run()
    assert after.held_log.kept == {} or [seq for _, seq in after.held_log.kept] == []
    assert not [kind for kind, _ in after.held_log.metadata if kind == metadata.REMOVAL]


def test_a_lease_makes_the_start_wait(before: World) -> None:
    classic(before.vhost.queues["q"]).make_leases().acquire("lease", 1000)
    world = Unindexed(before)
    assert world.rows.done is None and not world.broker.indexing.is_active()
    assert world.old().ready_count == 5
