"""Samples of one object: 60 at one second and 60 at one minute, in one array.

An object that is idle costs no time: ticks without a sample are filled in when the next one comes, or when samples are
read. A tick is a second of Unix time, and its sample covers the second before it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

SECONDS: Final = 60
MINUTES: Final = 60
_LENGTH: Final = SECONDS + MINUTES
# Seconds over which a rate is computed.
RATE_SPAN: Final = 5
_MAX: Final = {"I": (1 << 32) - 1, "Q": (1 << 64) - 1}


@dataclass(frozen=True, slots=True)
class Layout:
    """The series of one kind of object.

    Attributes:
        gauges: Names of the series whose samples are values.
        counters: Names of the series whose samples are increments.
        typecode: The type of a sample: `I` for 32 bits, `Q` for 64. Larger values are stored as the largest one.
        late: The number of counters at the end whose series take memory from their first increment on, and that of the
            late counters before them.
    """

    gauges: tuple[str, ...]
    counters: tuple[str, ...]
    typecode: str = "I"
    late: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return self.gauges + self.counters

    def indices(self, *names: str) -> tuple[int, ...]:
        """Return the positions of series."""
        return tuple(self.names.index(name) for name in names)


class Samples:
    """The samples of the series of one object.

    Args:
        layout: The series.
        tick: The tick before the first one with a sample.
        gauges: The values of the gauges until then.
    """

    __slots__ = ("_count", "_gauges", "_last", "_max", "_ring")

    def __init__(self, layout: Layout, tick: int, gauges: Sequence[int]) -> None:
        self._count = len(layout.names)
        self._gauges = len(gauges)
        self._last = tick
        self._max = _MAX[layout.typecode]
        self._ring = array(layout.typecode, [0]) * (_LENGTH * (self._count - layout.late))
        for series, value in enumerate(gauges):
            at = series * _LENGTH
            self._ring[at : at + _LENGTH] = array(layout.typecode, [min(value, self._max)]) * _LENGTH

    def record(self, tick: int, values: Sequence[int]) -> None:
        """Add a sample: the values of the gauges, then the increments of the counters.

        Several samples of one tick are added up.
        """
        last, ring, most = self._last, self._ring, self._max
        if len(ring) < self._count * _LENGTH:
            values = self._used(values)
            ring = self._ring
        adds = False
        if tick == last + 1 and tick % SECONDS:
            self._last = tick  # nothing to fill in: this sample replaces the oldest one
        elif tick > last:
            self._advance(tick)
        else:
            adds = True
        at = self._last % SECONDS
        gauges = self._gauges
        for series, value in enumerate(values):
            if adds and series >= gauges:
                value += ring[at]
            ring[at] = value if 0 <= value <= most else (most if value > 0 else 0)
            at += _LENGTH

    def _used(self, values: Sequence[int]) -> Sequence[int]:
        """Return the values of the series with memory, after adding those that are needed."""
        known = used = len(self._ring) // _LENGTH
        for series in range(known, len(values)):
            if values[series]:
                used = series + 1
        if used > known:
            self._ring = self._ring + array(self._ring.typecode, [0]) * (_LENGTH * (used - known))
        return values[:used]

    def _advance(self, tick: int) -> None:
        """Fill in the ticks up to this one, and the minutes that have ended."""
        ring, last = self._ring, self._last
        minute, current = last // 60, tick // 60
        for series in range(len(ring) // _LENGTH):
            at = series * _LENGTH
            filler = ring[at + last % SECONDS] if series < self._gauges else 0
            if current > minute:
                ended = filler
                if series >= self._gauges:
                    ended = min(sum(ring[at + second % SECONDS] for second in range(minute * 60, last + 1)), self._max)
                ring[at + SECONDS + minute % MINUTES] = ended
                for later in range(max(minute + 1, current - MINUTES), current):
                    ring[at + SECONDS + later % MINUTES] = filler
            for second in range(max(last + 1, tick - SECONDS + 1), tick + 1):
                ring[at + second % SECONDS] = filler
        self._last = tick

    def is_constant_since(self, tick: int) -> bool:
        """Return whether nothing has changed after a tick."""
        return tick >= self._last

    def is_idle(self, tick: int) -> bool:
        """Return whether all rates are 0: there was no sample lately."""
        return tick - self._last >= RATE_SPAN

    def is_idle_in(self, minute: int) -> bool:
        """Return whether there was no sample in a minute or later."""
        return self._last < minute * 60

    def minute(self, series: int, minute: int) -> int:
        """Return the sample of a minute of the last hour: the last value of a gauge, or the increase of a counter."""
        if not self._has(series):
            return 0
        last = self._last
        if minute < last // 60:
            return self._ring[series * _LENGTH + SECONDS + minute % MINUTES]
        if series < self._gauges:
            return self.gauge(series, last)
        return self.increment(series, minute * 60, last)

    def _has(self, series: int) -> bool:
        return series * _LENGTH < len(self._ring)

    def gauge(self, series: int, tick: int) -> int:
        """Return the value of a gauge at a tick of the last minute."""
        return self._ring[series * _LENGTH + min(tick, self._last) % SECONDS] if tick > self._last - SECONDS else 0

    def increment(self, series: int, first: int, last: int) -> int:
        """Return the increase of a counter during these ticks, within the last minute."""
        if not self._has(series):
            return 0
        at = series * _LENGTH
        ring = self._ring
        first = max(first, self._last - SECONDS + 1)
        return sum([ring[at + tick % SECONDS] for tick in range(first, min(last, self._last) + 1)])

    def rates(self, tick: int, wanted: Sequence[int] | None = None) -> list[float]:
        """Return the increase per second of some or all series in the `RATE_SPAN` seconds up to a recent tick."""
        last, ring, gauges = self._last, self._ring, self._gauges
        if wanted is None:
            wanted = range(self._count)
        if tick - last >= RATE_SPAN:
            return [0.0] * len(wanted)
        first = tick - RATE_SPAN
        # The slots of the ticks, in one or two pieces of the ring.
        begin, end = (first + 1) % SECONDS, min(tick, last) % SECONDS + 1
        found = []
        for series in wanted:
            at = series * _LENGTH
            if series < gauges:
                total = self.gauge(series, tick) - self.gauge(series, first)
            elif at >= len(ring):
                total = 0
            elif begin < end:
                total = sum(ring[at + begin : at + end])
            else:
                total = sum(ring[at + begin : at + SECONDS]) + sum(ring[at : at + end])
            found.append(total / RATE_SPAN)
        return found

    def gauge_at(self, series: int, tick: int, now: int) -> int:
        """Return the value of a gauge at any tick up to `now`, by the minute if it is not in the last one."""
        if tick >= self._last:
            return self.gauge(series, now)
        if tick > now - SECONDS and tick > self._last - SECONDS:
            return self.gauge(series, tick)
        # The value at the end of the minute before.
        minute = max((tick + 1) // 60 - 1, self._last // 60 - MINUTES)
        if minute >= self._last // 60:
            return self.gauge(series, self._last)
        return self._ring[series * _LENGTH + SECONDS + minute % MINUTES]

    def increase_since(self, series: int, tick: int, now: int) -> int:
        """Return the increase of a counter after a tick, by the minute if it is not in the last one."""
        last = self._last
        if tick >= last or not self._has(series):
            return 0
        if tick > now - SECONDS and tick >= last - SECONDS:
            return self.increment(series, tick + 1, now)
        minute = last // 60
        at = series * _LENGTH + SECONDS
        first = max(-(-(tick + 1) // 60), minute - MINUTES)
        return self.increment(series, minute * 60, last) + sum(
            [self._ring[at + ended % MINUTES] for ended in range(first, minute)]
        )


class OlderSamples:
    """Samples from before those in memory: of periods, as the history has them.

    Args:
        periods: The last tick of each period, the oldest first, with the gauges at its end and the increments in it.
        until: The tick after which samples in memory apply.

    Attributes:
        until: See above.
    """

    def __init__(self, periods: Sequence[tuple[int, Sequence[int]]], until: int) -> None:
        self.until = until
        self._ticks = [tick for tick, _ in periods]
        self._values = [values for _, values in periods]
        # The increase of a counter until the end of each period, preceded by 0.
        self._sums: dict[int, list[int]] = {}

    def gauge(self, series: int, tick: int) -> int:
        """Return the value of a gauge at a tick: that of the last period until then, or of the first one."""
        return self._values[max(bisect_right(self._ticks, tick) - 1, 0)][series]

    def increase_since(self, series: int, tick: int) -> int:
        """Return the increase of a counter in the periods that end after a tick."""
        sums = self._sums.get(series)
        if sums is None:
            sums = self._sums[series] = list(accumulate([values[series] for values in self._values], initial=0))
        return sums[-1] - sums[bisect_right(self._ticks, tick)]


def oldest_tick(now: int) -> int:
    """Return the first tick of which `Samples` know the state before it."""
    return (now // 60 - MINUTES) * 60 - 1
