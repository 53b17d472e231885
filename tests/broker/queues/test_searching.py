"""A `get` for an audience looks for its messages in steps, in memory and among paged-out ones."""

from __future__ import annotations

import itertools

import pytest

from leveret.broker.consumer import Scope
from leveret.broker.jobs import STEP_WORK
from leveret.broker.message import AUDIENCE_SHIFT
from leveret.broker.queues.classic.backlog import MAX_SEARCHES
from leveret.broker.queues.queue import Queue
from tests.broker.support import Taker, World, text_of

ONE, TWO = 1 << AUDIENCE_SHIFT, 2 << AUDIENCE_SHIFT
# More entries than a `get` looks at in one turn.
MANY = 5000


def get_in_steps(world: World, queue: Queue, audience: int, scope: object = None) -> tuple[str | None, int]:
    """Return the body of the next entry for an audience, and the number of gets to find it."""
    for step in itertools.count(1):
        world.end_turn()
        entry = queue.get(True, audience, scope)
        assert world.broker.work <= 2 * STEP_WORK
        if entry is not None or not queue.paging.must_load(audience, scope):
            return (None if entry is None else text_of(entry)), step
        assert world.posted
        world.run()
    raise AssertionError


def test_messages_in_memory(world: World) -> None:
    queue = world.queue()
    for number in range(MANY):
        world.push(queue, str(number), publisher=ONE)
    world.push(queue, "two", publisher=TWO)
    world.run()
    found, steps = get_in_steps(world, queue, 2)
    assert (found, steps > 2) == ("two", True)
    assert get_in_steps(world, queue, 2) == (None, 1)
    world.push(queue, "again", publisher=TWO)
    world.run()
    assert get_in_steps(world, queue, 2) == ("again", 1)
    assert get_in_steps(world, queue, 1) == ("0", 1)


@pytest.mark.parametrize("priority", [-1, 5])
def test_a_requeued_message_is_found_again(world: World, priority: int) -> None:
    queue = world.queue(max_priority=9)
    world.push(queue, "first", publisher=TWO, priority=priority)
    entry = queue.get(False, 2)
    assert entry is not None
    for number in range(MANY):
        world.push(queue, str(number), publisher=ONE, priority=number % 2)
    assert get_in_steps(world, queue, 2)[0] is None
    queue.requeue(entry)
    assert get_in_steps(world, queue, 2)[0] == "first"


def test_paged_out_messages() -> None:
    world = World(page_above=100_000)
    queue = world.queue(durable=True)
    for number in range(8 * MANY):
        # Publishers of both kinds are in each chunk, but only those of one audience.
        world.push(queue, str(number), persistent=True, publisher=ONE + number % 2)
        if not number % 100:
            world.run()
    world.push(queue, "two", persistent=True, publisher=TWO)
    for number in range(200):
        world.push(queue, str(number), persistent=True, publisher=ONE + number % 2)
    world.run()
    backlog = queue.ready.backlog
    chunks = len(backlog.chunks)
    assert chunks > 10
    assert get_in_steps(world, queue, 2)[0] == "two"
    assert len(backlog.chunks) > chunks - 5
    assert get_in_steps(world, queue, 1)[0] == "0"


def test_more_scopes_than_are_noted(world: World) -> None:
    queue = world.queue()
    for number in range(4):
        world.push(queue, str(number))
    scopes = [object() for _ in range(MAX_SEARCHES + 1)]
    entry = queue.get(False)
    assert entry is not None
    for scope in scopes:
        queue.refuse(entry, scope)
    queue.requeue(entry)
    assert [get_in_steps(world, queue, 0, scope) for scope in scopes[:3]] == [("1", 1), ("2", 1), ("3", 1)]
    assert all(get_in_steps(world, queue, 0, scope) == (None, 1) for scope in scopes)
    world.push(queue, "new")
    assert get_in_steps(world, queue, 0, scopes[0]) == ("new", 1)
    assert get_in_steps(world, queue, 0, object()) == ("0", 1)


def test_a_message_that_becomes_visible_after_the_scope_has_looked_beyond_it(world: World) -> None:
    queue = world.queue()
    scope = object()
    world.push(queue, "first")
    late = queue.prepare(world.message("late"))
    world.push(queue, "third")
    for entry in reversed([queue.get(False, 0, scope) for _ in range(2)]):
        assert entry is not None
        queue.refuse(entry, scope)
        queue.requeue(entry)
    assert get_in_steps(world, queue, 0, scope) == (None, 1)
    Taker(queue, only=b"third")
    world.run()
    assert queue.ready_count == 1
    queue.insert_new(late)
    assert get_in_steps(world, queue, 0, scope) == ("late", 1)


