"""Timers of the broker: one heap for expiry and queue TTLs, one wheel for heartbeats. No timer per message."""

from __future__ import annotations

import heapq
import logging
import time
from abc import abstractmethod
from typing import Final

from mypy_extensions import mypyc_attr

from leveret.broker.failures import Failures

logger = logging.getLogger("leveret.broker")

# Minimum number of stale items in the heap before they are removed.
STALE: Final = 32
# Maximum number of timers that fire in one turn.
MAX_FIRED: Final = 500
# Milliseconds in which periodic checks run together, and the maximum number of checks in one turn.
SLOT: Final = 50
MAX_CHECKED: Final = 100
# Milliseconds before a timer that raised an exception fires again.
RETRY_DELAY: Final = 1000
# Minimum difference in milliseconds between the wall clock and the broker's that counts as a step.
MIN_CLOCK_STEP: Final = 1000
# Maximum step in milliseconds that is restored from the last run. A step of more than a year means that the clock had
# not been set.
MAX_KEPT_STEP: Final = 366 * 86_400_000


@mypyc_attr(allow_interpreted_subclasses=True)
class Timed:
    """An object with a timer. `due` is in milliseconds of the broker's clock, 0 if nothing is scheduled.

    Moving `due` later only changes the attribute: the stale heap item pushes itself again when it is reached.
    """

    due: int
    queued: int

    def __init__(self) -> None:
        self.due = 0
        self.queued = 0

    @abstractmethod
    def fire(self, now: int) -> None:
        """Handle the deadline. `now` is the time in milliseconds."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PeriodicCheck:
    """A check that the wheel repeats every `period` milliseconds."""

    period: int

    def __init__(self, period: int) -> None:
        self.period = period

    @abstractmethod
    def check(self, now: int) -> bool:
        """Check, and return whether to continue. The turn ends after the checks that are due together."""


class Wheel(Timed):
    """The periodic checks of all connections, with one timer.

    Checks that are due within SLOT milliseconds share a slot, unless their periods are no multiples of SLOT. The first
    check comes up to SLOT milliseconds early; later ones follow at whole periods.
    """

    def __init__(self, timers: Timers) -> None:
        super().__init__()
        self._timers = timers
        self._slots: dict[int, list[PeriodicCheck]] = {}
        # Heap of the times of the slots.
        self._times: list[int] = []

    def add(self, check: PeriodicCheck) -> None:
        """Start a check."""
        now = self._timers.now()
        self._put(check, max(_slot_of(now + check.period, check.period), now + 1))

    def _put(self, check: PeriodicCheck, due: int) -> None:
        slot = self._slots.get(due)
        if slot is not None:
            slot.append(check)
            return
        self._slots[due] = [check]
        heapq.heappush(self._times, due)
        if self._times[0] == due:
            self._timers.at(due, self)

    def fire(self, now: int) -> None:
        """Run the checks that are due, at most MAX_CHECKED; the others run in the next turn."""
        times = self._times
        checked = 0
        try:
            while times and times[0] <= now:
                due = times[0]
                slot = self._slots[due]
                while slot:
                    if checked >= MAX_CHECKED:
                        return
                    checked += 1
                    self._run(slot.pop(), due, now)
                del self._slots[due]
                heapq.heappop(times)
        finally:
            if times:
                self._timers.at(max(times[0], now + 1), self)

    def _run(self, check: PeriodicCheck, due: int, now: int) -> None:
        """Run one check. It continues after an exception."""
        repeated = True
        try:
            repeated = check.check(now)
        finally:
            if repeated:
                following = due + check.period
                if following <= now:
                    following = max(_slot_of(now + check.period, check.period), now + 1)
                self._put(check, following)


def _slot_of(time: int, period: int) -> int:
    """Return the time of the slot for a check that is due at this time."""
    return time if period % SLOT else time - time % SLOT


@mypyc_attr(allow_interpreted_subclasses=True)
class Timers:
    """The heap of timers, and the clock of the broker. `next_due` is the time of the next `run`, 0 for none.

    The clock shows Unix time at the first start and follows the monotonic clock from then on, so a step of the wall clock
    moves no deadline. `step` is the difference of the wall clock in milliseconds, 0 until a step. The broker stores
    it and restores its clock from it, so stored deadlines stay valid. Times that clients set or see (absolute expiry times,
    times of a stream) are those of the wall clock; `unix` and `from_unix` convert.

    The wall clock is the system's, or that of the store if several machines use it. `reference` is what to add to the
    monotonic clock for the store's; 0 for the system's.

    A timer that is cancelled or moved forward leaves a stale item. `stale` counts them; when they are the majority, the
    heap is rebuilt, so that a TTL of ten years that ends early does not occupy memory for ten years.
    """

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Timed]] = []
        self.count = 0
        self.stale = 0
        self.failures: dict[str, Failures] = {}
        self.step = 0
        self.reference = 0.0
        self.origin = self.wall() - self.monotonic()
        self._wheel = Wheel(self)

    def wall(self) -> float:
        """Return the wall clock in seconds of Unix time."""
        return self.monotonic() + self.reference if self.reference else time.time()

    def monotonic(self) -> float:
        """Return the monotonic clock in seconds."""
        return time.monotonic()

    def now(self) -> int:
        """Return the broker's clock in milliseconds."""
        return int((self.origin + self.monotonic()) * 1000.0)

    def unix(self) -> int:
        """Return the wall clock in milliseconds of Unix time."""
        return self.now() + self.step

    def from_unix(self, unix: int) -> int:
        """Convert milliseconds of Unix time to the broker's clock."""
        return unix - self.step

    def resume(self, step: int, reference: float = 0.0) -> None:
        """Continue the clock of the last run, which was `step` milliseconds behind the wall clock.

        Called before anything is scheduled.
        """
        self.reference = reference
        self.origin = self.wall() - self.monotonic()
        now = int(self.wall() * 1000.0) - step
        if abs(step) <= MAX_KEPT_STEP and now > 0:
            self.step = step
            self.origin -= step / 1000

    def check_clock(self, reference: float = 0.0) -> None:
        """Detect a step of the wall clock. Called periodically."""
        self.reference = reference
        step = int(self.wall() * 1000.0) - self.now()
        if abs(step - self.step) < MIN_CLOCK_STEP:
            return
        logger.warning(
            "%s clock was set %s by %.1f seconds; deadlines are not affected",
            "the database server's" if reference else "the system's",
            "forward" if step > self.step else "back",
            abs(step - self.step) / 1000,
        )
        self.step = step

    def at(self, due: int, timed: Timed) -> None:
        """Schedule `timed.fire` at `due`, instead of an earlier schedule."""
        cancelled = timed.due == 0
        timed.due = due
        if timed.queued and timed.queued <= due:
            if cancelled:
                self.stale -= 1
            return
        superseded = timed.queued != 0 and not cancelled
        timed.queued = due
        self.count += 1
        heapq.heappush(self.heap, (due, self.count, timed))
        if superseded:
            self._forget_one()

    def check_periodically(self, check: PeriodicCheck) -> None:
        """Run a check every period, beginning one period from now, until it returns False."""
        self._wheel.add(check)

    def cancel(self, timed: Timed) -> None:
        if timed.queued and timed.due:
            timed.due = 0
            self._forget_one()

    def _forget_one(self) -> None:
        """Count a stale item."""
        self.stale += 1
        if self.stale < STALE or self.stale * 2 < len(self.heap):
            return
        kept = []
        for item in self.heap:
            timed = item[2]
            if timed.queued == item[0]:
                if timed.due:
                    kept.append(item)
                else:
                    timed.queued = 0
        heapq.heapify(kept)
        self.heap[:] = kept
        self.stale = 0

    def next_due(self) -> int:
        return self.heap[0][0] if self.heap else 0

    def run(self, now: int) -> None:
        """Fire due timers, at most MAX_FIRED; the others stay due for the next call.

        A timer that raises an exception fires again after RETRY_DELAY unless it has scheduled itself, so that repeated work
        continues; other timers are not affected.
        """
        heap = self.heap
        fired = 0
        while heap and heap[0][0] <= now and fired < MAX_FIRED:
            item = heapq.heappop(heap)
            timed = item[2]
            if timed.queued != item[0]:
                self.stale -= 1
                continue  # the heap has another item of the same timer
            timed.queued = 0
            due = timed.due
            if due == 0:
                self.stale -= 1
                continue
            if due > now:
                self.at(due, timed)
                continue
            timed.due = 0
            fired += 1
            try:
                timed.fire(now)
            except Exception as error:
                self._failed(timed, error, now)

    def _failed(self, timed: Timed, error: Exception, now: int) -> None:
        what = f"the timer {type(timed).__module__}.{type(timed).__qualname__}"
        failures = self.failures.get(what)
        if failures is None:
            failures = self.failures[what] = Failures(logger, what)
        failures.report(error)
        if timed.due == 0:
            self.at(now + RETRY_DELAY, timed)
