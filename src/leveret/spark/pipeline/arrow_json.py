"""JSON bodies as a typed column by Arrow's reader, which takes a fraction of the time that Spark's `from_json` does.

Spark's is the one that counts: what Arrow reads must be what Spark would have read. So this takes on only schemas of types
that both read alike (`arrow_type`), reads times as text and checks how they are written, and leaves a body that Arrow does
not read, for whatever reason, undecided: Spark looks at it then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

# Octets of bodies that are read at once.
_MOST_AT_ONCE: Final = 32 << 20
# Spark refuses names, numbers and nesting beyond limits, which a body with fewer octets than _SHORT cannot reach. What may
# be beyond them is left to it.
_LONGEST: Final = 50_000
_SHORT: Final = 1_000
_LONG_NUMBER: Final = r"[-+.0-9eE]{1000}"
_DEEPEST: Final = 1_000
# Where one of so many bodies cannot be read, all of them are undecided: looking for it would take longer.
_FEW: Final = 16
_PARTS: Final = 8
_SPACE: Final = " \t\r\n"
_PLAIN: Final = pa.array(["", "utf-8", "utf8", "identity"])
_MOMENT: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}"
_OFFSET: Final = r"(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])"
# As Arrow reads it; and what is the same with digits less, and in a session of UTC with an offset more.
_TIMESTAMP: Final = rf"{_MOMENT}(\.[0-9]{{1,6}})?{_OFFSET}$"
_OTHER_TIMESTAMP: Final = rf"{_MOMENT}(\.[0-9]{{1,9}})?{_OFFSET}$"
_IN_UTC: Final = rf"{_MOMENT}(\.[0-9]{{1,9}})?{_OFFSET}?$"
_DATE: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"


def arrow_type(kind: DataType) -> pa.DataType | None:
    """The type that a column of a schema becomes; None where Spark and Arrow may read it differently."""
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
            element = _within(kind.elementType)
            return None if element is None or not kind.containsNull else pa.list_(pa.field("element", element))
        case t.StructType():
            fields = [(field.name, _within(field.dataType)) for field in kind.fields]
            names = {field.name.lower() for field in kind.fields}
            if not fields or len(names) < len(fields) or any(of is None for _, of in fields) or \
                    not all(field.nullable for field in kind.fields):
                return None
            return pa.struct([pa.field(name, of) for name, of in fields])
    return None


def _within(kind: DataType) -> pa.DataType | None:
    """Within arrays and structs there are no times: they are checked in columns of their own."""
    found = arrow_type(kind)
    return None if found is not None and (pa.types.is_timestamp(found) or pa.types.is_date(found)) else found


def json_decoder(schema: StructType, timezone: str = "") -> JsonDecoder | None:
    """What reads bodies of a schema in a session of a time zone; None where it has a column that Spark has to read."""
    fields: list[pa.Field] = []
    for field in schema.fields:
        kind = arrow_type(field.dataType)
        if kind is None or field.name.lower() in {other.name.lower() for other in fields}:
            return None
        fields.append(pa.field(field.name, kind, field.nullable))
    return JsonDecoder(fields, timezone == "UTC") if fields else None


class JsonDecoder:
    """Reads bodies.

    fields  of the struct; a body without one that is not nullable is undecided
    is_utc  times without an offset are of UTC, and undecided otherwise
    """

    def __init__(self, fields: list[pa.Field], is_utc: bool) -> None:
        self._fields = fields
        self._is_utc = is_utc
        self._type = pa.struct([field.with_nullable(True) for field in fields])
        text = pa.string()
        self._read = pa.schema([(field.name, text if _is_time(field.type) else field.type) for field in fields])

    def decode(self, batch: pa.RecordBatch) -> tuple[pa.StructArray, pa.BooleanArray | None]:
        """What is in the bodies of messages, and which of them are decided; None for all of them."""
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
        """A struct for each body, null for those that were not read. Times are text."""
        found = self._whole(bodies)
        if found is not None:
            return found
        if len(bodies) <= _FEW:
            return pa.nulls(len(bodies), pa.struct(list(self._read)))
        step = max(-(-len(bodies) // _PARTS), _FEW)
        return pa.concat_arrays([self._values(bodies.slice(at, step)) for at in range(0, len(bodies), step)])

    def _whole(self, bodies: pa.Array) -> pa.StructArray | None:
        """All of the bodies; None where one of them cannot be read."""
        if not len(bodies) or bodies.null_count or bodies.nbytes > _MOST_AT_ONCE:
            return None
        try:
            text = bodies.cast(pa.string())
        except pa.ArrowInvalid:
            return None
        if not _are_objects(text):
            text = pc.ascii_trim(text, _SPACE)
            if not _are_objects(text):
                return None
        if _is_beyond_limits(text):
            return None
        lines = pc.binary_join(pa.ListArray.from_arrays([0, len(text)], text), "\n")[0].as_buffer()
        try:
            table = pj.read_json(
                pa.BufferReader(lines), read_options=pj.ReadOptions(use_threads=False, block_size=lines.size + 1),
                parse_options=pj.ParseOptions(explicit_schema=self._read, newlines_in_values=True,
                                              unexpected_field_behavior="ignore"))
        except pa.ArrowInvalid:
            return None
        # Each text begins and ends as an object does, so that none is without one, nor goes on in the next: where there
        # are as many, there is one in each.
        if table.num_rows != len(text):
            return None
        columns = [table.column(field.name).combine_chunks() for field in self._read]
        if any(map(_has_minus_zero, columns)):
            return None
        return pa.StructArray.from_arrays(columns, fields=list(self._read))

    def _typed(self, values: pa.StructArray, field: pa.Field) -> pa.Array:
        """A column; null where a time is not written as expected."""
        array = values.field(field.name)
        if not _is_time(field.type) or array.null_count == len(array):
            return array if array.type == field.type else pa.nulls(len(array), field.type)
        try:
            return self._times(array, field.type)
        except pa.ArrowInvalid:  # 30 February
            return pa.nulls(len(array), field.type)

    def _times(self, text: pa.Array, kind: pa.DataType) -> pa.Array:
        """Null where it is not written as expected. ArrowInvalid where it is, and there is no such time."""
        if pa.types.is_date(kind):
            return _where(text, _DATE).cast(kind)
        if pc.all(pc.match_substring_regex(text, _TIMESTAMP)).as_py():
            return text.cast(kind)
        text = _where(text, _IN_UTC if self._is_utc else _OTHER_TIMESTAMP)
        text = pc.replace_substring_regex(text, r"(\.[0-9]{6})[0-9]+", r"\1")
        bare = pc.invert(pc.match_substring_regex(text, f"{_OFFSET}$"))
        return pc.if_else(bare, pc.binary_join_element_wise(text, "Z", ""), text).cast(kind)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _are_objects(text: pa.Array) -> bool:
    return bool(pc.all(pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}")), min_count=0).as_py())


def _where(text: pa.Array, form: str) -> pa.Array:
    return pc.if_else(pc.match_substring_regex(text, form), text, pa.scalar(None, pa.string()))


def _is_beyond_limits(text: pa.Array) -> bool:
    longest = pc.max(pc.binary_length(text)).as_py()
    if longest < _SHORT:
        return False
    nesting = pc.add(pc.count_substring(text, "["), pc.count_substring(text, "{"))
    return bool(longest > _LONGEST or pc.max(nesting).as_py() >= _DEEPEST
                or pc.any(pc.match_substring_regex(text, _LONG_NUMBER)).as_py())


def _has_minus_zero(array: pa.Array) -> bool:
    """For Spark -0 is 0 where it is written without a point, which is not to be seen any more."""
    if pa.types.is_struct(array.type) or pa.types.is_list(array.type):
        parts = array.flatten()
        return any(map(_has_minus_zero, [parts] if isinstance(parts, pa.Array) else parts))
    return bool(pa.types.is_float64(array.type) and pc.any(pc.equal(array.view(pa.int64()), -1 << 63)).as_py())


def _both(one: Any, other: Any) -> Any:
    return other if one is None else pc.and_(one, other)
