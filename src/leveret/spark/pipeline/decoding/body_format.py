"""Formats of bodies: what a format declares, and the parts that several formats use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leveret.spark.pipeline.decoding.arrow_functions import ArrowFunction
from leveret.spark.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from leveret.spark.pipeline.model import Decode

ERROR = "decode_error"


def _no_problems(decode: Decode) -> Iterator[tuple[str, str]]:
    yield from ()


@dataclass(frozen=True)
class BodyFormat:
    """A format of bodies.

    Attributes:
        name: The value of `decode.format`.
        decode: Returns the messages with the decoded column and `decode_error`.
        check: Yields (key of the section `decode`, problem).
        reason: Returns a function of body and `decode_error` that finds the exact error of a rejected message.
        framed: Whether the format has framings (`decode.framing`).
        module: The module that must be installed, "" for none.
        requirement: The requirement that installs it.
    """

    name: str
    decode: Callable[[DataFrame, Decode], DataFrame]
    check: Callable[[Decode], Iterator[tuple[str, str]]] = _no_problems
    reason: Callable[[], ArrowFunction] | None = None
    framed: bool = False
    module: str = ""
    requirement: str = ""


def with_decoded(df: DataFrame, decode: Decode, udf: ArrowFunction) -> DataFrame:
    """Return the messages with the two results of a UDF: the decoded column, and `decode_error`."""
    from pyspark.sql import functions as F

    both = df.withColumn("__both", udf(F.col("body")))
    columns = [F.col(quote(name)) for name in df.columns]
    return both.select(*columns, F.col("__both.value").alias(decode.column), F.col("__both.error").alias(ERROR))


def encoding_error() -> Column:
    """Return null, or the error for a compressed body."""
    from pyspark.sql import functions as F

    encoding = F.lower(F.coalesce(F.col("content_encoding"), F.lit("")))
    plain = encoding.isin("", "utf-8", "utf8", "identity")
    return F.when(~plain, F.concat(F.lit("content-encoding "), encoding, F.lit(" is not supported")))


def has_column(columns: list[str], name: str) -> bool:
    """Return whether there is a column of this name; like Spark, ignoring case."""
    return name.lower() in map(str.lower, columns)


def read_schema(decode: Decode) -> str:
    """Return the schema as text, from its file if it is not in pipeline.toml. PipelineError if the file is unreadable."""
    if decode.schema is not None:
        return decode.schema
    return read_schema_file(decode).decode("utf-8", "replace")


def read_schema_file(decode: Decode) -> bytes:
    """Return the file with the schema. PipelineError if it is unreadable."""
    assert decode.schema_file is not None
    try:
        return Path(decode.schema_file).read_bytes()
    except OSError as error:
        raise PipelineError(f"decode.schema_file {decode.schema_file} cannot be read: {error.strerror}") from None


def quote(name: str) -> str:
    """Return a column's name in SQL."""
    return f"`{name.replace('`', '``')}`"
