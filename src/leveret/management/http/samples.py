"""Samples of one object: of a minute by the second, of eleven by five seconds, and of an hour by the minute, in one array.

An object that is idle costs no time: ticks without a sample are filled in when the next one comes, or when samples are
read. A tick is a second of Unix time, and its sample covers the second before it.

A period has the sum of the increments of its ticks. Within a period, a counter counts as growing evenly, so that totals
never fall, and the changes between them add up to the increase of the counter, also between samples of different periods.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

MINUTE: Final = 60
_FIVE: Final = 5
# Numbers of samples: enough seconds for all of the five that a minute ago is in, and enough fives for all of the minute
# that RabbitMQ's 605 seconds ago is in.
SECONDS: Final = 65
FIVES: Final = 133
MINUTES: Final = 60
_LENGTH: Final = SECONDS + FIVES + MINUTES
_FIVES_AT: Final = SECONDS
_MINUTES_AT: Final = SECONDS + FIVES
# Seconds of a period, the place of the samples of such periods, and their number.
_PERIODS: Final = ((_FIVE, _FIVES_AT, FIVES), (MINUTE, _MINUTES_AT, MINUTES))
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
        if tick == last + 1 and tick % MINUTE:
            if tick % _FIVE == 0:
                self._end_five()
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

    def _end_five(self) -> None:
        """Set the samples of the five seconds that the last tick ends. Their ticks are next to each other in the ring."""
        ring, last, gauges, most = self._ring, self._last, self._gauges, self._max
        place, end = _FIVES_AT + last // _FIVE % FIVES, last % SECONDS + 1
        for at in range(0, gauges * _LENGTH, _LENGTH):
            ring[at + place] = ring[at + end - 1]
        for at in range(gauges * _LENGTH, len(ring), _LENGTH):
            total = sum(ring[at + end - _FIVE : at + end])
            ring[at + place] = total if total <= most else most

    def _advance(self, tick: int) -> None:
        """Fill in the ticks up to this one, and the periods that have ended."""
        ring, last = self._ring, self._last
        for series in range(len(ring) // _LENGTH):
            at = series * _LENGTH
            filler = ring[at + last % SECONDS] if series < self._gauges else 0
            for length, place, number in _PERIODS:
                period, current = last // length, tick // length
                if current > period:
                    ended = filler
                    if series >= self._gauges:
                        ended = min(self.increment(series, period * length, last), self._max)
                    ring[at + place + period % number] = ended
                    for later in range(max(period + 1, current - number), current):
                        ring[at + place + later % number] = filler
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
        return self._last < minute * MINUTE

    def minute(self, series: int, minute: int) -> int:
        """Return the sample of a minute of the last hour: the last value of a gauge, or the increase of a counter."""
        if not self._has(series):
            return 0
        last = self._last
        if minute < last // MINUTE:
            return self._ring[series * _LENGTH + _MINUTES_AT + minute % MINUTES]
        if series < self._gauges:
            return self.gauge(series, last)
        return self.increment(series, minute * MINUTE, last)

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

    def gauge_at(self, series: int, tick: int) -> int:
        """Return the value of a gauge at any tick: that at the end of the last period until then."""
        last, at = self._last, series * _LENGTH
        if tick > last - SECONDS:
            return self._ring[at + min(tick, last) % SECONDS]
        period = (tick + 1) // _FIVE - 1
        if period >= last // _FIVE - FIVES:
            return self._ring[at + _FIVES_AT + period % FIVES]
        period = max((tick + 1) // MINUTE - 1, last // MINUTE - MINUTES)
        return self._ring[at + _MINUTES_AT + period % MINUTES]

    def increases_since(self, series: int, ticks: Sequence[int]) -> list[int]:
        """Return the increase of a counter after each of some ticks."""
        if not self._has(series):
            return [0] * len(ticks)
        last = self._last
        seconds, fives, minutes = (
            self._sums(series, place, number, newest)
            for place, number, newest in (
                (0, SECONDS, last),
                (_FIVES_AT, FIVES, last // _FIVE - 1),
                (_MINUTES_AT, MINUTES, last // MINUTE - 1),
            )
        )
        # The increase in the current five seconds, and in the current minute.
        since_five, since_minute = seconds[last % _FIVE + 1], seconds[last % MINUTE + 1]
        found = []
        for tick in ticks:
            five, minute = last // _FIVE - tick // _FIVE, last // MINUTE - tick // MINUTE
            if tick >= last:
                found.append(0)
            elif tick - tick % _FIVE > last - SECONDS:
                found.append(seconds[last - tick])
            elif tick - tick % MINUTE >= (last // _FIVE - FIVES) * _FIVE:
                part = (fives[five] - fives[five - 1]) * (_FIVE - 1 - tick % _FIVE) // _FIVE
                found.append(since_five + fives[five - 1] + part)
            elif minute <= MINUTES:
                part = (minutes[minute] - minutes[minute - 1]) * (MINUTE - 1 - tick % MINUTE) // MINUTE
                found.append(since_minute + minutes[minute - 1] + part)
            else:
                found.append(since_minute + minutes[MINUTES])
        return found

    def _sums(self, series: int, place: int, number: int, newest: int) -> list[int]:
        """Return the sums of the newest 0, 1, 2 ... periods of a length, of which the last that has ended is `newest`."""
        first = series * _LENGTH + place
        cut = first + newest % number + 1
        values = self._ring[cut : first + number] + self._ring[first:cut]
        values.reverse()
        return list(accumulate(values, initial=0))


class OlderSamples:
    """Samples from before those in memory: of periods, as the history has them.

    Args:
        periods: The last tick of each period, the oldest first, its number of ticks, and the gauges at its end and the
            increments in it.
        until: The tick after which samples in memory apply.

    Attributes:
        until: See above.
    """

    def __init__(self, periods: Sequence[tuple[int, int, Sequence[int]]], until: int) -> None:
        self.until = until
        self._ticks = [tick for tick, _, _ in periods]
        self._lengths = [length for _, length, _ in periods]
        self._values = [values for _, _, values in periods]

    def gauge(self, series: int, tick: int) -> int:
        """Return the value of a gauge at a tick: that of the last period until then, or of the first one."""
        return self._values[max(bisect_right(self._ticks, tick) - 1, 0)][series]

    def increases_since(self, series: int, ticks: Iterable[int]) -> list[int]:
        """Return the increase of a counter after each of some ticks, up to the end of the last period."""
        # The increase until the end of each period, preceded by 0.
        sums = list(accumulate([values[series] for values in self._values], initial=0))
        found = []
        for tick in ticks:
            index = bisect_right(self._ticks, tick)
            increase = sums[-1] - sums[index]
            if index < len(self._ticks):
                # The part of the period before its ticks after this one.
                length = self._lengths[index]
                before = length - min(self._ticks[index] - tick, length)
                increase -= -(-self._values[index][series] * before // length)
            found.append(increase)
        return found


def oldest_tick(now: int) -> int:
    """Return the first tick of which `Samples` know the state before it."""
    return (now // MINUTE - MINUTES) * MINUTE - 1
