"""What is where a table is to be: whether the rows of a flow fit it, which is seen before any is read.

Files are added to a table, and nobody looks at the others: one of another type, or in other directories, would make the
table unreadable for Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.files import Files, as_it_is
from leveret.spark.pipeline.model import TableOutput
from leveret.spark.pipeline.tables import partition_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

# Spark's own file sink lists its files there, and Spark reads no others where it is.
_SPARKS = "_spark_metadata"


def check_place(spark: SparkSession, path: str, key: str = "table") -> Files:
    """The directory of a table. `PipelineError` where it is none, or where Spark would not see what is added."""
    files = Files(spark, path)
    if files.is_file(""):
        raise PipelineError(f"{key} {path}: it is a file; expected a directory, or none yet")
    if files.exists(_SPARKS):
        raise PipelineError(f"{key} {path}: a query of Spark's own has written it ({_SPARKS}), and Spark sees no other "
                            "files there; expected another directory")
    return files


def check_table(spark: SparkSession, output: TableOutput, rows: StructType) -> None:
    """`PipelineError` where rows do not fit those that the table has; it may have other columns besides."""
    files = check_place(spark, output.path)
    found = _newest(files)
    if found is None:
        return
    before = [part.partition("=")[0] for part in found.split("/")[:-1] if "=" in part]
    now = list(partition_columns(output, rows.names))
    if before != now and output.format == "parquet":
        raise PipelineError(f"table {output.path}: it is partitioned by {', '.join(before) or 'nothing'}, and the key "
                            f"partition says {', '.join(now) or 'nothing'}; expected the same, or another directory")
    misfit = _misfit(spark.read.parquet(as_it_is(files.url(found))).schema, rows, "")
    if misfit is not None:
        raise PipelineError(f"table {output.path}: {misfit}; expected the same types, or another directory")


def _newest(files: Files) -> str | None:
    """A file of rows, of the last directory that has some; None where there is none."""
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


def _misfit(before: DataType, now: DataType, name: str) -> str | None:
    """Which column has another type now, and which; columns that are in one of them only do not count."""
    from pyspark.sql import types as t

    match before, now:
        case t.StructType(), t.StructType():
            types = {field.name.lower(): field.dataType for field in before.fields}
            for field in now.fields:
                of = types.get(field.name.lower(), field.dataType)
                found = _misfit(of, field.dataType, f"{name}.{field.name}" if name else field.name)
                if found is not None:
                    return found
            return None
        case t.ArrayType(), t.ArrayType():
            return _misfit(before.elementType, now.elementType, f"{name}[]")
        case t.MapType(), t.MapType():
            return (_misfit(before.keyType, now.keyType, f"{name}.key")
                    or _misfit(before.valueType, now.valueType, f"{name}.value"))
    if before.simpleString() == now.simpleString():
        return None
    return f"its column {name} is of the type {before.simpleString()}, and the rows have {now.simpleString()}"
