"""Compare one process with shards: `python -m bench.shards`. Compile first (`make compiled`).

Two vhosts have the same load at the same time, from the same generators: of a broker with one process, and of one with two
shards, a vhost in each. The other broker is suspended meanwhile. For each round and broker, the program shows the messages
per second of both vhosts together, and the processor time per million messages of each process, read from /proc. The front
only takes part in handshakes, so its time per message is that of two connections per load.

    python -m bench.shards [--rounds 5] [--seconds 5] [--only persistent transient] [--output FILE.json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.generator import Load
from bench.workloads import BATCHED
from leveret.management.control_client import call
from tests.support.broker import LeveretProcess

VHOSTS: Final = ("/", "second")
LOADS: Final = {
    "persistent": (*BATCHED, "--durable"),
    "transient": BATCHED,
}
CONFIG: Final = """\
[vhosts."second"]

[users.guest]
password = "guest"
permissions."/" = { configure = ".*", write = ".*", read = ".*" }
permissions."second" = { configure = ".*", write = ".*", read = ".*" }
"""
TICKS: Final = os.sysconf("SC_CLK_TCK")


class Contender:
    """A running broker with a number of shards, and its processes by name."""

    def __init__(self, directory: Path, shards: int) -> None:
        self.title = "one process" if shards == 1 else f"{shards} shards"
        environment = {"LEVERET_PURE": "0", "LEVERET_CLUSTER__SHARDS": str(shards)}
        self.broker = LeveretProcess(directory, config=CONFIG, environment=environment, log_level="error")
        self.broker.start(600)
        self.processes = {"front" if shards > 1 else "broker": self.broker.pid}
        try:
            for shard in call(self.broker.data_dir, "shards.list") if shards > 1 else ():
                self.processes[f"shard {shard['number']}"] = shard["pid"]
        except BaseException:
            self.broker.stop()
            raise

    def signal(self, number: signal.Signals) -> None:
        for pid in self.processes.values():
            os.kill(pid, number)


@contextlib.contextmanager
def suspended(contender: Contender) -> Iterator[None]:
    """Suspend the other broker, since even an idle one runs now and then."""
    contender.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        contender.signal(signal.SIGCONT)


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measure(contender: Contender, load: str, seconds: float, round: int) -> dict[str, Any]:
    """Run the load in both vhosts at once. Return messages/s, and by process the seconds per million messages."""
    before = {name: processor_seconds(pid) for name, pid in contender.processes.items()}
    span = ("--seconds", str(seconds), "--warmup", "1", "--prefix", f"shards-{round}")
    running = [Load(contender.broker.port, "run", "--vhost", vhost, *LOADS[load], *span) for vhost in VHOSTS]
    results = [each.result(180) for each in running]
    # The warm-up counts for the processor time, too.
    share = seconds / (seconds + 1)
    messages = sum(result["delivered"] for result in results)
    return {
        "rate": sum(result["delivered"] / result["seconds"] for result in results),
        "cpu": {
            name: (processor_seconds(pid) - before[name]) * share / messages * 1e6
            for name, pid in contender.processes.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.shards", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured time of each load (default 5)")
    parser.add_argument("--only", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--output", type=Path, help="a JSON file for all results")
    chosen = parser.parse_args()
    console = Console()
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leveret-shards-")))
        contenders = []
        for shards in (1, len(VHOSTS)):
            contenders.append(Contender(directory / str(shards), shards))
            stack.callback(contenders[-1].broker.stop)
        for load in chosen.only:
            rows = found[load] = {contender.title: [] for contender in contenders}
            for round in range(chosen.rounds):
                for contender, other in ((contenders[0], contenders[1]), (contenders[1], contenders[0])):
                    with suspended(other):
                        rows[contender.title].append(measure(contender, load, chosen.seconds, round))
                one, several = (rows[contender.title][-1]["rate"] for contender in contenders)
                console.print(f"{load:12} round {round + 1}  {one:>11,.0f}/s  {several:>11,.0f}/s  {several / one:.2f} x")
    table = Table("load", "broker", "messages/s", "processor seconds per million messages")
    for load, rows in found.items():
        for title, results in rows.items():
            cpu = {name: statistics.median(result["cpu"][name] for result in results) for name in results[0]["cpu"]}
            table.add_row(
                load,
                title,
                f"{statistics.median(result['rate'] for result in results):,.0f}",
                ", ".join(f"{name} {seconds:.2f}" for name, seconds in cpu.items()),
            )
    console.print(table)
    if chosen.output is not None:
        chosen.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
