"""Reading a segment: batches of the columns that are asked for, or the messages as they came."""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any, BinaryIO, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from leveret.broker.message import FORMAT_AMQP1, FORMAT_BASIC_0_9, FORMAT_CLASS_0_9, PROTOCOLS
from leveret.segments import files, schema
from leveret.segments.amqp0_records import headers_at
from leveret.segments.columns import table_schema, with_source
from leveret.segments.errors import SegmentDamaged, SegmentError, SegmentMissing, SegmentTooNew
from leveret.segments.files import Options
from leveret.segments.folding import unfold
from leveret.segments.manifest import Segment
from leveret.storage.records import decode_overlay
from leveret.wire.amqp0.classes import BASIC, class_of

BATCH_ROWS: Final = 8192
# Pages have checksums, and what says where they are has none: some damage of it makes Arrow end the process. So the
# manifest has one of it, which is compared before Arrow looks into the file. Small files are read and checked as a whole.
_SMALL: Final = 1 << 20
_MADE_ROWS: Final = 65_536
# What a message is made of again.
MESSAGE_COLUMNS: Final = ("offset", "append_time", "protocol", "exchange", "routing_key", "durable", "priority", "body",
                          "raw_header", "raw_overlay")


class Stored(NamedTuple):
    """A message as the log had it. `time` is in milliseconds of Unix time, `overlay` encoded as the log has it (None
    without one), `headers_at`, `priority` and `persistent` as `Message` has them."""

    offset: int
    time: int
    format: int
    address: bytes
    header: bytes
    headers_at: int
    body: bytes
    overlay: bytes | None
    priority: int = -1
    persistent: bool = True


def open_segment(url: str, options: Options | None = None, expected: Segment | None = None) -> SegmentReader:
    """Open the file, and see that it is the one that the manifest names.

    `options` go to fsspec. SegmentMissing, SegmentDamaged or SegmentTooNew where it cannot be read.
    """
    return SegmentReader(url, options, expected)


def open_whole(url: str, options: Options | None, expected: Segment) -> SegmentReader:
    """The same of a file that will be read from beginning to end: if it is on this machine, all of it is checked before."""
    reader = open_segment(url, options, expected)
    try:
        if expected.octets > _SMALL and files.local_path(url) is not None:
            reader.check(expected.crc32)
    except SegmentError:
        reader.close()
        raise
    return reader


