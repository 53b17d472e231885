"""Measure the steps of a commit: `python -m bench.commit_steps`.

The program starts a broker with timestamps around each step, publishes persistent messages with confirms to it, and prints
the time of each step, from the batch's handover to the worker thread to the confirms on the socket.

    python -m bench.commit_steps --publishers 4    four publishers, queues and consumers

The timestamps cost about 2 microseconds per commit. Steps that run at the same time as others (the next batch is filled
during a commit) appear in none of the lines.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bench import generator
from bench.brokers import COMPILED, PURE, Contender
from tests.support.broker import LeveretProcess

BENCH: Final = Path(__file__).resolve().parent
ROOT: Final = BENCH.parent

# The steps of a commit in order: the timestamp that ends each of them.
STEPS: Final = (
    ("taken", "wake-up of the worker thread"),
    ("encoded", "columns and checksums"),
    ("synced", "statement until the sync"),
    ("fsync", "the last sync"),
    ("committed", "end of the statement, interpreter lock"),
    ("posted", "bookkeeping before the loop is woken"),
    ("returned", "wake-up of the event loop"),
    ("notified", "waiters notified, next batch sealed and handed over"),
    ("confirmed", "end of the turn: confirms written"),
)
DRAIN: Final = 1024


class Tracer:
    """Wraps the steps of the worker, the store and the server of this process, and writes the times of each commit."""

    def __init__(self, path: str) -> None:
        self.library: ctypes.CDLL | None = None
        preloaded = os.environ.get("LD_PRELOAD")
        if preloaded:
            self.library = ctypes.PyDLL(preloaded)
        self.end = ctypes.c_int64()
        self.lasted = ctypes.c_int64()
        self.current: dict[str, int] = {}
        # Commits that are complete, that the worker has not taken, and that wait for their confirms.
        self.finished: deque[dict[str, int]] = deque()
        self.waiting: deque[dict[str, int]] = deque()
        self.submitted: deque[dict[str, int]] = deque()
        self.file = Path(path)

    def install(self) -> None:
        import leveret.server.server
        import leveret.storage.sqlite_store
        import leveret.storage.worker

        # These modules are not compiled, so that their functions can be replaced.
        server_module: Any = leveret.server.server
        store_module: Any = leveret.storage.sqlite_store
        worker_module: Any = leveret.storage.worker
        server_class, store_class, worker_class = server_module.Server, store_module.SqliteStore, worker_module.Worker
        clock = time.perf_counter_ns
        init = worker_class.__init__
        submit = worker_class.submit
        commit = store_class.commit
        columns = store_module.row_columns
        turn = server_class._turn
        tracer = self

        def traced_submit(worker: Any, batch: Any) -> None:
            times = {"submitted": clock(), "messages": sum(len(image.pieces) // 3 for image in batch.images)}
            tracer.submitted.append(times)
            tracer.waiting.append(times)
            submit(worker, batch)

        def traced_commit(store: Any, batch: Any) -> None:
            if store.path.name.startswith("overflow") or not tracer.waiting:
                commit(store, batch)  # the last commit does not pass through the worker
                return
            times = tracer.current = tracer.waiting.popleft()
            times["taken"] = times["encoded"] = clock()
            times["bytes"] = batch.pending_bytes
            commit(store, batch)
            times["committed"] = clock()
            if tracer.library is not None:
                tracer.library.last_sync(ctypes.byref(tracer.end), ctypes.byref(tracer.lasted))
                times["fsync"] = tracer.end.value
                times["synced"] = tracer.end.value - tracer.lasted.value

        def traced_columns(image: Any) -> Any:
            result = columns(image)
            tracer.current["encoded"] = clock()
            return result

        def traced_turn(server: Any, callback: Callable[[], None]) -> None:
            if getattr(callback, "__name__", "") != "returned" or not tracer.submitted:
                turn(server, callback)
                return
            times = tracer.submitted.popleft()
            times["returned"] = clock()

            def notified() -> None:
                callback()
                times["notified"] = clock()

            turn(server, notified)
            times["confirmed"] = clock()
            tracer.add(times)

        def traced_init(worker: Any, log: Any, store: Any, post: Callable[[Callable[[], None]], None]) -> None:
            def traced_post(callback: Callable[[], None]) -> None:
                if getattr(callback, "__name__", "") == "returned":
                    tracer.current["posted"] = clock()
                post(callback)

            init(worker, log, store, traced_post)

        worker_class.__init__ = traced_init
        worker_class.submit = traced_submit
        server_class._turn = traced_turn
        store_class.commit = traced_commit
        store_module.row_columns = traced_columns

    def add(self, times: dict[str, int]) -> None:
        self.finished.append(times)
        if len(self.finished) >= DRAIN:
            with self.file.open("a", encoding="utf-8") as file:
                while self.finished:
                    file.write(json.dumps(self.finished.popleft()) + "\n")

    def serve(self, arguments: list[str]) -> None:
        """Run `leveret serve` in this process."""
        self.install()
        sys.argv[:] = ["leveret", *arguments[arguments.index("serve") :]]
        from leveret.cli import main as serve

        serve()


class TracedBroker(Contender):
    """A broker that writes the times of its commits to a file."""

    def start(self, timeout: float = 600) -> None:
        assert isinstance(self.broker, LeveretProcess)
        self.times = self.directory / "commits"
        library = generator.compile_c("sync_times", [BENCH / "sync_times.c"], "-shared", "-fPIC", "-ldl")
        self.broker.wrapper = [sys.executable, "-m", "bench.commit_steps", "serve", str(self.times)]
        self.broker.environment |= {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "LD_PRELOAD": str(library)}
        super().start(timeout)


def microseconds(values: list[int]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2] / 1000:>9,.0f} {statistics.fmean(ordered) / 1000:>9,.0f} " + (
        f"{ordered[len(ordered) * 99 // 100] / 1000:>9,.0f}"
    )


def report(path: Path) -> None:
    """Print a line for each step of the commits in the second half of a file."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = [times for times in found[len(found) // 2 :] if times["messages"] and "confirmed" in times]
    if not found:
        raise SystemExit("too few commits; measure longer with --seconds")
    print(f"{'microseconds':52} {'median':>9} {'mean':>9} {'p99':>9}")
    before = "submitted"
    for name, title in STEPS:
        if any(name not in times for times in found):
            continue
        print(f"{title:52} {microseconds([times[name] - times[before] for times in found])}")
        before = name
    print(f"{'from the handover to the confirms':52} {microseconds([t['confirmed'] - t['submitted'] for t in found])}")
    cycles = [later["submitted"] - times["submitted"] for times, later in pairwise(found)]
    print(f"{'from one handover to the next':52} {microseconds(cycles)}")
    print(f"{'messages per commit (not microseconds)':52} {microseconds([1000 * t['messages'] for t in found])}")


