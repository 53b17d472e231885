"""The schema of the DataFrames: the table schema of segments, in Spark's types."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from leveret.segments.schema import COLUMNS, TABLE_SCHEMA
from leveret.spark.errors import OptionError


def table_schema(columns: Sequence[str] | None = None) -> StructType:
    """All columns, or those that are named, in their order. `OptionError` for a name that there is not, or twice."""
    whole: StructType = from_arrow_schema(TABLE_SCHEMA)
    fields = {field.name: StructField(field.name, field.dataType, True) for field in whole.fields}
    if columns is None:
        return StructType(list(fields.values()))
    for name in columns:
        if name not in fields:
            near = difflib.get_close_matches(name, COLUMNS, 3, 0.5) or COLUMNS
            raise OptionError(f"option columns: there is no column {name!r}; expected {', '.join(near)}")
        if columns.count(name) > 1:
            raise OptionError(f"option columns: {name!r} is given twice")
    return StructType([fields[name] for name in columns])


def check_schema(schema: StructType, columns: Sequence[str] | None) -> None:
    """`OptionError` for a schema of the user's own that is not that of the columns."""
    expected = table_schema(columns)
    for got, wanted in zip(schema.fields, expected.fields, strict=False):
        if got.name != wanted.name or not _same(got.dataType, wanted.dataType):
            raise OptionError(f"the schema that was given has {got.name} {got.dataType.simpleString()} where the source "
                              f"has {wanted.name} {wanted.dataType.simpleString()}; expected none (option columns chooses)")
    if len(schema.fields) != len(expected.fields):
        raise OptionError(f"the schema that was given has {len(schema.fields)} columns where the source has "
                          f"{len(expected.fields)}; expected none (option columns chooses)")


def _same(one: Any, other: Any) -> bool:
    return bool(one.simpleString() == other.simpleString())


def arrow_schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """What a batch must look like for Spark, exactly."""
    return to_arrow_schema(table_schema(columns), timezone="UTC")
