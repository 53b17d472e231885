"""Paging out takes several turns if there are many entries or queues, which may change in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leveret.broker.jobs import STEP_WORK
from leveret.broker.queues.classic.backlog import CHUNK_ENTRIES
from leveret.broker.queues.classic.dispatcher import MAX_DELIVERED
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.queues.classic.ready_list import LOADED_AT_ONCE, PAGE_WORK, PAGED_AT_ONCE, PUSHES
from leveret.broker.queues.shares import MIN_SHARE, QUEUES, QUEUES_WORK
from tests.broker.support import Taker, World

MANY = 4 * STEP_WORK
# Entries that are paged out in one step.
MAX_PAGED = STEP_WORK // PAGE_WORK + PAGED_AT_ONCE
SHARE = 40_000


@pytest.fixture
def world() -> World:
    return World(overflow=True)


def fill(world: World, count: int = MANY, *, persistent: bool = True) -> ClassicQueue:
    queue = world.queue(durable=True)
    world.push(queue, *(f"{number:05}" for number in range(count)), persistent=persistent)
    world.run()
    return queue


def page_down(world: World) -> None:
    """Begin to page out; a round does at most the work of a step at once."""
    world.broker.page_above = SHARE
    begun = world.broker.work
    world.broker.page_down()
    assert world.broker.work - begun <= 2 * STEP_WORK
    world.broker.end_turn()


def step(world: World) -> None:
    """Run the next step of a job, which is a turn."""
    world.posted.pop(0)()


def bodies(count: int = MANY) -> list[str]:
    return [f"{number:05}" for number in range(count)]


@pytest.mark.parametrize("persistent", [True, False])
def test_a_deep_queue_is_paged_out_over_several_turns(world: World, persistent: bool) -> None:
    queue = fill(world, persistent=persistent)
    page_down(world)
    assert queue.ready.backlog.paged <= MAX_PAGED and queue.ready_count == MANY
    before = -1
    while queue.ready.backlog.paged > before or not queue.ready.backlog.paged:
        before = queue.ready.backlog.paged
        while world.posted:
            paged = queue.ready.backlog.paged
            step(world)
            assert queue.ready.backlog.paged - paged <= MAX_PAGED
            assert queue.ready_count == MANY
        page_down(world)
    world.run()
    assert queue.ready.memory <= SHARE
    assert world.contents(queue) == bodies()


def test_rounds_do_not_overlap(world: World) -> None:
    fill(world)
    page_down(world)
    for _ in range(5):
        world.broker.page_down()
    assert len(world.posted) == 1


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("persistent", [True, False])
def test_messages_that_come_and_go_meanwhile(world: World, persistent: bool, steps: int) -> None:
    queue = fill(world, persistent=persistent)
    consumer = Taker(queue, credit=10)
    world.run()
    page_down(world)
    for _ in range(steps):
        if world.posted:
            step(world)
    for entry in reversed(consumer.taken[5:]):
        queue.requeue(entry)
    del consumer.taken[5:], consumer.history[5:]
    world.push(queue, *(f"{number:05}" for number in range(MANY, MANY + 100)), persistent=persistent)
    consumer.give(20)
    world.broker.end_turn()
    world.run()
    page_down(world)
    world.run()
    assert queue.ready.memory <= 3 * SHARE
    consumer.give(-1)
    world.run()
    assert consumer.history == bodies(MANY + 100)
    assert queue.ready.memory == 0


def purge(world: World, queue: ClassicQueue) -> None:
    assert queue.purge() == MANY


def delete(world: World, queue: ClassicQueue) -> None:
    assert world.vhost.delete_queue("q", None) == MANY


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("end", [purge, delete])
def test_a_queue_that_is_purged_or_deleted_meanwhile(
    world: World, end: Callable[[World, ClassicQueue], None], persistent: bool, steps: int
) -> None:
    queue = fill(world, persistent=persistent)
    page_down(world)
    for _ in range(steps):
        if world.posted:
            step(world)
    end(world, queue)
    world.run()
    assert queue.ready.memory == 0 and queue.ready_count == 0
    for _ in range(2):
        page_down(world)
        world.run()
    assert queue.id not in world.broker.paging
    assert world.overflow is not None and world.overflow.rows == {} and world.log.rows == {}


def test_many_queues_are_paged_out_over_several_turns(world: World) -> None:
    queues = [world.queue(f"q{number}", durable=True) for number in range(STEP_WORK)]
    for queue in queues:
        world.push(queue, "x" * SHARE, "y", persistent=True)
    world.run()
    page_down(world)
    paged = sum(queue.ready.backlog.paged for queue in queues)
    assert 0 < paged < len(queues)
    world.vhost.delete_queue("q0", None)
    world.run()
    assert all(queue.ready.backlog.paged == 1 for queue in queues[1:])
    assert world.contents(queues[-1]) == ["x" * SHARE, "y"]


def test_pushes_share_the_paging_of_what_a_long_commit_has_left(world: World) -> None:
    world.held_log.held = True
    queue = world.queue(durable=True)
    world.broker.page_above = SHARE
    world.push(queue, *bodies(), persistent=True)
    world.run()
    assert queue.ready.backlog.paged == 0
    world.held_log.release_all()
    later = [f"later {number}" for number in range(PUSHES)]
    for body in later:
        paged = queue.ready.backlog.paged
        world.push(queue, body, persistent=True)
        assert queue.ready.backlog.paged - paged in (0, 2 * PUSHES)
    assert queue.ready.backlog.paged == 2 * PUSHES
    world.held_log.held = False
    world.held_log.release_all()
    world.run()
    assert world.contents(queue) == [*bodies(), *later]


def test_many_queues_are_added_up_over_several_turns(world: World) -> None:
    count = STEP_WORK // QUEUES_WORK * QUEUES + 2 * QUEUES
    queues = [world.queue(f"q{number}") for number in range(count)]
    for queue in queues[-2 * QUEUES :]:
        world.push(queue, "x" * 10_000)
    world.run()
    world.broker.page_above = 1 << 15
    world.broker.share_memory(4 << 20, 1 << 17)
    assert world.broker.page_above == 1 << 15  # it does not grow before all are added up
    world.broker.share_memory(4 << 20, 1 << 14)
    assert world.broker.page_above == 1 << 14  # but shrinks at once
    world.broker.share_memory(4 << 20, 1 << 16)
    world.run()
    assert world.broker.page_above == 1 << 16
    world.broker.share_memory(1 << 20, 1 << 16)
    world.run()
    assert world.broker.page_above == MIN_SHARE


def paged_out(world: World, count: int) -> tuple[ClassicQueue, Taker]:
    """A queue whose messages are paged out, except for the first one, which its new consumer gets."""
    queue = fill(world, 1 + count)
    world.broker.page_above = 1
    world.broker.page_down()
    world.run()
    taker = Taker(queue)
    world.broker.end_turn()
    assert taker.bodies() == bodies(1) and queue.ready.backlog.loading
    return queue, taker


def test_a_large_chunk_is_delivered_from_the_turn_after_it_was_read_on(world: World) -> None:
    queue, taker = paged_out(world, 2 * CHUNK_ENTRIES)
    step(world)
    assert len(queue.ready.backlog.head) > LOADED_AT_ONCE and len(taker.taken) == 1
    step(world)
    assert len(taker.taken) == 1 + MAX_DELIVERED
    world.run()
    assert taker.bodies() == bodies(1 + 2 * CHUNK_ENTRIES)


def test_a_small_chunk_is_delivered_in_the_turn_in_which_it_was_read(world: World) -> None:
    _, taker = paged_out(world, LOADED_AT_ONCE)
    step(world)
    assert taker.bodies() == bodies(1 + LOADED_AT_ONCE)
