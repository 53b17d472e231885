"""A query in a separate process, for tests to kill: from a source of `amqp` to a sink of `amqp`, exactly once.

    python -m tests.spark.sink.app JSON

The JSON has `master`, `conf`, `checkpoint`, `source` and `sink` (options), and `marker`, a directory of files that control
the tasks. A task creates `reading` once it has read rows, and waits while `hold` exists. If `fail` exists, the first
attempt of every task fails half-way. If `slow` exists, the first attempt of the first task waits there until a later
attempt has created `overtaken`. The query ends when everything was read (availableNow), and the process with it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.taskcontext import TaskContext


def main(argument: str) -> None:
    given = json.loads(argument)
    directory = Path(given["marker"])
    builder = (
        SparkSession.builder.master(given["master"])
        .appName("sink test")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.log.level", "ERROR")
    )
    for name, value in given["conf"].items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    rows = session.readStream.format("amqp").options(**given["source"]).load().select("message_id", "body")
    watched = rows.mapInArrow(_watched(str(directory)), rows.schema)
    query = (
        watched.writeStream.format("amqp")
        .options(**given["sink"])
        .option("checkpointLocation", given["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    session.stop()


def _watched(directory: str) -> Any:
    def watch(batches: Iterable[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if number == 0:
                with open(os.path.join(directory, "reading"), "w"):
                    pass
                while os.path.exists(os.path.join(directory, "hold")):
                    time.sleep(0.02)
                if context.attemptNumber() == 0 and os.path.exists(os.path.join(directory, "fail")):
                    raise RuntimeError("the first attempt fails")
                if context.partitionId() == 0 and os.path.exists(os.path.join(directory, "slow")):
                    overtaken = os.path.join(directory, "overtaken")
                    if context.attemptNumber():
                        with open(overtaken, "w"):
                            pass
                    elif not os.path.exists(overtaken):
                        while True:
                            time.sleep(0.02)
            yield batch.slice(half)

    return watch


if __name__ == "__main__":
    main(sys.argv[1])
