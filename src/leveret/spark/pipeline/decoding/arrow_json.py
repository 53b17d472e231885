"""Decodes JSON bodies into a typed column with Arrow's reader, in a fraction of the time of Spark's `from_json`.

Results must equal those of Spark. So it supports only types that both read alike (`arrow_type`), and reads times as text to
check their format. A body that Arrow cannot read, for whatever reason, stays undecided, and Spark decodes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

# Maximum size of bodies that are read at once, in bytes.
_MAX_BATCH_BYTES: Final = 32 << 20
# Spark limits the length of names and numbers and the nesting depth. A body shorter than _UNLIMITED_BYTES cannot reach
# these limits; one that might is left to Spark.
_MAX_BODY_BYTES: Final = 50_000
_UNLIMITED_BYTES: Final = 1_000
_LONG_NUMBER: Final = r"[-+.0-9eE]{1000}"
_MAX_DEPTH: Final = 1_000
# If a body cannot be read, batches of this size are undecided as a whole: finding the body would take longer.
_MIN_SPLIT: Final = 16
_PARTS: Final = 8
_SPACE: Final = " \t\r\n"
_PLAIN: Final = pa.array(["", "utf-8", "utf8", "identity"])
_MOMENT: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}"
_OFFSET: Final = r"(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])"
# The format that Arrow reads; and equivalents with fewer digits or, if the session's time zone is UTC, without an offset.
_TIMESTAMP: Final = rf"{_MOMENT}(\.[0-9]{{1,6}})?{_OFFSET}$"
_ANY_TIMESTAMP: Final = rf"{_MOMENT}(\.[0-9]{{1,9}})?{_OFFSET}$"
_UTC_TIMESTAMP: Final = rf"{_MOMENT}(\.[0-9]{{1,9}})?{_OFFSET}?$"
_DATE: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"


def arrow_type(kind: DataType) -> pa.DataType | None:
    """Return the Arrow type of a column; None if Spark and Arrow may read it differently."""
    from pyspark.sql import types as t

    match kind:
        case t.StringType() if kind.simpleString() == "string":
            return pa.string()
        case t.BooleanType():
            return pa.bool_()
        case t.ByteType():
            return pa.int8()
        case t.ShortType():
            return pa.int16()
        case t.IntegerType():
            return pa.int32()
        case t.LongType():
            return pa.int64()
        case t.DoubleType():
            return pa.float64()
        case t.TimestampType():
            return pa.timestamp("us", "UTC")
        case t.DateType():
            return pa.date32()
        case t.ArrayType():
            element = _nested_type(kind.elementType)
            return None if element is None or not kind.containsNull else pa.list_(pa.field("element", element))
        case t.StructType():
            fields = [(field.name, _nested_type(field.dataType)) for field in kind.fields]
            names = {field.name.lower() for field in kind.fields}
            if (
                not fields
                or len(names) < len(fields)
                or any(of is None for _, of in fields)
                or not all(field.nullable for field in kind.fields)
            ):
                return None
            return pa.struct([pa.field(name, of) for name, of in fields])
    return None


def _nested_type(kind: DataType) -> pa.DataType | None:
    """Like `arrow_type`, but without times, which are only checked in top-level columns."""
    found = arrow_type(kind)
    return None if found is not None and (pa.types.is_timestamp(found) or pa.types.is_date(found)) else found


def json_decoder(schema: StructType, timezone: str = "") -> JsonDecoder | None:
    """Return a decoder for a schema and the session's time zone; None if a column is left to Spark."""
    fields: list[pa.Field] = []
    for field in schema.fields:
        kind = arrow_type(field.dataType)
        if kind is None or field.name.lower() in {other.name.lower() for other in fields}:
            return None
        fields.append(pa.field(field.name, kind, field.nullable))
    return JsonDecoder(fields, timezone == "UTC") if fields else None


