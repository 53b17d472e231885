"""A compact, mergeable histogram of times with buckets that are 3 % wide."""

from __future__ import annotations

from typing import Final

_BITS: Final = 5
_EXACT: Final = 2 << _BITS
# Enough buckets for `_MAX_TIME`.
_BUCKETS: Final = 60 << _BITS
_MAX_TIME: Final = (1 << 62) - 1


class Histogram:
    """Histogram of times in nanoseconds."""

    __slots__ = ("_counts", "longest")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.longest = 0

    def add(self, time: int) -> None:
        """Add a time. Negative times count as 0."""
        if time > self.longest:
            self.longest = time = min(time, _MAX_TIME)
        if time < _EXACT:
            self._counts[max(time, 0)] += 1
        else:
            shift = time.bit_length() - _BITS - 1
            self._counts[(shift << _BITS) + (time >> shift)] += 1

    @property
    def count(self) -> int:
        return sum(self._counts)

    def quantile(self, share: float) -> int:
        """Return a quantile, for a share from 0 to 1, as the middle of its bucket; 0 if the histogram is empty."""
        counts = self._counts
        wanted = max(1, round(sum(counts) * share))
        seen = 0
        for index, count in enumerate(counts):
            seen += count
            if seen >= wanted:
                return min(_middle(index), self.longest)
        return 0

    def merge(self, other: Histogram) -> None:
        """Add the times of another histogram."""
        self.load(other.dump(), other.longest)

    def dump(self) -> dict[str, int]:
        """Return the non-empty buckets, for JSON."""
        return {str(index): count for index, count in enumerate(self._counts) if count}

    def load(self, dumped: dict[str, int], longest: int) -> None:
        """Add the buckets that `dump` returned."""
        for index, count in dumped.items():
            self._counts[int(index)] += count
        self.longest = max(self.longest, longest)


def _middle(index: int) -> int:
    if index < _EXACT:
        return index
    shift = (index >> _BITS) - 1
    return (((index & (_EXACT // 2 - 1)) + _EXACT // 2) << shift) + (1 << shift >> 1)
