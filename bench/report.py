"""Medians, ratios, tables and a chart from the results of a run."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from html import escape
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import references
from bench.brokers import COMPILED, PURE, RABBIT
from bench.brokers import TITLES as BROKERS
from bench.workloads import LATENCY, RATE, Beside, Workload

# By workload and broker: the generator's result of every round.
Results = dict[str, dict[str, list[dict[str, Any]]]]
# The generator's result of an echo without a broker.
Floor = dict[str, Any]
TITLES = {**BROKERS, **references.TITLES}
COLOURS = {
    "rabbitmq": "#9aa0a6",
    "artemis": "#fbbc04",
    "compiled": "#1a73e8",
    "pure": "#8ab4f8",
    references.ECHO: "#34a853",
    references.DISK: "#34a853",
}


@dataclass(frozen=True)
class Row:
    """Medians over the rounds of one workload on one broker. Times in milliseconds, memory in MB.

    ratio: median of the rounds' ratios to RabbitMQ, or None. reached: whether the ratio meets the target, or None. beside:
    further comparisons, each with the other workload or broker and the ratio.
    """

    workload: Workload
    broker: str
    throughput: float
    p50: float
    p99: float
    cpu: float
    memory: float
    generator: float
    ratio: float | None
    reached: bool | None
    beside: tuple[tuple[Beside, float], ...] = ()


def median_ratio(workload: Workload, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> float:
    pairs = zip(ours, theirs, strict=False)
    return statistics.median(workload.value(mine) / workload.value(other) for mine, other in pairs)


def median_row(workload: Workload, broker: str, results: Results) -> Row:
    by_broker = results[workload.name]
    rounds = by_broker[broker]
    ratio = reached = None
    beside: list[tuple[Beside, float]] = []
    if broker != RABBIT and RABBIT in by_broker:
        ratio = median_ratio(workload, rounds, by_broker[RABBIT])
        reached = workload.reached(broker, ratio)
    if broker in (COMPILED, PURE):
        for other in workload.beside:
            theirs = results.get(other.workload or workload.name, {}).get(other.broker or broker)
            if theirs:
                beside.append((other, median_ratio(workload, rounds, theirs)))

    def median(figures: list[float]) -> float:
        return statistics.median(figures)

    return Row(
        workload,
        broker,
        throughput=median([one[workload.counted] / one["seconds"] for one in rounds]),
        p50=median([one["latency_us"]["p50"] / 1e3 for one in rounds]),
        p99=median([one["latency_us"]["p99"] / 1e3 for one in rounds]),
        cpu=median([one["broker_cpu"] / max(one[workload.counted], 1) * 1e5 for one in rounds]),
        memory=median([one["broker_rss_kb"] / 1024 for one in rounds]),
        generator=median([one["generator_cpu"] / max(one["broker_cpu"], 0.01) for one in rounds]),
        ratio=ratio,
        reached=reached,
        beside=tuple(beside),
    )


def rows(workloads: list[Workload], results: Results) -> list[Row]:
    return [
        median_row(workload, broker, results)
        for workload in workloads
        if workload.name in results
        for broker in results[workload.name]
    ]


HEADINGS = [
    "work",
    "broker",
    "messages/s",
    "p50 ms",
    "p99 ms",
    "CPU s/100k",
    "RSS MB",
    "generator CPU",
    "ratio",
    "target",
    "beside",
]


def cells(row: Row) -> list[str]:
    target = row.workload.targets.get(row.broker)
    sign = "<=" if row.workload.measure == LATENCY else ">="
    return [
        row.workload.title,
        TITLES[row.broker],
        f"{row.throughput:,.0f}",
        f"{row.p50:.2f}",
        f"{row.p99:.2f}",
        f"{row.cpu:.2f}",
        f"{row.memory:.0f}",
        f"{row.generator:.0%}",
        f"{row.ratio:.2f} x" if row.ratio is not None else "",
        f"{sign} {target:g} x" if target is not None and row.ratio is not None else "",
        ", ".join(f"{ratio:.2f} x {other.title} ({sign} {other.target:.2g})" for other, ratio in row.beside),
    ]


def missed(row: Row) -> bool:
    """Return whether the row misses one of its targets."""
    return row.reached is False or falls_behind(row)


def falls_behind(row: Row) -> bool:
    """Return whether the row misses a target of its further comparisons."""
    return any(not row.workload.meets(ratio, other.target) for other, ratio in row.beside)


def caption(floors: list[Floor]) -> str:
    """Return a text about the machine's own latency at a rate, or "" if no such load was measured."""
    if not floors:
        return ""
    p50, p99 = (sorted(one["latency_us"][name] / 1e3 for one in floors) for name in ("p50", "p99"))
    return (
        f"Latency at {RATE:,} messages/s without a broker, of an echo between two processes on this machine:"
        f" p50 {statistics.median(p50):.2f} ms, p99 {statistics.median(p99):.2f} ms"
        f" ({p99[0]:.2f} to {p99[-1]:.2f} in {len(p99)} measurements). A p99 close to this is that of the machine."
    )


