"""Samples of one object, on a clock of the test."""

from __future__ import annotations

import random
import sys

import pytest

from leveret.management.http.objects import QUEUE, NodeTotals
from leveret.management.http.samples import MINUTES, Layout, Samples

START = 1_700_000_000 // 3600 * 3600
ONE = Layout(("depth",), ("count",))
EIGHT = Layout(("a", "b"), ("c", "d", "e", "f", "g", "h"))


def make(layout: Layout = ONE, depth: int = 0) -> Samples:
    return Samples(layout, START, [depth] * len(layout.gauges))


def test_eight_series_take_at_most_9_kib_idle_or_busy() -> None:
    samples = make(EIGHT)
    empty = sys.getsizeof(samples) + sys.getsizeof(samples._ring)
    for tick in range(START + 1, START + 4000):
        samples.record(tick, [1 << 40] * 8)
    assert sys.getsizeof(samples) + sys.getsizeof(samples._ring) == empty <= 9 << 10


def test_late_series_take_memory_from_their_first_increment_on() -> None:
    late = make(Layout(("depth",), ("a", "b", "c"), late=2))
    first = len(late._ring)
    late.record(START + 1, [1, 2, 0, 0])
    assert len(late._ring) == first
    assert (late.rates(START + 1), late.rates(START + 1, [3])) == ([0.2, 0.4, 0, 0], [0])
    assert (late.increment(3, START, START + 1), late.increases_since(3, [START])) == (0, [0])
    assert late.minute(2, START // 60) == 0
    late.record(START + 2, [1, 0, 0, 5])
    assert len(late._ring) == first * 2
    late.record(START + 2, [1, 0, 3, 1])
    assert late.rates(START + 2) == [0.2, 0.4, 0.6, 1.2]
    assert (late.increases_since(3, [START]), late.increases_since(2, [START])) == ([6], [3])
    late.record(START + 100, [1, 0, 0, 0])
    assert [late.minute(series, START // 60) for series in (1, 2, 3)] == [2, 3, 6]


def test_a_queue_takes_at_most_9_kib_for_eight_series() -> None:
    samples = make(QUEUE)
    idle = sys.getsizeof(samples) + sys.getsizeof(samples._ring)
    samples.record(START + 1, [1, 2, 3, 4, 5, 6, 7, 8, 0])
    assert idle < sys.getsizeof(samples) + sys.getsizeof(samples._ring) <= 9 << 10
    samples.record(START + 1, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert sys.getsizeof(samples) + sys.getsizeof(samples._ring) <= (9 << 10) * 9 // 8


def test_rates_are_of_the_last_five_seconds() -> None:
    samples = make()
    for second in range(1, 11):
        samples.record(START + second, [10 * second, 100])
    assert samples.rates(START + 10)[1] == 100
    assert samples.rates(START + 10)[0] == 10
    assert samples.rates(START + 12)[1] == 60  # idle for two seconds
    assert samples.rates(START + 15)[1] == 0 and samples.is_idle(START + 15)


def test_several_samples_of_one_tick_are_added_up() -> None:
    samples = make()
    samples.record(START + 1, [5, 2])
    samples.record(START + 1, [7, 3])
    assert samples.gauge(0, START + 1) == 7
    assert samples.increment(1, START + 1, START + 1) == 5


def test_a_late_sample_covers_the_seconds_before() -> None:
    samples = make(depth=3)
    samples.record(START + 4, [9, 40])
    assert [samples.gauge(0, START + second) for second in range(6)] == [3, 3, 3, 3, 9, 9]
    assert samples.rates(START + 5)[1] == 8


@pytest.mark.parametrize("seed", range(20))
def test_any_gaps_against_a_model(seed: int) -> None:
    choice = random.Random(seed)
    samples = make(depth=7)
    depths, counts = {START: 7}, {START: 0}
    tick, depth = START, 7
    for _ in range(choice.randint(1, 150)):
        step = choice.choice([1, 1, 1, 2, 30, 61, 200, 4000] if seed % 2 else [1])
        for second in range(tick + 1, tick + step):
            depths[second], counts[second] = depth, 0
        tick += step
        depth, count = choice.randint(0, 99), choice.randint(0, 99)
        depths[tick], counts[tick] = depth, count
        samples.record(tick, [depth, count])
    idle = choice.choice([0, 3, 70])
    now = tick + idle
    for second in range(tick + 1, now + 1):
        depths[second], counts[second] = depth, 0
    exact = [*range(now - 60, now + 1), *range(tick // 5 * 5 - 606, now - 60, 5)]
    exact += [minute * 60 - 1 for minute in range(tick // 60 - MINUTES + 1, now // 60)]
    ticks = [second for second in exact if second >= START]
    assert [samples.gauge_at(0, second) for second in ticks] == [depths[second] for second in ticks]
    expected = [sum(counts[later] for later in range(second + 1, now + 1)) for second in ticks]
    assert samples.increases_since(1, ticks) == expected


def test_values_beyond_the_type_are_the_largest_one() -> None:
    samples = make()
    samples.record(START + 1, [1 << 33, 1 << 33])
    samples.record(START + 1, [-1, -5])
    assert samples.gauge(0, START + 1) == 0
    samples.record(START + 2, [1 << 33, 1 << 33])
    assert samples.gauge(0, START + 2) == samples.increment(1, START + 2, START + 2) == (1 << 32) - 1


def test_churn_is_that_of_all_processes_since_their_start() -> None:
    totals = NodeTotals()
    totals.count("0", {"queue_created": 16, "queue_deleted": 2})
    assert (totals.churn["queue_created"], totals.churn["queue_deleted"]) == (16, 2), "those before the first pass"
    for process, created, expected in (
        ("1", 5, 21),
        ("0", 17, 22),
        ("1", 1, 23),  # restarted
        ("1", 4, 26),
    ):
        totals.count(process, {"queue_created": created})
        assert totals.churn["queue_created"] == expected
    totals.reset()
    totals.count("0", {"queue_created": 19})
    assert totals.churn["queue_created"] == 2