def measure_broker(chosen: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="leveret-steps-") as directory:
        broker = TracedBroker(PURE if chosen.pure else COMPILED, Path(directory))
        try:
            many = str(chosen.publishers)
            clients = ("--publishers", many, "--consumers", many, "--queues", many)
            load = ("--window", str(chosen.window), "--size", str(chosen.size), "--prefetch", "500", "--ack-every", "50")
            span = ("--seconds", str(chosen.seconds), "--warmup", "1")
            result = generator.run(broker.port, "run", "--durable", *clients, *load, *span, watch=broker.pid)
        finally:
            broker.stop()
        print(f"{float(result['delivered']) / float(result['seconds']):,.0f} messages/s")
        report(broker.times)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.commit_steps", description="Measure the steps of a commit.")
    parser.add_argument("--publishers", type=int, default=1, help="also the number of queues and consumers (default 1)")
    parser.add_argument("--window", type=int, default=200, help="unconfirmed messages (default 200)")
    parser.add_argument("--size", type=int, default=256, help="bytes of a body (default 256)")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--pure", action="store_true", help="measure the broker in pure Python")
    return parser.parse_args()


def main() -> int:
    if sys.argv[1:2] == ["serve"]:
        Tracer(sys.argv[2]).serve(sys.argv[3:])
        return 0
    measure_broker(options())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
