"""Browsers: consumers that get copies of ready messages, in order, without changing the queue."""

from __future__ import annotations

import random
from typing import Any

import pytest

import leveret
from leveret.broker.message import AVAILABLE, Entry
from leveret.broker.queues.classic import browsing
from leveret.broker.queues.classic.queue import ClassicQueue
from tests.broker.support import Taker, World, figures, text_of

BODIES = [f"{number:04}" for number in range(60)]


class Reader(Taker):
    """A consumer that browses."""

    def __init__(self, queue: ClassicQueue, *, credit: int = -1, only: bytes | None = None) -> None:
        super().__init__(queue, credit=credit, only=only, join=False)
        self.browse({})
        self.counts: list[tuple[int, int]] = []
        queue.add_consumer(self)

    def deliver(self, entry: Entry) -> None:
        super().deliver(entry)
        self.counts.append((entry.acquired_count, entry.delivery_count))


@pytest.fixture
def small() -> World:
    return World(page_above=10_000)


def deep(world: World, **options: Any) -> ClassicQueue:
    """A queue that is mostly paged out."""
    queue = world.queue(durable=True)
    world.push(queue, *BODIES, persistent=True, **options)
    world.run()
    world.broker.page_down()
    assert queue.ready.backlog.paged > 40
    return queue


def test_copies_leave_the_queue_as_it_is(world: World) -> None:
    queue = world.queue()
    world.push(queue, "a", "b")
    reader = Reader(queue)
    world.run()
    assert reader.history == ["a", "b"]
    assert figures(queue) == (2, 2, 0)
    assert all(
        entry.state == AVAILABLE and not entry.acquired_count and entry.holder is None for entry in queue.ready.backlog.head
    )
    assert not queue.consumers
    taker = Taker(queue)
    world.run()
    assert taker.history == ["a", "b"]
    assert reader.history == ["a", "b"]


def test_new_messages_are_delivered_too(world: World) -> None:
    queue = world.queue()
    reader = Reader(queue)
    taker = Taker(queue)
    for body in ("a", "b"):
        world.push(queue, body)
        world.run()
    assert reader.history == taker.history == ["a", "b"]


def test_credit_is_respected(world: World) -> None:
    queue = world.queue()
    world.push(queue, "a", "b", "c")
    reader = Reader(queue, credit=1)
    world.run()
    assert reader.history == ["a"]
    reader.give(1)
    world.run()
    assert reader.history == ["a", "b"]


def test_entries_acquired_in_the_meantime_are_skipped(world: World) -> None:
    queue = world.queue()
    world.push(queue, "a", "b", "c")
    reader = Reader(queue, credit=1)
    world.run()
    taker = Taker(queue, credit=2)
    world.run()
    assert taker.history == ["a", "b"]
    reader.give(-1)
    world.run()
    assert reader.history == ["a", "c"]
    taker.requeue_all()
    world.run()
    assert reader.history == ["a", "c"]


def test_counts_are_those_of_a_delivery(world: World) -> None:
    queue = world.queue()
    world.push(queue, "a", "b")
    taker = Taker(queue, credit=1)
    world.run()
    taker.requeue_all()
    reader = Reader(queue)
    world.run()
    assert reader.counts == [(2, 1), (1, 0)]


def test_only_matching_messages(small: World) -> None:
    reader = Reader(deep(small), only=b"005")
    small.run()
    assert reader.history == [f"005{number}" for number in range(10)]


def test_expired_messages_are_not_shown(world: World) -> None:
    queue = world.queue()
    world.push(queue, "a")
    world.push(queue, "b", ttl=1000)
    world.clock.time += 2000  # behind the head, without a notification
    reader = Reader(queue)
    world.run()
    assert reader.history == ["a"]


def test_priorities(world: World) -> None:
    queue = world.queue()
    for priority in (1, 9, 5, 9):
        world.push(queue, f"{priority}", priority=priority)
    reader = Reader(queue)
    world.run()
    assert reader.history == ["9", "9", "5", "1"]
    world.push(queue, "new 9", priority=9)
    world.push(queue, "new 1", priority=1)
    world.run()
    assert reader.history[4:] == ["new 9", "new 1"]


def test_messages_that_become_visible_later(world: World) -> None:
    """An entry of a transaction has its number before the commit, and is seen after it."""
    queue = world.queue()
    entry = queue.prepare(world.message("late", key="q"))
    world.push(queue, "early")
    reader = Reader(queue)
    world.run()
    queue.insert_new(entry)
    world.run()
    assert reader.history == ["early", "late"]


def test_paged_messages_in_their_order(small: World) -> None:
    queue = deep(small)
    reader = Reader(queue)
    small.run()
    small.push(queue, "new", persistent=True)
    small.run()
    assert reader.history == [*BODIES, "new"]
    # They stay paged out, beyond the share of memory that the queue has.
    assert queue.ready.backlog.paged > 40
    assert queue.ready.memory < 15_000
    assert small.contents(queue) == [*BODIES, "new"]


def test_transient_messages_that_are_paged() -> None:
    world = World(page_above=10_000, overflow=True)
    queue = world.queue()
    world.push(queue, *BODIES)
    world.run()
    for _ in range(3):
        world.broker.page_down()
        world.run()
    assert queue.ready.backlog.paged > 40
    reader = Reader(queue)
    world.run()
    assert reader.history == BODIES
    assert world.contents(queue) == BODIES