class SegmentReader:
    """One open file. It is closed by `close`, or as a context manager.

    first, last, count  as the file says
    """

    def __init__(self, url: str, options: Options | None = None, expected: Segment | None = None) -> None:
        self.url = url
        self.options = options
        self._file = files.open_file(url, options)
        try:
            source = self._file if expected is None else self._checked(expected)
            self._parquet = pq.ParquetFile(source, page_checksum_verification=True)
            metadata = self._parquet.metadata.metadata or {}
            self.version = int(metadata[schema.VERSION_KEY])
            if self.version > schema.SCHEMA_VERSION:
                raise SegmentTooNew(url, f"it has schema version {self.version}, this is a reader of version"
                                    f" {schema.SCHEMA_VERSION} and older ones: use a newer Leveret to read it")
            self.first = int(metadata[schema.FIRST_KEY])
            self.last = int(metadata[schema.LAST_KEY])
            self.stream = metadata[schema.STREAM_KEY].decode("utf-8", "replace")
            self.count: int = self._parquet.metadata.num_rows
            self._check_figures(int(metadata[schema.COUNT_KEY]), expected)
            null = frozenset(metadata.get(schema.NULL_COLUMNS_KEY, b"").decode().split(","))
            self._names = frozenset(self._parquet.schema_arrow.names)
            self._filled = self._names - null
            self._bounds = [self._bounds_of(at) for at in range(self._parquet.metadata.num_row_groups)]
        except SegmentError:
            self._file.close()
            raise
        except Exception as error:
            self._file.close()
            raise _damage(url, error) from error

    def _checked(self, expected: Segment) -> BinaryIO | pa.BufferReader:
        """The file or its octets, once the checksum is right of all that Arrow does not check itself."""
        size = self._file.seek(0, os.SEEK_END)
        if size != expected.octets:
            raise _other_file(self.url, "octets", size, expected.octets)
        if size <= _SMALL:
            self._file.seek(0)
            octets = self._file.read(size)
            self._compare(zlib.crc32(octets), expected.crc32)
            return pa.BufferReader(octets)
        if expected.footer_octets:
            self._file.seek(size - expected.footer_octets)
            self._compare(zlib.crc32(self._file.read(expected.footer_octets)), expected.footer_crc32)
        else:
            # Of an earlier version, whose manifest says nothing of the footer.
            self._compare(files.checksum(self.url, self.options), expected.crc32)
        self._file.seek(0)
        return self._file

    def _compare(self, found: int, expected: int) -> None:
        if found != expected:
            raise _other_checksum(self.url, found, expected)

    def _check_figures(self, count: int, expected: Segment | None) -> None:
        found = {"rows": self.count, "first offset": self.first, "last offset": self.last}
        wanted = {"rows": count, "first offset": self.first, "last offset": self.last}
        if expected is not None:
            found |= {"schema version": self.version}
            wanted = {"rows": expected.count, "first offset": expected.first, "last offset": expected.last,
                      "schema version": expected.schema_version}
        for name, value in wanted.items():
            if found[name] != value:
                raise _other_file(self.url, name, found[name], value)

    def _bounds_of(self, group: int) -> tuple[int, int]:
        """The first and the last offset of a row group."""
        column = self._parquet.metadata.row_group(group).column(0)
        if column.path_in_schema != "offset" or not column.is_stats_set or not column.statistics.has_min_max:
            raise ValueError("a row group does not say which offsets it has")
        return int(column.statistics.min), int(column.statistics.max)

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._parquet.close()
        self._file.close()

    def check(self, crc32: int) -> None:
        """Read all of the file. SegmentDamaged where its checksum is another."""
        self._compare(files.checksum(self.url, self.options), crc32)

    def read(self, columns: Collection[str] = schema.COLUMNS, first: int = 0, last: int | None = None,
             queue: str | None = None, partition: int = 0, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Batches of the columns of these names, in the order of the table's schema, with the offsets from first to last
        (inclusive). `queue` (the stream's name if None) and `partition` are what the columns of these names say.

        ValueError for a name that is none; SegmentDamaged or SegmentMissing where the file cannot be read any more.
        """
        name = self.stream if queue is None else queue
        wanted = table_schema(columns)
        stored = [field for field in wanted.names if field in schema.FILE_COLUMNS]
        for batch in self._batches([field for field in stored if field in self._filled], first, last, batch_rows):
            made = {field: _typed(batch, field) for field in stored}
            yield with_source(made, batch.num_rows, columns, name, partition)

    def group_of(self, offset: int) -> tuple[int, int]:
        """The first and the last offset of the row group that has this offset, or the next one that is there."""
        return next((bounds for bounds in self._bounds if bounds[1] >= offset), self._bounds[-1])

    def message_batches(self, first: int, last: int) -> list[pa.RecordBatch]:
        """Batches for `rebuild`, with the offsets from first to last (inclusive). SegmentDamaged or SegmentMissing where
        the file cannot be read any more."""
        return list(self._batches(list(MESSAGE_COLUMNS), first, last, BATCH_ROWS))

    def messages(self, first: int = 0, last: int | None = None, batch_rows: int = BATCH_ROWS) -> Iterator[list[Stored]]:
        """The messages with the offsets from first to last (inclusive), octet for octet as they came.

        SegmentDamaged or SegmentMissing where the file cannot be read any more.
        """
        for batch in self._batches(list(MESSAGE_COLUMNS), first, last, batch_rows):
            try:
                found = rebuild(batch)
            except (ValueError, TypeError, KeyError, IndexError) as error:
                raise SegmentDamaged(self.url, str(error)) from error
            yield found

    def file_batches(self, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """All rows with all columns of the file's schema: what a rewritten file is made of."""
        for batch in self._batches([name for name in schema.FILE_COLUMNS if name in self._filled], 0, None, batch_rows):
            yield pa.RecordBatch.from_arrays([_typed(batch, name) for name in schema.FILE_COLUMNS],
                                             schema=schema.FILE_SCHEMA)

    def _batches(self, names: list[str], first: int, last: int | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The named columns as far as the file has them; `offset` is among them where rows have to be left out."""
        end = self.last if last is None else last
        for group, (low, high) in enumerate(self._bounds):
            if high < first or low > end:
                continue
            whole = first <= low and high <= end
            present = [name for name in names if name in self._names]
            if not whole and "offset" not in present:
                present.append("offset")
            try:
                for batch in self._parquet.iter_batches(batch_rows, row_groups=[group], columns=present or ["offset"],
                                                        use_threads=False):
                    if not whole:
                        batch = between(batch, first, end)
                    if batch.num_rows:
                        yield batch
            except SegmentError:
                raise
            except Exception as error:
                raise _damage(self.url, error) from error


def rebuild(batch: pa.RecordBatch) -> list[Stored]:
    """The messages of a batch with MESSAGE_COLUMNS. ValueError for octets that do not belong together."""
    columns: dict[str, list[Any]] = {name: batch.column(name).to_pylist() for name in MESSAGE_COLUMNS
                                     if name != "append_time"}
    times = batch.column("append_time").cast(pa.int64()).to_pylist()
    found: list[Stored] = []
    for offset, time, protocol, exchange, key, durable, priority, body, raw, overlay in zip(
            columns["offset"], times, columns["protocol"], columns["exchange"], columns["routing_key"], columns["durable"],
            columns["priority"], columns["body"], columns["raw_header"], columns["raw_overlay"], strict=True):
        address = _address(exchange, key)
        if overlay is not None:
            address = decode_overlay(overlay).address or address
        kind = _format(protocol, raw)
        if kind != FORMAT_AMQP1:
            found.append(Stored(offset, (time or 0) // 1000, kind, address, raw,
                                -1 if kind == FORMAT_CLASS_0_9 else headers_at(raw), body, overlay,
                                -1 if priority is None else priority, bool(durable)))
        else:
            header, at, whole = unfold(raw, body)
            found.append(Stored(offset, (time or 0) // 1000, kind, address, header, at, whole, overlay,
                                -1 if priority is None else priority, bool(durable)))
    return found


def _format(protocol: str, raw: bytes) -> int:
    """The format of a message; of 0-9 the class of its content says it."""
    kind = PROTOCOLS.index(protocol)
    return FORMAT_CLASS_0_9 if kind == FORMAT_BASIC_0_9 and class_of(raw) != BASIC else kind


def _address(exchange: str, routing_key: str) -> bytes:
    name = exchange.encode("utf-8")
    key = routing_key.encode("utf-8")
    # U+FFFD in place of what was no UTF-8 takes more octets; the overlay has the address then.
    return bytes((min(len(name), 255),)) + name[:255] + bytes((min(len(key), 255),)) + key[:255]


def between(batch: pa.RecordBatch, first: int, last: int) -> pa.RecordBatch:
    """The rows with offsets from first to last; offsets grow."""
    column = batch.column("offset")
    values = column.buffers()[1]
    if values is None or not len(column):
        return batch
    offsets = memoryview(values).cast("q")  # of Arrow's own: numpy need not be there
    low = column.offset
    high = low + len(column)
    begin = bisect_left(offsets, first, low, high)
    return batch.slice(begin - low, bisect_right(offsets, last, low, high) - begin)


def _typed(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column with the type that the schema has now; null where it has not been read, or the file is older than it."""
    kind = schema.FILE_SCHEMA.field(name).type
    index = batch.schema.get_field_index(name)
    if index < 0:
        return _nulls(name, batch.num_rows)
    column = batch.column(index)
    return column if column.type == kind else column.cast(kind)


def _nulls(name: str, rows: int) -> pa.Array:
    return _made_nulls(name).slice(0, rows) if rows <= _MADE_ROWS else pa.nulls(rows, schema.FILE_SCHEMA.field(name).type)


@cache
def _made_nulls(name: str) -> pa.Array:
    """Those of nested columns take longer to make than the rows of a batch to read."""
    return pa.nulls(_MADE_ROWS, schema.FILE_SCHEMA.field(name).type)


def _other_file(url: str, what: str, found: int, expected: int) -> SegmentDamaged:
    return SegmentDamaged(url, f"it is not the file that was sealed: {what} {found}, expected {expected}")


def _other_checksum(url: str, found: int, expected: int) -> SegmentDamaged:
    return SegmentDamaged(url, f"its checksum is {found:08x}, expected {expected:08x}")


def _damage(url: str, error: Exception) -> SegmentError:
    if isinstance(error, FileNotFoundError):
        return SegmentMissing(url, "there is no such file")
    if isinstance(error, OSError) and not isinstance(error, pa.ArrowException):
        return SegmentMissing(url, f"it cannot be read: {files.reason_of(error)}")
    return SegmentDamaged(url, f"it cannot be decoded: {files.reason_of(error)}")
