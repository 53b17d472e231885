"""Commits batches of Parquet files to a Delta table, each batch once, and reads Delta tables with Spark.

The files are in the table's directory, and a commit adds those of one batch without rewriting them. The commit also records
the number of the batch under the application (Delta's `txn` action), so that no batch is added twice. Spark needs no
connector for Delta: deltalake reads and writes the table's log, and Spark's Parquet reader reads the files that it lists.
"""

from __future__ import annotations

import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from leveret._build import installation
from leveret.spark.load import STRICT_OPTIONS
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.model import TableOutput
from leveret.spark.pipeline.output.files import Files, escape_glob

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.schema import Field
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LOG: Final = "_delta_log"
# Directory name of a null in a partition column.
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
# Versions that a repeated batch syncs: more than other writers may have committed before the system wrote the log itself.
_SYNCED_AGAIN: Final = 100
# Features of tables whose files cannot be read without the log's help.
_UNREADABLE: Final = frozenset({"columnMapping", "deletionVectors"})


def add_to_table(
    output: TableOutput,
    files: Files,
    batch: DataFrame,
    partitions: dict[str, tuple[str, str]],
    paths: list[str],
    application: str,
    number: int,
) -> None:
    """Add the files of a batch to the table, once, creating the table if necessary.

    Args:
        output: The table.
        files: Access to its directory.
        batch: Source of the schema.
        partitions: Result of `partition_columns`.
        paths: The files, relative to the table's directory.
        application: Name of the writer.
        number: Number of the batch, higher than those before.
    """
    from deltalake import CommitProperties, Schema, Transaction
    from deltalake.transaction import AddAction

    table = _table(output, files, batch, partitions)
    last = table.transaction_version(application)
    if last is not None and last >= number:
        # The commit may have been interrupted before it was synced.
        _sync_log(files, table, table.version() - _SYNCED_AGAIN)
        return
    before = table.version()
    added = int(time.time() * 1000)
    table.create_write_transaction(
        [
            AddAction(path, files.size(path), _partition_values(path), added, True, json.dumps(_statistics(files, path)))
            for path in paths
        ],
        mode="append",
        schema=Schema.from_arrow(_schema(batch, partitions)),
        partition_by=list(partitions),
        commit_properties=CommitProperties(app_transactions=[Transaction(application, number)]),
    )
    table.update_incremental()
    # The version before may have added columns.
    _sync_log(files, table, before)


def schema_of(files: Files) -> tuple[StructType, list[str]]:
    """Return the columns of a table, and the names of those by which it is partitioned."""
    from pyspark.sql.types import StructType

    table = _open(files)
    return StructType.fromJson(json.loads(table.schema().to_json())), table.metadata().partition_columns


def read_table(spark: SparkSession, path: str) -> DataFrame:
    """Read the newest version of a table.

    Raises:
        PipelineError: There is no such table, or Spark cannot read its files without a connector for Delta.
    """
    import pyarrow as pa

    if find_spec("deltalake") is None:
        raise PipelineError(f"table {path}: is a Delta table, which needs deltalake: {installation('pipeline')}")
    files = Files(spark, path)
    if not files.exists(LOG):
        raise PipelineError(f"table {path}: is not a Delta table; expected a directory with {LOG}")
    table = _open(files)
    unreadable = _UNREADABLE.intersection(table.protocol().reader_features or ())
    if unreadable:
        raise PipelineError(
            f"table {path}: has the Delta features {', '.join(sorted(unreadable))}, which Spark cannot read without a "
            "connector; add delta-spark to the session"
        )
    schema, partitions = schema_of(files)
    # Paths in the log are percent-encoded.
    found = [unquote(name) for name in pa.table(table.get_add_actions()).column("path").to_pylist()]
    if not found:
        return spark.createDataFrame([], schema)
    for name in found:
        if [directory.partition("=")[0] for directory in name.split("/")[:-1]] != partitions:
            raise PipelineError(
                f"table {path}: {name} is not in a directory of its partition, COLUMN=VALUE; add delta-spark to the "
                "session to read it"
            )
    reader = spark.read.schema(schema).options(basePath=files.root, **STRICT_OPTIONS)
    return reader.parquet(*(escape_glob(files.url(name)) for name in found))


