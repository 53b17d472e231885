"""The two sides of `bench.spark_kafka`: the same works with Leveret and with Kafka."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING

import pyspark_amqp
from bench import statistics
from bench.kafka_server import KafkaProcess
from bench.spark import seal
from bench.spark_flows import below, bodies_table, orders, resident
from leveret.spark.pipeline import Broker, Capture, TableOutput
from leveret.spark.pipeline.kinds.archive import archive
from tests.spark.environment import JVM_SOURCE
from tests.support.broker import ROOT, LeveretProcess
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Figures of a work by name: rates per second, times in seconds or milliseconds, memory and disk space in MB.
Figures = dict[str, float]

LATENCY_RATE = 1000
# Seconds of the latency that are not measured.
WARMUP = 10.0
# Key, value, offset, timestamp and headers, in the terms of each.
LEVERET_COLUMNS = "routing_key,body,offset,append_time,headers"
KAFKA_COLUMNS = ("key", "value", "offset", "timestamp", "headers")
# Spark divides the partition of a topic, as it does a stream.
TASKS = 2
# Seconds in which the Java producer publishes before it is measured.
JAVA_WARMUP = 5
POOL = 20_000


class Messages:
    """The messages of all works: their number and size, and files with their bodies.

    Args:
        directory: A directory for this and other files.
        count: Number of messages.
        size: Bytes of a body.
        seconds: Seconds of the latency.
    """

    def __init__(self, directory: Path, count: int, size: int, seconds: float) -> None:
        self.directory = directory
        self.count = count
        self.size = size
        self.seconds = seconds
        self._names = 0

    def name(self) -> str:
        """Return a new name for a stream, a topic or a directory."""
        self._names += 1
        return f"bench-{self._names}"

    def path(self) -> str:
        return str(self.directory / self.name())

    @cached_property
    def random(self) -> tuple[Path, int]:
        """File of random bodies, and their size."""
        return self._file("random", [os.urandom(self.size) for _ in range(POOL)])

    @cached_property
    def json(self) -> tuple[Path, int]:
        """File of JSON bodies, and their size: at least that of all messages, and as long as the longest of them."""
        found = orders(POOL)
        size = max(self.size, *map(len, found))
        return self._file("json", [body.ljust(size) for body in found])

    def _file(self, name: str, bodies: list[bytes]) -> tuple[Path, int]:
        path = self.directory / name
        path.write_bytes(b"".join(bodies))
        return path, len(bodies[0])


class Side:
    """Common part of both sides: timed queries."""

    def __init__(self, messages: Messages, spark: SparkSession) -> None:
        self.messages = messages
        self.spark = spark

    @cached_property
    def rows(self) -> DataFrame:
        """A table of bodies to write."""
        path = str(self.messages.directory / "rows")
        if not os.path.exists(path):
            bodies_table(self.spark, self.messages.count, self.messages.size, path)
        return self.spark.read.parquet(path)

    def timed_rate(self, action: Callable[[], object]) -> Figures:
        return {"rate": self.messages.count / timed(action)}

    def timed_read(self, frame: DataFrame) -> Figures:
        return self.timed_rate(lambda: frame.write.format("noop").mode("overwrite").save())

    def timed_count(self, count: Callable[[], int]) -> Figures:
        found = 0

        def run() -> None:
            nonlocal found
            found = count()

        took = timed(run)
        check_count(found, self.messages.count)
        return {"seconds": took}

    def timed_parquet(self, stream: DataFrame) -> Figures:
        path = self.messages.path()

        def write() -> None:
            query = (
                stream.writeStream.format("parquet")
                .option("path", path)
                .option("checkpointLocation", f"{path}-checkpoint")
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

        figures = self.timed_rate(write)
        check_count(self.spark.read.parquet(path).count(), self.messages.count)
        return figures

    def timed_latency(self, bodies: DataFrame, publish: Callable[[int], subprocess.Popen[str]]) -> Figures:
        """Publish at a rate to a stream that a query reads; the latency ends when the rows are in the driver."""
        delays: list[tuple[float, float]] = []

        def receive(batch: DataFrame, _number: int) -> None:
            rows = batch.collect()
            now = time.time()
            for (body,) in rows:
                sent = int(bytes(body).split(b" ", 1)[0]) / 1e9
                delays.append((sent, now - sent))

        query = bodies.writeStream.foreachBatch(receive).start()
        try:
            wait_until(lambda: bool(delays) or not query.isActive, "the first message")
            delays.clear()
            count = int((WARMUP + self.messages.seconds) * LATENCY_RATE)
            finished(publish(count))
            wait_until(lambda: len(delays) >= count or not query.isActive, "the last message")
            if not query.isActive:
                raise RuntimeError(f"the query has failed: {query.exception()}")
        finally:
            query.stop()
        begin = min(sent for sent, _ in delays) + WARMUP
        found = [delay * 1000 for sent, delay in delays if sent >= begin]
        return {"median": median(found), "p99": quantiles(found, n=100)[-1]}


class LeveretSide(Side):
    """Leveret: streams, the data source, and the Python client.

    The broker seals only on request.
    """

    def __init__(self, messages: Messages, spark: SparkSession, broker: LeveretProcess) -> None:
        super().__init__(messages, spark)
        self._broker = broker

    @property
    def _pid(self) -> int:
        assert self._broker.process is not None
        return self._broker.process.pid

    def start(self) -> Figures:
        broker = LeveretProcess(Path(self.messages.path()))
        try:
            took = timed(broker.start)
            assert broker.process is not None
            return {"seconds": took, "memory": memory(broker.process.pid)}
        finally:
            broker.stop()

    def publish(self) -> Figures:
        publisher = self._publish(self.messages.name(), self.messages.random, self.messages.count)
        return measured_publish(self._pid, publisher, self.messages.count)

    def random_on_disk(self) -> Figures:
        return self._on_disk(self.messages.random)

    def json_on_disk(self) -> Figures:
        return self._on_disk(self.messages.json)

    def read_sealed(self) -> Figures:
        return self.timed_read(self._sealed())

    def read_sealed_columns(self) -> Figures:
        return self.timed_read(self._sealed(columns=LEVERET_COLUMNS))

    def load_sealed(self) -> Figures:
        return self.timed_rate(lambda: self._loaded().write.format("noop").mode("overwrite").save())

    def read_tail(self) -> Figures:
        return self.timed_read(self._read(self._tail_stream))

    def read_tail_columns(self) -> Figures:
        return self.timed_read(self._read(self._tail_stream, columns=LEVERET_COLUMNS))

    def to_parquet(self) -> Figures:
        return self.timed_parquet(self._follow(self._sealed_stream, history="segments"))

    def to_parquet_columns(self) -> Figures:
        return self.timed_parquet(self._follow(self._sealed_stream, history="segments", columns=LEVERET_COLUMNS))

    def archive(self) -> Figures:
        path = self.messages.path()

        def write() -> None:
            (query,) = archive(
                self.spark,
                Broker(url=self._broker.url()),
                Capture(stream=self._sealed_stream, consumer=Path(path).name),
                TableOutput(path=path),
                checkpoint=f"{path}-checkpoint",
                once=True,
            )
            query.awaitTermination()

        figures = self.timed_rate(write)
        check_count(self.spark.read.parquet(path).count(), self.messages.count)
        return figures

    def count(self) -> Figures:
        return self.timed_count(self._sealed().count)

    def count_column(self) -> Figures:
        return self.timed_count(self._sealed(columns="offset").count)

    def count_loaded(self) -> Figures:
        return self.timed_count(self._loaded().count)

    def count_from_manifest(self) -> Figures:
        options = {"url": self._broker.url(), "stream": self._sealed_stream, "history": "segments"}
        return self.timed_count(lambda: pyspark_amqp.count(self.spark, **options))

    def write_at_least_once(self) -> Figures:
        return self._write(guarantee="at-least-once")

    def write_exactly_once(self) -> Figures:
        return self._write(guarantee="exactly-once", txnAppId=self.messages.name(), txnVersion="0")

    def latency(self) -> Figures:
        return self._latency(lambda name: self._follow(name, columns="body"))

    def latency_jvm(self) -> Figures:
        """Raises RuntimeError if the data source in the JVM is not built."""
        if not JVM_SOURCE.exists():
            raise RuntimeError(f"{JVM_SOURCE} is not built; run make jar")
        reader = self.spark.readStream.format("amqp-jvm").options(url=self._broker.url(), startingOffsets="earliest")
        return self._latency(lambda name: reader.option("stream", name).load().select("body"))

    @cached_property
    def _sealed_stream(self) -> str:
        name = self._tail_stream + "-sealed"
        finished(self._publish(name, self.messages.random, self.messages.count))
        seal(self._broker, name, self.messages.count)
        return name

    @cached_property
    def _tail_stream(self) -> str:
        name = self.messages.name()
        finished(self._publish(name, self.messages.random, self.messages.count))
        return name

    def _publish(self, stream: str, bodies: tuple[Path, int], count: int, rate: int = 0) -> subprocess.Popen[str]:
        return python_publisher("leveret", self._broker.url(), stream, bodies, count, rate)

    def _latency(self, follow: Callable[[str], DataFrame]) -> Figures:
        name = self.messages.name()
        finished(self._publish(name, self.messages.random, 1, LATENCY_RATE))
        return self.timed_latency(
            follow(name), lambda count: self._publish(name, self.messages.random, count, LATENCY_RATE)
        )

    def _on_disk(self, bodies: tuple[Path, int]) -> Figures:
        name = self.messages.name()
        finished(self._publish(name, bodies, self.messages.count))
        files = seal(self._broker, name, self.messages.count)
        return {"bytes": sum(os.stat(file).st_blocks * 512 for file in files) / 1e6}

    def _read(self, stream: str, **options: str) -> DataFrame:
        return self.spark.read.format("amqp").options(url=self._broker.url(), stream=stream, **options).load()

    def _sealed(self, **options: str) -> DataFrame:
        return self._read(self._sealed_stream, history="segments", **options)

    def _loaded(self) -> DataFrame:
        return pyspark_amqp.load(self.spark, url=self._broker.url(), stream=self._sealed_stream, history="segments")

    def _follow(self, stream: str, **options: str) -> DataFrame:
        reader = self.spark.readStream.format("amqp").options(url=self._broker.url(), stream=stream, **options)
        return reader.option("startingOffsets", "earliest").load()

    def _write(self, **options: str) -> Figures:
        name = self.messages.name()
        finished(self._publish(name, self.messages.random, 1))
        writer = self.rows.write.format("amqp").mode("append")
        writer.options(url=self._broker.url(), exchange="", routingKey=name, **options)
        return self.timed_rate(writer.save)


class KafkaSide(Side):
    """Kafka: topics of one partition, the connector for Spark, the Java producer and confluent-kafka."""

    def __init__(self, messages: Messages, spark: SparkSession, process: KafkaProcess) -> None:
        super().__init__(messages, spark)
        self._process = process

    def start(self) -> Figures:
        process = KafkaProcess(Path(self.messages.path()))
        try:
            took = timed(process.format) + timed(process.start)
            return {"seconds": took, "memory": memory(process.pid)}
        finally:
            process.stop()

    def publish(self) -> Figures:
        path, size = self.messages.random
        name, count = self.messages.name(), self.messages.count
        publisher = self._process.publish(name, path, size, count, warmup=JAVA_WARMUP)
        return measured_publish(self._process.pid, publisher, count)

    def publish_confluent(self) -> Figures:
        name, address = self.messages.name(), self._process.address
        publisher = python_publisher("confluent-kafka", address, name, self.messages.random, self.messages.count)
        return {"rate": self.messages.count / finished(publisher)}

    def random_on_disk(self) -> Figures:
        return self._on_disk(self.messages.random)

    def json_on_disk(self) -> Figures:
        return self._on_disk(self.messages.json)

    def read(self) -> Figures:
        return self.timed_read(self._read())

    def read_columns(self) -> Figures:
        return self.timed_read(self._read().select(*KAFKA_COLUMNS))

    def to_parquet(self) -> Figures:
        return self.timed_parquet(self._follow(self._topic))

    def to_parquet_columns(self) -> Figures:
        return self.timed_parquet(self._follow(self._topic).select(*KAFKA_COLUMNS))

    def count(self) -> Figures:
        return self.timed_count(self._read().count)

    def write(self) -> Figures:
        name = self.messages.name()
        finished(self._publish(name, count=1))
        writer = self.rows.selectExpr("body AS value").write.format("kafka")
        return self.timed_rate(writer.options(**self._options, topic=name).save)

    def latency(self) -> Figures:
        name = self.messages.name()
        finished(self._publish(name, count=1, rate=LATENCY_RATE))
        return self.timed_latency(
            self._follow(name).selectExpr("value AS body"),
            lambda count: self._publish(name, count=count, rate=LATENCY_RATE),
        )

    @cached_property
    def _topic(self) -> str:
        name = self.messages.name()
        finished(self._publish(name))
        return name

    @property
    def _options(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._process.address}

    def _publish(self, topic: str = "", *, count: int = 0, rate: int = 0) -> subprocess.Popen[str]:
        path, size = self.messages.random
        return self._process.publish(topic or self.messages.name(), path, size, count or self.messages.count, rate)

    def _on_disk(self, bodies: tuple[Path, int]) -> Figures:
        name = self.messages.name()
        finished(self._process.publish(name, *bodies, self.messages.count))
        return {"bytes": self._process.topic_size(name) / 1e6}

    def _read(self) -> DataFrame:
        reader = self.spark.read.format("kafka").options(**self._options, subscribe=self._topic, includeHeaders="true")
        return reader.option("minPartitions", TASKS).load()

    def _follow(self, topic: str) -> DataFrame:
        reader = self.spark.readStream.format("kafka").options(**self._options, subscribe=topic, includeHeaders="true")
        return reader.option("minPartitions", TASKS).option("startingOffsets", "earliest").load()


def python_publisher(
    name: str, address: str, target: str, bodies: tuple[Path, int], count: int, rate: int = 0
) -> subprocess.Popen[str]:
    """Start a publisher of `bench.publishers`; see there what it prints."""
    path, size = bodies
    command = [sys.executable, "-m", "bench.publishers", name, address, target, str(path), str(size), str(count), str(rate)]
    search = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": search}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finished(publisher: subprocess.Popen[str]) -> float:
    """Wait for a publisher. Returns the seconds that it took."""
    return published(publisher)[0]


def published(publisher: subprocess.Popen[str]) -> tuple[float, int]:
    """Wait for a publisher. Returns the seconds that it took and all messages that it published.

    Raises:
        RuntimeError: It has failed; with the last line of its errors.
    """
    try:
        output, errors = publisher.communicate()
    except BaseException:
        publisher.kill()
        publisher.wait()
        raise
    if publisher.returncode:
        lines = errors.strip().splitlines() or [f"exit code {publisher.returncode}"]
        raise RuntimeError(f"the publisher has failed: {lines[-1]}")
    took, count = output.split()
    return float(took), int(count)


def measured_publish(pid: int, publisher: subprocess.Popen[str], count: int) -> Figures:
    """Wait for a publisher. Returns its rate, and processor time and peak memory of the broker.

    Args:
        pid: The broker's process.
        publisher: The publisher.
        count: Messages that it publishes in the time that it prints.
    """
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # begin a new peak
    before = statistics.cpu(pid)
    took, total = published(publisher)
    used = statistics.cpu(pid) - before
    return {"rate": count / took, "cpu": used / total * 1e6, "peak": statistics.memory(pid, "VmHWM")}


def memory(pid: int) -> float:
    """Return the memory of a process and of those that it has started, in MB."""
    return resident([pid, *below(pid)])


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def check_count(found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"{found:,} rows were read, of {expected:,}")
