"""Purge and deletion: which messages are removed and which stay, also while entries are loaded."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.queues.loading import Waiting
from tests.broker.support import Keeper, Taker, World, deaths_in, figures, text_of


def paged(world: World, count: int = 40, **arguments: Any) -> ClassicQueue:
    """A durable queue whose newer messages are on disk only."""
    queue = world.queue(durable=True, **arguments)
    world.push(queue, *(f"{number:03}" for number in range(count)), persistent=True)
    world.run()
    world.broker.page_down()
    assert queue.ready.backlog.paged > 0
    return queue


def small_world() -> World:
    return World(page_above=10_000)


class Waiter(Waiting):
    def __init__(self, queue: ClassicQueue) -> None:
        self.queue = queue
        self.calls = 0

    def loaded(self) -> None:
        self.calls += 1


def test_purge_drops_ready_messages_and_returns_their_number(world: World) -> None:
    queue = world.queue(durable=True)
    world.push(queue, "a", "b", persistent=True)
    world.push(queue, "c")
    assert queue.purge() == 3
    world.run()
    assert figures(queue) == (0, 0, 0) and queue.ready.memory == 0
    assert world.log.rows == {} and world.held_log.kept == {}
    assert queue.purge() == 0


def test_purge_spares_unacked_messages(world: World) -> None:
    queue = world.queue(durable=True)
    consumer = Taker(queue, credit=2)
    world.broker.holders[Keeper(consumer)] = None
    world.push(queue, *"abcd", persistent=True)
    world.run()
    assert queue.purge() == 2
    assert figures(queue) == (0, 0, 2)
    consumer.credit = 0
    consumer.requeue(1)
    world.run()
    assert figures(queue) == (1, 1, 1)
    log, recovery = world.held_log.recovery()
    after = World(log=log, recovery=recovery)
    assert after.contents(after.vhost.queues["q"]) == ["a", "b"]


def test_purge_of_paged_messages() -> None:
    world = small_world()
    queue = paged(world)
    assert queue.purge() == 40
    world.run()
    assert figures(queue) == (0, 0, 0) and queue.ready.memory == 0
    assert world.log.rows == {} and world.held_log.kept == {}
    world.push(queue, "new", persistent=True)
    assert world.contents(queue) == ["new"]


def test_purge_while_messages_are_read_back() -> None:
    world = small_world()
    queue = paged(world)
    head = len(queue.ready.backlog.head)
    consumer = Taker(queue, credit=head)
    world.end_turn()
    assert queue.ready.backlog.loading and world.posted
    assert queue.purge() == 40 - head
    world.push(queue, "new", persistent=True)
    world.run()
    assert figures(queue) == (1, 3, head)
    consumer.give(-1)
    world.run()
    assert consumer.history[head - 1 :] == [f"{head - 1:03}", "new"]


def test_purge_answers_gets_that_wait_for_loading() -> None:
    world = small_world()
    queue = paged(world)
    while queue.ready.backlog.head:
        assert queue.get(True) is not None
    assert queue.get(True) is None and queue.paging.must_load()
    waiter = Waiter(queue)
    queue.paging.wait_loaded(waiter)
    queue.purge()
    world.run()
    assert waiter.calls == 1


def test_delete_answers_them_too() -> None:
    world = small_world()
    queue = paged(world)
    while queue.ready.backlog.head:
        assert queue.get(True) is not None
    assert queue.get(True) is None
    waiter = Waiter(queue)
    queue.paging.wait_loaded(waiter)
    world.vhost.remove_queue(queue)
    world.run()
    assert waiter.calls == 1


def test_delete_settles_all_messages_including_unacked_ones() -> None:
    world = small_world()
    queue = paged(world)
    consumer = Taker(queue, credit=3)
    world.broker.holders[Keeper(consumer)] = None
    world.run()
    assert len(consumer.taken) == 3
    assert world.vhost.remove_queue(queue) == 37
    world.run()
    assert consumer.gone
    assert world.log.rows == {} and world.held_log.kept == {}
    consumer.ack(2)
    consumer.requeue()
    world.run()
    assert queue.unacked == 0


def test_delete_while_messages_are_read_back() -> None:
    world = small_world()
    queue = paged(world)
    consumer = Taker(queue, credit=len(queue.ready.backlog.head))
    world.broker.holders[Keeper(consumer)] = None
    world.end_turn()
    assert queue.ready.backlog.loading
    world.vhost.remove_queue(queue)
    world.run()
    assert world.log.rows == {}
    again = world.queue(durable=True)
    assert again.id != queue.id
    world.push(again, "new", persistent=True)
    assert world.contents(again) == ["new"]


def test_a_paged_queue_over_its_limit_is_read_back_once() -> None:
    """At each publish the queue exceeds its limit and its head is not in memory."""
    world = small_world()
    queue = paged(world, max_length=100)
    while queue.ready.backlog.head:
        assert queue.get(True) is not None
    left = queue.ready_count
    queue.limits.max_length = 3
    world.push(queue, *"abcdef", persistent=True)
    world.run()
    assert left > 0 and queue.ready_count == 3
    assert world.contents(queue) == ["d", "e", "f"]
    assert figures(queue) == (0, 0, 0) and queue.ready.memory == 0


def test_purge_of_priorities(world: World) -> None:
    queue = world.queue(durable=True)
    for priority in range(10):
        world.push(queue, "m", persistent=True, priority=priority)
    assert queue.purge() == 10
    world.run()
    assert world.log.rows == {}
    world.push(queue, "a", priority=1)
    world.push(queue, "b", priority=2)
    assert world.contents(queue) == ["b", "a"]


class TestStrictDeletion:
    """0-9-1 queue.delete.01: pending messages are dead-lettered, wherever they are."""

    BODIES = [f"{number:03}" for number in range(100)]

    @pytest.fixture
    def strict(self) -> World:
        return World(strict=True, page_above=10_000, overflow=True)

    def fill(self, world: World, *, persistent: bool = True, durable: bool = True) -> ClassicQueue:
        queue = world.queue(durable=durable)
        world.push(queue, *self.BODIES, persistent=persistent)
        for _ in range(2):
            world.run()
            world.broker.page_down()
        assert queue.ready.backlog.paged > 80
        world.push(queue, "young", persistent=persistent)
        return queue

    @pytest.mark.parametrize("persistent", [True, False])
    def test_paged_out_messages_are_loaded_for_it(self, strict: World, persistent: bool) -> None:
        queue = self.fill(strict, persistent=persistent)
        assert strict.vhost.delete_queue("q", None) == 101
        assert "q" not in strict.vhost.queues
        strict.run()
        assert strict.contents(strict.vhost.queues["amq.dead"]) == [*self.BODIES, "young"]
        strict.run()
        assert queue.ready.memory == 0 and queue.id not in strict.broker.paging
        assert strict.vhost.pending_dead_letters.queues == {}
        assert strict.log.rows == {} and strict.held_log.kept == {}
        assert strict.overflow is not None and strict.overflow.rows == {}
        assert not any(kind == "remains" for kind, _ in strict.held_log.metadata)

    def test_of_each_priority(self, strict: World) -> None:
        queue = strict.queue(durable=True)
        for body in self.BODIES:
            strict.push(queue, body, persistent=True, priority=int(body) % 2)
        strict.run()
        strict.broker.page_down()
        strict.vhost.delete_queue("q", None)
        strict.run()
        assert sorted(strict.contents(strict.vhost.queues["amq.dead"])) == self.BODIES

    def test_a_new_queue_of_the_same_name_is_separate(self, strict: World) -> None:
        self.fill(strict)
        strict.vhost.delete_queue("q", None)
        queue = strict.queue(durable=True)
        strict.push(queue, "new", persistent=True)
        strict.run()
        assert strict.contents(queue) == ["new"]
        assert strict.vhost.queues["amq.dead"].ready_count == 101

    def test_a_crash_in_the_middle_loses_no_message(self, strict: World) -> None:
        self.fill(strict)
        strict.run()
        strict.vhost.delete_queue("q", None)
        strict.end_turn()
        assert strict.vhost.pending_dead_letters.queues
        log, recovery = strict.held_log.recovery()
        after = World(log=log, recovery=recovery, strict=True)
        assert list(after.vhost.queues) == ["amq.dead"]
        after.run()
        dead = after.vhost.queues["amq.dead"]
        entry = dead.get(False)
        assert entry is not None and entry.overlay is not None
        [death] = deaths_in(entry.overlay.headers)
        assert (death["queue"], death["reason"]) == ("q", "deleted")
        assert [text_of(entry), *after.contents(dead)] == [*self.BODIES, "young"]
        after.run()
        assert after.vhost.pending_dead_letters.queues == {} and not any(
            kind == "remains" for kind, _ in after.held_log.metadata
        )

    def test_its_vhost_may_be_deleted_meanwhile(self, strict: World) -> None:
        self.fill(strict)
        strict.vhost.delete_queue("q", None)
        strict.end_turn()
        vhost = strict.vhost
        strict.broker.remove_vhost("/")
        strict.run()
        assert (
            vhost.pending_dead_letters.queues == {}
            and strict.log.rows == {}
            and strict.held_log.metadata.keys() == {("counter", "queue-id")}
        )

    def test_a_get_that_waits_is_answered(self, strict: World) -> None:
        queue = self.fill(strict)
        while queue.get(True) is not None:
            pass
        waiter = Waiter(queue)
        queue.paging.wait_loaded(waiter)
        strict.vhost.delete_queue("q", None)
        assert waiter.calls == 1
        assert queue.get(True) is None and not queue.paging.must_load()
        strict.run()
        assert strict.vhost.queues["amq.dead"].ready_count > 50 and strict.vhost.pending_dead_letters.queues == {}