def _table(output: TableOutput, files: Files, batch: DataFrame, partitions: dict[str, tuple[str, str]]) -> DeltaTable:
    from deltalake import DeltaTable, Schema

    schema = Schema.from_arrow(_schema(batch, partitions))
    if not files.exists(LOG):
        created = DeltaTable.create(_location(files), schema, partition_by=list(partitions))
        _sync_log(files, created, 0)
        return created
    table = _open(files)
    existing = table.metadata().partition_columns
    if existing != list(partitions):
        raise PipelineError(
            f"table {output.path}: it is partitioned by {', '.join(existing) or 'nothing'}, but the key partition has "
            f"{', '.join(partitions) or 'nothing'}; use the same partitions, or another directory. Only Iceberg tables "
            '(format = "iceberg") can change them'
        )
    known = {field.name: field for field in table.schema().fields}
    new = [field for field in schema.fields if not _includes(known.get(field.name), field)]
    if new:
        table.alter.add_columns(new)
        table.update_incremental()
    return table


def _includes(known: Field | None, field: Field) -> bool:
    """Return whether a table's column has all fields of a batch's column."""
    from deltalake.schema import StructType

    if known is None:
        return False
    if not isinstance(known.type, StructType) or not isinstance(field.type, StructType):
        return True
    names = {inner.name: inner for inner in known.type.fields}
    return all(_includes(names.get(inner.name), inner) for inner in field.type.fields)


def _open(files: Files) -> DeltaTable:
    from deltalake import DeltaTable

    return DeltaTable(_location(files))


def location_of(url: str) -> str:
    """Return the path or URL of a table as deltalake names it: a local path, or a URL."""
    if url.startswith("file:"):
        return url.removeprefix("file:").replace("///", "/")
    return url.replace("s3a://", "s3://", 1)


def _location(files: Files) -> str:
    """Return the table's directory as deltalake names it: a local path, or a URL."""
    return location_of(files.url())


def _schema(batch: DataFrame, partitions: dict[str, tuple[str, str]]) -> pa.Schema:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    # Spark declares every column of its files as nullable.
    schema = to_arrow_schema(batch.schema.toNullable(), timezone="UTC")
    for name, (transform, _) in partitions.items():
        if transform:
            schema = schema.append(pa.field(name, pa.string()))
    return schema


def _partition_values(path: str) -> dict[str, str | None]:
    """Return the values of the partition columns, which are in the names of the file's directories."""
    values: dict[str, str | None] = {}
    for directory in path.split("/")[:-1]:
        name, _, value = directory.partition("=")
        values[unquote(name)] = None if value == _NULL else unquote(value)
    return values


def _statistics(files: Files, path: str) -> dict[str, object]:
    """Return the number of rows of a local file, and the limits of its integers, by which readers skip files."""
    import pyarrow.parquet as pq

    location = _location(files)
    if "://" in location:
        return {}
    found = pq.read_metadata(Path(location, path))
    least: dict[str, int] = {}
    greatest: dict[str, int] = {}
    for index, column in enumerate(found.schema):
        groups = [found.row_group(group).column(index).statistics for group in range(found.num_row_groups)]
        values = [(group.min, group.max) for group in groups if group is not None and group.has_min_max]
        whole = len(values) == len(groups) and all(type(value) is int for pair in values for value in pair)
        if values and whole and "." not in column.path:
            least[column.path] = min(low for low, _ in values)
            greatest[column.path] = max(high for _, high in values)
    return {"numRecords": found.num_rows, "minValues": least, "maxValues": greatest}


def log_paths(first: int, last: int) -> list[str]:
    """Return the paths, relative to the table, of the log's files for some versions; not all of them exist."""
    names = ["_last_checkpoint"]
    for version in range(max(first, 0), last + 1):
        names += [f"{version:020}.json", f"{version:020}.checkpoint.parquet"]
    return [f"{LOG}/{name}" for name in names]


def _sync_log(files: Files, table: DeltaTable, first: int) -> None:
    """Sync the log from a version to the newest one, and the checkpoints that were written with it."""
    files.sync(path for path in log_paths(first, table.version()) if files.is_file(path))
