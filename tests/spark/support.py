"""Helpers for Spark tests: streams, and queries over them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leveret import sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Seconds to wait for a query.
TIMEOUT = 240


def declare_stream(connection: sync.Connection, name: str, **arguments: Any) -> None:
    with connection.channel() as channel:
        channel.declare_queue(
            name,
            durable=True,
            arguments={"x-queue-type": "stream", **{key.replace("_", "-"): value for key, value in arguments.items()}},
        )


def publish(connection: sync.Connection, queue: str, bodies: Iterable[str | bytes], **properties: Any) -> None:
    """Publish to a queue and wait for confirms."""
    with connection.channel() as channel, channel.publisher(routing_key=queue, window=1000, **properties) as publisher:
        for body in bodies:
            publisher.publish(body)


def read(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    return spark.read.format("amqp").options(url=url, **options).load()


def bodies(frame: DataFrame) -> list[str]:
    """Return the bodies by offset."""
    return [row.body.decode() for row in sorted(frame.select("offset", "body").collect())]


def start(
    spark: SparkSession, url: str, directory: Path, *, available_now: bool = True, sink: str = "out", **options: Any
) -> StreamingQuery:
    """Start a query that writes Parquet files to the directory, with its checkpoint there too."""
    writer = (
        spark.readStream.format("amqp")
        .options(url=url, **options)
        .load()
        .writeStream.format("parquet")
        .option("path", str(directory / sink))
        .option("checkpointLocation", str(directory / "checkpoint"))
    )
    return writer.trigger(**({"availableNow": True} if available_now else {"processingTime": "50 milliseconds"})).start()


def run(spark: SparkSession, url: str, directory: Path, **options: Any) -> StreamingQuery:
    """Run a query like `start` over the available messages, to its end."""
    query = start(spark, url, directory, **options)
    assert query.awaitTermination(TIMEOUT)
    return query


def written(spark: SparkSession, directory: Path, sink: str = "out") -> list[str]:
    """Return the bodies that the query wrote, by stream and offset."""
    rows = spark.read.parquet(str(directory / sink)).select("queue", "offset", "body").collect()
    return [row.body.decode() for row in sorted(rows)]


def numbers(first: int, stop: int) -> list[str]:
    return [str(number) for number in range(first, stop)]


def declare_super_stream(connection: sync.Connection, name: str, partitions: int) -> None:
    with connection.channel() as channel:
        channel.declare_exchange(name, "x-consistent-hash", durable=True)
        for number in range(partitions):
            declare_stream(connection, f"{name}-{number}")
            channel.bind_queue(f"{name}-{number}", name, "1")
