"""Measure streams into Spark and out of it, on two processors, with one command per figure:

    python -m bench.spark sealed    [--rows 5000000] [--rounds 3]
    python -m bench.spark count     [--rows 5000000] [--rounds 3]
    python -m bench.spark tail      [--rows 1000000] [--rounds 3]
    python -m bench.spark archive   [--rows 2000000] [--rounds 3]
    python -m bench.spark sink      [--rows 1000000] [--rounds 3]
    python -m bench.spark latency   [--seconds 90] [--rate 1000]
    python -m bench.spark memory    [--rows 10000000]

sealed   history from segment files: by the data source, by `pyspark_amqp.load`, and by `spark.read.parquet`
count    the same history: by `pyspark_amqp.count`, and as `count()` of `pyspark_amqp.load` and of the data source
tail     unsealed messages over AMQP: wall clock, and seconds of the Python worker
archive  a sealed stream of JSON into a table with a typed column
sink     a table into a durable queue, persistent and exactly once, until committed and until consumed
latency  from a stream to an exactly-once sink
memory   memory of the processes while messages are published, sealed, archived and counted

All default columns and random bodies of 200 bytes (archive: JSON of that size), and for sealed and tail the sink `noop`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pyarrow as pa

import pyspark_amqp
from bench.spark_flows import archived, delayed, orders, remembered, sunk
from leveret import sync
from leveret.management.control_client import call
from leveret.spark.options import read_options
from leveret.spark.schema import arrow_schema
from leveret.spark.source.batch_reader import StreamBatchReader
from leveret.spark.source.target import Target
from tests.support.broker import ROOT, LeveretProcess, basic_config

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZE = 200


def session(directory: Path, jars: Iterable[Path] = ()) -> SparkSession:
    """Return a session on two processors with more jars."""
    from pyspark.sql import SparkSession

    os.environ["PYTHONPATH"] = str(ROOT / "src")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    found: SparkSession = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "3g")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(directory))
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    pyspark_amqp.register(found)
    return found


def fill(broker: LeveretProcess, name: str, rows: int, bodies: list[bytes] | None = None) -> None:
    """Publish `rows` messages to a stream, from a pool of bodies or with random ones."""
    pool = bodies or [os.urandom(SIZE) for _ in range(10_000)]
    with sync.connect(broker.url()) as connection, connection.channel() as channel:
        channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
        with channel.publisher(routing_key=name, window=4000, content_type="application/octet-stream") as publisher:
            for number in range(rows):
                publisher.publish(pool[number % len(pool)])
                if number % 500_000 == 499_999:
                    print(f"{name}: {number + 1:,} of {rows:,} published", flush=True)


def seal(broker: LeveretProcess, name: str, rows: int) -> list[str]:
    """Seal all messages. Returns the files."""
    call(broker.data_dir, "streams.seal", {"vhost": "/", "name": name})
    while True:
        found = list(call(broker.data_dir, "streams.segments", {"vhost": "/", "name": name}))
        if sum(segment["count"] for segment in found) == rows:
            return [segment["path"] for segment in found]
        time.sleep(0.5)


def worker_rate(broker: LeveretProcess, name: str, rows: int, protocol: str) -> int:
    """Return the rows per second of CPU time that a task reads and encodes for Spark."""
    settings = read_options(
        {"url": broker.url(), "stream": name, "protocol": protocol, "history": "amqp", "minPartitions": "1"}
    )
    reader = StreamBatchReader(settings, Target("stream", "stream", name))
    (part,) = reader.partitions()
    began = time.process_time()
    with open(os.devnull, "wb") as out, pa.ipc.new_stream(out, arrow_schema()) as stream:
        for batch in reader.read(part):
            stream.write_batch(batch)
    return round(rows / (time.process_time() - began))


def rate(rounds: int, rows: int, make: Callable[[], DataFrame]) -> int:
    """Return the median of the rows per second."""
    make().limit(1).write.format("noop").mode("overwrite").save()
    rates = []
    for number in range(rounds):
        began = time.perf_counter()
        make().write.format("noop").mode("overwrite").save()
        rates.append(rows / (time.perf_counter() - began))
        print(f"  round {number + 1} of {rounds}: {rates[-1]:,.0f}", flush=True)
    return round(median(rates))


ROWS = {
    "sealed": 5_000_000,
    "count": 5_000_000,
    "tail": 1_000_000,
    "archive": 2_000_000,
    "sink": 1_000_000,
    "latency": 0,
    "memory": 10_000_000,
}
# Seal only on request.
NO_SEALING = '\n[streams]\nsegment_size = "1TiB"\nsegment_age = 86400\nmerge_below = "64MiB"\n'


def sealed(spark: SparkSession, broker: LeveretProcess, rows: int, rounds: int) -> None:
    fill(broker, "sealed", rows)
    files = seal(broker, "sealed", rows)
    ways: dict[str, Callable[[], DataFrame]] = {
        "data source": partial(_stream, spark, broker, "sealed", history="segments"),
        "pyspark_amqp.load": partial(pyspark_amqp.load, spark, url=broker.url(), stream="sealed", history="segments"),
        "spark.read.parquet": partial(spark.read.parquet, *files),
    }
    for name, make in ways.items():
        print(f"sealed, in {len(files)} files, {name}: {rate(rounds, rows, make):,} rows per second", flush=True)


def count(spark: SparkSession, broker: LeveretProcess, rows: int, rounds: int) -> None:
    fill(broker, "sealed", rows)
    seal(broker, "sealed", rows)
    options = {"url": broker.url(), "stream": "sealed"}
    ways: dict[str, Callable[[], int]] = {
        "pyspark_amqp.count": partial(pyspark_amqp.count, spark, **options),
        "count() of pyspark_amqp.load": lambda: pyspark_amqp.load(spark, **options).count(),
        "count() of the data source": lambda: spark.read.format("amqp").options(**options).load().count(),
    }
    for name, run in ways.items():
        times = []
        for _ in range(rounds + 1):
            began = time.perf_counter()
            assert run() == rows
            times.append(time.perf_counter() - began)
        print(f"count, {name}: {median(times[1:]) * 1000:,.1f} ms", flush=True)


def tail(spark: SparkSession, broker: LeveretProcess, rows: int, rounds: int) -> None:
    fill(broker, "tail", rows)
    for protocol in ("0-9-1", "1.0"):
        found = rate(rounds, rows, partial(_stream, spark, broker, "tail", protocol=protocol))
        worker = median(worker_rate(broker, "tail", rows, protocol) for _ in range(rounds))
        print(f"tail over {protocol}: {found:,} rows per second, {worker:,} per CPU second of the worker", flush=True)


def _stream(spark: SparkSession, broker: LeveretProcess, name: str, **options: str) -> DataFrame:
    return spark.read.format("amqp").options(url=broker.url(), stream=name, **options).load()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(ROWS))
    parser.add_argument("--rows", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--rate", type=int, default=1000)
    arguments = parser.parse_args()
    what, rounds = arguments.what, arguments.rounds
    rows = arguments.rows or ROWS[what]
    with tempfile.TemporaryDirectory(prefix="leveret-spark-") as name:
        directory = Path(name)
        spark = session(directory)
        config = basic_config() + ("" if what == "memory" else NO_SEALING)
        with LeveretProcess(directory / "broker", config=config).start() as broker:
            if what == "sealed":
                sealed(spark, broker, rows, rounds)
            elif what == "count":
                count(spark, broker, rows, rounds)
            elif what == "tail":
                tail(spark, broker, rows, rounds)
            elif what == "archive":
                fill(broker, "archive", rows, orders(10_000))
                seal(broker, "archive", rows)
                archived(spark, broker, "archive", rows, rounds, directory)
            elif what == "sink":
                sunk(spark, broker, rows, rounds, directory)
            elif what == "latency":
                delayed(spark, broker, arguments.seconds, arguments.rate, directory)
            else:
                remembered(spark, broker, rows, directory)
        spark.stop()


if __name__ == "__main__":
    main()