def print_table(table_rows: list[Row], below: str, console: Console) -> None:
    """Print the table and its caption."""
    table = Table(
        title="Medians of the rounds; ratios to RabbitMQ of the same round",
        title_justify="left",
        caption=below or None,
        caption_justify="left",
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in ("work", "broker") else "right")
    before = None
    for row in table_rows:
        if before not in (None, row.workload.name):
            table.add_section()
        texts = cells(row)
        if row.workload.name == before:
            texts[0] = ""
        before = row.workload.name
        if row.beside:
            texts[10] = f"[{'red' if falls_behind(row) else 'green'}]{texts[10]}[/]"
        if row.reached is not None:
            texts[8] = f"[{'green' if row.reached else 'red'}]{texts[8]}[/]"
        table.add_row(*texts)
    console.print(table)


def markdown(table_rows: list[Row], below: str) -> str:
    lines = ["| " + " | ".join(HEADINGS) + " |", "| --- | --- |" + " ---: |" * (len(HEADINGS) - 2)]
    lines += [
        "| " + " | ".join([*cells(row)[:-1], cells(row)[-1] + (" (missed)" if missed(row) else "")]) + " |"
        for row in table_rows
    ]
    if below:
        lines += ["", below]
    return "\n".join(lines) + "\n"


def chart(table_rows: list[Row]) -> str:
    """Return an SVG chart of the ratios to RabbitMQ, with one group of bars per workload."""
    shown = [row for row in table_rows if row.ratio is not None]
    groups = list(dict.fromkeys(row.workload.name for row in shown))
    height = 28 + sum(10 + 18 * sum(row.workload.name == name for row in shown) for name in groups) + 24
    top = max([row.ratio or 0 for row in shown] + [max(row.workload.targets.values(), default=0) for row in shown] + [1.0])
    left, width = 330, 440
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 90}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<text x="8" y="18" font-size="14">Ratio to RabbitMQ (throughput: longer is better; p99: shorter is)</text>',
    ]
    y = 32
    for name in groups:
        mine = [row for row in shown if row.workload.name == name]
        out.append(f'<text x="8" y="{y + 13}">{escape(mine[0].workload.title)}</text>')
        for row in mine:
            assert row.ratio is not None
            target = row.workload.targets.get(row.broker, 0)
            at = left + target / top * width
            out.append(
                f'<rect x="{left}" y="{y}" width="{row.ratio / top * width:.1f}" height="14" '
                f'fill="{COLOURS[row.broker]}"><title>{escape(TITLES[row.broker])}</title></rect>'
            )
            if target:
                out.append(
                    f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y - 1}" y2="{y + 15}" stroke="#d93025" stroke-width="2"/>'
                )
            out.append(
                f'<text x="{left + max(row.ratio, target) / top * width + 6:.1f}" y="{y + 12}">{row.ratio:.2f}</text>'
            )
            y += 18
        y += 10
    out.append(f'<text x="8" y="{y + 10}" fill="#5f6368">dark: compiled, light: pure Python, red: the target</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"
