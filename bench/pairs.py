"""Compare the build of this checkout with that of another one: `python -m bench.pairs ../other`.

The same generator runs the same loads against both brokers in turn, in alternating order; the other broker is suspended
meanwhile. The result is the median of the pairs' ratios with a 95 % interval, for throughput and for processor time per
message. Compile both checkouts first (`make compiled`).

With `--python`, this checkout's broker runs on another interpreter, for which its modules have been compiled, too:
`python -m bench.pairs . --python .venv/3.13/bin/python` compares two versions of Python.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench import generator
from bench.brokers import COMPILED, Contender, alone
from bench.workloads import LATENCY, WORKLOADS, Workload
from tests.support.broker import LeveretProcess

DEFAULT_WORKLOADS: Final = ("transient", "persistent", "single-acks", "fan-out", "amqp1-transient")
RESAMPLES: Final = 4000


class Build(Contender):
    """A running compiled broker of a checkout, on an interpreter."""

    def __init__(self, checkout: Path, directory: Path, slow: bool = False, python: str = sys.executable) -> None:
        self.checkout = checkout
        self.python = python
        super().__init__(COMPILED, directory, slow)

    def start(self, timeout: float = 600) -> None:
        assert isinstance(self.broker, LeveretProcess)
        self.broker.python = self.python
        self.broker.environment["PYTHONPATH"] = str(self.checkout / "src")
        http = self.checkout / "src" / "leveret" / "management" / "http"
        # Settings that an older checkout does not know.
        if not http.exists():
            del self.broker.defaults["LEVERET_MANAGEMENT__ENABLED"]
        if not (http / "metrics").exists():
            del self.broker.defaults["LEVERET_MANAGEMENT__METRICS_PORT"]
        super().start(timeout)


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by resampling. It is deterministic."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return medians[RESAMPLES // 40], medians[-(RESAMPLES // 40) - 1]


def processor_time(workload: Workload, result: dict[str, Any]) -> float:
    """Return the broker's processor time per message in seconds."""
    return float(result["broker_cpu"]) / max(float(result[workload.counted]), 1.0)


def measure(workload: Workload, build: Build, other: Build, chosen: argparse.Namespace, pair: int) -> dict[str, Any]:
    names = ("--prefix", f"pairs-{workload.name}-{pair}")
    span = ("--seconds", str(chosen.seconds), "--warmup", str(chosen.warmup))
    with alone(build, [build, other]):
        if workload.before:
            generator.run(build.port, "run", *workload.before, *names, timeout=180)
        result = generator.run(build.port, "run", *workload.options, *span, *names, watch=build.pid, timeout=180)
        if workload.before:
            generator.run(
                build.port,
                "run",
                "--publishers",
                "0",
                "--consumers",
                "0",
                "--stream",
                "--seconds",
                "0",
                "--warmup",
                "0",
                *names,
                timeout=180,
            )
    return result


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.pairs", description="Compare two checkouts, pair by pair.")
    parser.add_argument("other", type=Path, help="the checkout to compare with; ratios are this one's to that one's")
    parser.add_argument("--python", default=sys.executable, help="interpreter of this checkout's broker")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0, help="measured time of each load (default 2)")
    parser.add_argument("--warmup", type=float, default=1.0, help="warm-up before each load (default 1)")
    parser.add_argument(
        "--only",
        action="append",
        choices=[workload.name for workload in WORKLOADS],
        help=f"default: {', '.join(DEFAULT_WORKLOADS)}",
    )
    parser.add_argument("--output", type=Path, help="a JSON file for the ratios of all pairs")
    return parser.parse_args()


def main() -> int:
    chosen = options()
    wanted = chosen.only or DEFAULT_WORKLOADS
    console = Console()
    table = Table("load", "throughput", "95 % interval", "processor time", "95 % interval", "p99 of latency")
    found: dict[str, dict[str, list[float]]] = {}
    here = Path(__file__).resolve().parents[1]
    for workload in [workload for workload in WORKLOADS if workload.name in wanted]:
        ratios: dict[str, list[float]] = {"throughput": [], "processor": [], "p99": []}
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leveret-pairs-")))
            builds = []
            for name, checkout, python in (
                ("new", here, chosen.python),
                ("old", chosen.other.resolve(), sys.executable),
            ):
                builds.append(Build(checkout, directory / name, workload.slow, python))
                stack.callback(builds[-1].stop)
            new, old = builds
            for pair in range(chosen.pairs):
                results = {}
                for build, other in ((new, old), (old, new))[:: 1 if pair % 2 else -1]:
                    results[build] = measure(workload, build, other, chosen, pair)
                throughputs = [
                    float(results[build][workload.counted]) / float(results[build]["seconds"]) for build in builds
                ]
                ratios["throughput"].append(throughputs[0] / throughputs[1])
                ratios["processor"].append(processor_time(workload, results[new]) / processor_time(workload, results[old]))
                ratios["p99"].append(float(results[new]["latency_us"]["p99"]) / float(results[old]["latency_us"]["p99"]))
                console.print(
                    f"{workload.name:20} pair {pair + 1:>2}  {throughputs[0]:>11,.0f}/s"
                    f"  {throughputs[1]:>11,.0f}/s  {ratios['throughput'][-1]:.3f} x",
                    highlight=False,
                )
        found[workload.name] = ratios
        cells = [workload.name]
        for kind in ("throughput", "processor"):
            low, high = interval(ratios[kind])
            shown = kind != "throughput" or workload.measure != LATENCY
            cells += [f"{statistics.median(ratios[kind]):.3f} x", f"{low:.3f} to {high:.3f}"] if shown else ["", ""]
        table.add_row(*cells, f"{statistics.median(ratios['p99']):.2f} x")
    console.print(table)
    if chosen.output is not None:
        chosen.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
