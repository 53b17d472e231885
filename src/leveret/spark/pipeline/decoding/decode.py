"""Decodes the bodies of messages into typed columns.

`decoded(df, ...)` adds a struct with the content of the body, and the column `decode_error`, which is null if the body was
decoded. `decoded_rows` and `rejected_rows` separate the two; the latter keeps every column of the message, with the
original body.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from leveret.spark.pipeline.decoding.arrow_functions import ArrowFunction, arrow_function
from leveret.spark.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from leveret.spark.pipeline.model import Decode

ERROR = "decode_error"
_CORRUPT = "__corrupt"


def decoded(df: DataFrame, decode: Decode) -> DataFrame:
    """Return the messages with the decoded column and `decode_error`. PipelineError if the schema is invalid."""
    from pyspark.sql import functions as F

    if decode.format == "raw":
        return df.withColumn(ERROR, F.lit(None).cast("string"))
    if "body" not in df.columns:
        raise PipelineError("decode: the messages have no column body; add it to the source's option columns")
    if has_column(df.columns, decode.column):
        raise PipelineError(f"decode.column is {decode.column!r}, which is a column of the messages; choose another name")
    if decode.format == "json":
        return _json(df, decode)
    if decode.format == "avro":
        from leveret.spark.pipeline.decoding.avro import avro_decoder

        udf = avro_decoder(_read(decode), decode.framing)
    else:
        from leveret.spark.pipeline.decoding.protobuf import protobuf_decoder

        udf = protobuf_decoder(_read_schema_file(decode), decode.message or "")
    both = df.withColumn("__both", udf(F.col("body")))
    columns = [F.col(_quote(name)) for name in df.columns]
    return both.select(*columns, F.col("__both.value").alias(decode.column), F.col("__both.error").alias(ERROR))


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
    if decode.format == "json":
        # The exact reason is determined in Python, for these few rows only.
        bad = bad.withColumn(ERROR, _json_reason()(F.col("body"), F.col(ERROR)))
    return bad.select(*(F.col(_quote(name)) for name in columns), ERROR)


def json_schema(decode: Decode) -> StructType:
    """Return the schema of JSON bodies. Raises PipelineError if it is invalid."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    text = (decode.schema if decode.schema is not None else _read(decode)).strip()
    if text.startswith("{"):
        try:
            import json

            return StructType.fromJson(json.loads(text))
        except (ValueError, KeyError, TypeError, PySparkException) as error:
            raise PipelineError(
                f"decode.schema is JSON, but not a Spark schema: {error}; expected the output of DataFrame.schema.json()"
            ) from None
    try:
        parsed = StructType.fromDDL(text)
    except PySparkException as error:
        message = str(error).strip().splitlines()[0]
        raise PipelineError(
            f'decode.schema is not a list of columns: {message}; expected something like "id BIGINT NOT NULL, name STRING"'
        ) from None
    if not isinstance(parsed, StructType):
        raise PipelineError(
            f'decode.schema is a {parsed.simpleString()}; expected columns, such as "id BIGINT NOT NULL, name STRING"'
        )
    return parsed


def has_column(columns: list[str], name: str) -> bool:
    """Return whether there is a column of this name; like Spark, ignoring case."""
    return name.lower() in map(str.lower, columns)


def _json(df: DataFrame, decode: Decode) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructType

    schema = json_schema(decode)
    read = StructType([*schema.fields]).add(_CORRUPT, StringType())
    text = F.col("body").cast("string")
    parsed = F.from_json(text, read, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})
    value = F.struct(*(parsed.getField(field.name).alias(field.name) for field in schema.fields))
    # In a single projection, so that Spark parses each body once; a second one would repeat that for every column.
    return df.select(
        *(F.col(_quote(name)) for name in df.columns),
        value.alias(decode.column),
        _json_error(df, text, parsed, schema).alias(ERROR),
    )


def _json_error(df: DataFrame, text: Column, parsed: Column, schema: StructType) -> Column:
    from pyspark.sql import functions as F

    error = F.lit(None).cast("string")
    for field in reversed([field for field in schema.fields if not field.nullable]):
        error = F.when(parsed.getField(field.name).isNull(), f"the field {field.name} is missing").otherwise(error)
    error = (
        F.when(parsed.isNull(), "the body is empty")
        .when(parsed.getField(_CORRUPT).isNotNull(), "not a JSON object of the schema")
        .when(~F.is_valid_utf8(text), "not UTF-8")
        .otherwise(error)
    )
    return F.coalesce(encoding_error(), error) if "content_encoding" in df.columns else error


def encoding_error() -> Column:
    """Return null, or the error for a compressed body."""
    from pyspark.sql import functions as F

    encoding = F.lower(F.coalesce(F.col("content_encoding"), F.lit("")))
    plain = encoding.isin("", "utf-8", "utf8", "identity")
    return F.when(~plain, F.concat(F.lit("content-encoding "), encoding, F.lit(" is not supported")))


def _json_reason() -> ArrowFunction:

    def reason(bodies: pa.Array, errors: pa.Array) -> pa.Array:
        import json

        import pyarrow as pa

        found = []
        for body, error in zip(bodies.to_pylist(), errors.to_pylist(), strict=True):
            if error == "not a JSON object of the schema":
                try:
                    value = json.loads(body)
                    if not isinstance(value, dict):
                        error = f"JSON of type {type(value).__name__}; expected an object"
                    else:
                        error = "JSON, but its fields do not have the types of the schema"
                except UnicodeDecodeError as wrong:
                    error = f"not UTF-8: byte {wrong.start}"
                except ValueError as wrong:
                    error = f"not JSON: {wrong}"
            found.append(error)
        return pa.array(found, pa.string())

    return arrow_function(reason, "string", 2)


def _read(decode: Decode) -> str:
    if decode.schema is not None:
        return decode.schema
    return _read_schema_file(decode).decode("utf-8", "replace")


def _read_schema_file(decode: Decode) -> bytes:
    assert decode.schema_file is not None
    try:
        return Path(decode.schema_file).read_bytes()
    except OSError as error:
        raise PipelineError(f"decode.schema_file {decode.schema_file} cannot be read: {error.strerror}") from None


def _quote(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
