"""Timers of the broker: one heap for expiries, queue life times and heartbeats. Never a timer per message."""

from __future__ import annotations

import heapq
import time
from typing import Final

from mypy_extensions import mypyc_attr

# Fewer items of the heap that stand for nothing any more are not worth clearing away.
STALE: Final = 32


@mypyc_attr(allow_interpreted_subclasses=True)
class Timed:
    """Something that wants to be called at a time. `due` is in milliseconds of Unix time, 0 while nothing is due.

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
    """The heap. `next_due` is when `run` wants to be called next, 0 for never.

    What was cancelled or moved forward leaves an item behind; `stale` counts them, and when they are the greater part of
    the heap they are cleared away: a life of ten years that ends early must not be remembered for ten years.
    """

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Timed]] = []
        self.count = 0
        self.stale = 0

    def now(self) -> int:
        """Milliseconds of Unix time."""
        return int(time.time() * 1000.0)

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
        """Fire everything that is due."""
        heap = self.heap
        while heap and heap[0][0] <= now:
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
            timed.fire(now)
