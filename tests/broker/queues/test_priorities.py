"""Priorities of messages: ten levels on any queue, and RabbitMQ's rules with x-max-priority."""

from __future__ import annotations

from leveret.broker.queues.classic.queue import ClassicQueue
from tests.broker.support import Taker, World, figures


def push(world: World, queue: ClassicQueue, **priorities: int) -> None:
    for body, priority in priorities.items():
        world.push(queue, body, priority=priority)


class TestWithoutArgument:
    def test_ten_levels_highest_first(self, world: World) -> None:
        queue = world.queue()
        for priority in (3, 9, 0, 5, 1, 8, 2, 7, 4, 6):
            world.push(queue, str(priority), priority=priority)
        assert world.contents(queue) == list("9876543210")

    def test_absent_is_four(self, world: World) -> None:
        queue = world.queue()
        push(world, queue, three=3, absent=-1, four=4, absent2=-1, five=5)
        assert world.contents(queue) == ["five", "absent", "four", "absent2", "three"]

    def test_more_than_nine_is_nine(self, world: World) -> None:
        queue = world.queue()
        push(world, queue, nine=9, most=255, ten=10)
        assert world.contents(queue) == ["nine", "most", "ten"]

    def test_first_in_first_out_within_a_level(self, world: World) -> None:
        queue = world.queue()
        push(world, queue, a=1, b=2, c=1, d=2, e=1)
        assert world.contents(queue) == ["b", "d", "a", "c", "e"]


class TestMaxPriority:
    def test_absent_is_zero(self, world: World) -> None:
        queue = world.queue(max_priority=10)
        push(world, queue, absent=-1, one=1, zero=0)
        assert world.contents(queue) == ["one", "absent", "zero"]

    def test_more_is_capped(self, world: World) -> None:
        queue = world.queue(max_priority=3)
        push(world, queue, two=2, three=3, nine=9, most=255)
        assert world.contents(queue) == ["three", "nine", "most", "two"]

    def test_more_than_ten_levels(self, world: World) -> None:
        queue = world.queue(max_priority=255)
        push(world, queue, low=10, high=200, highest=255)
        assert world.contents(queue) == ["highest", "high", "low"]

    def test_zero_makes_an_ordinary_queue(self, world: World) -> None:
        queue = world.queue(max_priority=0)
        push(world, queue, a=1, b=9, c=-1)
        assert world.contents(queue) == ["a", "b", "c"]


def test_a_consumer_gets_the_highest_available(world: World) -> None:
    queue = world.queue()
    consumer = Taker(queue, credit=0)
    push(world, queue, low=0, high=9)
    consumer.give(1)
    world.run()
    push(world, queue, higher=9)
    consumer.give(2)
    world.run()
    assert consumer.bodies() == ["high", "higher", "low"]


def test_a_requeued_message_returns_to_its_level_and_place(world: World) -> None:
    queue = world.queue()
    push(world, queue, a=1, b=5, c=5)
    consumer = Taker(queue, credit=3)
    world.run()
    assert consumer.bodies() == ["b", "c", "a"]
    push(world, queue, d=5, e=1)
    consumer.requeue_all()
    world.run()
    assert world.contents(queue) == ["b", "c", "d", "a", "e"]


def test_figures_over_levels(world: World) -> None:
    queue = world.queue()
    push(world, queue, a=1, bb=5, ccc=9)
    assert figures(queue) == (3, 6, 0)
    entry = queue.get(False)
    assert entry is not None
    assert figures(queue) == (2, 3, 1)
    queue.requeue(entry)
    assert figures(queue) == (3, 6, 0)
    assert queue.purge() == 3
    assert figures(queue) == (0, 0, 0)


def test_a_queue_that_was_emptied_by_consumers_starts_over(world: World) -> None:
    queue = world.queue()
    consumer = Taker(queue)
    push(world, queue, a=1, b=9)
    world.run()
    consumer.ack(2)
    assert consumer.history == ["b", "a"]
    consumer.credit = 0
    push(world, queue, c=2, d=3)
    world.run()
    consumer.give(2)
    world.run()
    assert consumer.bodies() == ["d", "c"]
    assert figures(queue) == (0, 0, 2)
