"""Reports from workers."""

from __future__ import annotations

from dataclasses import dataclass, field

from leveret.cli.load.histogram import Histogram
from leveret.cli.output import Item


@dataclass(slots=True)
class Report:
    """Report of one process, or the sum of all. Counts are totals; histograms cover the time since the last report.

    Attributes:
        published: Messages sent.
        confirmed: Messages confirmed; without confirms, all messages sent.
        refused: Messages that the broker refused.
        consumed: Messages consumed.
        ended: Publishers that have finished.
        published_at: The monotonic time of the last confirm, in nanoseconds.
        consumed_at: The monotonic time of the last delivery, in nanoseconds.
        cpu: CPU time in seconds.
        confirming: Latencies from publish to confirm.
        delivering: Latencies from publish to delivery.
    """

    published: int = 0
    confirmed: int = 0
    refused: int = 0
    consumed: int = 0
    ended: int = 0
    published_at: int = 0
    consumed_at: int = 0
    cpu: float = 0.0
    confirming: Histogram = field(default_factory=Histogram)
    delivering: Histogram = field(default_factory=Histogram)

    def add(self, other: Report) -> None:
        """Add another report."""
        self.published += other.published
        self.confirmed += other.confirmed
        self.refused += other.refused
        self.consumed += other.consumed
        self.ended += other.ended
        self.published_at = max(self.published_at, other.published_at)
        self.consumed_at = max(self.consumed_at, other.consumed_at)
        self.cpu += other.cpu
        self.confirming.merge(other.confirming)
        self.delivering.merge(other.delivering)

    def dump(self) -> Item:
        """Return the report as a JSON object."""
        return {
            "published": self.published,
            "confirmed": self.confirmed,
            "refused": self.refused,
            "consumed": self.consumed,
            "ended": self.ended,
            "published_at": self.published_at,
            "consumed_at": self.consumed_at,
            "cpu": self.cpu,
            "confirming": [self.confirming.dump(), self.confirming.longest],
            "delivering": [self.delivering.dump(), self.delivering.longest],
        }


def load_report(dumped: Item) -> Report:
    """Return a report from the result of `dump`."""
    report = Report(**{**dumped, "confirming": Histogram(), "delivering": Histogram()})
    report.confirming.load(*dumped["confirming"])
    report.delivering.load(*dumped["delivering"])
    return report
