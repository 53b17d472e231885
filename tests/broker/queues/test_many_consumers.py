"""Tens of thousands of consumers on one queue: joining, leaving and taking over cost the same whatever their number."""

from __future__ import annotations

import random

import pytest

from leveret.broker.queues import rings
from leveret.broker.queues.classic.queue import ClassicQueue
from tests.broker.support import Taker, World


class CountingTaker(Taker):
    """Counts how often it is compared with another consumer, which a search in a list would do."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountingTaker.compared += 1
        return self is other

    __hash__ = Taker.__hash__


@pytest.fixture
def world() -> World:
    return World()


def test_leaving_is_not_a_search(world: World) -> None:
    queue = world.queue()
    takers = [CountingTaker(queue) for _ in range(2000)]
    CountingTaker.compared = 0
    for taker in random.Random(1).sample(takers, len(takers)):
        queue.consumers.leave(taker)
        queue.remove_consumer(taker)
    assert CountingTaker.compared == 0
    assert not queue.consumers and not queue.dispatcher.rings and not queue.dispatcher.ring and queue.dispatcher.strays == 0


def test_consumers_that_left_are_cleared_out_of_the_ring(world: World) -> None:
    queue = world.queue()
    staying = Taker(queue, credit=0)
    for _ in range(500):
        taker = Taker(queue)
        queue.remove_consumer(taker)
    assert len(queue.dispatcher.ring) <= rings.MIN_STRAYS + 2
    staying.give(3)
    world.push(queue, "a", "b")
    world.run()
    assert staying.bodies() == ["a", "b"]


def test_the_longest_waiting_consumer_becomes_the_single_active_consumer(world: World) -> None:
    queue = world.queue(single_active_consumer=True)
    takers = [Taker(queue, priority=number % 2) for number in range(400)]
    for taker in takers[2::4]:  # of priority 0, none of them active
        queue.remove_consumer(taker)
    assert takers[0].active and sum(taker.active for taker in takers) == 1
    queue.remove_consumer(takers[0])
    assert takers[1].active
    for taker in takers[1::2]:
        queue.remove_consumer(taker)
    assert takers[4].active
    for _ in range(300):  # a waiting consumer that leaves is forgotten
        taker = Taker(queue)
        queue.remove_consumer(taker)
    assert len(queue.dispatcher.rings[0].succession) <= 2 * rings.MIN_STRAYS + len(queue.consumers) * 2


def _model_of(queue: ClassicQueue) -> list[int]:
    return [-priority for priority in sorted({-taker.priority for taker in queue.consumers if not taker.parked})]


def test_many_priorities_are_served_in_order(world: World) -> None:
    queue = world.queue()
    chance = random.Random(7)
    takers: list[Taker] = []
    for step in range(600):
        if takers and chance.random() < 0.4:
            queue.remove_consumer(takers.pop(chance.randrange(len(takers))))
        elif takers and chance.random() < 0.3:
            chance.choice(takers).give(1)
        else:
            taker = Taker(queue, credit=chance.randrange(3), priority=chance.randrange(40))
            takers.append(taker)
        expected = _model_of(queue)
        world.push(queue, str(step))
        if expected:
            first = [taker for taker in takers if taker.priority == expected[0] and not taker.parked]
            credit = any(taker.credit for taker in first)
            before = sum(len(taker.taken) for taker in first)
            world.run()
            if credit:
                assert sum(len(taker.taken) for taker in first) > before
        else:
            world.run()
        queue.purge()
        assert len(queue.dispatcher.serving) <= rings.MIN_STRAYS + 2 * len(queue.dispatcher.rings) + 1
    for taker in takers:
        queue.remove_consumer(taker)
    assert not queue.dispatcher.rings and not queue.dispatcher.ring
