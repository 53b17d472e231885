"""Growth of the processor time of a message with queues, bindings, connections, consumers, depth and body size.

`python -m bench.scale growth` measures each line in decades. The broker's processor time per message depends less on the
generator and on other activity of the machine than the throughput. A line is flat if it at most doubles over all decades
in which only one figure differs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
