"""Objects with counters and gauges, and their rates and samples in RabbitMQ's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import Final

from leveret.management.http.control import Row
from leveret.management.http.errors import bad_request
from leveret.management.http.samples import Layout, OlderSamples, Samples

# Maximum number of samples of one statistic in an answer.
MAX_SAMPLES: Final = 3600
# Maximum number of samples of one statistic in a page of objects, and in a list that is sent in parts.
MAX_LISTED_SAMPLES: Final = 65_000
MAX_STREAMED_SAMPLES: Final = 2_000_000
# Families of statistics, by their prefix in queries: `lengths_age`, `lengths_incr`.
LENGTHS: Final = "lengths"
MESSAGES: Final = "msg_rates"
DATA: Final = "data_rates"
NODE: Final = "node_stats"
# The details of a statistic that does not change. Callers must not modify it.
ZERO: Final[Row] = {"rate": 0.0}


class Measured:
    """The counters and gauges of an object, and their samples from the first change on.

    Attributes:
        gauges: The current values of the gauges of the layout.
        counters: The current values of its counters.
        samples: The samples; None before the first change.
    """

    __slots__ = ("counters", "gauges", "samples")

    def __init__(self) -> None:
        self.gauges: Sequence[int] | None = None
        self.counters: Sequence[int] = ()
        self.samples: Samples | None = None

    def begin(self, layout: Layout) -> None:
        """Count from 0: the object is new."""
        self.gauges = [0] * len(layout.gauges)
        self.counters = [0] * len(layout.counters)

    def measure(self, layout: Layout, tick: int, gauges: Sequence[int], counters: Sequence[int]) -> Sequence[int]:
        """Set the current values, and return the increments of the counters.

        The first values of an object that is not new are the ones to compare with; they are returned as they are.
        """
        before = self.gauges
        if before is None:
            self.gauges, self.counters = gauges, counters
            return counters
        increments = [value - old for value, old in zip(counters, self.counters, strict=True)]
        if self.samples is None:
            self.samples = Samples(layout, tick - 1, before)
        self.gauges, self.counters = gauges, counters
        self.samples.record(tick, [*gauges, *increments])
        return increments


@dataclass(frozen=True, slots=True)
class Statistic:
    """A statistic of an answer: the sum of some series.

    Attributes:
        series: The positions of the series.
        family: The family whose parameters select its samples.
        is_gauge: Whether the series are gauges.
    """

    series: tuple[int, ...]
    family: str
    is_gauge: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """The samples that a query asks for: those of the last `age` seconds, every `incr` seconds."""

    age: int
    incr: int

    def ticks(self, now: int) -> range:
        """Return the ticks of the samples, the newest first."""
        return range(now, now - self.age - 1, -self.incr)


def windows_of(query: Mapping[str, str]) -> dict[str, Window]:
    """Return the samples that a query asks for, by family. Raises `HttpError` (400)."""
    found = {}
    for family in (LENGTHS, MESSAGES, DATA, NODE):
        age, incr = query.get(f"{family}_age"), query.get(f"{family}_incr")
        if age is None or incr is None:
            continue
        if not (age.isdecimal() and incr.isdecimal() and len(age) < 10 and len(incr) < 10 and int(incr)):
            raise bad_request(f"invalid {family}_age or {family}_incr; expected numbers of seconds")
        window = Window(int(age), int(incr))
        if len(window.ticks(0)) > MAX_SAMPLES:
            raise bad_request(f"{family}_age and {family}_incr give too many samples; expected at most {MAX_SAMPLES}")
        found[family] = window
    return found


def is_rate(keys: Sequence[str]) -> bool:
    """Return whether a path of keys leads to a rate, such as `message_stats.publish_details.rate`."""
    return len(keys) > 1 and keys[-1] == "rate" and keys[-2].endswith("_details")


def rate_of(measured: Measured, statistics: Mapping[str, Statistic], keys: Sequence[str], tick: int) -> float:
    """Return the rate of an object to which a path of keys leads; 0 if it has none."""
    samples, statistic = measured.samples, statistics.get(keys[-2].removesuffix("_details"))
    if samples is None or statistic is None:
        return 0.0
    return sum(samples.rates(tick, statistic.series))


class Rates:
    """Rates and samples of an object, or of the sum of several, at one tick, and samples from before those in memory."""

    __slots__ = ("_older", "_rates", "_sources", "_statistics", "_tick", "_windows")

    def __init__(
        self,
        sources: Sequence[Measured],
        statistics: Mapping[str, Statistic],
        tick: int,
        windows: Mapping[str, Window],
        older: OlderSamples | None = None,
    ) -> None:
        self._sources = [source.samples for source in sources if source.samples is not None]
        self._statistics = statistics
        self._tick = tick
        self._windows = windows
        self._older = older
        rates = [samples.rates(tick) for samples in self._sources if not samples.is_idle(tick)]
        # The rates of all series, None if all of them are 0.
        self._rates: list[float] | None = None
        if rates:
            self._rates = rates[0] if len(rates) == 1 else [sum(series) for series in zip(*rates, strict=True)]

    def changes(self, family: str) -> Mapping[str, Row] | None:
        """Return the details of a family's statistics whose rates are not 0; None if samples are asked for, too."""
        if self._windows:
            return None
        if self._rates is None:
            return {}
        found = {}
        for name, statistic in self._statistics.items():
            if statistic.family is family:
                rate = self._rate(statistic)
                if rate:
                    found[f"{name}_details"] = {"rate": rate}
        return found

    def _rate(self, statistic: Statistic) -> float:
        rates = self._rates
        if rates is None:
            return 0.0
        series = statistic.series
        return rates[series[0]] if len(series) == 1 else sum([rates[one] for one in series], 0.0)

    def details(self, name: str, value: float) -> Row:
        """Return the details of a statistic with this current value. Callers must not modify them."""
        statistic = self._statistics.get(name)
        if statistic is None:
            return ZERO
        rate = self._rate(statistic)
        window = self._windows.get(statistic.family) if self._windows else None
        if window is None:
            return {"rate": rate} if rate else ZERO
        return {"rate": rate, **_sampled(self._values(statistic, int(value), window), window, self._tick)}

    def _values(self, statistic: Statistic, value: int, window: Window) -> list[int]:
        ticks = window.ticks(self._tick)
        now, sources, series, older = self._tick, self._sources, statistic.series, self._older
        if not series or not (sources or older):
            return [value] * len(ticks)
        until = -1 if older is None else older.until
        if statistic.is_gauge:
            # Sources without samples, whose gauges have not changed.
            constant = value - sum(samples.gauge(one, now) for samples in sources for one in series)
            return [
                sum([older.gauge(one, tick) for one in series])
                if older is not None and tick < until and not self._is_constant_since(tick)
                else constant + sum([samples.gauge_at(one, tick) for samples in sources for one in series])
                for tick in ticks
            ]
        increases = [0] * len(ticks)
        since = [max(tick, until) for tick in ticks]
        for one in series:
            for samples in sources:
                increases = list(map(add, increases, samples.increases_since(one, since)))
            if older is not None:
                increases = list(map(add, increases, older.increases_since(one, ticks)))
        return [max(value - increase, 0) for increase in increases]

    def _is_constant_since(self, tick: int) -> bool:
        """Return whether the samples in memory show that nothing has changed after a tick."""
        return bool(self._sources) and all(samples.is_constant_since(tick) for samples in self._sources)


def _sampled(values: list[int], window: Window, tick: int) -> Row:
    """Return samples, the newest first, with their average and the average rate."""
    span = (len(values) - 1) * window.incr
    return {
        "avg": sum(values) / len(values),
        "avg_rate": (values[0] - values[-1]) / span if span else 0.0,
        "samples": [
            {"sample": value, "timestamp": 1000 * at} for value, at in zip(values, window.ticks(tick), strict=True)
        ],
    }
