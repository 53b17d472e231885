"""First in, first out; requeued messages return to their old places."""

from __future__ import annotations

import random

from tests.broker.support import Keeper, Taker, World, figures


def test_messages_leave_in_order_of_arrival(world: World) -> None:
    queue = world.queue()
    world.push(queue, "a", "b", "c")
    consumer = Taker(queue)
    world.push(queue, "d")
    world.run()
    assert consumer.bodies() == ["a", "b", "c", "d"]


def test_get_returns_the_oldest(world: World) -> None:
    queue = world.queue()
    world.push(queue, "a", "b")
    entry = queue.get(False)
    assert entry is not None and entry.message.body == b"a"
    assert figures(queue) == (1, 1, 1)
    queue.settle(entry)
    assert figures(queue) == (1, 1, 0)
    assert world.contents(queue) == ["b"]
    assert figures(queue) == (0, 0, 0) and queue.ready.memory == 0


def test_a_requeued_message_returns_to_its_old_place(world: World) -> None:
    queue = world.queue()
    world.push(queue, "a", "b", "c", "d")
    a, b, c = (queue.get(False) for _ in range(3))
    assert a is not None and b is not None and c is not None
    queue.requeue(b)
    queue.requeue(c)
    queue.requeue(a)
    assert world.contents(queue) == ["a", "b", "c", "d"]


def test_any_order_of_requeues_restores_the_queue(world: World) -> None:
    chance = random.Random(7)
    for _ in range(30):
        queue = world.queue()
        bodies = [f"{number:02}" for number in range(12)]
        world.push(queue, *bodies)
        taken = [queue.get(False) for _ in range(chance.randint(1, 12))]
        chance.shuffle(taken)
        world.push(queue, "99")
        for entry in taken:
            assert entry is not None
            queue.requeue(entry)
        assert world.contents(queue) == [*bodies, "99"]


def test_a_requeued_message_counts_as_redelivered_and_a_failed_attempt(world: World) -> None:
    queue = world.queue()
    world.push(queue, "a")
    for attempt in range(3):
        entry = queue.get(False)
        assert entry is not None
        assert (entry.acquired_count, entry.delivery_count) == (attempt + 1, attempt)
        queue.requeue(entry)


def test_a_get_without_acknowledgement_settles_at_once(world: World) -> None:
    queue = world.queue()
    world.push(queue, "a")
    assert queue.get(True) is not None
    assert figures(queue) == (0, 0, 0)
    assert queue.get(True) is None


def test_a_deleted_queue_accepts_no_requeued_messages(world: World) -> None:
    queue = world.queue(durable=True)
    world.push(queue, "a", "b", persistent=True)
    first = queue.get(False)
    second = queue.get(False)
    assert first is not None and second is not None
    keeper = Keeper()
    keeper.entries = [first, second]
    world.broker.holders[keeper] = None
    world.vhost.remove_queue(queue)
    queue.requeue(first)
    queue.settle(second)
    world.run()
    assert figures(queue) == (0, 0, 0)
    assert world.log.rows == {}
