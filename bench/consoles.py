"""Measure what an open console and a scrape each second cost: `python -m bench.consoles [--pairs 12]`.

Two brokers of this checkout with 1,000 queues serve the same load in alternating order, one with the HTTP API and one
without. Each pair has new ones, since two processes of the same broker differ by some percent. Beside the first, a console
receives events and reads the overview and a page of queues each second, and so does a scrape of the metrics of all objects.

The broker has the first core to itself. The load generator, the HTTP process and its clients share the second one. All but
the generator have the lowest priority there, so that they delay it as little as on a machine with another core.

Compile the modules first (`make compiled`).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
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
OTHERS: Final = {1}
# The priority of the HTTP process and its clients.
LOWEST: Final = 19
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
            child = child_of(self.pid)
            pin(child, OTHERS)
            for thread in threads_of(child):
                demote(thread)

    @property
    def api(self) -> HttpBroker:
        assert isinstance(self.broker, LeveretProcess)
        return HttpBroker(self.broker)

    @property
    def metrics_port(self) -> int:
        ready = json.loads((self.directory / "ready.json").read_text("utf-8"))
        return int(ready["metrics"][0].removesuffix("/metrics").rpartition(":")[2])


def threads_of(pid: int) -> list[int]:
    return [int(thread) for thread in os.listdir(f"/proc/{pid}/task")]


def pin(pid: int, cores: set[int]) -> None:
    """Run all threads of a process on these cores."""
    for thread in threads_of(pid):
        os.sched_setaffinity(thread, cores)


def demote(thread: int) -> None:
    """Give a thread the lowest priority."""
    os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, thread, LOWEST)


def receive(response: http.client.HTTPResponse) -> None:
    """Receive events until the connection is closed, as a console does."""
    demote(threading.get_native_id())
    with suppress(OSError, ValueError, http.client.HTTPException):
        while response.read1(1 << 16):
            pass


def read_each_second(broker: Managed, ended: threading.Event) -> None:
    """Read what a console shows, and the metrics."""
    demote(threading.get_native_id())
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


def open_events(api: HttpBroker) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """Receive the events that a console receives."""
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
    connection.request("GET", "/api/leveret/events", headers={"authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    response = connection.getresponse()
    assert response.status == 200, response.status
    return connection, response


@contextmanager
def readers(broker: Managed) -> Iterator[None]:
    """Read beside the load, if the broker has the HTTP API."""
    if not broker.managed:
        yield
        return
    ended = threading.Event()
    events, response = open_events(broker.api)
    threads = [
        threading.Thread(target=receive, args=(response,)),
        threading.Thread(target=read_each_second, args=(broker, ended)),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        events.sock.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        events.close()


def measure(workload: Workload, broker: Managed, other: Managed, chosen: argparse.Namespace) -> dict[str, Any]:
    span = ("--seconds", str(chosen.seconds), "--warmup", str(chosen.warmup))
    with alone(broker, [broker, other]), readers(broker):
        before = cpu(child_of(broker.pid)) if broker.managed else 0.0
        began = time.monotonic()
        result = generator.run(broker.port, "run", *workload.options, *span, watch=broker.pid, timeout=180)
        after = cpu(child_of(broker.pid)) if broker.managed else 0.0
        result["http"] = (after - before) / (time.monotonic() - began)
    return result


def measure_pair(workload: Workload, directory: Path, chosen: argparse.Namespace, pair: int) -> list[dict[str, Any]]:
    """Return the results of a broker with the HTTP API, and of one without."""
    with ExitStack() as stack:
        brokers = []
        for managed in (True, False):
            brokers.append(Managed(directory / f"{workload.name}-{pair}-{managed}", managed))
            stack.callback(brokers[-1].stop)
        on, off = brokers
        if pair % 2:
            results = [measure(workload, on, off, chosen), measure(workload, off, on, chosen)]
        else:
            results = [measure(workload, off, on, chosen), measure(workload, on, off, chosen)][::-1]
    return results


def compare(workload: Workload, directory: Path, chosen: argparse.Namespace) -> list[str]:
    """Return a row of the table."""
    pairs = [measure_pair(workload, directory, chosen, pair) for pair in range(chosen.pairs)]

    def ratios(value: Callable[[dict[str, Any]], float]) -> str:
        found = [value(on) / value(off) for on, off in pairs]
        low, high = interval(found)
        return f"{statistics.median(found):.3f} x, {low:.3f} to {high:.3f}"

    def shares(index: int, value: Callable[[dict[str, Any]], float]) -> str:
        return f"{statistics.median(value(pair[index]) for pair in pairs):.1%}"

    def broker_share(result: dict[str, Any]) -> float:
        return float(result["broker_cpu"]) / float(result["seconds"])

    return [
        workload.name,
        ratios(lambda result: float(result[workload.counted]) / float(result["seconds"])),
        ratios(lambda result: processor_time(workload, result)),
        ratios(lambda result: float(result["latency_us"]["p99"])),
        f"{shares(0, broker_share)}, {shares(1, broker_share)}",
        shares(0, lambda result: float(result["http"])),
    ]


def measure_idle(directory: Path, consoles: int, seconds: float) -> str:
    """Return what open consoles cost an idle broker."""
    with ExitStack() as stack:
        broker = Managed(directory / "idle", True)
        stack.callback(broker.stop)
        pids = {"broker": broker.pid, "HTTP process": child_of(broker.pid)}

        def shares() -> dict[str, float]:
            before = {name: cpu(pid) for name, pid in pids.items()}
            began = time.monotonic()
            time.sleep(seconds)
            elapsed = time.monotonic() - began
            return {name: (cpu(pid) - before[name]) / elapsed for name, pid in pids.items()}

        time.sleep(5)  # until the HTTP process has read all objects
        without = shares()
        for _ in range(consoles):
            events, response = open_events(broker.api)
            threading.Thread(target=receive, args=(response,), daemon=True).start()
            stack.callback(events.sock.shutdown, socket.SHUT_RDWR)
        time.sleep(1)  # each has received the current state
        found = shares()
    return f"{consoles} consoles, no load, of a core: " + ", ".join(
        f"{name} {found[name]:.1%} ({without[name]:.1%} without)" for name in pids
    )


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=4.0, help="measured time of each load (default 4)")
    parser.add_argument("--warmup", type=float, default=1.0, help="warm-up before each load (default 1)")
    parser.add_argument("--only", action="append", choices=LOADS, help=f"default: {', '.join(LOADS)}")
    parser.add_argument(
        "--realtime",
        action="store_true",
        help="give the brokers and the generator real-time priority (needs root), so that other processes do not matter",
    )
    parser.add_argument("--idle", type=int, metavar="CONSOLES", help="measure only this number of consoles without a load")
    chosen = parser.parse_args()
    # Inherited by the brokers and the generators.
    os.sched_setaffinity(0, OTHERS)
    if chosen.realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    table = Table(
        "load",
        "throughput",
        "processor time per message",
        "p99 of latency",
        "broker, of a core, with and without",
        "HTTP process, of a core",
    )
    with tempfile.TemporaryDirectory(prefix="leveret-consoles-") as name:
        if chosen.idle:
            print(measure_idle(Path(name), chosen.idle, 10))
            return 0
        for workload in [workload for workload in WORKLOADS if workload.name in (chosen.only or LOADS)]:
            table.add_row(*compare(workload, Path(name), chosen))
        Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