def test_requeued_messages_are_counted_as_work_for_each_scope_that_has_looked_beyond_them(world: World) -> None:
    queue = world.queue()
    for number in range(100):
        world.push(queue, str(number))
    first, *others, last = [queue.get(False) for _ in range(100)]
    scopes = [object() for _ in range(MAX_SEARCHES)]
    for entry in (last, first):
        assert entry is not None
        for scope in scopes:
            queue.refuse(entry, scope)
        queue.requeue(entry)
    assert all(get_in_steps(world, queue, 0, scope) == (None, 1) for scope in scopes)
    world.end_turn()
    for entry in reversed(others):
        assert entry is not None
        queue.requeue(entry)
    assert world.broker.work >= len(others) * (MAX_SEARCHES >> 4)
    assert get_in_steps(world, queue, 0, scopes[1]) == ("1", 1)


def test_a_message_that_very_many_scopes_have_refused(world: World) -> None:
    queue = world.queue()
    world.push(queue, "unwanted")
    entry = queue.get(False)
    assert entry is not None
    lasting = [Scope() for _ in range(4)]
    for scope in lasting:
        queue.refuse(entry, scope)
    for _ in range(5000):
        scope = Scope()
        queue.refuse(entry, scope)
        scope.depart()
    assert entry.overlay is not None
    assert len(entry.overlay.refused) <= 4 * len(lasting)
    for _ in range(5000):
        queue.refuse(entry, Scope())
    assert 0 < world.broker.work < 5000
    queue.requeue(entry)
    assert all(get_in_steps(world, queue, 0, scope) == (None, 1) for scope in lasting)
    assert get_in_steps(world, queue, 0, Scope()) == ("unwanted", 1)


def test_an_expired_message_behind_others_is_passed(world: World) -> None:
    queue = world.queue()
    world.push(queue, "one", publisher=ONE)
    world.push(queue, "expired", publisher=TWO, ttl=1000)
    world.push(queue, "two", publisher=TWO)
    world.run()
    world.sleep(2000)
    assert get_in_steps(world, queue, 2) == ("two", 1)
    assert get_in_steps(world, queue, 1) == ("one", 1)


@pytest.mark.parametrize("kept", [0, 1])
def test_paged_out_messages_of_which_a_get_must_return_none_stay_there(kept: int) -> None:
    world = World(page_above=100_000)
    queue = world.queue(durable=True)
    for number in range(2 * MANY):
        world.push(queue, str(number), persistent=True, publisher=ONE)
        if not number % 100:
            world.run()
    world.run()
    backlog = queue.ready.backlog
    chunks = len(backlog.chunks)
    assert chunks > 2
    for entry in [queue.get(False) for _ in range(len(backlog.head) - kept)]:
        assert entry is not None
        queue.settle(entry)
    loading = backlog.loading
    world.run()
    assert get_in_steps(world, queue, 2)[0] is None
    assert len(backlog.chunks) >= chunks - loading - 1
    world.push(queue, "two", publisher=TWO)
    world.run()
    assert get_in_steps(world, queue, 2)[0] == "two"
    assert len(backlog.chunks) >= chunks - loading - 1


def test_paged_out_messages_that_a_scope_has_refused_stay_there() -> None:
    world = World(page_above=100_000)
    queue = world.queue(durable=True)
    world.push(queue, *[str(number) for number in range(MANY)], persistent=True)
    world.run()
    scope = object()
    entries = []
    while queue.ready_count:
        entry = queue.get(False, 0, scope)
        if entry is None:
            world.run()
        else:
            entries.append(entry)
    for entry in reversed(entries):
        queue.refuse(entry, scope)
        queue.requeue(entry)
    world.run()
    world.broker.page_down()
    world.run()
    backlog = queue.ready.backlog
    paged = backlog.paged
    assert paged > MANY // 2
    assert get_in_steps(world, queue, 0, scope)[0] is None
    assert backlog.paged == paged
    world.push(queue, "new", persistent=True)
    world.run()
    assert get_in_steps(world, queue, 0, scope)[0] == "new"
    assert get_in_steps(world, queue, 0, object())[0] == "0"