def test_loading_is_limited_by_credit(small: World, monkeypatch: pytest.MonkeyPatch) -> None:
    most = browsing.READ_ENTRIES
    if not leveret.build_info().compiled:  # there, constants have their compiled values
        monkeypatch.setattr(browsing, "READ_ENTRIES", 4)
        most = 4
    queue = deep(small)
    reader = Reader(queue, credit=0)
    small.run()
    browser = next(iter(queue.browsing.browsers.values()))
    assert not browser.reading and not browser.read
    reader.give(20)
    small.run()
    assert reader.history == BODIES[:20]
    assert len(next(iter(queue.browsing.browsers.values())).read) <= most


def test_credit_that_ends_before_the_next_read(small: World, monkeypatch: pytest.MonkeyPatch) -> None:
    if not leveret.build_info().compiled:  # there, constants have their compiled values
        monkeypatch.setattr(browsing, "READ_ENTRIES", 4)
    queue = deep(small)
    reader = Reader(queue, credit=0)
    for _ in BODIES:
        small.run()
        reader.give(1)
    small.run()
    assert reader.history == BODIES


def test_a_purge_while_it_reads(small: World) -> None:
    queue = deep(small)
    reader = Reader(queue)
    small.broker.end_turn()
    assert next(iter(queue.browsing.browsers.values())).reading
    shown = len(reader.history)
    assert queue.purge() == 60
    small.run()
    small.push(queue, "new", persistent=True)
    small.run()
    assert reader.history == [*BODIES[:shown], "new"]


def test_leaving_while_it_reads(small: World) -> None:
    queue = deep(small)
    reader = Reader(queue)
    small.broker.end_turn()
    assert next(iter(queue.browsing.browsers.values())).reading
    shown = len(reader.history)
    queue.remove_consumer(reader)
    small.run()
    assert len(reader.history) == shown
    assert not queue.browsing.browsers


def test_a_consumer_that_loads_entries_being_read(small: World) -> None:
    queue = deep(small)
    reader = Reader(queue)
    small.broker.end_turn()
    assert next(iter(queue.browsing.browsers.values())).reading
    taker = Taker(queue)
    small.run()
    assert taker.history == BODIES
    assert reader.history == sorted(set(reader.history))


def test_deletion_notifies_browsers(world: World) -> None:
    queue = world.queue()
    reader = Reader(queue)
    world.vhost.remove_queue(queue)
    assert reader.gone


def test_a_queue_that_is_browsed_is_in_use(world: World) -> None:
    queue = world.queue(expires=1000)
    reader = Reader(queue)
    world.sleep(5000)
    assert not queue.deleted
    queue.remove_consumer(reader)
    world.sleep(5000)
    assert queue.deleted


def test_a_browser_keeps_the_queue_after_the_last_consumer(world: World) -> None:
    queue = world.queue(expires=1000)
    consumer = Taker(queue)
    reader = Reader(queue)
    queue.remove_consumer(consumer)
    world.sleep(5000)
    assert not queue.deleted and queue.lifetime.users == 1
    queue.remove_consumer(reader)
    world.sleep(999)
    assert not queue.deleted
    world.sleep(1)
    assert queue.deleted


def test_an_exclusive_consumer_is_not_in_the_way(world: World) -> None:
    queue = world.queue()
    Taker(queue, exclusive=True, credit=0)
    world.push(queue, "a")
    reader = Reader(queue)
    world.run()
    assert reader.history == ["a"]


@pytest.mark.parametrize("seed", range(120))
def test_any_mixture(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No message is shown twice, each level is in order, and messages that stay are shown."""
    choose = random.Random(seed)
    monkeypatch.setattr(browsing, "READ_ENTRIES", choose.choice((1, 3, 256, 256)))
    world = World(page_above=choose.choice((3_000, 10_000, 1 << 20)), overflow=choose.random() < 0.5)
    queue = world.queue(durable=True)
    reader = Reader(queue, credit=0)
    taker = Taker(queue, credit=0, only=choose.choice((None, b"x")))
    levels: dict[str, int] = {}
    touched: set[str] = set()
    for step in range(120):
        what = choose.randrange(9)
        if what < 4:
            priority = choose.choice((-1, -1, -1, 4, 9, 0))
            for number in range(choose.randrange(1, 8)):
                body = f"{choose.choice('xy')}{step}.{number}"
                levels[body] = queue.ready.priority_of(priority)
                world.push(queue, body, persistent=choose.random() < 0.7, priority=priority)
        elif what == 4:
            reader.give(choose.randrange(8))
        elif what == 5:
            taker.give(choose.randrange(4))
        elif what == 6 and taker.taken:
            if choose.random() < 0.5:
                taker.requeue_all()
            else:
                taker.ack()
        elif what == 7:
            world.broker.page_down()
        else:
            world.run()
        if choose.random() < 0.7:
            world.broker.end_turn()
        touched.update(taker.history)
    taker.give(0)
    taker.requeue_all()
    reader.give(-1)
    world.run()
    assert len(set(reader.history)) == len(reader.history)
    order = list(levels)
    for level in set(levels.values()):
        shown = [order.index(body) for body in reader.history if levels[body] == level]
        assert shown == sorted(shown)
    left = set(world.contents(queue))
    assert left - touched <= set(reader.history)
    assert text_of(reader.taken[0]) == reader.history[0]
