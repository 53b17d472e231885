"""Scheduling of Python's garbage collector in the process of `leveret serve`.

A collection stops the event loop for about 0.2 µs per object that it examines, so automatic collections examine only
young objects: those that survived one collection are not examined again. This matters most for lists and dicts, because a
collection also visits everything that they refer to. The broker creates no reference cycles for messages and connections,
so these are freed without a collection. The few cycles that remain (a few objects per connection to the control socket)
are left to the full collections here.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Final

# The second generation is collected after more than this many collections of the first one: always with it, so that it
# stays empty, and the survivors join the third one.
SECOND_GENERATION: Final = -1
# More collections than any run has: only `Collector` runs full collections.
NEVER: Final = (1 << 31) - 1
# Seconds between two checks whether a full collection is due.
INTERVAL: Final = 60.0
# Seconds between two full collections while memory is tight, however long they take.
TIGHT_INTERVAL: Final = 600.0
# Blocks of memory allocated since the start that can be examined within a turn.
CHEAP: Final = 100_000


class Collector:
    """Runs full collections when they are cheap, or when memory is tight.

    Args:
        threshold: Allocations of container objects between two collections of the first generation.
        clock: Returns the time in seconds.
        blocks: Returns the number of allocated blocks of memory.
    """

    def __init__(
        self,
        threshold: int,
        clock: Callable[[], float] = time.monotonic,
        blocks: Callable[[], int] = sys.getallocatedblocks,
    ) -> None:
        self._threshold = threshold
        self._clock = clock
        self._blocks = blocks
        self._base = 0
        self._last = clock()

    def tune(self) -> None:
        """Limit automatic collections to young objects."""
        gc.set_threshold(self._threshold, SECOND_GENERATION, NEVER)

    def start(self) -> None:
        """Collect everything once, and exclude the remaining objects from now on: modules, classes, the configuration."""
        gc.collect()
        gc.freeze()
        self._base = self._blocks()
        self._last = self._clock()

    def examine_young(self) -> None:
        """Examine the young objects now, so that they stay few.

        Python counts allocations less deallocations, so a job that replaces a million objects by others, in steps, would
        never cause a collection, until one examines all of them in one turn.
        """
        gc.collect(1)

    def check(self, tight: bool) -> bool:
        """Run a full collection if it is due, and return whether it ran. `tight` says that memory is tight."""
        now = self._clock()
        if self._blocks() - self._base > CHEAP and not (tight and now - self._last >= TIGHT_INTERVAL):
            return False
        self._last = now
        gc.collect()
        return True

    def stop(self) -> None:
        """Include all objects again, so that those of a stopped broker are freed."""
        gc.unfreeze()
