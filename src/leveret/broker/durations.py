"""Histograms of durations, such as those of commits."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

# Upper bounds of the buckets in seconds. One more bucket counts longer durations.
BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Durations:
    """A histogram of durations. One thread records; any thread may read.

    Attributes:
        counts: The number of durations in each bucket.
        total: The sum of the durations in seconds.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def record(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds
