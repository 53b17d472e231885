"""Messages that become visible later."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from leveret.broker.queues.classic import delayed
from leveret.broker.queues.classic.queue import ClassicQueue
from tests.broker.support import Taker, World, figures
from tests.support.queues import classic


def delay(world: World, queue: ClassicQueue, body: str, after: int, **options: object) -> bool:
    return queue.delay(world.message(body, key=queue.name, **options), world.clock.now() + after)  # type: ignore[arg-type]


@pytest.fixture
def small() -> World:
    return World(page_above=10_000)


def test_it_becomes_visible_when_it_is_due(world: World) -> None:
    queue = world.queue()
    taker = Taker(queue)
    assert delay(world, queue, "later", 1000)
    world.push(queue, "now")
    world.run()
    assert taker.history == ["now"]
    assert (queue.delayed_count, queue.ready_count, queue.ready_bytes) == (1, 0, 0)
    world.sleep(999)
    assert taker.history == ["now"]
    world.sleep(1)
    assert taker.history == ["now", "later"]
    assert queue.delayed_count == 0
    taker.ack(2)
    assert figures(queue) == (0, 0, 0)
    assert queue.ready.memory == 0


def test_the_time_decides_and_not_the_order(world: World) -> None:
    queue = world.queue()
    taker = Taker(queue)
    order = list(range(200))
    random.Random(5).shuffle(order)
    for number in order:
        delay(world, queue, f"{number:03}", number * 10 + 10)
    for step in range(200):
        world.sleep(10)
        assert taker.history == [f"{number:03}" for number in range(step + 1)]


def test_due_messages_are_visible_at_once(world: World) -> None:
    queue = world.queue()
    delay(world, queue, "a", 0)
    delay(world, queue, "b", -5)
    assert (queue.ready_count, queue.delayed_count) == (2, 0)


@pytest.mark.parametrize("persistent", [True, False])
def test_a_deep_queue_keeps_positions_only(persistent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed, "READ_ENTRIES", 7)
    world = World(page_above=10_000, overflow=True)
    queue = world.queue(durable=True)
    for number in range(100):
        delay(world, queue, f"{number:03}", 1000 + number, persistent=persistent)
    world.run()
    world.broker.page_down()
    assert queue.ready.memory < 12_000
    assert (queue.delayed_count, queue.ready_count) == (100, 0)
    world.sleep(1049)
    assert (queue.delayed_count, queue.ready_count) == (50, 50)
    world.sleep(1000)
    assert world.contents(queue) == [f"{number:03}" for number in range(100)]
    assert queue.ready.memory == 0


def test_delayed_messages_are_paged_out_when_memory_is_low() -> None:
    world = World(overflow=True)
    queue = world.queue(durable=True)
    for number in range(100):
        delay(world, queue, f"{number:03}", 1000, persistent=True)
    world.run()
    assert queue.ready.memory > 50_000
    world.broker.page_above = 10_000
    world.broker.page_down()
    assert queue.ready.memory == 0
    world.sleep(1000)
    assert world.contents(queue) == [f"{number:03}" for number in range(100)]


def test_without_a_place_to_page_to_it_stays_in_memory(small: World) -> None:
    queue = small.queue()
    for number in range(60):
        delay(small, queue, f"{number:03}", 1000)
    small.run()
    small.broker.page_down()
    small.sleep(1000)
    assert small.contents(queue) == [f"{number:03}" for number in range(60)]


def test_it_survives_a_crash(world: World) -> None:
    queue = world.queue(durable=True)
    delay(world, queue, "soon", 1000, persistent=True)
    delay(world, queue, "late", 100_000, persistent=True)
    world.push(queue, "now", persistent=True)
    world.run()
    log, recovery = world.held_log.recovery()
    again = World(log=log, recovery=recovery, time=world.clock.now() + 2000)
    queue = classic(again.vhost.queues["q"])
    taker = Taker(queue)
    again.run()
    assert taker.history == ["soon", "now"]
    assert (queue.delayed_count, queue.ready_count) == (1, 0)
    again.sleep(100_000)
    assert taker.history == ["soon", "now", "late"]
    taker.ack(3)
    again.run()
    assert not again.held_log.kept


def test_ttl(world: World) -> None:
    """The queue's TTL begins when the message becomes visible, its own when it was sent."""
    queue = world.queue(message_ttl=1000)
    delay(world, queue, "queue", 5000)
    other = world.queue("other")
    delay(world, other, "own", 5000, ttl=4000)
    world.sleep(5000)
    assert (queue.ready_count, other.ready_count) == (1, 0)
    world.sleep(999)
    assert queue.ready_count == 1
    world.sleep(1)
    assert queue.ready_count == 0


