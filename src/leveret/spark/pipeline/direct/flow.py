"""Direct flows, whose tasks write the table's files themselves while they read the messages.

For an archive Spark would only copy rows, from Arrow columns into rows and back into columns, and parse JSON with Java. So
if a flow does nothing else with its rows, the tasks write files instead of passing rows to Spark; Spark still manages
batches, checkpoints and retries. The driver moves the files that the tasks report into the table, together with those that
Spark writes for messages that the tasks left undecided, as `TableWriter` does for every batch: each file is in the table
exactly once, whichever process dies.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from leveret.spark.load import STRICT_OPTIONS
from leveret.spark.options import read_options
from leveret.spark.pipeline import capture as capturing
from leveret.spark.pipeline.decoding.arrow_json import json_decoder
from leveret.spark.pipeline.decoding.body_format import has_column
from leveret.spark.pipeline.decoding.json_bodies import json_schema
from leveret.spark.pipeline.decoding.registry import RAW
from leveret.spark.pipeline.direct.source import DirectSource, with_task
from leveret.spark.pipeline.direct.task import DirectTask
from leveret.spark.pipeline.model import Broker, Decode, TableOutput
from leveret.spark.pipeline.output.files import Files, escape_glob
from leveret.spark.pipeline.output.tables import Ready, partition_columns
from leveret.spark.schema import table_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from leveret.spark.pipeline.definition import Flow

_LOCAL = "file:"


@dataclass(frozen=True)
class Direct:
    """The source of a direct flow, and the files of its tasks.

    Attributes:
        root: Directory of the table.
        directory: Directory of the files, relative to the table's.
        columns: Columns of the messages.
        options: Options of the data source.
        task: Writes the files of a task.
    """

    root: str
    directory: str
    columns: list[str]
    options: dict[str, str]
    task: DirectTask

    def read_stream(self, spark: SparkSession) -> DataFrame:
        """Return the streaming DataFrame: one row per message, the last ones of each task naming its files."""
        spark.dataSource.register(DirectSource)
        return spark.readStream.format(DirectSource.name()).options(**with_task(self.options, self.task)).load()

    def collect_files(self, batch: DataFrame) -> tuple[list[Ready], DataFrame | None]:
        """Run the tasks of a batch; return the files for the table, and the undecided messages (None if there are none)."""
        spark = batch.sparkSession
        self.clear(spark)
        rows = batch.where("file IS NOT NULL").collect()
        undecided = [f"{_LOCAL}{self.task.directory}/{row.file}" for row in rows if row.undecided]
        ready = [Ready(f"{self.directory}/{row.file}", row.place) for row in rows if not row.undecided]
        if not undecided:
            return ready, None
        messages = spark.read.schema(table_schema(self.columns)).options(**STRICT_OPTIONS)
        return ready, messages.parquet(*map(escape_glob, undecided))

    def clear(self, spark: SparkSession) -> None:
        """Remove the files of tasks. No batch is running, so they come from completed, failed or duplicate tasks."""
        Files(spark, self.root).remove(self.directory)


def direct_of(spark: SparkSession, flow: Flow, broker: Broker, checkpoint: str) -> Direct | None:
    """Return the direct source of a flow, or None if the flow does more than tasks can, so that Spark must write."""
    if (
        flow.stream
        or flow.mark is not None
        or flow.transform is not None
        or flow.exchanges
        or len(flow.tables) != 1
        or flow.capture.queue is not None
    ):
        return None
    (table,) = flow.tables
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
    # The same for every run of the query, and different from those of other queries.
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
    except (KeyError, ValueError, OSError):  # Java accepts more names
        return None
    return [(name, transform) for name, (transform, _) in found.items()]


def _schema(decode: Decode, columns: list[str]) -> str | None:
    """Return the schema of the bodies, "" for none; None if tasks cannot decode them."""
    if decode.format == RAW:
        return ""
    if decode.format != "json" or "body" not in columns or has_column(columns, decode.column):
        return None
    schema = json_schema(decode)
    return None if json_decoder(schema) is None else schema.json()
