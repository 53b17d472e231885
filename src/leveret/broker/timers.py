"""Timers of the broker: one heap for expiries, queue life times and heartbeats. Never a timer per message."""

from __future__ import annotations

import heapq
import time


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


class Timers:
    """The heap. `next_due` is when `run` wants to be called next, 0 for never."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Timed]] = []
        self.count = 0

    def now(self) -> int:
        """Milliseconds of Unix time."""
        return int(time.time() * 1000.0)

    def at(self, due: int, timed: Timed) -> None:
        """Call `timed.fire` at `due`; replaces what was scheduled for it."""
        timed.due = due
        if timed.queued and timed.queued <= due:
            return
        timed.queued = due
        self.count += 1
        heapq.heappush(self.heap, (due, self.count, timed))

    def cancel(self, timed: Timed) -> None:
        timed.due = 0

    def next_due(self) -> int:
        return self.heap[0][0] if self.heap else 0

    def run(self, now: int) -> None:
        """Fire everything that is due."""
        heap = self.heap
        while heap and heap[0][0] <= now:
            item = heapq.heappop(heap)
            timed = item[2]
            if timed.queued != item[0]:
                continue  # a later item of the same one stands in the heap
            timed.queued = 0
            due = timed.due
            if due == 0:
                continue
            if due > now:
                self.at(due, timed)
                continue
            timed.due = 0
            timed.fire(now)
