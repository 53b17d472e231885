"""Compare record batches with single publishes: `python -m bench.batches`.

A client publishes the same rows in both ways to a durable queue without consumers, in turn, and waits for all confirms. The
figures are rows per second and the broker's processor time per million rows. `encoded` sends a record batch that was
encoded before, so the broker limits it; the others include the encoding by the client library. `generator` is the load
generator of the other benchmarks, with single publishes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench import brokers, generator
from leveret import sync
from leveret.client.engine.common.batches import BatchCore, read_rows
from leveret.sync import Channel

QUEUE: Final = "bench-batches"
WINDOW: Final = 500
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def processor_time(pid: int) -> float:
    """Return the processor time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def publish_singly(channel: Channel, bodies: list[bytes], persistent: bool) -> None:
    with channel.publisher(routing_key=QUEUE, window=WINDOW, persistent=persistent) as publisher:
        for body in bodies:
            publisher.publish(body)


def publish_batch(channel: Channel, bodies: list[bytes], persistent: bool) -> None:
    channel.publish_batch(bodies, QUEUE, persistent=persistent)


def encoded(channel: Channel, bodies: list[bytes], persistent: bool) -> Callable[[], None]:
    """Encode record batches of the rows, and return a function that publishes them."""
    encoder = channel.core.new_encoder()
    rows = read_rows(encoder, bodies, QUEUE, "", None, {"persistent": persistent})
    batch = BatchCore(channel.core, encoder, rows, 0)
    publishes = list(batch.outgoing())

    def run() -> None:
        driver = channel.connection.driver
        for outgoing in publishes:
            while batch.in_flight >= batch.window:
                with driver.lock:
                    waiter = batch.window_waiter() if batch.in_flight >= batch.window else None
                if waiter is not None:
                    driver.wait(waiter, 60.0, "confirms")
            channel.wait_flowing(60.0)
            with driver.lock:
                batch.publish(outgoing)
        while batch.in_flight:
            with driver.lock:
                waiter = batch.idle_waiter() if batch.in_flight else None
            if waiter is not None:
                driver.wait(waiter, 60.0, "confirms")

    return run


def timed(pid: int, rows: int, run: Callable[[], None]) -> tuple[float, float]:
    """Return rows per second, and the broker's seconds of processor time per million rows."""
    before = processor_time(pid)
    begun = time.perf_counter()
    run()
    seconds = time.perf_counter() - begun
    return rows / seconds, (processor_time(pid) - before) / rows * 1e6


def generated(port: int, pid: int, rows: int, size: int, persistent: bool) -> tuple[float, float]:
    durable = ("--durable",) if persistent else ()
    options = ("--window", str(WINDOW), "--size", str(size), "--consumers", "0", "--messages", str(rows))
    result = generator.run(port, "run", *options, *durable, "--prefix", QUEUE, watch=pid, timeout=100)
    count = float(result["confirmed"])
    return count / float(result["seconds"]), float(result["broker_cpu"]) / count * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.batches", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--broker", choices=(brokers.COMPILED, brokers.PURE), default=brokers.COMPILED)
    chosen = parser.parse_args()
    bodies = [b"x" * chosen.size] * chosen.rows
    console = Console(width=None if sys.stdout.isatty() else 150)
    with (
        tempfile.TemporaryDirectory(prefix="leveret-bench-") as directory,
        brokers.running([chosen.broker], Path(directory)) as (contender,),
    ):
        pid, port = contender.pid, contender.port
        for persistent in (False, True):
            found: dict[str, list[tuple[float, float]]] = {}
            for number in range(chosen.rounds):
                with sync.connect(f"amqp://guest:guest@127.0.0.1:{port}/") as connection, connection.channel() as channel:
                    runs: dict[str, Callable[[], None]] = {
                        "singly": partial(publish_singly, channel, bodies, persistent),
                        "publish_batch": partial(publish_batch, channel, bodies, persistent),
                        "encoded": encoded(channel, bodies, persistent),
                    }
                    for name, run in runs.items():
                        channel.declare_queue(QUEUE, durable=True)
                        found.setdefault(name, []).append(timed(pid, chosen.rows, run))
                        channel.delete_queue(QUEUE)
                        console.print(f"{number} {name}: {found[name][-1][0]:,.0f}/s, {found[name][-1][1]:.2f} s")
                found.setdefault("generator", []).append(generated(port, pid, chosen.rows, chosen.size, persistent))
            table = Table(title=f"{chosen.size} B, {'persistent' if persistent else 'transient'}")
            for title in ("rows", "rows/s", "broker's processor time per million rows"):
                table.add_column(title)
            for name, results in found.items():
                rates, times = zip(*results, strict=True)
                table.add_row(name, f"{statistics.median(rates):,.0f}", f"{statistics.median(times):.2f} s")
            console.print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
