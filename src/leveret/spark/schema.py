"""The schema of the DataFrames: the table schema of segments in Spark's types, or a preset of other columns."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from leveret.segments.schema import COLUMNS, TABLE_SCHEMA
from leveret.spark.errors import OptionError

# Columns that are null, by the value of option headersFormat.
OMITTED_COLUMNS: Final[dict[str, tuple[str, ...]]] = {"map": ("headers_json",), "json": ("headers",), "both": ()}


class Column(NamedTuple):
    """A column of the DataFrames.

    Attributes:
        name: Its name.
        source: The column of the table schema that it comes from.
        type: Its type, to which the source is cast.
        expression: The same in Spark SQL.
    """

    name: str
    source: str
    type: pa.DataType
    expression: str


def _plain(name: str) -> Column:
    return Column(name, name, TABLE_SCHEMA.field(name).type, f"`{name}`")


# A column beside those of the table schema, of which it needs `body` and `amqp10`; Spark cannot compute it from files.
BODY_JSON: Final = "body_json"
_BODY_TYPE: Final = "amqp10"
_ADDITIONAL: Final = {BODY_JSON: Column(BODY_JSON, "body", pa.string(), "")}
_HEADERS: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
# Columns by the name of a preset, which is the whole value of option columns.
PRESETS: Final[dict[str, tuple[Column, ...]]] = {
    "kafka": (
        Column("key", "routing_key", pa.binary(), "CAST(routing_key AS BINARY)"),
        Column("value", "body", pa.binary(), "body"),
        Column("topic", "queue", pa.string(), "queue"),
        _plain("partition"),
        _plain("offset"),
        Column("timestamp", "append_time", TABLE_SCHEMA.field("append_time").type, "append_time"),
        Column(
            "headers",
            "headers",
            _HEADERS,
            "transform(map_entries(headers), entry -> struct(entry.key AS key, CAST(entry.value AS BINARY) AS value))",
        ),
    ),
    "minimal": tuple(map(_plain, ("offset", "append_time", "routing_key", "body"))),
}


def columns_of(names: Sequence[str] | None) -> tuple[Column, ...]:
    """Return all columns of the table schema, those of a preset, or the named ones in that order.

    Raises:
        OptionError: A name is unknown, given twice, or a preset beside other names.
    """
    if names is None:
        return tuple(map(_plain, COLUMNS))
    if len(names) == 1 and names[0] in PRESETS:
        return PRESETS[names[0]]
    for name in names:
        if name in PRESETS:
            raise OptionError(f"option columns: {name!r} is a preset; expected it alone, or only names of columns")
        if name not in COLUMNS and name not in _ADDITIONAL:
            known = (*COLUMNS, *_ADDITIONAL)
            near = difflib.get_close_matches(name, known, 3, 0.5) or (*known, *PRESETS)
            raise OptionError(f"option columns: column {name!r} does not exist; expected {', '.join(near)}")
        if names.count(name) > 1:
            raise OptionError(f"option columns: {name!r} is given twice")
    return tuple(_ADDITIONAL[name] if name in _ADDITIONAL else _plain(name) for name in names)


def names_super_stream(names: Sequence[str] | None) -> bool:
    """Return whether rows of a super stream have its name, like those of a topic, instead of the partition's stream."""
    return names is not None and "topic" in (column.name for column in columns_of(names))


def table_schema(names: Sequence[str] | None = None) -> StructType:
    """Return the schema of the DataFrames, all of whose columns are nullable. Raises OptionError as `columns_of`."""
    found: StructType = from_arrow_schema(pa.schema([(column.name, column.type) for column in columns_of(names)]))
    return StructType([StructField(field.name, field.dataType, True) for field in found.fields])


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


class Projection:
    """Converts columns of the table schema to those of the DataFrames.

    Attributes:
        schema: The exact schema that Spark expects of a batch.
        names: The columns of the table schema that are needed, in the order of that schema.
    """

    def __init__(self, columns: Sequence[str] | None, headers_format: str) -> None:
        self.schema = arrow_schema(columns)
        self._columns = columns_of(columns)
        wanted = {column.source for column in self._columns} - set(OMITTED_COLUMNS[headers_format])
        if BODY_JSON in self.schema.names:
            wanted.add(_BODY_TYPE)
        self.names = [name for name in COLUMNS if name in wanted]

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch that has at least the columns `names`."""
        return pa.RecordBatch.from_arrays(self._arrays(batch), schema=self.schema)

    def table(self, table: pa.Table) -> pa.Table:
        """Convert a table that has at least the columns `names`."""
        return pa.Table.from_arrays(self._arrays(table), schema=self.schema)

    def _arrays(self, rows: pa.RecordBatch | pa.Table) -> list[pa.Array | pa.ChunkedArray]:
        arrays = []
        for column, field in zip(self._columns, self.schema, strict=True):
            source = column.source
            if column.name == BODY_JSON:
                from leveret.segments.body_json import body_jsons

                arrays.append(body_jsons(rows.column(source), rows.column(_BODY_TYPE)))
                continue
            if source not in self.names:
                arrays.append(pa.nulls(rows.num_rows, field.type))
                continue
            array = rows.column(source)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return arrays
