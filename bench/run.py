"""`make bench`: run the same loads on Leveret (compiled and pure), RabbitMQ and, for AMQP 1.0, Artemis, in several rounds.

make bench                                       everything, about twenty minutes
make bench ARGS="--quick"                        one short round of everything
make bench ARGS="--only transient --only topic"  some workloads
make bench ARGS="--brokers compiled"             without a comparison
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from bench import brokers, clients, generator, references, report, staged
from bench.workloads import LATENCY, RATE, WORKLOADS, Workload


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description="Compare Leveret with other brokers on this machine.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="measured time of each load (default 4)")
    parser.add_argument("--warmup", type=float, default=1.5, help="warm-up before each load (default 1.5)")
    parser.add_argument("--quick", action="store_true", help="one round of 2 seconds each")
    parser.add_argument("--only", action="append", choices=[workload.name for workload in WORKLOADS])
    parser.add_argument("--brokers", action="append", choices=list(brokers.TITLES))
    parser.add_argument("--output", type=Path, default=generator.OUTPUT, help="directory for results.json, .md and .svg")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rounds, chosen.seconds, chosen.warmup = 1, 2.0, 0.5
    return chosen


def refer(workload: Workload, chosen: argparse.Namespace, results: report.Results, console: Console) -> None:
    """Measure what the machine reaches without a broker."""
    if workload.reference == references.ECHO:
        span = ("--seconds", str(chosen.seconds), "--warmup", str(chosen.warmup))
        result = references.echo((*workload.options, *span))
    else:
        with tempfile.TemporaryDirectory(prefix="leveret-bench-") as directory:
            result = references.disk(Path(directory), workload.size, chosen.seconds)
    results.setdefault(workload.name, {}).setdefault(workload.reference, []).append(result)
    console.print(
        f"{workload.name:29} {workload.reference:10} {result[workload.counted] / result['seconds']:>11,.0f}/s  "
        f"p99 {result['latency_us']['p99'] / 1e3:>9.2f} ms",
        highlight=False,
    )


def measure(
    workloads: list[Workload],
    contenders: list[brokers.Contender],
    chosen: argparse.Namespace,
    results: report.Results,
    floors: list[report.Floor],
    console: Console,
) -> None:
    """Run all rounds of these workloads. Adds to `results`, and before each latency load, the machine's own latency to
    `floors`."""
    span = ("--seconds", str(chosen.seconds), "--warmup", str(chosen.warmup))
    for turn in range(chosen.rounds):
        for workload in workloads:
            if workload.measure == LATENCY:
                floors.append(generator.floor(RATE, *span))
                console.print(
                    f"round {turn + 1}  {'':20} {'no broker':10} {RATE:>11,}/s  "
                    f"p99 {floors[-1]['latency_us']['p99'] / 1e3:>9.2f} ms",
                    highlight=False,
                )
            if workload.reference:
                with brokers.suspended(contenders):
                    refer(workload, chosen, results, console)
            # Each broker takes its turn as the first, so that after-effects of the previous load affect all alike.
            for contender in contenders[turn % len(contenders) :] + contenders[: turn % len(contenders)]:
                if contender.name == brokers.ARTEMIS and not workload.only_amqp10:
                    continue
                arguments = [
                    *workload.options,
                    *contender.options,
                    *span,
                    # Unique names: messages still in the buffers of the previous load are dropped.
                    "--prefix",
                    f"bench-{workload.name}-{turn}",
                ]
                try:
                    with brokers.alone(contender, contenders):
                        names = arguments[-2:]
                        if workload.before:
                            generator.run(contender.port, "run", *workload.before, *names, timeout=180)
                        result = generator.run(contender.port, "run", *arguments, watch=contender.pid, timeout=180)
                        if workload.before:  # leftover messages are deleted
                            generator.run(
                                contender.port,
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
                except generator.GeneratorFailed as error:
                    console.print(f"[red]{contender.name}, {workload.name}: {error}[/]")
                    continue
                results.setdefault(workload.name, {}).setdefault(contender.name, []).append(result)
                console.print(
                    f"round {turn + 1}  {workload.name:20} {contender.name:10} "
                    f"{result[workload.counted] / result['seconds']:>11,.0f}/s  "
                    f"p99 {result['latency_us']['p99'] / 1e3:>9.2f} ms",
                    highlight=False,
                )
                time.sleep(0.3)  # let the broker clean up before the next load is measured


def main() -> int:
    chosen = options()
    console = Console(width=None if sys.stdout.isatty() else 150)
    workloads = [workload for workload in WORKLOADS if not chosen.only or workload.name in chosen.only]
    wanted = brokers.names(chosen.brokers, amqp10=any(workload.only_amqp10 for workload in workloads))
    if not wanted:
        console.print("None of these brokers is available on this machine.")
        return 1
    if os.getloadavg()[0] > 0.5:
        console.print(f"[yellow]The machine is busy (load {os.getloadavg()[0]:.1f}): the figures will be imprecise.[/]")
    results: report.Results = {}
    floors: list[report.Floor] = []
    began = time.time()
    with tempfile.TemporaryDirectory(prefix="leveret-bench-") as directory:
        for slow in (False, True):
            group = [workload for workload in workloads if workload.slow == slow]
            if group:
                names = [
                    name for name in wanted if name != brokers.ARTEMIS or any(workload.only_amqp10 for workload in group)
                ]
                with brokers.running(names, Path(directory), slow) as contenders:
                    measure(group, contenders, chosen, results, floors, console)
    rows = report.rows(workloads, results)
    caption = report.caption(floors)
    report.print_table(rows, caption, console)
    chosen.output.mkdir(parents=True, exist_ok=True)
    facts = {
        "began": began,
        "seconds": time.time() - began,
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "rounds": chosen.rounds,
        "results": results,
        "floors": floors,
    }
    (chosen.output / "results.json").write_text(json.dumps(facts, indent=1) + "\n")
    (chosen.output / "results.md").write_text(report.markdown(rows, caption))
    (chosen.output / "results.svg").write_text(report.chart(rows))
    console.print(f"Wrote results.json, results.md and results.svg to {chosen.output}")
    if not chosen.only:
        clients.compare(console, chosen.rounds, chosen.seconds / 2, chosen.output)
        staged.compare(console, chosen.rounds, chosen.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
