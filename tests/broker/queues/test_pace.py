"""The pace of consumers that wait for credit: publishers are slowed down only if that makes the consumers faster."""

from __future__ import annotations

import pytest

from leveret.broker.queues.classic.queue import PACED_MESSAGES
from leveret.broker.queues.pace import GAP, MAX_INTERVAL, MIN_INTERVAL, RECHECK, TRIAL, Pace
from tests.broker.support import Taker, World
from tests.support.polling import wait_until

# Seconds between two checks.
STEP = 0.0005


class Clock:
    """Checks a pace regularly. Consumers take messages at one rate beside publishers at full speed, or at another."""

    def __init__(self, full: float, slowed: float) -> None:
        self.pace = Pace()
        self.full = full
        self.slowed = slowed
        self.now = 100.0
        self.delivered = 0.0
        self.behind = False

    def run(self, seconds: float) -> list[bool]:
        """Check the pace for some time, and return the results."""
        results = []
        for _ in range(round(seconds / STEP)):
            self.now += STEP
            self.delivered += STEP * (self.slowed if self.behind else self.full)
            self.behind = self.pace.is_behind(self.now, int(self.delivered))
            results.append(self.behind)
        return results


def share(results: list[bool]) -> float:
    return sum(results) / len(results)


def test_publishers_are_slowed_down_while_that_makes_the_consumers_faster() -> None:
    clock = Clock(30_000, 300_000)
    clock.run(0.1)
    assert share(clock.run(3.0)) > 0.95


def test_publishers_keep_their_speed_if_the_consumers_are_slow_anyway() -> None:
    clock = Clock(20_000, 20_000)
    clock.run(2.0)
    results = clock.run(10.0)
    assert True in results
    assert share(results) < 0.01


def test_consumers_that_settle_in_bursts_count_as_slow() -> None:
    clock = Clock(0, 0)
    slowed = []
    for number in range(4000):
        slowed += clock.run(0.0025)
        clock.delivered += 50 if number % 2 else 0
    assert share(slowed[len(slowed) // 5 :]) < 0.02


def test_consumers_that_take_nothing_are_not_tried() -> None:
    clock = Clock(0, 1_000_000)
    assert True not in clock.run(5.0)


def test_the_pace_at_full_speed_is_measured_again() -> None:
    clock = Clock(30_000, 300_000)
    clock.run(0.1)
    clock.full = clock.slowed
    clock.run(2 * RECHECK)
    assert share(clock.run(5.0)) < 0.01


def test_publishers_get_their_speed_back_when_the_consumers_become_slow() -> None:
    clock = Clock(30_000, 300_000)
    clock.run(0.1)
    assert clock.behind
    clock.full = clock.slowed = 10_000
    clock.run(2 * TRIAL)
    assert not clock.behind


def test_trials_that_fail_become_rare() -> None:
    clock = Clock(20_000, 20_000)
    clock.run(4.0)
    assert clock.pace.interval == pytest.approx(MAX_INTERVAL)


def test_a_queue_that_was_not_checked_for_a_while_is_measured_again() -> None:
    clock = Clock(30_000, 300_000)
    clock.run(MIN_INTERVAL - STEP)
    clock.now += 2 * GAP
    assert True not in clock.run(MIN_INTERVAL - STEP)
    assert True in clock.run(MIN_INTERVAL)


class TestQueue:
    def test_the_queue_of_a_consumer_with_little_credit_is_tried(self) -> None:
        world = World()
        queue = world.queue()
        consumer = Taker(queue, credit=1)
        world.push(queue, *["m"] * (2 * PACED_MESSAGES))
        world.run()

        def is_behind() -> bool:
            consumer.give(1)
            world.run()
            return queue.is_behind()

        wait_until(is_behind, "a trial has begun")

    def test_a_short_queue_is_not_tried(self) -> None:
        world = World()
        queue = world.queue()
        consumer = Taker(queue, credit=1)
        world.push(queue, *["m"] * (PACED_MESSAGES - 1))
        while queue.ready_count:
            consumer.give(1)
            world.run()
            assert not queue.is_behind()
