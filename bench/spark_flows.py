"""The measurements of `bench.spark` for whole queries: archives, sinks, latency, memory."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.generator import Load
from leveret import sync
from leveret.client.errors import Timeout
from leveret.management.control_client import call
from leveret.spark.connection import ControlClient, endpoint_of
from leveret.spark.options import read_options
from leveret.spark.pipeline import Broker, Capture, Decode, TableOutput
from leveret.spark.pipeline.kinds.archive import archive
from tests.support.broker import LeveretProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE = 200
SCHEMA = "id BIGINT NOT NULL, customer STRING, amount DOUBLE, placed TIMESTAMP, note STRING"


def say(text: str) -> None:
    print(text, flush=True)


def orders(count: int) -> list[bytes]:
    """Return JSON bodies of about 200 bytes each."""
    return [
        json.dumps(
            {
                "id": number,
                "customer": f"customer-{number % 997}",
                "amount": number / 7,
                "placed": "2026-05-01T12:00:00.123Z",
                "note": os.urandom(40).hex(),
            }
        ).encode()
        for number in range(count)
    ]


def archived(spark: SparkSession, broker: LeveretProcess, stream: str, rows: int, rounds: int, directory: Path) -> None:
    """Archive a sealed stream of JSON with a typed column, after a warm-up. Returns rows per second of the whole run."""
    rates: list[float] = []
    for number in range(-1, rounds):
        place = directory / f"archive-{number}"
        began = time.perf_counter()
        most = {"maxMessagesPerTrigger": -(-rows // 10)} if number < 0 else {}
        (query,) = archive(
            spark,
            Broker(url=broker.url()),
            Capture(stream=stream, consumer=place.name, options={**most}),
            TableOutput(path=str(place / "table")),
            checkpoint=str(place / "checkpoint"),
            decode=Decode(format="json", schema=SCHEMA, quarantine=str(place / "bad")),
            name=place.name,
            once=True,
        )
        query.awaitTermination()
        took = time.perf_counter() - began
        found = spark.read.parquet(str(place / "table")).where("data.id IS NOT NULL").count()
        assert found == rows, f"{found} of {rows} rows are in the table"
        if number < 0:
            continue
        rates.append(rows / took)
        say(f"archive, round {number + 1} of {rounds}: {rates[-1]:,.0f} rows per second")
    say(f"archive with typed decoding: {median(rates):,.0f} rows per second")


def bodies_table(spark: SparkSession, rows: int, size: int, path: str) -> None:
    """Write a table of random bodies like the load generator's, which begin with the time of the publish."""
    spark.range(rows).selectExpr(
        "unhex(rpad(concat(repeat('00', 16), hex(randstr(32)), hex(randstr(32)), hex(randstr(32)), hex(randstr(32)), "
        f"hex(randstr(32)), hex(randstr(24))), {2 * size}, '00')) AS body"
    ).repartition(2).write.parquet(path)


def sunk(spark: SparkSession, broker: LeveretProcess, rows: int, rounds: int, directory: Path) -> None:
    """Write a table of random bodies to a durable queue, persistent and exactly once, until the last one is consumed."""
    source = str(directory / "rows")
    bodies_table(spark, rows, SIZE, source)
    control = ControlClient(endpoint_of(read_options({"url": broker.url()})))
    written, consumed = [], []
    for number in range(rounds):
        name = f"sink-{number}"
        load = Load(
            broker.port,
            "run",
            "--publishers",
            "0",
            "--consumers",
            "1",
            "--durable",
            "--keep",
            "--prefix",
            name,
            "--prefetch",
            "2000",
            "--ack-every",
            "500",
            "--seconds",
            "600",
            "--warmup",
            "0",
        )
        queue = f"{name}-0"
        _until_declared(broker, queue)
        began = time.perf_counter()
        options = {"url": broker.url(), "exchange": "", "routingKey": queue, "guarantee": "exactly-once"}
        (
            spark.read.parquet(source)
            .write.format("amqp")
            .mode("append")
            .options(**options, txnAppId=name, txnVersion="0")
            .save()
        )
        written.append(rows / (time.perf_counter() - began))
        while control.request("queue.describe", queue=queue)["messages"]:
            time.sleep(0.02)
        consumed.append(rows / (time.perf_counter() - began))
        result = load.stop()
        say(
            f"sink, round {number + 1} of {rounds}: {written[-1]:,.0f} rows per second until committed, "
            f"{consumed[-1]:,.0f} until consumed"
        )
        assert result["delivered"] == rows
    control.close()
    say(
        f"exactly-once sink: {median(written):,.0f} rows per second until committed, {median(consumed):,.0f} until consumed"
    )


def _until_declared(broker: LeveretProcess, queue: str) -> None:
    deadline = time.monotonic() + 30
    while not any(found["name"] == queue and found["consumers"] for found in call(broker.data_dir, "queues.list")):
        assert time.monotonic() < deadline, f"{queue} has no consumer"
        time.sleep(0.05)


