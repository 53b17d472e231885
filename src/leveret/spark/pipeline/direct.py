"""Flows whose tasks write the table's files themselves, where they read the messages.

What Spark would do with the rows of an archive is to copy them, from Arrow's columns into rows and back into columns, and
to read JSON as fast as Java can. Where nothing else is to be done with them, the tasks do not give them to Spark: they
write files, and Spark does what it is there for, which is batches, checkpoints, and tasks that are done again. The driver
puts the files that tasks have told it of into the table, with those that Spark makes of the messages that the tasks left
undecided, in the way that `TableWriter` has for every batch: so each is in the table once, whoever has died meanwhile.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from leveret.spark.history import STRICT
from leveret.spark.options import read_options
from leveret.spark.pipeline import capture as capturing
from leveret.spark.pipeline.arrow_json import json_decoder
from leveret.spark.pipeline.decode import has_column, json_schema
from leveret.spark.pipeline.direct_source import DirectSource, with_task
from leveret.spark.pipeline.direct_task import DirectTask
from leveret.spark.pipeline.files import Files, as_it_is
from leveret.spark.pipeline.model import Broker, Decode, TableOutput
from leveret.spark.pipeline.tables import Ready, partition_columns
from leveret.spark.schema import table_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from leveret.spark.pipeline.flow import Flow

_LOCAL = "file:"


@dataclass(frozen=True)
class Direct:
    """The source of a flow whose tasks write, and what they have written.

    root       of the table
    directory  of the files, below the table's
    columns    of the messages
    """

    root: str
    directory: str
    columns: list[str]
    options: dict[str, str]
    task: DirectTask

    def read_stream(self, spark: SparkSession) -> DataFrame:
        """Rows that tell of the files, and one for each message more than that."""
        spark.dataSource.register(DirectSource)
        return spark.readStream.format(DirectSource.name()).options(**with_task(self.options, self.task)).load()

    def written(self, batch: DataFrame) -> tuple[list[Ready], DataFrame | None]:
        """Have the tasks write a batch: the files for the table, and the undecided messages, None where all are decided."""
        spark = batch.sparkSession
        self.clear(spark)
        told = batch.where("file IS NOT NULL").collect()
        undecided = [f"{_LOCAL}{self.task.directory}/{row.file}" for row in told if row.undecided]
        ready = [Ready(f"{self.directory}/{row.file}", row.place) for row in told if not row.undecided]
        if not undecided:
            return ready, None
        return ready, spark.read.schema(table_schema(self.columns)).options(**STRICT).parquet(*map(as_it_is, undecided))

    def clear(self, spark: SparkSession) -> None:
        """No batch runs: what is there is of one that is done, or came to nothing, or of a task that ran twice."""
        Files(spark, self.root).remove(self.directory)


def direct_of(spark: SparkSession, flow: Flow, broker: Broker, checkpoint: str) -> Direct | None:
    """How the tasks of a flow write; None where Spark has to, since more is to be done than they can do alike."""
    if flow.stream or flow.mark is not None or flow.transform is not None or flow.exchanges or len(flow.tables) != 1 \
            or flow.capture.queue is not None:
        return None
    table, = flow.tables
    if table.writer == "spark" or table.format != "parquet" or table.where is not None or table.columns:
        return None
    options = capturing.source_options(flow.capture, broker, flow.name)
    columns = table_schema(read_options(options).columns).names
    timezone = spark.conf.get("spark.sql.session.timeZone") or ""
    place = Files(spark, table.path).url()
    schema = _schema(flow.decode, columns)
    partitions = _partitions(table, [*columns, flow.decode.column] if schema else columns, timezone)
    if not place.startswith(_LOCAL) or partitions is None or schema is None:
        return None
    # Every run of a query finds the directory of the one before, and no other query's.
    key = checkpoint if "://" in checkpoint else os.path.abspath(checkpoint)
    directory = f"_leveret/{hashlib.sha256(key.encode()).hexdigest()[:16]}-direct"
    root = "/" + place.removeprefix(_LOCAL).strip("/")
    task = DirectTask(f"{root}/{directory}", flow.decode.column if schema else "", schema, partitions, timezone)
    return Direct(table.path, directory, columns, options, task)


def _partitions(table: TableOutput, columns: list[str], timezone: str) -> list[tuple[str, str]] | None:
    found = partition_columns(table, columns)
    if not all(transform and source == "append_time" for transform, source in found.values()):
        return None
    try:
        ZoneInfo(timezone)
    except (KeyError, ValueError, OSError):  # Java knows more names
        return None
    return [(name, transform) for name, (transform, _) in found.items()]


def _schema(decode: Decode, columns: list[str]) -> str | None:
    """Of the bodies, "" for none; None where they cannot be decoded in the tasks."""
    if decode.format == "raw":
        return ""
    if decode.format != "json" or "body" not in columns or has_column(columns, decode.column):
        return None
    schema = json_schema(decode)
    return None if json_decoder(schema) is None else schema.json()
