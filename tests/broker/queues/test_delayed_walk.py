"""A walk of an operator over delayed messages."""

from __future__ import annotations

import random

import pytest

from leveret.broker.message import Entry
from leveret.broker.queues.classic import delayed_walk
from leveret.broker.queues.classic.queue import ClassicQueue
from leveret.broker.queues.inspection import FIRST_LEVEL, NO_END, Walk
from tests.broker.support import Taker, World, body_of
from tests.support.queues import classic


def delay(world: World, queue: ClassicQueue, after: int, *, persistent: bool = False) -> None:
    """Publish a message with its delay as the body."""
    message = world.message(f"{after}", key=queue.name, persistent=persistent)
    assert queue.delay(message, world.clock.now() + after)


def bodies(entries: list[Entry]) -> list[int]:
    return [int(body_of(entry.message)) for entry in entries]


def rest(world: World, walk: Walk, count: int = 10) -> list[int]:
    """Return the delays of the entries up to the end of a walk."""
    found: list[int] = []
    while not walk.ended:
        found += bodies(walk.next(count, 1 << 20))
        if walk.must_read:
            walk.read(lambda: None)
            world.run()
    return found


def first(world: World, walk: Walk, count: int) -> list[Entry]:
    """Return the first entries of a walk."""
    found: list[Entry] = []
    while len(found) < count:
        found += walk.next(count - len(found), 1 << 20)
        if walk.must_read:
            walk.read(lambda: None)
            world.run()
    return found


