"""Samples in answers: any load and any window, on a clock of the test."""

from __future__ import annotations

from functools import cache
from itertools import accumulate, pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from leveret.management.http.measured import LENGTHS, MESSAGES, Measured, Rates, Statistic, Window
from leveret.management.http.samples import Layout, OlderSamples
from tests.support.examples import examples

START = 1_700_000_000 // 3600 * 3600
LAYOUT = Layout(("depth",), ("count",))
STATISTICS = {"depth": Statistic((0,), LENGTHS, True), "count": Statistic((1,), MESSAGES)}
HOUR = 3600
MINUTE = 60


def resolution(age: int) -> int:
    """Return the seconds between the samples that are kept of a time so long ago."""
    return 1 if age <= 60 else 5 if age <= 605 else MINUTE


class Load:
    """A load of several objects: the true totals at each second, and what is sampled of them.

    Args:
        steps: For how many seconds each object is read how often, and how much it grows each time.
        objects: The number of objects.
    """

    def __init__(self, steps: list[tuple[int, int, int]], objects: int) -> None:
        self.now = START
        self.totals = [0]
        self.measured = [Measured() for _ in range(objects)]
        for measured in self.measured:
            measured.begin(LAYOUT)
        counts = [0] * objects
        for seconds, interval, increment in steps:
            for _ in range(seconds // interval):
                self.totals += [self.totals[-1]] * (interval - 1) + [self.totals[-1] + increment * objects]
                self.now += interval
                for index, measured in enumerate(self.measured):
                    counts[index] += increment
                    if increment:
                        measured.measure(LAYOUT, self.now, (counts[index],), (counts[index],))

    def total(self, tick: int) -> int:
        return self.totals[max(tick - START, 0)]

    def details(self, name: str, age: int, incr: int, older: OlderSamples | None = None) -> dict[str, Any]:
        windows = {family: Window(age, incr) for family in (LENGTHS, MESSAGES)}
        return Rates(self.measured, STATISTICS, self.now, windows, older).details(name, self.totals[-1])


LOADS = st.builds(
    Load,
    st.lists(st.tuples(st.integers(1, 900), st.integers(1, 4), st.sampled_from((0, 1, 13, 1000))), min_size=1, max_size=6),
    st.integers(1, 3),
)
RATE = 13
STEADY = [(4000, 1, RATE)]


@examples(200, deadline=None)
@given(LOADS, st.integers(1, 5000), st.integers(1, 700))
@example(Load(STEADY, 1), 600, 5)
@example(Load(STEADY, 1), 3600, 7)
@example(Load([*STEADY, (37, 1, 0)], 2), 605, 5)
def test_changes_between_samples_add_up_to_the_true_count(load: Load, age: int, incr: int) -> None:
    found = {name: load.details(name, age, incr)["samples"] for name in STATISTICS}
    for samples in found.values():
        values = [sample["sample"] for sample in reversed(samples)]
        assert values == sorted(values)
        assert values[-1] == load.total(load.now)
        for sample in samples:
            tick = sample["timestamp"] // 1000
            length = resolution(load.now - tick)
            if load.now - tick <= HOUR:
                # Between the total at the end of the last period before, and that at the end of the period.
                begin, end = (tick + 1) // length * length - 1, -(-(tick + 1) // length) * length - 1
                assert load.total(begin) <= sample["sample"] <= load.total(min(end, load.now))


@cache
def steady(more: int) -> Load:
    return Load([(4000 + more, 1, RATE)], 1)


@examples(100, deadline=None)
@given(st.sampled_from((0, 7, 20, 59)), st.integers(1, 300), st.data())
@example(20, 5, None)
@example(0, 1, None)
@example(59, 60, None)
@example(7, 7, None)
def test_a_steady_rate_is_steady_in_every_window(more: int, incr: int, data: st.DataObject | None) -> None:
    age = incr * (HOUR // incr if data is None else data.draw(st.integers(1, HOUR // incr)))
    details = steady(more).details("count", age, incr)
    values = [sample["sample"] for sample in details["samples"]]
    assert all(abs(newer - older - RATE * incr) <= 1 for newer, older in pairwise(values))
    assert abs(details["avg_rate"] - RATE) <= 1 / incr


@examples(50, deadline=None)
@given(st.lists(st.integers(0, 100), min_size=70, max_size=70), st.integers(0, 59), st.integers(1, HOUR))
@example([60] * 70, 30, 45)
def test_totals_continue_in_the_history(per_minute: list[int], more: int, incr: int) -> None:
    """The history has minutes from before those in memory."""
    load = Load([*(step for count in per_minute for step in ((1, 1, count), (59, 1, 0))), (more + 1, 1, 1)], 1)
    until = (load.now // MINUTE - 60) * MINUTE - 1
    ends = [START + (minute + 1) * MINUTE - 1 for minute in range(len(per_minute))]
    periods = [(end, MINUTE, (0, count)) for end, count in zip(ends, per_minute, strict=True) if end <= until]
    older = OlderSamples(periods, until)
    age = load.now - START
    samples = load.details("count", age, incr, older)["samples"]
    values = [sample["sample"] for sample in reversed(samples)]
    assert values == sorted(values)
    totals = list(accumulate(per_minute, initial=0))
    for sample in samples:
        minute = (sample["timestamp"] // 1000 - START) // MINUTE
        assert totals[max(minute - 1, 0)] <= sample["sample"] <= totals[min(minute + 1, len(per_minute))] + more + 1
    assert values[-1] == load.totals[-1]