def delayed(spark: SparkSession, broker: LeveretProcess, seconds: float, rate: int, directory: Path) -> None:
    """Copy messages from a stream to a queue, exactly once. Returns the latency of each."""
    url = broker.url()
    warm = min(20.0, seconds / 2)
    over = threading.Event()
    delays: list[float] = []
    with sync.connect(url) as connection, connection.channel() as channel:
        channel.declare_queue("latency", durable=True, arguments={"x-queue-type": "stream"})
        channel.declare_queue("latency-out", durable=True)
    query = (
        spark.readStream.format("amqp")
        .options(url=url, stream="latency", startingOffsets="earliest")
        .load()
        .select("body")
        .writeStream.format("amqp")
        .options(url=url, exchange="", routingKey="latency-out", guarantee="exactly-once")
        .option("checkpointLocation", str(directory / "latency"))
        .start()
    )

    def publish() -> None:
        with (
            sync.connect(url) as connection,
            connection.channel() as channel,
            channel.publisher(routing_key="latency", window=1000, persistent=True) as publisher,
        ):
            due = time.monotonic()
            while not over.is_set():
                publisher.publish(str(time.time_ns()).encode().ljust(SIZE))
                due += 1 / rate
                time.sleep(max(due - time.monotonic(), 0))

    def consume() -> None:
        with (
            sync.connect(url) as connection,
            connection.channel() as channel,
            channel.consume("latency-out", no_ack=True, prefetch=1000) as consumer,
        ):
            began = time.time()
            while not over.is_set():
                try:
                    message = consumer.next(1.0)
                except Timeout:
                    continue
                sent = int(message.body) / 1e9
                if sent > began + warm:
                    delays.append(time.time() - sent)

    workers = [threading.Thread(target=work) for work in (publish, consume)]
    for worker in workers:
        worker.start()
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        time.sleep(5)
        assert query.isActive, query.exception()
        say(
            f"latency: {time.monotonic() - began:.0f} of {seconds:.0f} s, {len(delays)} messages"
            + (f", median {median(delays) * 1000:.0f} ms" if delays else "")
        )
    over.set()
    for worker in workers:
        worker.join()
    query.stop()
    ordered = sorted(delays)
    say(
        f"latency from stream to exactly-once sink at {rate} per second: median {median(ordered) * 1000:.0f} ms, "
        f"p99 {ordered[len(ordered) * 99 // 100] * 1000:.0f} ms"
    )


def remembered(spark: SparkSession, broker: LeveretProcess, rows: int, directory: Path) -> None:
    """Publish, seal and archive messages at the same time, and sample the memory of the processes."""
    with sync.connect(broker.url()) as connection, connection.channel() as channel:
        channel.declare_queue("memory-0", durable=True, arguments={"x-queue-type": "stream"})
    assert broker.process is not None
    load = Load(
        broker.port,
        "run",
        "--publishers",
        "2",
        "--consumers",
        "0",
        "--stream",
        "--durable",
        "--keep",
        "--prefix",
        "memory",
        "--size",
        str(SIZE),
        "--window",
        "1000",
        "--messages",
        str(rows),
    )
    table = directory / "memory"
    (query,) = archive(
        spark,
        Broker(url=broker.url()),
        Capture(stream="memory-0", options={"maxMessagesPerTrigger": 500_000}),
        TableOutput(path=str(table)),
        checkpoint=str(directory / "memory-checkpoint"),
        name="memory",
        trigger=1.0,
    )
    began = time.monotonic()
    samples: list[dict[str, int]] = []
    done, reported = 0, 0.0
    while done < rows:
        time.sleep(1)
        assert query.isActive, query.exception()
        assert load.process.poll() in (None, 0), load.result()
        pids = {
            "broker": [broker.process.pid],
            "sealer": below(broker.process.pid),
            "Spark": below(os.getpid(), "java"),
            "workers": [pid for spark in below(os.getpid(), "java") for pid in below(spark, "python")],
        }
        samples.append({name: resident(found) for name, found in pids.items()})
        progress: Any = query.lastProgress
        if progress:
            end = progress["sources"][0]["endOffset"]
            done = (json.loads(end) if isinstance(end, str) else end)["streams"]["memory-0"]["next"]
        if time.monotonic() > reported + 10:
            reported = time.monotonic()
            say(f"memory: {done:,} of {rows:,} archived after {reported - began:.0f} s; MB: {samples[-1]}")
    took = time.monotonic() - began
    query.stop()
    load.result()
    found = spark.read.parquet(str(table))
    count, offsets = found.count(), found.select("offset").distinct().count()
    assert count == offsets == rows, f"{count} rows with {offsets} offsets are in the table, of {rows}"
    say(f"memory: {rows:,} messages published, archived and counted in {took:.0f} s; median MB of each quarter:")
    quarter = max(len(samples) // 4, 1)
    for name in samples[0]:
        values = [
            median(sample[name] for sample in samples[start : start + quarter])
            for start in range(0, quarter * 4, quarter)
            if samples[start : start + quarter]
        ]
        say(
            f"  {name:8}"
            + "".join(f"{value:8,.0f}" for value in values)
            + f"   at most {max(sample[name] for sample in samples):,}"
        )


def below(pid: int, word: str = "") -> list[int]:
    """Return the descendants of a process whose command line contains the word."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            try:
                command = Path(f"/proc/{child}/cmdline").read_text().partition("\0")[0]
            except OSError:
                continue
            found += ([child] if word in command else []) + below(child, word)
    return found


def resident(pids: list[int]) -> int:
    """Return the memory of processes in MB, counting shared pages proportionally."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return total >> 10