def test_limits(world: World) -> None:
    """A queue that rejects counts delayed messages; one that drops counts them when they are due."""
    refusing = world.queue("r", max_length=2, overflow="reject-publish")
    assert delay(world, refusing, "a", 1000)
    assert world.push(refusing, "b")
    assert not delay(world, refusing, "c", 1000)
    assert not world.push(refusing, "d")
    by_bytes = world.queue("o", max_length_bytes=5, overflow="reject-publish")
    assert delay(world, by_bytes, "aaa", 1000)
    assert not world.push(by_bytes, "bbb")
    dropping = world.queue("d", max_length=2)
    for body in ("a", "b"):
        delay(world, dropping, body, 1000)
        world.push(dropping, f"{body} now")
    assert (dropping.ready_count, dropping.delayed_count) == (2, 2)
    world.sleep(1000)
    assert dropping.ready_count == 2


def test_a_visible_message_counts_only_once_for_the_limits(world: World) -> None:
    """A message that has become visible is ready, and no longer delayed."""
    queue = world.queue(max_length=2, max_length_bytes=6, overflow="reject-publish")
    assert delay(world, queue, "aaa", 1000)
    world.sleep(1000)
    assert world.push(queue, "bbb")
    assert world.contents(queue) == ["aaa", "bbb"]
    for _ in range(3):
        assert delay(world, queue, "cccccc", 1000)
        world.sleep(1000)
        assert world.contents(queue) == ["cccccc"]


def test_the_memory_of_a_visible_message_is_used_again(world: World) -> None:
    queue = world.queue()

    def delay_some(count: int) -> None:
        for _ in range(count):
            delay(world, queue, "a", 10)
            world.sleep(10)
            assert world.contents(queue) == ["a"]

    tracemalloc.start()
    try:
        delay_some(100)
        before, _ = tracemalloc.get_traced_memory()
        delay_some(2000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000


@pytest.mark.parametrize("paged", [False, True])
def test_a_purge_removes_them_too(paged: bool) -> None:
    world = World(page_above=10_000 if paged else 1 << 20, overflow=True)
    queue = world.queue(durable=True)
    for number in range(60):
        delay(world, queue, f"{number}", 1000, persistent=number % 2 == 0)
    world.push(queue, "now", persistent=True)
    world.run()
    world.broker.page_down()
    assert queue.purge() == 61
    assert (queue.delayed_count, queue.ready_count, queue.ready.memory) == (0, 0, 0)
    world.sleep(5000)
    assert queue.ready_count == 0
    assert not world.held_log.kept
    assert world.overflow is not None
    assert world.overflow.rows == {}
    delay(world, queue, "again", 1000)
    world.sleep(1000)
    assert world.contents(queue) == ["again"]


def test_a_purge_while_they_are_read(small: World) -> None:
    queue = small.queue(durable=True)
    for number in range(60):
        delay(small, queue, f"{number}", 1000, persistent=True)
    small.run()
    small.broker.page_down()
    small.clock.time += 1000
    small.clock.run(small.clock.time)
    assert queue.purge() == 60
    small.run()
    assert (queue.ready_count, queue.delayed_count, queue.ready.memory) == (0, 0, 0)


@pytest.mark.parametrize("strict", [False, True])
def test_deletion(strict: bool) -> None:
    world = World(strict=strict)
    dead = world.queue("dead", durable=True)
    queue = world.queue(durable=True, dead_letter_exchange="", dead_letter_routing_key="dead")
    delay(world, queue, "a", 1000, persistent=True)
    world.run()
    world.vhost.remove_queue(queue, strict)
    world.run()
    world.sleep(5000)
    assert dead.ready_count == 0
    assert not world.held_log.kept


def test_requeued_messages_are_not_delayed_again(world: World) -> None:
    queue = world.queue()
    taker = Taker(queue, credit=1)
    delay(world, queue, "a", 1000)
    world.sleep(1000)
    taker.requeue()
    taker.give(1)
    world.run()
    assert taker.history == ["a", "a"]


def test_dead_letters_are_not_delayed(world: World) -> None:
    dead = world.queue("dead")
    queue = world.queue(dead_letter_exchange="", dead_letter_routing_key="dead")
    delay(world, queue, "a", 1000, ttl=500)
    world.sleep(1000)
    assert world.contents(dead) == ["a"]
