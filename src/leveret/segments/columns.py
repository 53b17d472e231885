"""Messages as Arrow columns.

Work is done once per distinct value: a header is parsed once for all rows that share it, a field table once for all
headers that share it, and the results are then spread over the rows. Only requested columns are built.

Malformed messages never raise an exception here: a value that cannot be decoded is null, and `raw_header` has its bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any, Final, TypeAlias, TypeVar, Union

import pyarrow as pa

from leveret.broker.message import FORMAT_AMQP0, FORMAT_AMQP1, FORMAT_CLASS_AMQP09, PROTOCOLS, Overlay
from leveret.segments import amqp0_records, amqp10_records, schema
from leveret.segments import records as r
from leveret.segments.folding import fold, footer_start
from leveret.segments.records import EMPTY_RECORD, PROPERTY_NAMES, HeaderValues, Record
from leveret.segments.texts import clean
from leveret.storage.records import decode_overlay, encode_overlay
from leveret.wire.amqp0.classes import to_basic

# Building nulls of this type takes a third of a microsecond per row, so they are sliced from here.
_NO_STRUCTS: Final = pa.nulls(8192, schema.AMQP10)
_FROM_TABLE: Final = frozenset(("headers", "headers_json", "x_death", "delivery_count"))
_FROM_RECORD: Final = frozenset((*PROPERTY_NAMES, *_FROM_TABLE, "amqp10"))
_ADDRESS: Final = frozenset(("exchange", "routing_key"))
# Fields of the struct `amqp10`.
_ANNOTATIONS_AT: Final = schema.AMQP10.get_field_index("message_annotations")
_SOURCE_COLUMNS: Final = ("queue", "partition")


K = TypeVar("K", bound=Hashable)
# A key of a header: a tuple for 1.0, bytes for 0-x.
_HeaderKey: TypeAlias = Union[bytes, tuple[bytes]]
# A key of a row: that of its header, and the overlay if there is one.
_RowKey: TypeAlias = Union[_HeaderKey, tuple[_HeaderKey, bytes]]


class Rows:
    """Messages as parallel lists.

    Attributes:
        offsets: Stream offsets.
        times: Append times in milliseconds of Unix time; None if unknown.
        formats: The format of each header, or one format for all of them.
        addresses: Exchange and routing key, each a length byte and its bytes.
        headers: As in `Message.header`.
        bodies: As in `Message.body`; for 1.0 the encoded sections.
        overlays: As encoded in the log, b"" for none; None if no row has one.
        redelivered: None if false in all rows, as in streams.
        delivery_counts: None to take them from the headers, as in streams.
    """

    __slots__ = (
        "addresses",
        "bodies",
        "delivery_counts",
        "formats",
        "headers",
        "offsets",
        "overlays",
        "redelivered",
        "times",
    )

    def __init__(
        self,
        offsets: list[int],
        times: Sequence[int] | None,
        formats: list[int] | int,
        addresses: list[bytes],
        headers: list[bytes],
        bodies: list[bytes],
        overlays: list[bytes] | None = None,
        redelivered: list[bool] | None = None,
        delivery_counts: list[int] | None = None,
    ) -> None:
        self.offsets = offsets
        self.times = times
        self.formats = formats
        self.addresses = addresses
        self.headers = headers
        self.bodies = bodies
        self.overlays = overlays
        self.redelivered = redelivered
        self.delivery_counts = delivery_counts

    def __len__(self) -> int:
        return len(self.offsets)

    # Columns, for readers that have them as Arrow buffers

    def offset_column(self) -> pa.Array:
        return pa.array(self.offsets, pa.int64())

    def time_column(self) -> pa.Array:
        """Return the append times, as in the schema."""
        if self.times is None:
            return pa.nulls(len(self), schema.TIMESTAMP)
        return pa.array([time * 1000 for time in self.times], schema.TIMESTAMP)

    def body_column(self) -> pa.Array:
        return pa.array(self.bodies, pa.binary())

    def distinct_addresses(self) -> tuple[Sequence[bytes], pa.Array | None]:
        """Return the distinct addresses, and the indices of the rows into them as `distinct` does."""
        return distinct(self.addresses)

    def distinct_properties(self) -> tuple[Sequence[bytes], pa.Array | None]:
        """Return the distinct properties of 0-9-1 headers, from the flags on, and indices as above."""
        at = amqp0_records.PROPERTIES_START
        return distinct([header[at:] for header in self.headers])


def make_columns(rows: Rows, names: Collection[str] = schema.FILE_COLUMNS) -> dict[str, pa.Array]:
    """Build the named columns with the types of the file schema. ValueError for an unknown name."""
    unknown = [name for name in names if name not in schema.FILE_COLUMNS]
    if unknown:
        raise ValueError(f"column '{unknown[0]}' does not exist; expected some of {', '.join(schema.FILE_COLUMNS)}")
    return _Columns(rows, frozenset(names)).build()


def make_batch(
    rows: Rows, names: Collection[str] = schema.COLUMNS, queue: str | None = None, partition: int = 0
) -> pa.RecordBatch:
    """Build a batch of the named columns, in the order of the table schema.

    Args:
        rows: The messages.
        names: Columns to build.
        queue: Value of the column `queue`.
        partition: Value of the column `partition`.

    Raises:
        ValueError: A name is unknown.
    """
    columns = make_columns(rows, [name for name in names if name not in _SOURCE_COLUMNS])
    return with_source(columns, len(rows), names, queue, partition)


def with_source(
    columns: dict[str, pa.Array], count: int, names: Collection[str], queue: str | None, partition: int
) -> pa.RecordBatch:
    """Build a batch from columns, adding `queue` and `partition` if they are among the names."""
    if "queue" in names:
        columns["queue"] = pa.repeat(pa.scalar(queue, pa.string()), count)
    if "partition" in names:
        columns["partition"] = pa.repeat(pa.scalar(partition, pa.int32()), count)
    wanted = table_schema(names)
    return pa.RecordBatch.from_arrays([columns[name] for name in wanted.names], schema=wanted)


def table_schema(names: Collection[str] = schema.COLUMNS) -> pa.Schema:
    """Return the table schema reduced to these columns. ValueError for an unknown name."""
    unknown = [name for name in names if name not in schema.COLUMNS]
    if unknown:
        raise ValueError(f"column '{unknown[0]}' does not exist; expected some of {', '.join(schema.COLUMNS)}")
    return pa.schema([field for field in schema.TABLE_SCHEMA if field.name in names])


def split_address(address: bytes) -> tuple[str, str]:
    """Return exchange and routing key as text, with U+FFFD for invalid UTF-8."""
    length = address[0]
    return address[1 : 1 + length].decode("utf-8", "replace"), address[2 + length :].decode("utf-8", "replace")


class _Columns:
    def __init__(self, rows: Rows, names: frozenset[str]) -> None:
        self.rows = rows
        self.names = names
        self.count = len(rows)
        self.columns: dict[str, pa.Array] = {}
        # Position of the footer by 1.0 header; filled as headers are parsed.
        self.footers: dict[bytes, int] = {}
        formats = rows.formats
        self.only_amqp0 = formats == FORMAT_AMQP0 if isinstance(formats, int) else not any(formats)
        self.formats = [formats] * self.count if isinstance(formats, int) else formats
        overlays = rows.overlays
        self.overlays = overlays if overlays is not None and any(overlays) else None

    def build(self) -> dict[str, pa.Array]:
        names = self.names
        self._plain_columns()
        if names & _ADDRESS:
            self._address_columns()
        if names & _FROM_RECORD:
            self._record_columns()
        if names & {"body", "raw_header", "amqp10"}:
            self._body_columns()
        if "raw_overlay" in names:
            self.columns["raw_overlay"] = self._raw_overlays()
        return {name: self.columns[name] for name in names}

    def _plain_columns(self) -> None:
        rows, names, count = self.rows, self.names, self.count
        if "offset" in names:
            self.columns["offset"] = rows.offset_column()
        if "append_time" in names:
            self.columns["append_time"] = rows.time_column()
        if "protocol" in names:
            same = self.only_amqp0 or isinstance(rows.formats, int)
            self.columns["protocol"] = (
                pa.repeat(PROTOCOLS[self.formats[0]] if count else "", count)
                if same
                else pa.array([PROTOCOLS[number] for number in self.formats], pa.string())
            )
        if "redelivered" in names:
            given = rows.redelivered
            self.columns["redelivered"] = pa.repeat(False, count) if given is None else pa.array(given, pa.bool_())

    # Addresses

    def _address(self, index: int) -> bytes:
        if self.overlays is not None and self.overlays[index]:
            address = decode_overlay(self.overlays[index]).address
            if address is not None:
                return address
        return self.rows.addresses[index]

    def _address_columns(self) -> None:
        if self.overlays is None:
            addresses, indices = self.rows.distinct_addresses()
        else:
            addresses, indices = distinct([self._address(index) for index in range(self.count)])
        parts = [split_address(address) for address in addresses]
        for at, name in enumerate(("exchange", "routing_key")):
            if name in self.names:
                self.columns[name] = _spread(pa.array([part[at] for part in parts], pa.string()), indices)

    def _raw_overlays(self) -> pa.Array:
        """Return the overlays, with the address added if the text columns cannot represent its bytes."""
        kept: list[bytes | None] = [overlay or None for overlay in self.overlays or ()] or [None] * self.count
        for address in set(self.rows.addresses):
            try:
                address.decode("utf-8")
            except UnicodeDecodeError:
                if not _is_utf8(address):
                    for index, other in enumerate(self.rows.addresses):
                        if other == address:
                            kept[index] = _with_address(kept[index], address)
        return _array(kept, pa.binary())

    # Headers

    def _distinct_headers(self) -> tuple[Sequence[_RowKey], pa.Array | None]:
        """Return the distinct keys of headers, and indices as `distinct` does."""
        if self.only_amqp0 and self.overlays is None:
            return self.rows.distinct_properties()
        return distinct(self._header_keys())

    def _header_keys(self) -> Sequence[_RowKey]:
        """Return a key per row that is equal for equal headers: a tuple for 1.0, bytes for 0-x."""
        headers = self.rows.headers
        at = amqp0_records.PROPERTIES_START
        if self.only_amqp0:
            keys: list[_HeaderKey] = [header[at:] for header in headers]
        else:
            keys = [
                (header,)
                if number == FORMAT_AMQP1
                else to_basic(header)[at:]
                if number == FORMAT_CLASS_AMQP09
                else header[at:]
                for header, number in zip(headers, self.formats, strict=True)
            ]
        if self.overlays is not None:
            return [(key, overlay) if overlay else key for key, overlay in zip(keys, self.overlays, strict=True)]
        return keys

    def _record_columns(self) -> None:
        keys, indices = self._distinct_headers()
        records = [_record(key) for key in keys]
        if not self.only_amqp0:
            self.footers = {
                key[0]: record[r.FOOTER]
                for key, record in zip(keys, records, strict=True)
                if type(key) is tuple and len(key) == 1
            }
        fields = list(zip(*records, strict=True)) or [()] * len(EMPTY_RECORD)
        names = self.names
        for at, name in enumerate(PROPERTY_NAMES):
            if name in names:
                self.columns[name] = _spread(_array(fields[at], schema.FILE_SCHEMA.field(name).type), indices)
        if names & _FROM_TABLE:
            self._table_columns(fields[r.TABLE], fields[r.BROKER_FIELDS], indices)
        if "amqp10" in names:
            self.amqp10 = fields[r.AMQP10]
            self.indices = indices

    def _table_columns(self, given: Any, broker_fields: Any, indices: pa.Array | None) -> None:
        tables: list[HeaderValues] = []
        known: dict[bytes, int] = {}
        numbers: list[int | None] = []
        for content, broker_field in zip(given, broker_fields, strict=True):
            if type(content) is bytes:
                number = known.get(content, -1)
                if number < 0:
                    number = known[content] = len(tables)
                    tables.append(HeaderValues(amqp0_records.decode(content), None))
            elif content is None and broker_field is None:
                numbers.append(None)
                continue
            else:
                number = len(tables)
                tables.append(HeaderValues(content, broker_field))
            numbers.append(number)
        of_rows = _spread(pa.array(numbers, pa.int32()), indices)
        names = self.names
        if "headers" in names:
            self.columns["headers"] = _header_maps(tables).take(of_rows)
        if "headers_json" in names:
            self.columns["headers_json"] = _array([table.json for table in tables], pa.string()).take(of_rows)
        if "x_death" in names:
            self.columns["x_death"] = _array([table.deaths for table in tables], schema.X_DEATH).take(of_rows)
        if "delivery_count" in names:
            counts = self.rows.delivery_counts
            self.columns["delivery_count"] = (
                pa.array([table.delivery_count for table in tables], pa.int32()).take(of_rows).fill_null(0)
                if counts is None
                else pa.array(counts, pa.int32())
            )

    # Bodies

    def _body_columns(self) -> None:
        rows, names = self.rows, self.names
        kinds: list[str | None] | None = None
        if self.only_amqp0:
            if "body" in names:
                self.columns["body"] = rows.body_column()
            if "raw_header" in names:
                self.columns["raw_header"] = pa.array(rows.headers, pa.binary())
        else:
            bodies, raw, kinds = self._fold_bodies()
            if "body" in names:
                self.columns["body"] = pa.array(bodies, pa.binary())
            if "raw_header" in names:
                self.columns["raw_header"] = pa.array(raw, pa.binary())
        if "amqp10" in names:
            self.columns["amqp10"] = self._amqp10(kinds)

    def _fold_bodies(self) -> tuple[list[bytes], list[bytes], list[str | None]]:
        bodies, raw = list(self.rows.bodies), list(self.rows.headers)
        kinds: list[str | None] = [None] * self.count
        footers = self.footers
        for index, number in enumerate(self.formats):
            if number != FORMAT_AMQP1:
                continue
            header = raw[index]
            footer = footers.get(header, -2)
            if footer == -2:
                footer = footers[header] = footer_start(header)
            raw[index], bodies[index], kinds[index] = fold(header, footer, bodies[index])
        return bodies, raw, kinds

    def _amqp10(self, kinds: list[str | None] | None) -> pa.Array:
        if kinds is None:
            return (
                _NO_STRUCTS.slice(0, self.count) if self.count <= len(_NO_STRUCTS) else pa.nulls(self.count, schema.AMQP10)
            )
        present = [item if item is not None else (None,) * (schema.AMQP10.num_fields - 1) for item in self.amqp10]
        children = [
            _spread(_array(values, schema.AMQP10.field(at).type), self.indices)
            for at, values in enumerate(zip(*present, strict=True))
        ]
        children.append(_array(kinds, pa.string()))
        absent = pa.array([number != FORMAT_AMQP1 for number in self.formats], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=list(schema.AMQP10), mask=absent)


def _record(key: _RowKey) -> Record:
    """Parse the header behind a key of `_header_keys`."""
    if isinstance(key, bytes):
        return amqp0_records.parse(key)
    if len(key) == 1:
        return amqp10_records.parse(key[0])
    return _apply_overlay(_record(key[0]), decode_overlay(key[1]), type(key[0]) is tuple)


def _apply_overlay(record: Record, overlay: Overlay, is_amqp10: bool) -> Record:
    """Apply the broker's overlay: to the headers for 0-x, to the message annotations for 1.0."""
    fields = list(record)
    if overlay.drop_expiration:
        fields[r.TTL_MS] = None
    changes = {name: value for name, value in overlay.headers.items() if name != r.OFFSET}
    if is_amqp10:
        broker_fields = dict(fields[r.BROKER_FIELDS] or {})
        broker_fields.update(
            (name, amqp10_records.overlay_to_json(value))
            for name, value in changes.items()
            if name in (r.DEATHS, r.DELIVERY_COUNT)
        )
        fields[r.BROKER_FIELDS] = broker_fields
        if fields[r.AMQP10] is not None:
            struct = list(fields[r.AMQP10])
            struct[_ANNOTATIONS_AT] = amqp10_records.with_overlay_annotations(struct[_ANNOTATIONS_AT], changes)
            fields[r.AMQP10] = tuple(struct)
        return tuple(fields)
    table = fields[r.TABLE]
    headers = dict((amqp0_records.decode(table) if isinstance(table, bytes) else table) or {})
    for name in changes:
        headers.pop(clean(name), None)
    headers.update(amqp0_records.overlay_to_json({name: value for name, value in changes.items() if value is not None}))
    fields[r.TABLE] = headers or None
    return tuple(fields)


