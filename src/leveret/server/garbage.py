"""Scheduling of Python's garbage collector in `leveret serve`.

A collection stops the event loop for about 0.2 µs per examined object, so automatic collections examine only young
objects, not those that survived a collection. This matters most for lists and dicts, because a collection also visits
everything that they refer to. Messages and connections have no reference cycles, so they are freed without a collection.
Full collections free the few remaining cycles (a few objects per connection to the control socket).
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Final

# The second generation is collected with every collection of the first one, so that it stays empty and survivors join the
# third generation.
SECOND_GENERATION: Final = -1
# An unreachable number of collections, so that only `Collector` runs full collections.
NEVER: Final = (1 << 31) - 1
# Seconds between checks for a due full collection.
INTERVAL: Final = 60.0
# Seconds between full collections while memory is tight, regardless of their duration.
TIGHT_INTERVAL: Final = 600.0
# Number of allocated memory blocks since the start below which a full collection fits into a turn.
CHEAP: Final = 100_000


class Collector:
    """Scheduler of full collections, which run when they are cheap or when memory is tight.

    Args:
        threshold: Allocations of container objects between collections of the first generation.
        clock: Returns the time in seconds.
        blocks: Returns the number of allocated memory blocks.
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
        """Run a full collection, and exclude the remaining objects, such as modules and classes, from later ones."""
        gc.collect()
        gc.freeze()
        self._base = self._blocks()
        self._last = self._clock()

    def examine_young(self) -> None:
        """Examine the young objects now, so that they stay few.

        Python counts allocations minus deallocations. A job that replaces a million objects in steps would thus never
        trigger a collection, until a later one examines all of them in one turn.
        """
        gc.collect(1)

    def check(self, tight: bool) -> bool:
        """Run a full collection if it is due, and return whether it ran. `tight` says whether memory is tight."""
        now = self._clock()
        if self._blocks() - self._base > CHEAP and not (tight and now - self._last >= TIGHT_INTERVAL):
            return False
        self._last = now
        gc.collect()
        return True

    def stop(self) -> None:
        """Include all objects again, so that the objects of a stopped broker are freed."""
        gc.unfreeze()
