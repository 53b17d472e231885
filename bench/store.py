"""Measure the store alone: durable publishes per second of the log, of plain SQLite, and of the disk.

    python -m bench.store                           in batches of 100, 200, 500, 1,000 and 4,000 messages of 256 B
    python -m bench.store --batch 100 --rounds 5

`log` is the log of the broker, without sockets, queues and consumers: at most two batches wait for their commit, and a
consumer settles what is confirmed. `sqlite3` is a bare program with the settings of the log, which inserts rows of the same
size and deletes the row before the last one. `disk` overwrites as many bytes of a file, one `fdatasync` for each batch.
The three alternate, because the speed of a shared disk changes from second to second.
"""

from __future__ import annotations

import argparse
import os
import queue
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from leveret import build_info
from leveret.broker.message import Entry, Message
from leveret.storage.records import INDEX_SIZE
from leveret.storage.sqlite import SqliteLog
from leveret.storage.sqlite_store import CHECKPOINT_PAGES, KEPT_WAL_BYTES, PAGE_BYTES
from tests.storage.harness import ADDRESS, HEADER, FakeQueue, Waiter

BATCHES: Final = (100, 200, 500, 1000, 4000)
WARMUP: Final = 0.3
# Bytes of a page in the write-ahead log.
FRAME_BYTES: Final = PAGE_BYTES + 24
SETTINGS: Final = (
    f"page_size = {PAGE_BYTES}",
    "auto_vacuum = INCREMENTAL",
    "journal_mode = WAL",
    "synchronous = FULL",
    f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
    f"journal_size_limit = {KEPT_WAL_BYTES}",
    "cache_size = -16384",
    "secure_delete = OFF",
)


class Result(NamedTuple):
    """Messages per second, commits per second, and microseconds of processor time per message."""

    messages: float
    commits: float
    processor: float


class Meter:
    """Counts batches after a warm-up, until the time is over."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.perf_counter() + WARMUP + seconds
        self._began = 0.0
        self._processor = 0.0
        self.messages = 0
        self.commits = 0

    def running(self) -> bool:
        now = time.perf_counter()
        if not self._began and now > self._end - self._seconds:
            self._began, self._processor = now, time.process_time()
            self.messages = self.commits = 0
        return now < self._end

    def result(self) -> Result:
        seconds = time.perf_counter() - self._began
        processor = time.process_time() - self._processor
        return Result(self.messages / seconds, self.commits / seconds, processor / max(self.messages, 1) * 1e6)


def measure_log(directory: Path, batch: int, size: int, seconds: float) -> Result:
    log = SqliteLog(directory)
    log.open()
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    idle: deque[Callable[[], None]] = deque()
    log.start(posted.put, idle.append)
    target = FakeQueue(1)
    body = os.urandom(size)
    waiting: deque[tuple[Waiter, list[Entry]]] = deque()
    meter = Meter(seconds)
    while meter.running():
        entries = [target.entry(Message(ADDRESS, HEADER, body, size, True)) for _ in range(batch)]
        for entry in entries:
            log.store(entry)
        waiting.append((Waiter(log), entries))
        log.flush()
        while len(waiting) > 1 or not posted.empty():
            while idle and posted.empty():
                idle.popleft()()
            posted.get()()
            meter.commits += 1
            while waiting and waiting[0][0].batches:
                for entry in waiting.popleft()[1]:
                    log.settle(entry)
                meter.messages += batch
    result = meter.result()
    log.close()
    return result


def row_of(batch: int, size: int) -> tuple[bytes, bytes]:
    """Return an index and data with the sizes of those of the log."""
    return os.urandom(INDEX_SIZE * batch + 32), os.urandom((len(ADDRESS) + len(HEADER) + size) * batch)


def measure_sqlite(directory: Path, batch: int, size: int, seconds: float) -> Result:
    connection = sqlite3.connect(directory / "bare.sqlite", isolation_level=None)
    execute = connection.execute
    for setting in SETTINGS:
        execute(f"PRAGMA {setting}").fetchall()
    execute("CREATE TABLE log(id INTEGER PRIMARY KEY, settled BLOB, entries BLOB, data BLOB)")
    execute("CREATE TEMP VIEW turn AS SELECT 0 AS id, NULL AS entries, NULL AS data, 0 AS dead")
    execute(
        "CREATE TEMP TRIGGER turn_insert INSTEAD OF INSERT ON turn BEGIN"
        " INSERT INTO log VALUES (new.id, NULL, new.entries, new.data); DELETE FROM log WHERE id = new.dead; END"
    )
    index, data = row_of(batch, size)
    row = 0
    meter = Meter(seconds)
    while meter.running():
        row += 1
        execute("INSERT INTO turn VALUES (?, ?, ?, ?)", (row, index, data, row - 2))
        meter.messages += batch
        meter.commits += 1
    result = meter.result()
    connection.close()
    return result


def measure_disk(directory: Path, batch: int, size: int, seconds: float) -> Result:
    pages = -(-sum(map(len, row_of(batch, size))) // PAGE_BYTES) + 1
    data = os.urandom(pages * FRAME_BYTES)
    with (directory / "file").open("wb", buffering=0) as file:
        file.write(bytes(KEPT_WAL_BYTES))
        os.fsync(file.fileno())
        at = 0
        meter = Meter(seconds)
        while meter.running():
            os.pwrite(file.fileno(), data, at)
            os.fdatasync(file.fileno())
            at += len(data)
            if at + len(data) > KEPT_WAL_BYTES:
                at = 0
            meter.messages += batch
            meter.commits += 1
        return meter.result()


MEASUREMENTS: Final = {"log": measure_log, "sqlite3": measure_sqlite, "disk": measure_disk}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.store", description="Durable publishes without a broker.")
    parser.add_argument("--batch", type=int, action="append", help="messages stored before each flush (repeatable)")
    parser.add_argument("--size", type=int, default=256, help="bytes of a body (default 256)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement (default 1)")
    parser.add_argument("--dir", type=Path, help="directory on the disk to measure (default: that of temporary files)")
    chosen = parser.parse_args()
    sys.setswitchinterval(0.0005)  # as the command line does
    print(f"{build_info()}; medians (lowest to highest) of {chosen.rounds} rounds")
    for batch in chosen.batch or BATCHES:
        results: dict[str, list[Result]] = {name: [] for name in MEASUREMENTS}
        for _ in range(chosen.rounds):
            for name, measure in MEASUREMENTS.items():
                with tempfile.TemporaryDirectory(prefix="leveret-store-", dir=chosen.dir) as directory:
                    results[name].append(measure(Path(directory), batch, chosen.size, chosen.seconds))
        for name, found in results.items():
            rates = sorted(result.messages for result in found)
            print(
                f"batches of {batch:>5} {name:8} {statistics.median(rates):>9,.0f}/s ({rates[0]:,.0f} to {rates[-1]:,.0f}),"
                f" {statistics.median(result.commits for result in found):>6,.0f} commits/s,"
                f" {statistics.median(result.processor for result in found):.2f} us of processor time per message",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
