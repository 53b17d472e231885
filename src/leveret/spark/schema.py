"""The schema of the DataFrames: the table schema of segments in Spark's types."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from leveret.segments.schema import COLUMNS, TABLE_SCHEMA
from leveret.spark.errors import OptionError

# Columns that are null, by the value of option headersFormat.
OMITTED_COLUMNS: Final[dict[str, tuple[str, ...]]] = {"map": ("headers_json",), "json": ("headers",), "both": ()}


def table_schema(columns: Sequence[str] | None = None) -> StructType:
    """Return all columns, or the named ones in that order. Raises OptionError for an unknown or repeated name."""
    whole: StructType = from_arrow_schema(TABLE_SCHEMA)
    fields = {field.name: StructField(field.name, field.dataType, True) for field in whole.fields}
    if columns is None:
        return StructType(list(fields.values()))
    for name in columns:
        if name not in fields:
            near = difflib.get_close_matches(name, COLUMNS, 3, 0.5) or COLUMNS
            raise OptionError(f"option columns: column {name!r} does not exist; expected {', '.join(near)}")
        if columns.count(name) > 1:
            raise OptionError(f"option columns: {name!r} is given twice")
    return StructType([fields[name] for name in columns])


def check_schema(schema: StructType, columns: Sequence[str] | None) -> None:
    """Raise OptionError if the user's schema differs from that of the columns."""
    expected = table_schema(columns)
    for got, wanted in zip(schema.fields, expected.fields, strict=False):
        if got.name != wanted.name or not _same(got.dataType, wanted.dataType):
            raise OptionError(
                f"the schema of the read has {got.name} {got.dataType.simpleString()}, but the source has "
                f"{wanted.name} {wanted.dataType.simpleString()}; set no schema (option columns selects)"
            )
    if len(schema.fields) != len(expected.fields):
        raise OptionError(
            f"the schema of the read has {len(schema.fields)} columns, but the source has "
            f"{len(expected.fields)}; set no schema (option columns selects)"
        )


def _same(one: DataType, other: DataType) -> bool:
    return one.simpleString() == other.simpleString()


def arrow_schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the exact schema that Spark expects of a batch."""
    return to_arrow_schema(table_schema(columns), timezone="UTC")
