"""Measure statistics of many queues over HTTP: `python -m bench.statistics [QUEUES]` (10,000).

Prints the time of a list with all keys and of a page sorted by rate, the memory that the list takes in the HTTP process,
the memory per queue, and the CPU that both processes use when the queues are idle and when all of them are busy.
`python -m bench.turns` measures the turns of the broker.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from leveret import sync
from tests.management.http.client import HttpBroker
from tests.support.broker import LeveretProcess, basic_config

CONFIG = "[management]\nport = 0\n"
ALL = "/queues"
PAGE = "/queues?page=1&page_size=100&sort=message_stats.publish_details.rate&sort_reverse=true"
TICK = os.sysconf("SC_CLK_TCK")
# Seconds for which CPU is measured.
SECONDS = 10


def child_of(pid: int) -> int:
    """Return the HTTP process of a broker."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if b"http_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        time.sleep(0.1)
    raise SystemExit("the broker has no HTTP process")


def cpu(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def memory(pid: int, field: str) -> float:
    """Return a size from /proc/PID/status in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"no {field}")


def shares(pids: tuple[int, int], seconds: float = SECONDS) -> str:
    """Return the shares of a core that the broker and the HTTP process use."""
    before = [cpu(pid) for pid in pids]
    time.sleep(seconds)
    broker, http = ((cpu(pid) - start) / seconds for pid, start in zip(pids, before, strict=True))
    return f"broker {broker:.1%}, HTTP process {http:.1%}"


def best(pid: int, request: Callable[[], object], count: int = 5) -> str:
    """Return the times of a request in milliseconds, and the CPU time that each takes in a process."""
    times = []
    used = cpu(pid)
    for _ in range(count):
        began = time.perf_counter()
        request()
        times.append(1000 * (time.perf_counter() - began))
    used = 1000 * (cpu(pid) - used) / count
    return f"first {times[0]:.0f} ms, best {min(times):.0f} ms, {used:.0f} ms of CPU"


def publish(url: str, count: int, stopped: threading.Event) -> None:
    """Publish a message to each queue once a second."""
    with sync.connect(url) as connection:
        channel = connection.channel(confirms=False)
        while not stopped.is_set():
            due = time.monotonic() + 1
            for number in range(count):
                channel.publish(b"body", routing_key=f"q{number}")
            stopped.wait(max(due - time.monotonic(), 0))


def main() -> int:
    """Measure, and print the figures."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as directory:
        environment = {"LEVERET_MANAGEMENT__ENABLED": "true"}
        process = LeveretProcess(Path(directory), config=basic_config() + CONFIG, environment=environment)
        with process.start():
            assert process.process is not None
            api = HttpBroker(process)
            pids = (process.process.pid, child_of(process.process.pid))
            empty = memory(pids[1], "VmRSS")
            with sync.connect(process.url()) as connection:
                channel = connection.channel()
                for number in range(count):
                    channel.declare_queue(f"q{number}")
            api.get("/whoami")  # logs in, which takes a while once
            time.sleep(2.5)
            resident = memory(pids[1], "VmRSS")
            print(f"{count} queues, never used: {(resident - empty) * 1024 / count:.1f} KiB each in the HTTP process")
            measure(api, pids, resident)
            stopped = threading.Event()
            thread = threading.Thread(target=publish, args=(process.url(), count, stopped))
            thread.start()
            time.sleep(5)
            resident = memory(pids[1], "VmRSS")
            print(f"{count} busy queues: {(resident - empty) * 1024 / count:.1f} KiB each in the HTTP process")
            measure(api, pids, resident)
            stopped.set()
            thread.join()
    return 0


def measure(api: HttpBroker, pids: tuple[int, int], resident: float) -> None:
    Path(f"/proc/{pids[1]}/clear_refs").write_text("5")  # begin a new peak
    print(f"  all queues with all keys: {best(pids[1], lambda: api('GET', ALL))}")
    print(f"  {len(api('GET', ALL).content) / 1e6:.1f} MB of JSON")
    print(f"  memory above that before: {memory(pids[1], 'VmHWM') - resident:.1f} MB")
    print(f"  page of 100 sorted by rate: {best(pids[1], lambda: api('GET', PAGE))}")
    print(f"  CPU of {SECONDS} s without requests: {shares(pids)}")


if __name__ == "__main__":
    raise SystemExit(main())
