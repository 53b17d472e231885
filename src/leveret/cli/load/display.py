"""The progress of a run: a live table on a terminal, otherwise one line per second."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from leveret.cli.client_command import say
from leveret.cli.load.results import Interval, count, describe, duration

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from leveret.cli.load.plan import Plan
    from leveret.cli.load.report import Report


class Display:
    """Display of intervals on standard error, unless `quiet`."""

    def __init__(self, plan: Plan, broker: str, quiet: bool) -> None:
        self._plan = plan
        self._broker = broker
        self._live: Live | None = None
        self._lines = False
        if quiet:
            return
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(
                console=Console(stderr=True),
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
        else:
            self._lines = True

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, interval: Interval, total: Report) -> None:
        if self._live is not None:
            self._live.update(self._table(interval, total), refresh=True)
        elif self._lines:
            say(interval.line())

    def _table(self, interval: Interval, total: Report) -> RenderableType:
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        plan = self._plan
        of = f" of {plan.seconds:g} s" if plan.seconds is not None else ""
        if plan.messages is not None:
            of += f", {total.published:,} of {plan.messages:,} messages"
        flows = Table(box=SIMPLE_HEAD, pad_edge=False)
        for heading in ("", "now", "on average", "messages"):
            flows.add_column(heading, justify="right" if heading else "left")
        for what, now, ever in (
            ("published", interval.published, total.published),
            ("confirmed", interval.confirmed, total.confirmed),
            ("consumed", interval.consumed, total.consumed),
        ):
            flows.add_row(what, f"{count(interval.rate(now))}/s", f"{count(ever / max(interval.at, 1e-9))}/s", count(ever))
        times = Table(box=SIMPLE_HEAD, pad_edge=False)
        for heading in ("latency", "p50", "p99", "max"):
            times.add_column(heading, justify="left" if heading == "latency" else "right")
        for what, seen in (("until confirmed", interval.confirming), ("until consumed", interval.delivering)):
            times.add_row(what, duration(seen.quantile(0.5)), duration(seen.quantile(0.99)), duration(seen.longest))
        return Group(
            Text(f"{self._broker}: {describe(plan)}"), Text(f"{interval.at:.0f} s{of}; Ctrl-C stops"), flows, times
        )
