"""A query to kill: `python bench/spark_query.py JSON`, run by `bench/spark_kills.py` in a separate process.

It reads all available messages (AvailableNow) and ends. `source` has options of format `amqp`, and `sink` options of the
format that it names, which may be an archive's table. With `dump`, a file, it finally writes the bodies of the sink's table
there, one per line. With `slow`, a directory, the first attempt of every third task waits some seconds for another attempt
of the task, and creates a file there if one runs.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import convert
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.taskcontext import TaskContext

from leveret.spark.pipeline import Broker, Capture, TableOutput, archive
from leveret.spark.pipeline.model import StaticTable
from leveret.spark.pipeline.transform import read_table

MAX_WAIT = 6.0


def main(argument: str) -> None:
    given = json.loads(argument)
    builder = (
        SparkSession.builder.master(given.get("master", "local[2,3]"))
        .appName("kills")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "700m")
        .config("spark.local.dir", given["directory"])
        .config("spark.sql.warehouse.dir", given["directory"])
        .config("spark.log.level", "ERROR")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    )
    for name, value in given.get("conf", {}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    sink = dict(given["sink"])
    if sink["format"] == "archive":
        table = convert({"path": sink["path"], "format": sink.get("table", "parquet")}, TableOutput)
        query = _archive(session, given["source"], table, given["checkpoint"])
    else:
        rows = session.readStream.format("amqp").options(**given["source"]).load().select("message_id", "body")
        if given.get("slow"):
            rows = rows.mapInArrow(_slowed(given["slow"]), rows.schema)
        query = (
            rows.writeStream.format(sink.pop("format"))
            .options(**sink)
            .option("checkpointLocation", given["checkpoint"])
            .trigger(availableNow=True)
            .start()
        )
    query.awaitTermination()
    if given.get("dump"):
        rows = read_table(session, StaticTable(path=sink["path"], format=sink.get("table", "parquet")), "sink")
        found = rows.select("body").collect()
        with open(given["dump"], "w", encoding="utf-8") as file:
            file.writelines(f"{row.body.decode()}\n" for row in found)
    session.stop()


def _archive(session: SparkSession, source: dict[str, str], table: TableOutput, checkpoint: str) -> StreamingQuery:
    options: dict[str, Any] = dict(source)
    broker = Broker(url=options.pop("url"))
    capture = Capture(
        stream=options.pop("stream"),
        consumer=options.pop("consumerName"),
        starting_offsets=options.pop("startingOffsets"),
        options=options,
    )
    (query,) = archive(session, broker, capture, table, checkpoint=checkpoint, once=True)
    return query


def _slowed(directory: str) -> Any:
    def slow(batches: Iterable[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        batch = context.getLocalProperty("streaming.sql.batchId")
        task = os.path.join(directory, f"{context.stageId()}-{batch}-{context.partitionId()}")
        if context.attemptNumber():
            with open(f"{task}-again", "w"):
                pass
        waiting = not context.attemptNumber() and (context.stageId() + context.partitionId()) % 3 == 0
        for one in batches:
            yield one.slice(0, one.num_rows // 2)
            deadline = time.monotonic() + MAX_WAIT
            while waiting and time.monotonic() < deadline and not os.path.exists(f"{task}-again"):
                time.sleep(0.02)
            if waiting and os.path.exists(f"{task}-again"):
                # Both attempts continue now.
                with open(os.path.join(directory, f"twice-{uuid.uuid4().hex}"), "w"):
                    pass
            waiting = False
            yield one.slice(one.num_rows // 2)

    return slow


if __name__ == "__main__":
    main(sys.argv[1])
