"""Measure what an open console and a scrape each second cost: `python -m bench.consoles [--pairs 12]`.

Two brokers of this checkout with 1,000 queues serve the same load in alternating order, one with the HTTP API and one
without. Beside the first, a console receives events and reads the overview and a page of queues each second, and so does a
scrape of the metrics of all objects. The brokers and the load generator share the first core, so that whatever the HTTP API
takes from the broker lowers the throughput. The HTTP process and its clients have the second core.

Compile the modules first (`make compiled`).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench import generator
from bench.brokers import COMPILED, CONFIG, Contender, alone
from bench.pairs import interval, processor_time
from bench.statistics import PAGE, child_of, cpu
from bench.workloads import WORKLOADS, Workload
from leveret import sync
from tests.management.http.client import HttpBroker
from tests.support.broker import LeveretProcess

QUEUES: Final = 1000
LOADS: Final = ("transient", "persistent", "latency")
BROKERS: Final = {0}
READERS: Final = {1}
MANAGEMENT: Final = "[management]\nport = 0\nmetrics_port = 0\n"


class Managed(Contender):
    """A broker with or without the HTTP API. The brokers of a pair are compiled."""

    def __init__(self, directory: Path, managed: bool) -> None:
        self.managed = managed
        super().__init__(COMPILED, directory)

    def start(self, timeout: float = 600) -> None:
        assert isinstance(self.broker, LeveretProcess)
        self.broker.environment["LEVERET_MANAGEMENT__ENABLED"] = str(self.managed).lower()
        self.broker.config = CONFIG + MANAGEMENT
        super().start(timeout)
        with sync.connect(self.broker.url()) as connection:
            channel = connection.channel()
            for number in range(QUEUES):
                channel.declare_queue(f"q{number}")
        pin(self.pid, BROKERS)
        if self.managed:
            pin(child_of(self.pid), READERS)

    @property
    def api(self) -> HttpBroker:
        assert isinstance(self.broker, LeveretProcess)
        return HttpBroker(self.broker)

    @property
    def metrics_port(self) -> int:
        ready = json.loads((self.directory / "ready.json").read_text("utf-8"))
        return int(ready["metrics"][0].removesuffix("/metrics").rpartition(":")[2])


def pin(pid: int, cores: set[int]) -> None:
    """Run all threads of a process on these cores."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cores)


def receive_events(api: HttpBroker, ended: threading.Event) -> None:
    """Receive events, as a console does."""
    os.sched_setaffinity(0, READERS)
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=1)
    connection.request("GET", "/api/leveret/events", headers={"authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    response = connection.getresponse()
    assert response.status == 200, response.status
    while not ended.is_set():
        try:
            response.read1(1 << 16)
        except TimeoutError:
            continue
        except OSError:
            return
    connection.close()


def read_each_second(broker: Managed, ended: threading.Event) -> None:
    """Read what a console shows, and the metrics."""
    os.sched_setaffinity(0, READERS)
    api, metrics_port = broker.api, broker.metrics_port
    while not ended.is_set():
        due = time.monotonic() + 1
        api.get("/overview")
        api.get(PAGE)
        metrics = http.client.HTTPConnection("127.0.0.1", metrics_port, timeout=30)
        metrics.request("GET", "/metrics/per-object")
        metrics.getresponse().read()
        metrics.close()
        ended.wait(max(due - time.monotonic(), 0))


@contextmanager
def readers(broker: Managed) -> Iterator[None]:
    """Read beside the load, if the broker has the HTTP API."""
    ended = threading.Event()
    threads = []
    if broker.managed:
        threads = [
            threading.Thread(target=receive_events, args=(broker.api, ended)),
            threading.Thread(target=read_each_second, args=(broker, ended)),
        ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def measure(workload: Workload, broker: Managed, other: Managed, chosen: argparse.Namespace, pair: int) -> dict[str, Any]:
    names = ("--prefix", f"consoles-{workload.name}-{pair}")
    span = ("--seconds", str(chosen.seconds), "--warmup", str(chosen.warmup))
    with alone(broker, [broker, other]), readers(broker):
        before = cpu(child_of(broker.pid)) if broker.managed else 0.0
        began = time.monotonic()
        result = generator.run(broker.port, "run", *workload.options, *span, *names, watch=broker.pid, timeout=180)
        after = cpu(child_of(broker.pid)) if broker.managed else 0.0
        result["http"] = (after - before) / (time.monotonic() - began)
    return result


def compare(workload: Workload, directory: Path, chosen: argparse.Namespace) -> list[str]:
    """Return a row of the table."""
    throughputs, processor, p99, shares_of_http = [], [], [], []
    with ExitStack() as stack:
        brokers = []
        for managed in (True, False):
            brokers.append(Managed(directory / f"{workload.name}-{managed}", managed))
            stack.callback(brokers[-1].stop)
        on, off = brokers
        for pair in range(chosen.pairs):
            results = {}
            for broker, other in ((on, off), (off, on))[:: 1 if pair % 2 else -1]:
                results[broker] = measure(workload, broker, other, chosen, pair)
            counted = [float(results[broker][workload.counted]) / float(results[broker]["seconds"]) for broker in brokers]
            throughputs.append(counted[0] / counted[1])
            processor.append(processor_time(workload, results[on]) / processor_time(workload, results[off]))
            p99.append(float(results[on]["latency_us"]["p99"]) / float(results[off]["latency_us"]["p99"]))
            shares_of_http.append(results[on]["http"])
    cells = [workload.name]
    for ratios in (throughputs, processor, p99):
        low, high = interval(ratios)
        cells.append(f"{statistics.median(ratios):.3f} x, {low:.3f} to {high:.3f}")
    return [*cells, f"{statistics.median(shares_of_http):.0%}"]


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0, help="measured time of each load (default 2)")
    parser.add_argument("--warmup", type=float, default=1.0, help="warm-up before each load (default 1)")
    parser.add_argument("--only", action="append", choices=LOADS, help=f"default: {', '.join(LOADS)}")
    chosen = parser.parse_args()
    os.sched_setaffinity(0, BROKERS)  # inherited by the generators
    table = Table("load", "throughput", "broker's processor time", "p99 of latency", "HTTP process, of a core")
    with tempfile.TemporaryDirectory(prefix="leveret-consoles-") as name:
        for workload in [workload for workload in WORKLOADS if workload.name in (chosen.only or LOADS)]:
            table.add_row(*compare(workload, Path(name), chosen))
        Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