def distinct(keys: Sequence[K]) -> tuple[Sequence[K], pa.Array | None]:
    """Return the distinct keys and each row's index into them; None as indices if all keys are distinct."""
    numbers: dict[K, int] = dict.fromkeys(keys, 0)
    found = list(numbers)
    if len(found) == len(keys):
        return keys, None
    if len(found) == 1:
        return found, pa.repeat(pa.scalar(0, pa.int32()), len(keys))
    numbers = {key: number for number, key in enumerate(found)}
    return found, pa.array([numbers[key] for key in keys], pa.int32())


def _spread(values: pa.Array, indices: pa.Array | None) -> pa.Array:
    if indices is None:
        return values
    if values.null_count == len(values):
        return pa.nulls(len(indices), values.type)
    return values.take(indices)


def _array(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Build an array, with a fast path for all-null values."""
    if values.count(None) == len(values):
        return pa.nulls(len(values), kind)
    return pa.array(values, kind)


def _header_maps(tables: list[HeaderValues]) -> pa.Array:
    offsets: list[int | None] = []
    keys: list[str] = []
    values: list[str | None] = []
    for table in tables:
        offsets.append(len(keys) if table.keys else None)
        keys += table.keys
        values += table.values
    if not keys:
        return pa.nulls(len(tables), schema.HEADERS)
    offsets.append(len(keys))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string())
    )


def _is_utf8(address: bytes) -> bool:
    try:
        address[1 : 1 + address[0]].decode("utf-8")
        address[2 + address[0] :].decode("utf-8")
        return True
    except UnicodeDecodeError:
        return False


def _with_address(encoded: bytes | None, address: bytes) -> bytes:
    overlay = decode_overlay(encoded) if encoded is not None else Overlay()
    if overlay.address is None:
        overlay.address = address
    return encode_overlay(overlay)
