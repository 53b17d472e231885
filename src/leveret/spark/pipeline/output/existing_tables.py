"""Checks that the rows of a flow fit an existing table, before any message is read.

Adding a file to a table does not check the others: a file with other types, or in other directories, would make the table
unreadable for Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.model import TableOutput
from leveret.spark.pipeline.output import delta, iceberg
from leveret.spark.pipeline.output.files import Files, escape_glob
from leveret.spark.pipeline.output.tables import partition_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

# Directory in which Spark's own file sink lists its files. If it exists, Spark reads no other files.
_SPARK_METADATA = "_spark_metadata"
# Types of a column, and those that its next files may have: readers of Iceberg tables convert the values of older files.
_PROMOTED = frozenset({("int", "bigint"), ("float", "double")})


def check_directory(spark: SparkSession, path: str, key: str = "table") -> Files:
    """Check the directory of a table. PipelineError if it is a file, or if Spark would ignore added files."""
    files = Files(spark, path)
    if files.is_file(""):
        raise PipelineError(f"{key} {path}: is a file; expected a directory, which may be missing")
    if files.exists(_SPARK_METADATA):
        raise PipelineError(
            f"{key} {path}: was written by a query of Spark's own ({_SPARK_METADATA}), so Spark would "
            "ignore other files in it; use another directory"
        )
    return files


def check_table(spark: SparkSession, output: TableOutput, rows: StructType) -> None:
    """Raise PipelineError if rows do not fit those of the table, which may have other columns."""
    files = check_directory(spark, output.path)
    partitions = partition_columns(output, rows.names)
    known = None
    if output.format == "iceberg":
        iceberg.check_partitions(output, partitions)
        known = iceberg.schema_of(output)
    if known is not None:
        mismatch = _type_mismatch(known, rows, "", _PROMOTED)
        if mismatch is not None:
            raise PipelineError(
                f"table {output.path}: {mismatch}; use the same types, wider ones (int to bigint, float to double), or "
                "another directory"
            )
        return
    if output.format == "delta" and files.exists(delta.LOG):
        columns, before = delta.schema_of(files)
    else:
        found = _newest(files)
        if found is None:
            return
        columns = spark.read.parquet(escape_glob(files.url(found))).schema
        before = [part.partition("=")[0] for part in found.split("/")[:-1] if "=" in part]
    now = list(partitions)
    if before != now and output.format != "iceberg":
        raise PipelineError(
            f"table {output.path}: it is partitioned by {', '.join(before) or 'nothing'}, but the key "
            f"partition has {', '.join(now) or 'nothing'}; use the same partitions, or another directory. Only Iceberg "
            'tables (format = "iceberg") can change them'
        )
    mismatch = _type_mismatch(columns, rows, "")
    if mismatch is not None:
        raise PipelineError(f"table {output.path}: {mismatch}; use the same types, or another directory")


def _newest(files: Files) -> str | None:
    """Return a data file from the last directory that has some; None if there is none."""

    def within(directory: str) -> str | None:
        for name in reversed(files.listing(directory)):
            path = f"{directory}/{name}" if directory else name
            if name.startswith(("_", ".")):
                continue
            if files.is_file(path):
                if name.endswith(".parquet"):
                    return path
            elif (found := within(path)) is not None:
                return found
        return None

    return within("")


def _type_mismatch(
    before: DataType, now: DataType, name: str, allowed: frozenset[tuple[str, str]] = frozenset()
) -> str | None:
    """Describe a column whose type has changed in a way that is not allowed; None if there is none."""
    from pyspark.sql import types as t

    match before, now:
        case t.StructType(), t.StructType():
            types = {field.name.lower(): field.dataType for field in before.fields}
            for field in now.fields:
                of = types.get(field.name.lower(), field.dataType)
                found = _type_mismatch(of, field.dataType, f"{name}.{field.name}" if name else field.name, allowed)
                if found is not None:
                    return found
            return None
        case t.ArrayType(), t.ArrayType():
            return _type_mismatch(before.elementType, now.elementType, f"{name}[]", allowed)
        case t.MapType(), t.MapType():
            return _type_mismatch(before.keyType, now.keyType, f"{name}.key", allowed) or _type_mismatch(
                before.valueType, now.valueType, f"{name}.value", allowed
            )
    old, new = before.simpleString(), now.simpleString()
    if old == new or (old, new) in allowed:
        return None
    return f"its column {name} has type {old}, but the rows have {new}"
