"""Decodes Avro bodies into Arrow columns, a batch at a time, with fastavro."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from leveret.segments.typed_json import Document
from leveret.spark.pipeline.decoding.arrow_functions import ArrowFunction, arrow_function
from leveret.spark.pipeline.decoding.body_format import BodyFormat, read_schema, with_decoded
from leveret.spark.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from leveret.spark.pipeline.model import Decode

_PRIMITIVES = {
    "boolean": "bool_",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "string": "string",
    "bytes": "binary",
    "null": "null",
}


def avro_decoder(schema_text: str, framing: str) -> ArrowFunction:
    """Return a UDF of a body column that yields struct<value, error>. PipelineError if the schema is invalid."""
    import pyarrow as pa
    from fastavro import parse_schema
    from fastavro.schema import SchemaParseException
    from pyspark.sql.pandas.types import from_arrow_type

    try:
        schema = json.loads(schema_text)
        parse_schema(schema)
        value = _arrow(schema, {})
    except (ValueError, KeyError, SchemaParseException) as error:
        raise PipelineError(f"decode.schema is not an Avro schema: {error}") from None
    if not pa.types.is_struct(value):
        raise PipelineError("decode.schema is not an Avro record, whose fields become columns; wrap it in a record")
    result = pa.struct([("value", value), ("error", pa.string())])

    def decode(bodies: pa.Array) -> pa.StructArray:
        from leveret.spark.pipeline.decoding.rows import decode_rows

        return decode_rows(bodies, reader(schema_text, framing), result)

    return arrow_function(decode, from_arrow_type(result))


@lru_cache(16)
def reader(schema_text: str, framing: str) -> Callable[[bytes], Document]:
    """Return a decoder for single bodies, which raises ValueError if it fails."""
    import fastavro
    from fastavro.schema import fingerprint, to_parsing_canonical_form

    source = json.loads(schema_text)
    schema = fastavro.parse_schema(source)
    schemaless = fastavro.schemaless_reader
    mark = b"\xc3\x01"
    if framing == "single-object":
        canonical = to_parsing_canonical_form(source)
        mark += bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))

    def datum(body: bytes, start: int = 0) -> Document:
        stream = io.BytesIO(body)
        stream.seek(start)
        value = schemaless(stream, schema, None)
        if stream.tell() != len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes follow the datum")
        return value

    def container(body: bytes) -> Document:
        values = list(fastavro.reader(io.BytesIO(body), reader_schema=schema))
        if len(values) != 1:
            raise ValueError(f"the container has {len(values)} data, expected one")
        return values[0]

    def single_object(body: bytes) -> Document:
        if body[:10] != mark:
            raise ValueError("not a single object of this schema: the marker or the fingerprint differs")
        return datum(body, 10)

    def confluent(body: bytes) -> Document:
        if len(body) < 5 or body[0] != 0:
            raise ValueError("the datum is not preceded by a zero byte and a schema id")
        return datum(body, 5)

    return {"datum": datum, "container": container, "single-object": single_object, "confluent": confluent}[framing]


def _arrow(schema: Document, named: dict[str, Document]) -> pa.DataType:
    """Return the Arrow type of an Avro type."""
    import pyarrow as pa

    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise ValueError("a union of more than one type and null has no column type")
        return _arrow(others[0], named)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return getattr(pa, _PRIMITIVES[schema])()
        return named[schema]
    kind = schema["type"]
    logical = schema.get("logicalType")
    if logical in ("timestamp-millis", "timestamp-micros"):
        return pa.timestamp("us", "UTC")
    if logical == "date":
        return pa.date32()
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical == "uuid" or kind == "enum":
        found: pa.DataType = pa.string()
    elif kind == "record":
        found = pa.struct([pa.field(field["name"], _arrow(field["type"], named)) for field in schema["fields"]])
    elif kind == "array":
        found = pa.list_(_arrow(schema["items"], named))
    elif kind == "map":
        found = pa.map_(pa.string(), _arrow(schema["values"], named))
    elif kind == "fixed":
        found = pa.binary()
    else:
        return _arrow(kind, named)
    if "name" in schema:
        named[schema["name"]] = found
        if "namespace" in schema:
            named[f"{schema['namespace']}.{schema['name']}"] = found
    return found


def _decoded(df: DataFrame, decode: Decode) -> DataFrame:
    return with_decoded(df, decode, avro_decoder(read_schema(decode), decode.framing))


FORMAT = BodyFormat("avro", _decoded, framed=True, module="fastavro", requirement="fastavro>=1.9")
