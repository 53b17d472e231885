"""Counts of the broker's objects in memory."""

from __future__ import annotations

import gc
from collections.abc import Iterable

from leveret.broker.timers import Timed
from tests.protocols.support import Site


class Idle(Timed):
    """A timer without an effect."""

    def fire(self, now: int) -> None:
        pass


def census(site: Site, kinds: Iterable[str]) -> dict[str, int]:
    """Return the number of broker objects of these kinds. Compiled classes are found by name, too."""
    timers = site.broker.timers
    for number in range(300):  # enough for the timers to remove stale items
        timed = Idle()
        timers.at(timers.now() + 10**9 + number, timed)
        timers.cancel(timed)
    gc.collect()
    counts = dict.fromkeys(kinds, 0)
    for item in gc.get_objects():
        kind = type(item)
        if kind.__name__ in counts and kind.__module__.startswith("leveret"):
            counts[kind.__name__] += 1
    return counts
