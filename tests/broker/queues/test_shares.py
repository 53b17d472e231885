"""The share of memory that each queue may use: all of them together stay within a budget."""

from __future__ import annotations

import pytest

from leveret.broker.queues.shares import MIN_SHARE
from tests.broker.support import Taker, World
from tests.support.queues import classic

MOST = 1 << 20
BUDGET = 4 << 20


@pytest.fixture
def world() -> World:
    return World(overflow=True)


def look(world: World) -> None:
    """Run the periodic memory check twice: entries that must be written first are paged out the second time."""
    world.broker.share_memory(BUDGET, MOST)
    for _ in range(2):
        world.broker.page_down()
        world.run()


def in_memory(world: World) -> int:
    return sum(queue.paging.memory() for queue in world.vhost.queues.values())


def flood(world: World, queues: int, messages: int, size: int = 5000) -> None:
    """Publish messages to `count` queues without consumers."""
    for number in range(queues):
        if f"q{number}" not in world.vhost.queues:
            world.vhost.bind(world.queue(f"q{number}"), "amq.fanout", "", {})
    for number in range(messages):
        world.publish("amq.fanout", "", f"{number:06}".ljust(size))
        world.run()


def test_queues_that_fit_have_the_full_share(world: World) -> None:
    flood(world, 3, 100)
    look(world)
    assert world.broker.page_above == MOST
    assert all(not classic(queue).ready.backlog.paged for queue in world.vhost.queues.values())


def test_many_queues_share_the_budget(world: World) -> None:
    flood(world, 40, 100)
    assert in_memory(world) > 5 * BUDGET
    look(world)
    assert in_memory(world) <= BUDGET
    assert world.broker.page_above <= BUDGET // 40
    before = world.broker.page_above
    flood(world, 40, 100)
    look(world)
    assert in_memory(world) <= BUDGET and world.broker.page_above == before


def test_a_push_pages_without_the_watch(world: World) -> None:
    flood(world, 40, 20)
    look(world)
    flood(world, 40, 200)
    assert in_memory(world) < 4 * BUDGET
    look(world)
    queue = world.vhost.queues["q7"]
    assert [body[:6] for body in world.contents(queue)] == [f"{n:06}" for n in (*range(20), *range(200))]


def test_small_queues_keep_their_entries(world: World) -> None:
    flood(world, 5, 4)
    for number in range(10):
        queue = world.queue(f"deep{number}")
        for _ in range(20):
            world.push(queue, "x" * 50_000)
        world.run()
    look(world)
    assert in_memory(world) <= BUDGET
    assert all(
        (classic(queue).ready.backlog.paged > 0) == name.startswith("deep") for name, queue in world.vhost.queues.items()
    )


def test_shares_grow_again_when_queues_are_empty(world: World) -> None:
    flood(world, 40, 100)
    look(world)
    for number in range(30):
        Taker(world.vhost.queues[f"q{number}"], no_ack=True)
    world.run()
    small = world.broker.page_above
    look(world)
    assert small < world.broker.page_above < MOST
    for number in range(30, 40):
        world.vhost.queues[f"q{number}"].purge()
    look(world)
    assert world.broker.page_above == MOST


def test_no_share_is_below_the_useful_minimum(world: World) -> None:
    flood(world, 300, 10)
    look(world)
    assert world.broker.page_above == MIN_SHARE


def test_without_an_overflow_log_there_are_no_shares() -> None:
    world = World()
    flood(world, 40, 100)
    look(world)
    assert world.broker.page_above == MOST
