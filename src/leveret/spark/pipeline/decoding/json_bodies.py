"""Decodes JSON bodies with Spark's `from_json`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from leveret.spark.pipeline.decoding.arrow_functions import ArrowFunction, arrow_function
from leveret.spark.pipeline.decoding.body_format import ERROR, BodyFormat, encoding_error, quote, read_schema
from leveret.spark.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from leveret.spark.pipeline.model import Decode

_CORRUPT = "__corrupt"


def json_schema(decode: Decode) -> StructType:
    """Return the schema of JSON bodies. Raises PipelineError if it is invalid."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    text = read_schema(decode).strip()
    if text.startswith("{"):
        try:
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


def _decoded(df: DataFrame, decode: Decode) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructType

    schema = json_schema(decode)
    read = StructType([*schema.fields]).add(_CORRUPT, StringType())
    text = F.col("body").cast("string")
    parsed = F.from_json(text, read, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})
    value = F.struct(*(parsed.getField(field.name).alias(field.name) for field in schema.fields))
    # In a single projection, so that Spark parses each body once; a second one would repeat that for every column.
    return df.select(
        *(F.col(quote(name)) for name in df.columns),
        value.alias(decode.column),
        _error(df, text, parsed, schema).alias(ERROR),
    )


def _error(df: DataFrame, text: Column, parsed: Column, schema: StructType) -> Column:
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


def _reason() -> ArrowFunction:
    def reason(bodies: pa.Array, errors: pa.Array) -> pa.Array:
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


FORMAT = BodyFormat("json", _decoded, reason=_reason)
