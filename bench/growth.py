"""Growth of the processor time of a message with queues, bindings, connections, consumers, depth and body size.

`python -m bench.scale growth` measures each line in decades. The broker's processor time per message depends less on the
generator and on other activity of the machine than the throughput. A line is flat if it at most doubles over all decades
in which only one figure differs.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from bench import generator
from bench.brokers import Contender
from bench.workloads import BATCHED

SPAN: Final = ("--warmup", "0.5", "--seconds", "1.5")
# A queue with a million messages takes some seconds to fill.
FILL_TIMEOUT: Final = 600
# Runs of a point. Its cost is the smallest, since other activity on the machine only adds to it.
RUNS: Final = 2

Preparation = Callable[[Contender, int], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class Line:
    """One figure that grows while the others stay the same.

    Attributes:
        name: The name on the command line.
        title: The row's title in the table.
        steps: The values.
        options: Options of the load for a value.
        prepare: What surrounds the load, for example open connections.
        runs: Number of runs of each value.
    """

    name: str
    title: str
    steps: tuple[int, ...]
    options: Callable[[int], tuple[str, ...]]
    prepare: Preparation
    runs: int = RUNS


@contextlib.contextmanager
def nothing(contender: Contender, count: int) -> Iterator[None]:
    yield


@contextlib.contextmanager
def idle_connections(contender: Contender, count: int) -> Iterator[None]:
    load = generator.Load(contender.port, "idle", "--messages", str(count))
    load.line()
    try:
        yield
    finally:
        load.result()


@contextlib.contextmanager
def filled_queue(contender: Contender, count: int) -> Iterator[None]:
    """Fill the queue of the load before, and purge it afterwards."""
    common = ("--prefix", "growth", "--size", "256", "--durable")
    if count:
        generator.run(
            contender.port,
            "run",
            *common,
            "--keep",
            "--consumers",
            "0",
            "--publishers",
            "4",
            "--messages",
            str(count),
            timeout=FILL_TIMEOUT,
        )
    try:
        yield
    finally:
        # Without --keep, the generator deletes its queues.
        empty = ("--publishers", "0", "--consumers", "0", "--warmup", "0", "--seconds", "0")
        generator.run(contender.port, "run", *common, *empty, timeout=FILL_TIMEOUT)


def decades(first: int, last: int) -> tuple[int, ...]:
    """Return the powers of ten from `first` to `last`."""
    steps = [first]
    while steps[-1] < last:
        steps.append(steps[-1] * 10)
    return tuple(steps)


def over_queues(count: int) -> tuple[str, ...]:
    """Return a load that spreads its messages over many queues."""
    consumers = str(min(count, 10))
    spread = ("--queues", str(count), "--bindings", str(count), "--consumers", consumers)
    return (*BATCHED, "--exchange", "topic", *spread)


def over_bindings(count: int) -> tuple[str, ...]:
    """Return a load over a topic exchange with this many bindings, and a routing key for each of them."""
    return (*BATCHED, "--exchange", "topic", "--bindings", str(count), "--queues", "10", "--consumers", "10")


def among_bindings(count: int) -> tuple[str, ...]:
    """Return the same load with at most 1,000 routing keys."""
    return (*over_bindings(count), "--keys", "1000")


LINES: Final = {
    line.name: line
    for line in (
        Line("queues", "queues that get messages in turn", decades(1, 100_000), over_queues, nothing),
        Line(
            "bindings",
            "bindings of a topic exchange, 1,000 routing keys",
            decades(1000, 1_000_000),
            among_bindings,
            nothing,
            1,
        ),
        Line(
            "keys",
            "bindings of a topic exchange, as many routing keys",
            decades(1000, 1_000_000),
            over_bindings,
            nothing,
            1,
        ),
        Line("connections", "other connections, idle", decades(1, 10_000), lambda count: BATCHED, idle_connections),
        Line(
            "consumers",
            "consumers of the queue",
            decades(1, 1000),
            lambda count: (*BATCHED, "--consumers", str(count)),
            nothing,
        ),
        Line(
            "depth",
            "messages in the queue, persistent",
            (0, *decades(1000, 10_000_000)),
            lambda count: (*BATCHED, "--durable", "--keep", "--max-backlog", "1000000000"),
            filled_queue,
            1,
        ),
        Line("size", "bytes of the body", decades(16, 1_600_000), lambda count: (*BATCHED, "--size", str(count)), nothing),
    )
}


def cost(result: dict[str, Any]) -> float:
    """Return the processor time of a delivered message in microseconds."""
    return 1e6 * float(result["broker_cpu"]) / max(float(result["delivered"]), 1)


def measure(line: Line, contender: Contender, say: Callable[[str], None], limit: int | None = None) -> dict[int, float]:
    """Return the cost of a message in microseconds by value, up to `limit`. Says each one."""
    costs: dict[int, float] = {}
    for count in line.steps:
        if limit is not None and count > limit:
            break
        with line.prepare(contender, count):
            found = [
                generator.run(
                    contender.port,
                    "run",
                    *line.options(count),
                    *SPAN,
                    "--prefix",
                    "growth",
                    watch=contender.pid,
                    timeout=FILL_TIMEOUT,
                )
                for _ in range(line.runs)
            ]
        costs[count] = min(cost(result) for result in found)
        throughput = max(result["delivered"] / result["seconds"] for result in found)
        say(f"  {line.title}: {count:>11,}  {costs[count]:7.2f} µs  {throughput:>11,.0f} messages/s")
    return costs


def growth(costs: dict[int, float]) -> float:
    """Return the cost at the last value relative to that at the first."""
    values = list(costs.values())
    return values[-1] / values[0]


def table(lines: dict[str, dict[int, float]]) -> str:
    """Return a Markdown table with a row for each line."""
    rows = ["| what grows | microseconds per message | last : first |", "| --- | --- | ---: |"]
    for name, costs in lines.items():
        points = ", ".join(f"{count:,}: {value:.2f}" for count, value in costs.items())
        rows.append(f"| {LINES[name].title} | {points} | {growth(costs):.1f} x |")
    return "\n".join(rows) + "\n"


# Size of the chart in pixels, of the margins for its labels, and of a row of its legend.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, LEGEND = 760, 420, 56, 40, 36, 18
COLOURS: Final = ("#1a73e8", "#d93025", "#188038", "#e37400", "#9334e6", "#12a4af", "#5f6368")


def chart(lines: dict[str, dict[int, float]]) -> str:
    """Return an SVG chart of the costs with logarithmic axes. Values of 0 have no place on these."""
    points = {name: [(count, value) for count, value in costs.items() if count] for name, costs in lines.items()}
    every = [point for line in points.values() for point in line]
    right = math.ceil(math.log10(max(count for count, _ in every)))
    bottom = math.floor(math.log10(min(value for _, value in every)))
    top = math.ceil(math.log10(max(value for _, value in every)))

    def at(count: float, value: float) -> tuple[float, float]:
        x = LEFT + math.log10(count) / right * (WIDTH - LEFT - RIGHT)
        return x, TOP + (top - math.log10(value)) / (top - bottom) * (HEIGHT - TOP - 24)

    height = HEIGHT + 16 + LEGEND * len(lines)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<text x="8" y="18" font-size="14">Processor time of a message in microseconds, while one figure grows</text>',
    ]
    for power in range(right + 1):
        x, y = at(10**power, 10**bottom)
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{y:.1f}" stroke="#dadce0"/>')
        out.append(f'<text x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle">{10**power:,}</text>')
    for power in range(bottom, top + 1):
        x, y = at(1, 10**power)
        out.append(f'<line x1="{x:.1f}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dadce0"/>')
        out.append(f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{10**power:g}</text>')
    for row, (name, line) in enumerate(points.items()):
        colour = COLOURS[row % len(COLOURS)]
        places = [at(count, value) for count, value in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out.extend(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places)
        y = HEIGHT + 16 + LEGEND * row
        out.append(f'<rect x="{LEFT}" y="{y - 9}" width="12" height="10" fill="{colour}"/>')
        out.append(f'<text x="{LEFT + 20}" y="{y}">{escape(LINES[name].title)}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"
