"""Transformations by the user: a Python function of a DataFrame, or SQL over the table `messages`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.model import StaticTable, Transform
from leveret.spark.pipeline.output import delta

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Function = Callable[["DataFrame"], "DataFrame"]

VIEW = "messages"


def load_transform(transform: Transform) -> Function:
    """Return the function of a transformation. PipelineError if it cannot be loaded."""
    if transform.sql is not None:
        return _sql(transform.sql, transform.tables)
    assert transform.function is not None
    module_name, _, name = transform.function.partition(":")
    for path in reversed(transform.path):
        if path not in sys.path:
            sys.path.insert(0, path)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise PipelineError(
            f"transform.function {transform.function!r}: {module_name} cannot be imported: "
            f"{error.__class__.__name__}: {error}; looked for in {', '.join(transform.path)}"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise PipelineError(f"transform.function {transform.function!r}: {module.__file__} has no function {name}")

    def checked(df: DataFrame) -> DataFrame:
        result = function(df)
        if not hasattr(result, "sparkSession"):
            raise PipelineError(
                f"transform.function {transform.function!r} returned {type(result).__name__}; expected a DataFrame"
            )
        return result  # type: ignore[no-any-return]

    return checked


def read_table(spark: SparkSession, table: StaticTable, setting: str) -> DataFrame:
    """Read a static table, a Delta table also without a connector for it. Raises PipelineError if that fails."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return spark.read.format(table.format).options(**table.options).load(table.path)
    except Py4JJavaError as error:
        if table.format != "delta" or "DATA_SOURCE_NOT_FOUND" not in str(error.java_exception):
            raise
        return delta.read_table(spark, table.path)
    except PySparkException as error:
        raise PipelineError(
            f"{setting}: {table.path} cannot be read as {table.format}: {str(error).strip().splitlines()[0]}"
        ) from None


def _sql(text: str, tables: dict[str, StaticTable]) -> Function:
    def query(df: DataFrame) -> DataFrame:
        from pyspark.errors import PySparkException

        spark = df.sparkSession
        for name, table in tables.items():
            read_table(spark, table, f"transform.tables.{name}").createOrReplaceTempView(name)
        df.createOrReplaceTempView(VIEW)
        try:
            return spark.sql(text)
        except PySparkException as error:
            raise PipelineError(f"transform.sql: {str(error).strip().splitlines()[0]}") from None

    return query
