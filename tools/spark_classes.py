"""Archive Spark's classes for the JVM's class data sharing, so that Spark starts in half the time in tests.

The JVM ignores an archive of another version.

    python tools/spark_classes.py FILE
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import leveret
from leveret import sync


def main(file: Path) -> None:
    part = file.with_suffix(".part")
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={part} -Xlog:disable"
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    with tempfile.TemporaryDirectory() as directory:
        use_spark(Path(directory))
    part.replace(file)


def use_spark(directory: Path) -> None:
    """Run typical Spark jobs: a stream into a table and a queue, windows, and reads of both."""
    with leveret.Broker() as broker, sync.connect(broker.url) as connection, connection.channel() as channel:
        channel.declare_queue("in", durable=True, arguments={"x-queue-type": "stream"})
        channel.declare_queue("out", durable=True)
        for number in range(10):
            channel.publish(f'{{"id": {number}, "name": "n"}}', "in")
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.log.level", "ERROR")
            .config("spark.local.dir", str(directory / "local"))
            .config("spark.sql.warehouse.dir", str(directory / "tables"))
            .getOrCreate()
        )
        messages = session.readStream.format("amqp").options(url=broker.url, stream="in", startingOffsets="earliest").load()
        decoded = messages.select(
            "append_time", F.from_json(F.col("body").cast("string"), "id BIGINT, name STRING").alias("data")
        ).select("append_time", "data.*")
        table = str(directory / "table")

        def unchanged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from batches

        def write(frame: DataFrame, number: int) -> None:
            frame.persist()
            frame.withColumn("day", F.to_date("append_time")).write.mode("append").partitionBy("day").parquet(table)
            frame.unpersist()

        counted = (
            decoded.withWatermark("append_time", "1 second")
            .groupBy(F.window("append_time", "1 second"), "name")
            .agg(F.count("*"), F.percentile_approx("id", 0.5))
        )
        bodies = decoded.select(F.to_json(F.struct("id")).cast("binary").alias("body"))
        plain = messages.select("body").mapInArrow(unchanged, "body BINARY")
        for number, writer in enumerate(
            (
                decoded.writeStream.foreachBatch(write),
                counted.writeStream.format("parquet").option("path", str(directory / "counted")),
                plain.writeStream.format("parquet").option("path", str(directory / "plain")),
                bodies.writeStream.format("amqp").options(url=broker.url, routingKey="out", guarantee="exactly-once"),
            )
        ):
            query = (
                writer.option("checkpointLocation", str(directory / f"checkpoint-{number}"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        session.read.parquet(table).join(session.range(10), "id").groupBy("day").count().orderBy("day").collect()
        session.read.format("amqp").options(url=broker.url, queue="out").load().createOrReplaceTempView("out")
        session.sql("SELECT count(*), max(length(body)) FROM out").collect()
        gateway = session.sparkContext._gateway
        assert gateway is not None
        process = gateway.proc
        session.stop()
        # The JVM writes the file when it exits.
        process.stdin.close()
        if process.wait():
            sys.exit(f"the JVM exited with code {process.returncode}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