class JsonDecoder:
    """Decodes bodies.

    Args:
        fields: Fields of the struct; a body without one that is not nullable stays undecided.
        is_utc: Whether times without an offset are in UTC; otherwise they stay undecided.
    """

    def __init__(self, fields: list[pa.Field], is_utc: bool) -> None:
        self._fields = fields
        self._is_utc = is_utc
        self._type = pa.struct([field.with_nullable(True) for field in fields])
        text = pa.string()
        self._read = pa.schema([(field.name, text if _is_time(field.type) else field.type) for field in fields])

    def decode(self, batch: pa.RecordBatch) -> tuple[pa.StructArray, pa.BooleanArray | None]:
        """Return the decoded bodies and a mask of the decided ones, None if all are decided."""
        values = self._values(batch.column("body"))
        arrays = [self._typed(values, field) for field in self._fields]
        whole = pa.StructArray.from_arrays(arrays, fields=list(self._type))
        decided = values.is_valid() if values.null_count else None
        for field, array in zip(self._fields, arrays, strict=True):
            text = values.field(field.name)
            if array.null_count and not field.nullable:
                decided = _both(decided, array.is_valid())
            elif array.null_count > text.null_count:
                decided = _both(decided, pc.or_(array.is_valid(), text.is_null()))
        if "content_encoding" in batch.schema.names:
            encoding = batch.column("content_encoding")
            if encoding.null_count < len(encoding):
                plain = pc.is_in(pc.utf8_lower(encoding.fill_null("")), _PLAIN)
                decided = _both(decided, plain)
        if decided is not None and decided.true_count == len(decided):
            decided = None
        return whole, decided

    def _values(self, bodies: pa.Array) -> pa.StructArray:
        """Return a struct per body, null for bodies that could not be read. Times are text."""
        found = self._decode_all(bodies)
        if found is not None:
            return found
        if len(bodies) <= _MIN_SPLIT:
            return pa.nulls(len(bodies), pa.struct(list(self._read)))
        step = max(-(-len(bodies) // _PARTS), _MIN_SPLIT)
        return pa.concat_arrays([self._values(bodies.slice(at, step)) for at in range(0, len(bodies), step)])

    def _decode_all(self, bodies: pa.Array) -> pa.StructArray | None:
        """Read all bodies at once; None if one of them cannot be read."""
        if not len(bodies) or bodies.null_count or bodies.nbytes > _MAX_BATCH_BYTES:
            return None
        try:
            text = bodies.cast(pa.string())
        except pa.ArrowInvalid:
            return None
        if not _are_objects(text):
            text = pc.ascii_trim(text, _SPACE)
            if not _are_objects(text):
                return None
        if _exceeds_limits(text):
            return None
        lines = pc.binary_join(pa.ListArray.from_arrays([0, len(text)], text), "\n")[0].as_buffer()
        try:
            table = pj.read_json(
                pa.BufferReader(lines),
                read_options=pj.ReadOptions(use_threads=False, block_size=lines.size + 1),
                parse_options=pj.ParseOptions(
                    explicit_schema=self._read, newlines_in_values=True, unexpected_field_behavior="ignore"
                ),
            )
        except pa.ArrowInvalid:
            return None
        # Every text begins and ends like an object, so no text is empty and no object continues in the next text: equal
        # counts mean one object per text.
        if table.num_rows != len(text):
            return None
        columns = [table.column(field.name).combine_chunks() for field in self._read]
        if any(map(_has_minus_zero, columns)):
            return None
        return pa.StructArray.from_arrays(columns, fields=list(self._read))

    def _typed(self, values: pa.StructArray, field: pa.Field) -> pa.Array:
        """Return a typed column; null if a time has another format."""
        array = values.field(field.name)
        if not _is_time(field.type) or array.null_count == len(array):
            return array if array.type == field.type else pa.nulls(len(array), field.type)
        try:
            return self._times(array, field.type)
        except pa.ArrowInvalid:  # such as 30 February
            return pa.nulls(len(array), field.type)

    def _times(self, text: pa.Array, kind: pa.DataType) -> pa.Array:
        """Parse times; null if one has another format. Raises ArrowInvalid if one does not exist."""
        if pa.types.is_date(kind):
            return _matching(text, _DATE).cast(kind)
        if pc.all(pc.match_substring_regex(text, _TIMESTAMP)).as_py():
            return text.cast(kind)
        text = _matching(text, _UTC_TIMESTAMP if self._is_utc else _ANY_TIMESTAMP)
        text = pc.replace_substring_regex(text, r"(\.[0-9]{6})[0-9]+", r"\1")
        bare = pc.invert(pc.match_substring_regex(text, f"{_OFFSET}$"))
        return pc.if_else(bare, pc.binary_join_element_wise(text, "Z", ""), text).cast(kind)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _are_objects(text: pa.Array) -> bool:
    return bool(pc.all(pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}")), min_count=0).as_py())


def _matching(text: pa.Array, form: str) -> pa.Array:
    return pc.if_else(pc.match_substring_regex(text, form), text, pa.scalar(None, pa.string()))


def _exceeds_limits(text: pa.Array) -> bool:
    max_size = pc.max(pc.binary_length(text)).as_py()
    if max_size < _UNLIMITED_BYTES:
        return False
    nesting = pc.add(pc.count_substring(text, "["), pc.count_substring(text, "{"))
    return bool(
        max_size > _MAX_BODY_BYTES
        or pc.max(nesting).as_py() >= _MAX_DEPTH
        or pc.any(pc.match_substring_regex(text, _LONG_NUMBER)).as_py()
    )


def _has_minus_zero(array: pa.Array) -> bool:
    """Return whether there is a -0.0: for Spark a -0 without a decimal point is 0, which looks the same here."""
    if pa.types.is_struct(array.type) or pa.types.is_list(array.type):
        parts = array.flatten()
        return any(map(_has_minus_zero, [parts] if isinstance(parts, pa.Array) else parts))
    return bool(pa.types.is_float64(array.type) and pc.any(pc.equal(array.view(pa.int64()), -1 << 63)).as_py())


def _both(one: pa.Array, other: pa.Array) -> pa.Array:
    return other if one is None else pc.and_(one, other)
