"""Bodies of messages as typed columns.

`decoded(df, ...)` adds a struct with what the body holds, and the column `decode_error`: null, or why there is nothing.
`good_rows` and `bad_rows` part the two; the latter keep every column of the message, the body as it came among them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from leveret.spark.pipeline.arrows import arrow_function
from leveret.spark.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from leveret.spark.pipeline.model import Decode

ERROR = "decode_error"
_CORRUPT = "__corrupt"


def decoded(df: DataFrame, decode: Decode) -> DataFrame:
    """The messages with the decoded column and `decode_error`. `PipelineError` where the schema is none."""
    from pyspark.sql import functions as F

    if decode.format == "raw":
        return df.withColumn(ERROR, F.lit(None).cast("string"))
    if "body" not in df.columns:
        raise PipelineError("decode: the messages have no column body; expected it among the source's option columns")
    if has_column(df.columns, decode.column):
        raise PipelineError(f"decode.column is {decode.column!r}, which the messages have already; choose another name")
    if decode.format == "json":
        return _json(df, decode)
    if decode.format == "avro":
        from leveret.spark.pipeline.avro import avro_decoder

        udf = avro_decoder(_read(decode), decode.framing)
    else:
        from leveret.spark.pipeline.protobuf import protobuf_decoder

        udf = protobuf_decoder(_read_octets(decode), decode.message or "")
    both = df.withColumn("__both", udf(F.col("body")))
    columns = [F.col(_quoted(name)) for name in df.columns]
    return both.select(*columns, F.col("__both.value").alias(decode.column), F.col("__both.error").alias(ERROR))


def good_rows(df: DataFrame, fail: str | None = None) -> DataFrame:
    """What was decoded, without `decode_error`.

    fail  where given, a row that was not decoded ends the query, with this text, its place and what is wrong
    """
    from pyspark.sql import functions as F

    if fail is None:
        return df.where(f"{ERROR} IS NULL").drop(ERROR)
    place = [F.concat(F.lit(f"{name} "), F.col(name).cast("string"), F.lit(", "))
             for name in ("queue", "offset") if name in df.columns]
    told = F.concat(F.lit(f"{fail}: "), *place, F.col(ERROR))
    return df.where(F.when(F.col(ERROR).isNotNull(), F.raise_error(told).cast("boolean")).otherwise(True)).drop(ERROR)


def bad_rows(df: DataFrame, decode: Decode, columns: list[str]) -> DataFrame:
    """What was not decoded: the message's columns, which are named, and `decode_error` with what is wrong with the body."""
    from pyspark.sql import functions as F

    bad = df.where(f"{ERROR} IS NOT NULL")
    if decode.format == "json":
        # Only here, where the rows are few: what exactly is wrong is found in Python.
        bad = bad.withColumn(ERROR, _json_reason()(F.col("body"), F.col(ERROR)))
    return bad.select(*(F.col(_quoted(name)) for name in columns), ERROR)


def json_schema(decode: Decode) -> StructType:
    """The schema of JSON bodies. `PipelineError` where the text is none."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    text = (decode.schema if decode.schema is not None else _read(decode)).strip()
    if text.startswith("{"):
        try:
            import json

            return StructType.fromJson(json.loads(text))
        except (ValueError, KeyError, TypeError, PySparkException) as error:
            raise PipelineError(f"decode.schema is JSON, and no schema of Spark's: {error}; expected what "
                                "DataFrame.schema.json() gives") from None
    try:
        parsed = StructType.fromDDL(text)
    except PySparkException as error:
        told = str(error).strip().splitlines()[0]
        raise PipelineError(f"decode.schema is no list of columns: {told}; expected one such as "
                            "\"id BIGINT NOT NULL, name STRING\"") from None
    if not isinstance(parsed, StructType):
        raise PipelineError(f"decode.schema is of the type {parsed.simpleString()}; expected columns, such as "
                            "\"id BIGINT NOT NULL, name STRING\"")
    return parsed


def has_column(columns: list[str], name: str) -> bool:
    """For Spark names that differ in case only are the same."""
    return name.lower() in map(str.lower, columns)


def _json(df: DataFrame, decode: Decode) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructType

    schema = json_schema(decode)
    read = StructType([*schema.fields]).add(_CORRUPT, StringType())
    text = F.col("body").cast("string")
    parsed = F.from_json(text, read, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})
    value = F.struct(*(parsed.getField(field.name).alias(field.name) for field in schema.fields))
    # In one projection, in which Spark parses a body once: another one would make all columns anew.
    return df.select(*(F.col(_quoted(name)) for name in df.columns), value.alias(decode.column),
                     _json_error(df, text, parsed, schema).alias(ERROR))


def _json_error(df: DataFrame, text: Column, parsed: Column, schema: StructType) -> Column:
    from pyspark.sql import functions as F

    error = F.lit(None).cast("string")
    for field in reversed([field for field in schema.fields if not field.nullable]):
        error = F.when(parsed.getField(field.name).isNull(), f"the field {field.name} is missing").otherwise(error)
    error = (F.when(parsed.isNull(), "the body is empty")
             .when(parsed.getField(_CORRUPT).isNotNull(), "no JSON object of the schema")
             .when(~F.is_valid_utf8(text), "not UTF-8").otherwise(error))
    return F.coalesce(encoding_error(), error) if "content_encoding" in df.columns else error


def encoding_error() -> Column:
    """Null, or what is wrong with a body that is compressed."""
    from pyspark.sql import functions as F

    encoding = F.lower(F.coalesce(F.col("content_encoding"), F.lit("")))
    plain = encoding.isin("", "utf-8", "utf8", "identity")
    return F.when(~plain, F.concat(F.lit("content-encoding "), encoding, F.lit(" is not decoded")))


def _json_reason() -> Any:

    def reason(bodies: Any, errors: Any) -> Any:
        import json

        import pyarrow as pa

        found = []
        for body, error in zip(bodies.to_pylist(), errors.to_pylist(), strict=True):
            if error == "no JSON object of the schema":
                try:
                    value = json.loads(body)
                    if not isinstance(value, dict):
                        error = f"JSON, and no object but {type(value).__name__}"
                    else:
                        error = "JSON whose fields are not of the schema's types"
                except UnicodeDecodeError as wrong:
                    error = f"not UTF-8: octet {wrong.start}"
                except ValueError as wrong:
                    error = f"no JSON: {wrong}"
            found.append(error)
        return pa.array(found, pa.string())

    return arrow_function(reason, "string", 2)


def _read(decode: Decode) -> str:
    if decode.schema is not None:
        return decode.schema
    return _read_octets(decode).decode("utf-8", "replace")


def _read_octets(decode: Decode) -> bytes:
    assert decode.schema_file is not None
    try:
        return Path(decode.schema_file).read_bytes()
    except OSError as error:
        raise PipelineError(f"decode.schema_file {decode.schema_file} cannot be read: {error.strerror}") from None


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
