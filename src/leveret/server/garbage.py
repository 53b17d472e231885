"""When Python's garbage collector runs in the process of `leveret serve`.

A collection stops the event loop for about 0.2 µs for each object that it looks at, so only young objects are looked at
while clients wait: what survived two collections stays unexamined. Nothing that the broker makes for a message or a
connection refers to itself, so that is freed without a collection; what does need one (connections to the control socket
leave a few objects each) is left to the full collections here.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Final

# A collection of the second generation looks at the objects of so many collections of the first one.
MIDDLE: Final = 2
# Greater than the number of collections of any run: there is no full collection but those of `Collector`.
NEVER: Final = (1 << 31) - 1
# Seconds between two looks at whether a full collection is due.
INTERVAL: Final = 60.0
# Seconds between two full collections while memory is short, however long they take.
TIGHT_INTERVAL: Final = 600.0
# Blocks of memory that were allocated since the start and can be examined within a turn.
CHEAP: Final = 100_000


class Collector:
    """Full collections: when they are cheap, or when memory is short.

    threshold  allocations of container objects between two collections of the first generation
    """

    def __init__(self, threshold: int, clock: Callable[[], float] = time.monotonic,
                 blocks: Callable[[], int] = sys.getallocatedblocks) -> None:
        self._threshold = threshold
        self._clock = clock
        self._blocks = blocks
        self._base = 0
        self._last = clock()

    def tune(self) -> None:
        """Have only young objects collected from now on."""
        gc.set_threshold(self._threshold, MIDDLE, NEVER)

    def start(self) -> None:
        """Collect everything once, and never look at what is left again: modules, classes, the configuration."""
        gc.collect()
        gc.freeze()
        self._base = self._blocks()
        self._last = self._clock()

    def look(self, tight: bool) -> bool:
        """Collect everything that was made since the start if that is due. `tight`: memory is short."""
        now = self._clock()
        if self._blocks() - self._base > CHEAP and not (tight and now - self._last >= TIGHT_INTERVAL):
            return False
        self._last = now
        gc.collect()
        return True

    def stop(self) -> None:
        """The broker ends: what was made for it may go."""
        gc.unfreeze()
