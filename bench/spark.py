"""Streams into Spark, all default columns, random bodies of 200 octets, to the `noop` sink:
`python -m bench.spark [--rows 5000000] [--tail 1000000] [--rounds 3]`.

sealed   history from segment files: by the data source, by `pyspark_amqp.load`, and by `spark.read.parquet`
tail     what is not sealed, over AMQP: wall clock, and seconds of the Python worker
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pyarrow as pa

import pyspark_amqp
from leveret import blocking
from leveret.cli.control_client import call
from leveret.spark.batch_reader import StreamBatchReader
from leveret.spark.options import read_options
from leveret.spark.schema import arrow_schema
from leveret.spark.target import Target
from tests.support.broker import ROOT, LeveretProcess, basic_config

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZE = 200


def session(directory: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ["PYTHONPATH"] = str(ROOT / "src")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "3g")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.local.dir", str(directory)).config("spark.log.level", "ERROR").getOrCreate())


def fill(broker: LeveretProcess, name: str, rows: int) -> None:
    """A stream with so many messages, from a pool of random bodies."""
    pool = [os.urandom(SIZE) for _ in range(10_000)]
    with blocking.connect(broker.url()) as connection, connection.channel() as channel:
        channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
        with channel.publisher(routing_key=name, window=4000, content_type="application/octet-stream") as publisher:
            for number in range(rows):
                publisher.publish(pool[number % len(pool)])


def seal(broker: LeveretProcess, name: str, rows: int) -> list[str]:
    """Have all of it sealed; the files."""
    call(broker.data_dir, "streams.seal", {"vhost": "/", "name": name})
    while True:
        found = list(call(broker.data_dir, "streams.segments", {"vhost": "/", "name": name}))
        if sum(segment["count"] for segment in found) == rows:
            return [segment["path"] for segment in found]
        time.sleep(0.5)


def worker_rate(broker: LeveretProcess, name: str, rows: int, protocol: str) -> int:
    """Rows a second of the processor that a task takes to read them and to write them for Spark, measured beside it."""
    settings = read_options({"url": broker.url(), "stream": name, "protocol": protocol, "history": "amqp",
                             "minPartitions": "1"})
    reader = StreamBatchReader(settings, Target("stream", "stream", name))
    part, = reader.partitions()
    began = time.process_time()
    with open(os.devnull, "wb") as out, pa.ipc.new_stream(out, arrow_schema()) as stream:
        for batch in reader.read(part):
            stream.write_batch(batch)
    return round(rows / (time.process_time() - began))


def rate(rounds: int, rows: int, make: Callable[[], DataFrame]) -> int:
    """The median of rows a second."""
    make().limit(1).write.format("noop").mode("overwrite").save()
    rates = []
    for _ in range(rounds):
        began = time.perf_counter()
        make().write.format("noop").mode("overwrite").save()
        rates.append(rows / (time.perf_counter() - began))
    return round(median(rates))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--tail", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="leveret-spark-") as directory:
        spark = session(Path(directory))
        # Nothing is sealed but what is asked for.
        config = basic_config() + '\n[streams]\nsegment_size = "1TiB"\nsegment_age = 86400\nmerge_below = "64MiB"\n'
        with LeveretProcess(Path(directory) / "broker", config=config).start() as broker:

            def stream(name: str, **options: str) -> DataFrame:
                return spark.read.format("amqp").options(url=broker.url(), stream=name, **options).load()

            if arguments.tail:
                fill(broker, "tail", arguments.tail)
                for protocol in ("0-9-1", "1.0"):
                    found = rate(arguments.rounds, arguments.tail, partial(stream, "tail", protocol=protocol))
                    worker = median(worker_rate(broker, "tail", arguments.tail, protocol) for _ in range(arguments.rounds))
                    print(f"tail over {protocol}: {found:,} rows a second, {worker:,} a second of the worker's processor",
                          flush=True)
            if arguments.rows:
                fill(broker, "sealed", arguments.rows)
                files = seal(broker, "sealed", arguments.rows)
                found = rate(arguments.rounds, arguments.rows, partial(stream, "sealed", history="segments"))
                loaded = rate(arguments.rounds, arguments.rows, partial(pyspark_amqp.load, spark, url=broker.url(),
                                                                        stream="sealed", history="segments"))
                plain = rate(arguments.rounds, arguments.rows, partial(spark.read.parquet, *files))
                print(f"sealed, in {len(files)} files: data source {found:,} rows a second, pyspark_amqp.load {loaded:,}, "
                      f"spark.read.parquet {plain:,}", flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