@pytest.fixture
def delays() -> list[int]:
    """Delays in random order, of which some are equal."""
    found = [100 + 10 * (number // 2) for number in range(300)]
    random.Random(3).shuffle(found)
    return found


@pytest.mark.parametrize("paged", ["none", "persistent", "transient", "some"])
def test_entries_are_walked_over_in_the_order_of_their_due_times(delays: list[int], paged: str) -> None:
    world = World(page_above=10_000 if paged != "none" else 1 << 30, overflow=True)
    queue = world.queue(durable=True)
    for number, after in enumerate(delays):
        delay(world, queue, after, persistent=paged == "persistent" or (paged == "some" and number % 3 > 0))
        if paged == "some" and number == 150:
            world.run()
            world.broker.page_down()
    world.run()
    if paged in ("persistent", "transient"):
        world.broker.page_down()
        assert queue.delays is not None and not queue.delays.recent
    before = (queue.ready.memory, queue.delayed_count)
    assert rest(world, queue.inspect().walk_delayed()) == sorted(delays)
    assert (queue.ready.memory, queue.delayed_count) == before
    world.sleep(10_000)
    assert (queue.ready_count, queue.delayed_count) == (len(delays), 0)


def test_a_walk_continues_behind_an_entry(world: World, delays: list[int]) -> None:
    queue = world.queue()
    for after in delays:
        delay(world, queue, after)
    walk = queue.inspect().walk_delayed()
    walk.start_after(FIRST_LEVEL, 0, queue.next_seq - 1)
    entries = walk.next(20, 1 << 20)
    walk.start_behind(entries[4])
    place = walk.level, walk.seq, walk.until
    delay(world, queue, 1)  # newer than the walk
    other = queue.inspect().walk_delayed()
    other.start_after(*place)
    assert rest(world, walk) == rest(world, other) == sorted(delays)[5:]
    assert rest(world, queue.inspect().walk_delayed()) == [1, *sorted(delays)]


def test_entries_are_skipped(world: World, delays: list[int]) -> None:
    queue = world.queue()
    for after in delays:
        delay(world, queue, after)
    walk = queue.inspect().walk_delayed()
    left = 290
    while left:
        left = walk.skip(left)
    assert rest(world, walk) == sorted(delays)[290:]
    walk = queue.inspect().walk_delayed()
    assert walk.skip(1000) == 700 and rest(world, walk) == []


def test_a_step_looks_at_a_limited_number_of_entries(world: World) -> None:
    queue = world.queue()
    count = delayed_walk.MAX_FOUND + delayed_walk.SEARCHED + 10
    for number in range(count):
        delay(world, queue, 100 + count - number)  # the last ones come first
    walk = queue.inspect().walk_delayed()
    for _ in range(2):
        assert walk.next(10, 1 << 20) == [] and walk.searching and not walk.ended
    assert bodies(walk.next(2, 1 << 20)) == [101, 102]
    assert rest(world, walk, 1000) == [100 + number for number in range(3, count + 1)]


def test_one_entry_is_found(world: World) -> None:
    queue = world.queue()
    for after in (300, 100, 200):
        delay(world, queue, after)
    walk = queue.inspect().walk_delayed()
    assert walk.find(3) and rest(world, walk) == [200]
    walk = queue.inspect().walk_delayed()
    walk.find(4)
    assert rest(world, walk) == []


def test_entries_that_become_ready_meanwhile_are_passed(world: World) -> None:
    queue = world.queue()
    for after in (100, 200, 300):
        delay(world, queue, after)
    walk = queue.inspect().walk_delayed()
    walk.start_after(FIRST_LEVEL, 0, NO_END)
    assert bodies(walk.next(1, 1 << 20)) == [100]
    world.sleep(250)
    delay(world, queue, 500)  # takes the place of an entry that was released
    assert rest(world, walk) == [300]
    assert rest(world, queue.inspect().walk_delayed()) == [300, 500]
    world.sleep(1000)
    assert rest(world, queue.inspect().walk_delayed()) == []


def test_paged_out_entries_that_were_settled_meanwhile_are_not_read() -> None:
    world = World(page_above=10_000, overflow=True)
    queue = world.queue(durable=True)
    for number in range(100):
        delay(world, queue, 1000 + number, persistent=True)
    world.run()
    world.broker.page_down()
    walk = queue.inspect().walk_delayed()
    assert walk.skip(10) == 0
    taker = Taker(queue)
    world.sleep(1050)
    world.run()
    taker.ack(51)
    world.run()
    assert rest(world, walk) == [1000 + number for number in range(51, 100)]


def recovered(world: World, delays: list[int]) -> tuple[World, ClassicQueue]:
    """Return a broker and its queue after a restart. Every other message of the queue is ready."""
    queue = world.queue(durable=True)
    for after in delays:
        delay(world, queue, after, persistent=True)
        world.push(queue, "0", persistent=True)
    world.run()
    log, recovery = world.held_log.recovery()
    again = World(log=log, recovery=recovery, time=world.clock.now())
    again.run()
    return again, classic(again.vhost.queues["q"])


def test_entries_that_the_queue_has_not_read_since_a_restart_come_last(world: World, delays: list[int]) -> None:
    again, queue = recovered(world, delays)
    assert (queue.ready_count, queue.delayed_count) == (2 * len(delays), 0)
    for number in range(10):
        delay(again, queue, 1000 + number)
    expected = [*range(1000, 1010), *delays]
    assert rest(again, queue.inspect().walk_delayed()) == expected
    for count in (5, 10, 50):
        walk = queue.inspect().walk_delayed()
        entries = first(again, walk, count)
        assert bodies(entries) == expected[:count]
        walk.start_behind(entries[-2])
        other = queue.inspect().walk_delayed()
        other.start_after(walk.level, walk.seq, walk.until)
        assert rest(again, other) == expected[count - 1 :]
    walk = queue.inspect().walk_delayed()
    left = 100
    while left:
        left = walk.skip(left)
        if walk.must_read:
            walk.read(lambda: None)
            again.run()
    assert rest(again, walk) == expected[100:]
    for seq, found in ((2 * 7 + 1, [delays[7]]), (2 * 7 + 2, []), (2 * len(delays) + 1, [1000])):
        walk = queue.inspect().walk_delayed()
        walk.find(seq)
        assert rest(again, walk) == found
    taker = Taker(queue)
    again.run()
    assert queue.delayed_count == len(expected) and len(taker.taken) == len(delays)
    assert rest(again, queue.inspect().walk_delayed()) == sorted(expected)


def test_a_purge_ends_a_walk_and_its_read() -> None:
    world = World(page_above=10_000, overflow=True)
    queue = world.queue(durable=True)
    for number in range(100):
        delay(world, queue, 1000 + number, persistent=True)
    world.run()
    world.broker.page_down()
    walk = queue.inspect().walk_delayed()
    assert walk.next(10, 1 << 20) == [] and walk.must_read
    done: list[bool] = []
    walk.read(lambda: done.append(True))
    queue.purge()
    world.run()
    assert done and walk.next(10, 1 << 20) == [] and walk.ended
    assert rest(world, queue.inspect().walk_delayed()) == []
