"""The heap of timers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.timers import MAX_CHECKED, RETRY_DELAY, SLOT, PeriodicCheck, Timed, Timers
from tests.broker.support import Clock, World  # noqa: F401 (skips over compiled modules)


class Recorder(Timed):
    def __init__(self) -> None:
        super().__init__()
        self.fired: list[int] = []

    def fire(self, now: int) -> None:
        self.fired.append(now)


class Again(Timed):
    """Schedules itself once more whenever it fires."""

    def __init__(self, timers: Timers, interval: int) -> None:
        super().__init__()
        self.timers = timers
        self.interval = interval
        self.fired: list[int] = []

    def fire(self, now: int) -> None:
        self.fired.append(now)
        self.timers.at(now + self.interval, self)


def test_fires_once_when_due() -> None:
    timers = Timers()
    timed = Recorder()
    timers.at(100, timed)
    timers.run(99)
    assert timed.fired == []
    timers.run(100)
    timers.run(200)
    assert timed.fired == [100]
    assert timers.next_due() == 0


def test_later_replaces() -> None:
    timers = Timers()
    timed = Recorder()
    timers.at(100, timed)
    timers.at(200, timed)
    timers.run(150)
    assert timed.fired == []
    timers.run(200)
    assert timed.fired == [200]


def test_earlier_replaces() -> None:
    timers = Timers()
    timed = Recorder()
    timers.at(200, timed)
    timers.at(100, timed)
    timers.run(100)
    timers.run(500)
    assert timed.fired == [100]


def test_cancelled_is_not_fired_and_may_be_scheduled_again() -> None:
    timers = Timers()
    timed = Recorder()
    timers.at(100, timed)
    timers.cancel(timed)
    timers.run(150)
    timers.at(200, timed)
    timers.run(200)
    assert timed.fired == [200]


def test_a_timer_that_reschedules_itself_does_not_block_the_others() -> None:
    timers = Timers()
    again = Again(timers, 10)
    other = Recorder()
    timers.at(10, again)
    timers.at(10, other)
    timers.run(35)
    assert again.fired == [35]
    assert other.fired == [35]
    timers.run(45)
    assert again.fired == [35, 45]


def test_cancelled_timers_do_not_pile_up() -> None:
    """Queues with a life of ten years that are declared and deleted, over and over."""
    timers = Timers()
    kept = Recorder()
    timers.at(50, kept)
    for number in range(10_000):
        timed = Recorder()
        timers.at(10_000_000 + number, timed)
        timers.cancel(timed)
    assert len(timers.heap) < 1000
    timers.run(50)
    assert kept.fired == [50]


def test_timers_moved_forward_do_not_pile_up() -> None:
    """A head that expires earlier each time."""
    timers = Timers()
    timed = Recorder()
    for number in range(10_000):
        timers.at(10_000_000 - number, timed)
    assert len(timers.heap) < 1000
    timers.run(10_000_000 - 9_999)
    assert timed.fired == [10_000_000 - 9_999]


@given(st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(1, 50)), st.integers(0, 5)), max_size=60))
def test_against_a_table(steps: list[tuple[int, int | None, int]]) -> None:
    """Any mixture of schedules, cancellations and elapsed time fires the same timers as a simple table."""
    timers = Timers()
    timed = [Recorder() for _ in range(4)]
    due: dict[int, int] = {}
    expected: list[list[int]] = [[] for _ in range(4)]
    now = 1000
    for which, delay, passes in steps:
        if delay is None:
            timers.cancel(timed[which])
            due.pop(which, None)
        else:
            timers.at(now + delay, timed[which])
            due[which] = now + delay
        now += passes
        timers.run(now)
        for number, when in list(due.items()):
            if when <= now:
                expected[number].append(now)
                del due[number]
        assert [recorder.fired for recorder in timed] == expected
        assert not due or 0 < timers.next_due() <= min(due.values())


class Failing(Again):
    """Raises an exception before it schedules itself."""

    failing = True

    def fire(self, now: int) -> None:
        if self.failing:
            self.fired.append(now)
            raise ValueError("no")
        super().fire(now)


def test_a_failing_timer_is_retried_and_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    timers = Timers()
    repeated, other = Failing(timers, 10), Recorder()
    timers.at(100, repeated)
    timers.at(100, other)
    timers.run(100)
    assert (repeated.fired, other.fired) == ([100], [100])
    timers.run(100 + RETRY_DELAY - 1)
    assert repeated.fired == [100]
    timers.run(100 + RETRY_DELAY)
    assert repeated.fired == [100, 100 + RETRY_DELAY]
    assert len(caplog.records) == 1
    assert "the timer tests.broker.test_timers.Failing failed and will be retried: ValueError: no" in caplog.text
    repeated.failing = False
    timers.run(100 + 2 * RETRY_DELAY)
    timers.run(100 + 2 * RETRY_DELAY + 10)
    assert len(repeated.fired) == 4


def test_a_failing_timer_that_rescheduled_itself_keeps_its_schedule() -> None:
    timers = Timers()

    class Early(Recorder):
        def fire(self, now: int) -> None:
            super().fire(now)
            timers.at(now + 5, self)
            raise ValueError("no")

    early = Early()
    timers.at(100, early)
    timers.run(100)
    timers.run(105)
    assert early.fired == [100, 105]


class Counted(PeriodicCheck):
    """Records its checks. The last of `limit` checks ends it; one that is `broken` raises an exception."""

    def __init__(self, period: int, limit: int = 1000, broken: int = 0) -> None:
        super().__init__(period)
        self.limit = limit
        self.broken = broken
        self.checked: list[int] = []

    def check(self, now: int) -> bool:
        self.checked.append(now)
        if len(self.checked) == self.broken:
            raise ValueError("broken")
        return len(self.checked) < self.limit


def advance(clock: Clock, milliseconds: int) -> None:
    for _ in range(milliseconds):
        clock.time += 1
        clock.run(clock.time)


@pytest.mark.parametrize("period", [1, 7, 25, 50, 250, 1000])
def test_periodic_check_is_repeated_after_each_period_until_it_ends(period: int) -> None:
    clock = Clock(time=100_003)
    check = Counted(period, limit=4)
    clock.check_periodically(check)
    advance(clock, 6 * period)
    first = check.checked[0] - 100_003
    assert max(period - SLOT, 0) < first <= period
    assert [time - check.checked[0] for time in check.checked] == [0, period, 2 * period, 3 * period]
    assert clock.next_due() == 0


def test_many_checks_that_are_due_together_run_in_several_turns() -> None:
    clock = Clock()
    checks = [Counted(1000) for _ in range(3 * MAX_CHECKED)]
    for check in checks:
        clock.check_periodically(check)
    clock.time = clock.next_due()
    counts = []
    for _ in range(4):
        clock.run(clock.time)
        counts.append(sum(len(check.checked) for check in checks))
        clock.time += 1
    assert counts == [MAX_CHECKED, 2 * MAX_CHECKED, 3 * MAX_CHECKED, 3 * MAX_CHECKED]
    advance(clock, 1000)
    assert {len(check.checked) for check in checks} == {2}


def test_exception_in_a_check_ends_neither_it_nor_others() -> None:
    clock = Clock()
    checks = [Counted(100), Counted(100, broken=2), Counted(100)]
    for check in checks:
        clock.check_periodically(check)
    advance(clock, 350)
    assert [len(check.checked) for check in checks] == [3, 3, 3]


def test_checks_missed_while_the_process_was_suspended_run_once() -> None:
    clock = Clock()
    check = Counted(100)
    clock.check_periodically(check)
    clock.time += 1040
    clock.run(clock.time)
    assert len(check.checked) == 1
    advance(clock, 100)
    assert len(check.checked) == 2


def test_check_added_by_another_check_runs() -> None:
    clock = Clock()
    added = Counted(100)

    class Adding(Counted):
        def check(self, now: int) -> bool:
            clock.check_periodically(added)
            return False

    clock.check_periodically(Adding(100))
    advance(clock, 250)
    assert len(added.checked) >= 1
