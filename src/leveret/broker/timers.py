"""Timers of the broker: one heap for expiry, queue TTLs and heartbeats. No timer per message."""

from __future__ import annotations

import heapq
import logging
import time
from typing import Final

from mypy_extensions import mypyc_attr

from leveret.broker.failures import Failures

log = logging.getLogger("leveret.broker")

# Fewer items of the heap that stand for nothing any more are not worth clearing away.
STALE: Final = 32
# Timers that are fired in one turn.
MAX_FIRED: Final = 500
# Milliseconds until a timer that raised an exception is called again.
RETRY_DELAY: Final = 1000
# Milliseconds by which the system's clock must differ from the broker's before that counts as a step.
MIN_CLOCK_STEP: Final = 1000
# Milliseconds of a step that is taken over from the last run. A clock that was set by more than a year had never been set.
MAX_KEPT_STEP: Final = 366 * 86_400_000


@mypyc_attr(allow_interpreted_subclasses=True)
class Timed:
    """Something that wants to be called at a time. `due` is in milliseconds of the broker's clock, 0 while nothing is due.

    A reschedule only writes `due` when it moves later: the stale heap item finds out and pushes itself again.
    """

    due: int
    queued: int

    def __init__(self) -> None:
        self.due = 0
        self.queued = 0

    def fire(self, now: int) -> None:
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Timers:
    """The heap of timers, and the clock of the broker. `next_due` is the time of the next `run`, 0 for none.

    The clock shows Unix time at the first start and follows the monotonic clock from then on, so a step of the system clock
    moves no deadline. `step` is the difference of the system clock in milliseconds, 0 until a step. The broker stores
    it and restores its clock from it, so stored deadlines stay valid. Times that clients set or see (absolute expiry times,
    times of a stream) are system times; `unix` and `from_unix` convert.

    A timer that is cancelled or moved forward leaves a stale item. `stale` counts them; when they are the majority, the
    heap is rebuilt, so that a TTL of ten years that ends early does not occupy memory for ten years.
    """

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Timed]] = []
        self.count = 0
        self.stale = 0
        self.failures: dict[str, Failures] = {}
        self.step = 0
        self.origin = self.wall() - self.monotonic()

    def wall(self) -> float:
        """The system's clock, in seconds of Unix time."""
        return time.time()

    def monotonic(self) -> float:
        """The clock that is never set, in seconds."""
        return time.monotonic()

    def now(self) -> int:
        """Milliseconds of the broker's clock."""
        return int((self.origin + self.monotonic()) * 1000.0)

    def unix(self) -> int:
        """Milliseconds of Unix time."""
        return self.now() + self.step

    def from_unix(self, unix: int) -> int:
        """A time of the broker's clock from one of Unix time, in milliseconds."""
        return unix - self.step

    def resume(self, step: int) -> None:
        """Continue the clock of the last run, which the system's clock was `step` milliseconds ahead of. Called before
        anything is scheduled."""
        now = int(self.wall() * 1000.0) - step
        if abs(step) <= MAX_KEPT_STEP and now > 0:
            self.step = step
            self.origin -= step / 1000

    def look_at_clock(self) -> None:
        """Notice whether the system's clock was set. Called now and then."""
        step = int(self.wall() * 1000.0) - self.now()
        if abs(step - self.step) < MIN_CLOCK_STEP:
            return
        log.warning("the system's clock was set %s by %.1f seconds; deadlines are not affected",
                    "forward" if step > self.step else "back", abs(step - self.step) / 1000)
        self.step = step

    def at(self, due: int, timed: Timed) -> None:
        """Call `timed.fire` at `due`; replaces what was scheduled for it."""
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

    def cancel(self, timed: Timed) -> None:
        if timed.queued and timed.due:
            timed.due = 0
            self._forget_one()

    def _forget_one(self) -> None:
        """An item stands for nothing any more."""
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
        """Fire what is due, at most MAX_FIRED timers: the rest stays due, and the caller comes back.

        What raises an exception is called again after RETRY_DELAY, unless it set its timer itself: work that is repeated
        goes on, and the other timers are not affected.
        """
        heap = self.heap
        fired = 0
        while heap and heap[0][0] <= now and fired < MAX_FIRED:
            item = heapq.heappop(heap)
            timed = item[2]
            if timed.queued != item[0]:
                self.stale -= 1
                continue  # another item of the same one stands in the heap
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
            failures = self.failures[what] = Failures(log, what)
        failures.report(error)
        if timed.due == 0:
            self.at(now + RETRY_DELAY, timed)
