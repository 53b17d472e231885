"""Decodes the bodies of messages into typed columns.

`decoded(df, ...)` adds a struct with the content of the body, and the column `decode_error`, which is null if the body was
decoded. `decoded_rows` and `rejected_rows` separate the two; the latter keeps every column of the message, with the
original body.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.spark.pipeline.decoding.body_format import ERROR, has_column, quote
from leveret.spark.pipeline.decoding.registry import FORMAT_NAMES, FORMATS, RAW
from leveret.spark.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from leveret.spark.pipeline.model import Decode


def decoded(df: DataFrame, decode: Decode) -> DataFrame:
    """Return the messages with the decoded column and `decode_error`. PipelineError if the schema is invalid."""
    from pyspark.sql import functions as F

    if decode.format == RAW:
        return df.withColumn(ERROR, F.lit(None).cast("string"))
    body_format = FORMATS.get(decode.format)
    if body_format is None:
        raise PipelineError(f"decode.format is {decode.format!r}; expected one of {', '.join(FORMAT_NAMES)}")
    if "body" not in df.columns:
        raise PipelineError("decode: the messages have no column body; add it to the source's option columns")
    if has_column(df.columns, decode.column):
        raise PipelineError(f"decode.column is {decode.column!r}, which is a column of the messages; choose another name")
    return body_format.decode(df, decode)


def decoded_rows(df: DataFrame, fail: str | None = None) -> DataFrame:
    """Return the rows that were decoded, without `decode_error`.

    Args:
        df: Result of `decoded`.
        fail: If set, a row that was not decoded fails the query with this text, its position and its error.
    """
    from pyspark.sql import functions as F

    if fail is None:
        return df.where(f"{ERROR} IS NULL").drop(ERROR)
    place = [
        F.concat(F.lit(f"{name} "), F.col(name).cast("string"), F.lit(", "))
        for name in ("queue", "offset")
        if name in df.columns
    ]
    message = F.concat(F.lit(f"{fail}: "), *place, F.col(ERROR))
    return df.where(F.when(F.col(ERROR).isNotNull(), F.raise_error(message).cast("boolean")).otherwise(True)).drop(ERROR)


def rejected_rows(df: DataFrame, decode: Decode, columns: list[str]) -> DataFrame:
    """Return the rows that were not decoded: the named columns, and `decode_error` with the exact reason."""
    from pyspark.sql import functions as F

    bad = df.where(f"{ERROR} IS NOT NULL")
    body_format = FORMATS.get(decode.format)
    if body_format is not None and body_format.reason is not None:
        # The exact reason is determined in Python, for these few rows only.
        bad = bad.withColumn(ERROR, body_format.reason()(F.col("body"), F.col(ERROR)))
    return bad.select(*(F.col(quote(name)) for name in columns), ERROR)
