"""The results of a benchmark run: progress lines, tables at the end, and JSON."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import click

from leveret.cli.load.histogram import Histogram
from leveret.cli.load.plan import Plan
from leveret.cli.load.report import Report
from leveret.cli.output import Item, show_table, size, text

QUANTILES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999))


def duration(nanoseconds: int) -> str:
    """Format a latency."""
    if nanoseconds >= 1_000_000_000:
        return f"{nanoseconds / 1e9:.2f} s"
    if nanoseconds >= 1_000_000:
        return f"{nanoseconds / 1e6:.1f} ms"
    return f"{nanoseconds / 1e3:.0f} µs"


def count(number: float) -> str:
    """Format a count."""
    return f"{number:,.0f}"


@dataclass(slots=True)
class Interval:
    """Results of an interval. `at` is its end, in seconds since the start."""

    at: float
    seconds: float
    published: int
    confirmed: int
    consumed: int
    confirming: Histogram
    delivering: Histogram

    def rate(self, number: int) -> float:
        return number / self.seconds if self.seconds > 0 else 0.0

    def line(self) -> str:
        """Return the interval as a line of text."""
        return (
            f"{self.at:6.1f} s  published {count(self.rate(self.published))}/s"
            f"  confirmed {count(self.rate(self.confirmed))}/s  consumed {count(self.rate(self.consumed))}/s"
            f"  latency p50 {duration(self.delivering.quantile(0.5))}, p99 {duration(self.delivering.quantile(0.99))}"
        )

    def dump(self) -> Item:
        return {
            "at": round(self.at, 3),
            "published_per_second": round(self.rate(self.published), 1),
            "confirmed_per_second": round(self.rate(self.confirmed), 1),
            "consumed_per_second": round(self.rate(self.consumed), 1),
            "confirm": _quantiles(self.confirming),
            "delivery": _quantiles(self.delivering),
        }


@dataclass(slots=True)
class Results:
    """Results of a benchmark run.

    Attributes:
        plan: The load.
        broker: The product, version and address of the broker.
        processes: The number of client processes.
        total: The totals, with the latencies of the whole run.
        publishing: Seconds until the last confirm.
        consuming: Seconds until the last delivery.
        interrupted: Whether the run was interrupted.
        intervals: The displayed intervals.
        at: Seconds from the start to the last sample.
        silent: Seconds without a delivery before the last sample.
    """

    plan: Plan
    broker: str
    processes: int
    total: Report = field(default_factory=Report)
    publishing: float = 0.0
    consuming: float = 0.0
    interrupted: bool = False
    intervals: list[Interval] = field(default_factory=list)
    at: float = 0.0
    silent: float = 0.0
    _begun: float = 0.0
    _cpu: float = 0.0
    # Since the last interval.
    _before: Report = field(default_factory=Report)
    _confirming: Histogram = field(default_factory=Histogram)
    _delivering: Histogram = field(default_factory=Histogram)

    def begin(self, report: Report) -> None:
        """Start the run. `report` is the baseline from before the start."""
        self._begun = time.monotonic()
        self._cpu = report.cpu

    def take(self, report: Report) -> None:
        """Add a sample."""
        at = time.monotonic() - self._begun
        self.silent = 0.0 if report.consumed != self.total.consumed else self.silent + at - self.at
        self.at = at
        for times, new in ((self._confirming, report.confirming), (self._delivering, report.delivering)):
            times.merge(new)
        report.confirming.merge(self.total.confirming)
        report.delivering.merge(self.total.delivering)
        report.cpu -= self._cpu
        self.total = report

    @property
    def shown_at(self) -> float:
        """The end of the last displayed interval."""
        return self.intervals[-1].at if self.intervals else 0.0

    def interval(self) -> Interval:
        """End the current interval and return it."""
        now, before = self.total, self._before
        interval = Interval(
            self.at,
            self.at - self.shown_at,
            now.published - before.published,
            now.confirmed - before.confirmed,
            now.consumed - before.consumed,
            self._confirming,
            self._delivering,
        )
        self._before, self._confirming, self._delivering = now, Histogram(), Histogram()
        self.intervals.append(interval)
        return interval

    def end(self) -> None:
        """End the run."""
        if self.at > self.shown_at:
            self.interval()
        self.publishing = self.consuming = self.at
        if self.total.ended == self.plan.publishers:
            self.publishing = self._since(self.total.published_at)
            if self.is_consumed:
                self.consuming = self._since(self.total.consumed_at)

    def _since(self, at: int) -> float:
        return max(0.0, at / 1e9 - self._begun)

    @property
    def is_consumed(self) -> bool:
        """Whether every copy of every confirmed message was consumed."""
        return self.total.consumed >= self.total.confirmed * self.plan.copies

    @property
    def complete(self) -> bool:
        """Whether all messages were confirmed and, with a fixed number of messages, consumed."""
        if self.total.refused:
            return False
        if self.plan.messages is None or self.interrupted:
            return True
        return not self.plan.consumers or self.is_consumed

    def show(self) -> None:
        """Print the results as tables on standard output."""
        plan = self.plan
        click.echo(f"broker  {text(self.broker)}")
        click.echo(f"load    {describe(plan)}")
        click.echo(
            f"time    {max(self.publishing, self.consuming):.1f} s"
            f"{', interrupted' if self.interrupted else ''}; the load generator used {self.cpu_share():.0%} of"
            f" {_some(self.processes, 'processor')}"
        )
        click.echo()
        rows = []
        for what, number, seconds in self._throughput():
            if number or what == "published":
                per_second = number / seconds if seconds > 0 else 0.0
                rows.append(
                    {
                        "": what,
                        "messages": count(number),
                        "rate": f"{count(per_second)}/s",
                        "bodies": f"{size(per_second * plan.size)}/s",
                    }
                )
        show_table(rows, (("", ""), ("messages", "messages"), ("rate", "rate"), ("bodies", "bodies")))
        click.echo()
        rows = [
            {
                "": what,
                **{name: duration(times.quantile(share)) for name, share in QUANTILES},
                "longest": duration(times.longest),
            }
            for what, times in (("until confirmed", self.total.confirming), ("until consumed", self.total.delivering))
            if times.longest
        ]
        show_table(rows, (("", "latency"), *((name, name) for name, _ in QUANTILES), ("longest", "max")))

    def cpu_share(self) -> float:
        """Return the CPU usage per process, from 0 to 1."""
        seconds = max(self.publishing, self.consuming)
        return self.total.cpu / seconds / self.processes if seconds > 0 else 0.0

    def _throughput(self) -> list[tuple[str, int, float]]:
        total = self.total
        confirmed = total.confirmed if self.plan.confirms else 0
        return [
            ("published", total.published, self.publishing),
            ("confirmed", confirmed, self.publishing),
            ("refused", total.refused, self.publishing),
            ("consumed", total.consumed, self.consuming),
        ]

    def write(self, path: Path) -> None:
        """Write the results as JSON; `-` is standard output. Times are in microseconds unless their names say seconds."""
        plan = asdict(self.plan)
        # URLs may contain passwords.
        del plan["urls"]
        document = {
            "broker": self.broker,
            "load": plan,
            "processes": self.processes,
            "interrupted": self.interrupted,
            "publishing_seconds": round(self.publishing, 3),
            "consuming_seconds": round(self.consuming, 3),
            "generator_cpu_seconds": round(self.total.cpu, 3),
            **{what: number for what, number, _ in self._throughput()},
            **{
                f"{what}_per_second": round(number / seconds, 1) if seconds > 0 else 0.0
                for what, number, seconds in self._throughput()
            },
            "confirm": _quantiles(self.total.confirming),
            "delivery": _quantiles(self.total.delivering),
            "intervals": [interval.dump() for interval in self.intervals],
        }
        written = json.dumps(document, indent=2, ensure_ascii=False)
        if str(path) == "-":
            click.echo(written)
        else:
            path.write_text(written + "\n", "utf-8")


def _quantiles(times: Histogram) -> dict[str, float] | None:
    if not times.longest:
        return None
    return {
        **{name: round(times.quantile(share) / 1000, 1) for name, share in QUANTILES},
        "longest": round(times.longest / 1000, 1),
    }


def _some(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def describe(plan: Plan) -> str:
    """Return the load as a line of text."""
    parts = [
        _some(plan.publishers, "publisher"),
        _some(plan.consumers, "consumer"),
        _some(plan.queues, "queue"),
        f"{plan.exchange} exchange",
        size(plan.size),
        "persistent" if plan.persistent else "transient",
    ]
    if plan.publishers:
        parts.append(f"{plan.window:,} in flight" if plan.confirms else "no confirms")
    if plan.rate is not None:
        parts.append(f"{plan.rate:,g} per second")
    if plan.consumers:
        parts.append("no acks" if plan.no_ack else f"prefetch {plan.prefetch or 'unlimited'}, ack every {plan.ack_every}")
    return ", ".join(parts)
