"""Measure how much later confirms are during a backup: `python -m bench.backup`. Compile first (`make compiled`).

A queue holds a backlog of durable messages. Then publishers and consumers of other queues run as fast as they can, in turns
without a backup and with one `leveret backup` after the other. The table shows the confirmed messages per second and the
time from a publish to its confirm, each the median of the rounds, the difference, and whether it is within the bar.

    python -m bench.backup [--rounds 3] [--seconds 10] [--backlog 500] [--target DIR] [--output FILE.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.generator import Load, run
from bench.workloads import BATCHED
from leveret import build_info
from tests.support.broker import LeveretProcess, basic_config

_MIB: Final = 1 << 20
_BODY: Final = 16384
_PERCENTILES: Final = ("p50", "p99", "p999", "max")
# Maximum number of milliseconds by which a confirm may be later during a backup.
_BAR: Final = 50.0
_WIDTH: Final = 120


def fill(broker: LeveretProcess, size: int) -> None:
    """Publish a backlog of this many MiB."""
    messages = size * _MIB // _BODY
    run(
        broker.port,
        "run",
        *("--durable", "--keep", "--consumers", "0", "--max-backlog", "0", "--window", "200", "--prefix", "backlog"),
        *("--size", str(_BODY), "--messages", str(messages)),
    )


def back_up(broker: LeveretProcess, target: Path, load: Load) -> list[float]:
    """Make backups until the load ends. Returns the seconds of each."""
    taken = []
    while load.process.poll() is None:
        began = time.monotonic()
        command = ["nice", sys.executable, "-m", "leveret", "backup", str(target), "--data-dir", str(broker.data_dir)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        taken.append(time.monotonic() - began)
    return taken


def measure(broker: LeveretProcess, seconds: float, target: Path | None, publishers: int) -> dict[str, Any]:
    """Run the load once, with backups if there is a target."""
    clients = ("--publishers", str(publishers), "--consumers", str(publishers))
    load = Load(broker.port, "run", *BATCHED, *clients, "--durable", "--seconds", str(seconds), "--warmup", "1")
    taken = [] if target is None else back_up(broker, target, load)
    result = load.result()
    return {
        "rate": result["confirmed"] / result["seconds"],
        "backups": taken,
        **{name: result["confirm_us"][name] / 1000 for name in _PERCENTILES},
    }


def summary(found: dict[str, list[dict[str, Any]]], title: str) -> Table:
    """Return the results of the turns, which `found` has by their kind, as a table."""
    table = Table("", "confirmed/s", *(f"{name} (ms)" for name in _PERCENTILES), "seconds of a backup", title=title)
    medians = []
    for kind, results in found.items():
        taken = [seconds for result in results for seconds in result["backups"]]
        medians.append({name: statistics.median(result[name] for result in results) for name in _PERCENTILES})
        table.add_row(
            kind,
            f"{statistics.median(result['rate'] for result in results):,.0f}",
            *(f"{medians[-1][name]:.1f}" for name in _PERCENTILES),
            f"{statistics.median(taken):.1f} ({len(taken)} backups)" if taken else "",
        )
    later = [medians[1][name] - medians[0][name] for name in _PERCENTILES]
    table.add_row("later by", "", *(f"{difference:+.1f}" for difference in later), "")
    verdicts = ("met" if difference <= _BAR else "MISSED" for difference in later)
    table.add_row(f"bar: at most {_BAR:.0f} ms later", "", *verdicts, "")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.backup", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="measured time of each load (default 10)")
    parser.add_argument("--backlog", type=int, default=500, help="MiB of messages in the log (default 500)")
    parser.add_argument("--publishers", type=int, default=2, help="publishers, and consumers (default 2)")
    parser.add_argument("--target", type=Path, help="a directory for the backups (default: beside the data directory)")
    parser.add_argument("--output", type=Path, help="a JSON file for all results")
    chosen = parser.parse_args()
    console = Console(width=_WIDTH)
    found: dict[str, list[dict[str, Any]]] = {"without": [], "with backups": []}
    with tempfile.TemporaryDirectory(prefix="leveret-backup-") as directory:
        target = chosen.target or Path(directory, "backups")
        broker = LeveretProcess(
            Path(directory), config=basic_config(), environment={"LEVERET_PURE": "0"}, log_level="error"
        )
        with broker.start(600):
            fill(broker, chosen.backlog)
            for _ in range(chosen.rounds):
                for title, wanted in zip(found, (None, target), strict=True):
                    found[title].append(measure(broker, chosen.seconds, wanted, chosen.publishers))
                    console.print(title, found[title][-1])
    console.print(summary(found, f"Leveret, {build_info()}"))
    if chosen.output is not None:
        chosen.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
