"""Watchdog of the event loop, which measures every turn and reports slow ones.

A turn is one pass of the event loop: the ready events, and the callbacks that earlier turns scheduled. The loop calls
`select` once per turn, so a selector can measure each turn with two clock reads.

It also knows when the loop waits: other threads wake it up only then, and the log seals a batch before it waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import selectors
import time
from collections import deque
from collections.abc import Callable

from leveret.broker.durations import Durations

logger = logging.getLogger("leveret.server")

# Seconds between samples of the thread's CPU time.
SAMPLE_INTERVAL = 0.05


class Watchdog(selectors.DefaultSelector):
    """Selector that measures turns, for `asyncio.SelectorEventLoop(selector)`.

    Attributes:
        threshold: Seconds above which a turn is slow; 0 disables this.
        slow: The number of slow turns.
        longest_turns: The duration of the longest turn of each interval between two samples.
        cpu: Seconds of CPU time of the thread, as of the last sample.
    """

    def __init__(
        self,
        threshold: float,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        super().__init__()
        self.threshold = threshold
        self._describe: Callable[[], str] | None = None
        self.slow = 0
        self.longest_turns = Durations()
        self._longest = 0.0
        # The duration of the longest turn since the last sample.
        self._recent = 0.0
        self._clock = clock
        self._processor = processor
        self._began = 0.0
        self._sampled = 0.0
        self.cpu = 0.0
        self._idle: list[Callable[[], None]] = []
        # Callbacks from other threads, and the descriptor that wakes up a waiting loop.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._posted: deque[Callable[[], None]] = deque()
        self._waits = False
        self._wakeup = -1

    @property
    def longest(self) -> float:
        """The duration of the longest turn in seconds."""
        return max(self._longest, self._recent)

    def watch(self, describe: Callable[[], str] | None) -> None:
        """Start measuring with the next turn, or stop if None. `describe` names the clients whose input a turn handled."""
        self._describe = describe
        self._began = 0.0

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call back once, before the loop waits because nothing is ready. The callback must not schedule anything."""
        self._idle.append(callback)

    def take_posts(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Accept callbacks by `post` from now on. Returns False if the system does not support that."""
        if not hasattr(os, "eventfd"):
            return False
        if self._wakeup < 0:
            self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self.register(self._wakeup, selectors.EVENT_READ)
        self._loop = loop
        return True

    def post(self, callback: Callable[[], None]) -> None:
        """Run a callback in the next turn. May be called from any thread. Costs a system call only if the loop waits."""
        self._posted.append(callback)
        if self._waits:
            os.eventfd_write(self._wakeup, 1)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """End a turn, wait, and start the next one."""
        now = self._clock()
        took = now - self._began
        if took > self._recent and self._began and self._describe is not None:
            self._recent = took
        if now - self._sampled > SAMPLE_INTERVAL:
            self._end(now, took)
        ready = self._wait(0 if self._idle else timeout)
        if self._idle and not ready and not self._posted and timeout != 0:
            callbacks, self._idle = self._idle, []
            for callback in callbacks:
                callback()
            ready = self._wait(timeout)
        loop = self._loop
        if loop is not None:
            while self._posted:
                loop.call_soon(self._posted.popleft())
        self._began = self._clock()
        return ready

    def _wait(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ready events, without those of `post`."""
        self._waits = timeout != 0 and self._wakeup >= 0
        # Whatever is posted from here on wakes up the loop.
        ready = super().select(0 if self._posted else timeout)
        self._waits = False
        for number, (key, _) in enumerate(ready):
            if key.fd == self._wakeup:
                os.eventfd_read(self._wakeup)
                del ready[number]
                break
        return ready

    def close(self) -> None:
        super().close()
        if self._wakeup >= 0:
            os.close(self._wakeup)
            self._wakeup = -1

    def _end(self, now: float, took: float) -> None:
        """Report the turn if it was slow. The CPU time is sampled, because reading it is a system call."""
        used = self._processor()
        most = min(took, used - self.cpu)
        self._sampled = now
        self.cpu = used
        if self._recent:
            self.longest_turns.record(self._recent)
            self._longest = self.longest
            self._recent = 0.0
        describe = self._describe
        if not 0 < self.threshold < took or not self._began or describe is None:
            return
        self.slow += 1
        logger.warning(
            "a turn of the event loop took %d ms, of which at most %d ms on the CPU ('server.slow_turn'): %s",
            round(took * 1000),
            round(most * 1000),
            describe(),
        )
