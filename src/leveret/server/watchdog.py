"""The watchdog over the event loop: it measures every turn, and reports those that kept all clients waiting.

A turn is one pass of the event loop: what became ready, and what earlier turns have scheduled. The loop calls `select` once
a turn, so a selector sees where a turn begins and ends, and reads the clock twice for it.
"""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable

log = logging.getLogger("leveret.server")

# Seconds between two samples of the processor time of the thread.
SAMPLE_INTERVAL = 0.05


class Watchdog(selectors.DefaultSelector):
    """The selector of an event loop, for `asyncio.SelectorEventLoop(selector)`.

    threshold  seconds of a turn that is slow; 0 for none
    slow       how many turns were slow; longest: seconds of the longest of all turns
    """

    def __init__(self, threshold: float, clock: Callable[[], float] = time.monotonic,
                 processor: Callable[[], float] = time.thread_time) -> None:
        super().__init__()
        self.threshold = threshold
        self._describe: Callable[[], str] | None = None
        self.slow = 0
        self.longest = 0.0
        self._clock = clock
        self._processor = processor
        self._began = 0.0
        self._sampled = 0.0
        self._sample = 0.0

    def watch(self, describe: Callable[[], str] | None) -> None:
        """Measure from the next turn on; None ends it. `describe` says whose input the present turn has handled."""
        self._describe = describe
        self._began = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """End a turn, wait, and begin the next one."""
        now = self._clock()
        took = now - self._began
        if took > self.longest and self._began and self._describe is not None:
            self.longest = took
        if now - self._sampled > SAMPLE_INTERVAL:
            self._end(now, took)
        ready = super().select(timeout)
        self._began = self._clock()
        return ready

    def _end(self, now: float, took: float) -> None:
        """Sample the processor time; report the turn if it was slow. It is not read each turn: that is a system call."""
        used = self._processor()
        most = min(took, used - self._sample)
        self._sampled = now
        self._sample = used
        describe = self._describe
        if not 0 < self.threshold < took or not self._began or describe is None:
            return
        self.slow += 1
        log.warning("a turn of the event loop took %d ms, with at most %d ms on the processor (server.slow_turn): %s",
                    round(took * 1000), round(most * 1000), describe())
