"""Reading segments: as batches of selected columns, or as the original messages."""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any, BinaryIO, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from leveret.broker.message import FORMAT_AMQP1, FORMAT_BASIC_AMQP09, FORMAT_CLASS_AMQP09, PROTOCOLS
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
# Parquet checksums cover pages but not the footer, and a damaged footer can crash Arrow. So the manifest has a checksum of
# the footer, which is verified before Arrow reads the file. Small files are read and verified as a whole.
_MAX_BUFFERED_BYTES: Final = 1 << 20
_CACHED_NULL_ROWS: Final = 65_536
# The columns that a message is restored from.
MESSAGE_COLUMNS: Final = (
    "offset",
    "append_time",
    "protocol",
    "exchange",
    "routing_key",
    "durable",
    "priority",
    "body",
    "raw_header",
    "raw_overlay",
)


class StoredMessage(NamedTuple):
    """A message as it was in the log.

    Attributes:
        time: Append time in milliseconds of Unix time.
        overlay: Encoded as in the log, None without one.
        headers_at, priority, persistent: As in `Message`.
    """

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


class RowGroup(NamedTuple):
    """A row group and the statistics of its rows.

    Attributes:
        first, last: Offsets.
        append_times: Minimum and maximum in microseconds of Unix time, None if unknown.
        routing_keys: Minimum and maximum in UTF-8, None if unknown.
    """

    first: int
    last: int
    append_times: tuple[int, int] | None
    routing_keys: tuple[bytes, bytes] | None


def open_segment(url: str, options: Options | None = None, expected: Segment | None = None) -> SegmentReader:
    """Open a segment and verify that it is the file in the manifest.

    Args:
        url: Path or URL of the file.
        options: Options for fsspec.
        expected: The manifest's entry; None skips the verification.

    Raises:
        SegmentMissing, SegmentDamaged, SegmentTooNew: The file cannot be read.
    """
    return SegmentReader(url, options, expected)


def open_verified(url: str, options: Options | None, expected: Segment) -> SegmentReader:
    """Like `open_segment`, for a file that will be read completely: the checksum of a local file is verified first."""
    reader = open_segment(url, options, expected)
    try:
        if expected.bytes > _MAX_BUFFERED_BYTES and files.local_path(url) is not None:
            reader.check(expected.crc32)
    except SegmentError:
        reader.close()
        raise
    return reader


class SegmentReader:
    """An open segment; a context manager.

    Attributes:
        first, last: Offsets that the file covers.
        count: Number of rows.
    """

    def __init__(self, url: str, options: Options | None = None, expected: Segment | None = None) -> None:
        self.url = url
        self.options = options
        self._file = files.open_file(url, options)
        try:
            source = self._file if expected is None else self._verify(expected)
            self._parquet = pq.ParquetFile(source, page_checksum_verification=True)
            metadata = self._parquet.metadata.metadata or {}
            self.version = int(metadata[schema.VERSION_KEY])
            if self.version > schema.SCHEMA_VERSION:
                raise SegmentTooNew(
                    url,
                    f"its schema version is {self.version}, and this version of Leveret reads up to"
                    f" {schema.SCHEMA_VERSION}: upgrade Leveret to read it",
                )
            self.first = int(metadata[schema.FIRST_KEY])
            self.last = int(metadata[schema.LAST_KEY])
            self.stream = metadata[schema.STREAM_KEY].decode("utf-8", "replace")
            self.count: int = self._parquet.metadata.num_rows
            self._check_counts(int(metadata[schema.COUNT_KEY]), expected)
            null = frozenset(metadata.get(schema.NULL_COLUMNS_KEY, b"").decode().split(","))
            self._names = frozenset(self._parquet.schema_arrow.names)
            self._filled = self._names - null
            self._bounds = [self._bounds_of(at) for at in range(self._parquet.metadata.num_row_groups)]
        except SegmentError:
            self._file.close()
            raise
        except Exception as error:
            self._file.close()
            raise _read_error(url, error) from error

    def _verify(self, expected: Segment) -> BinaryIO | pa.BufferReader:
        """Verify the parts that Arrow does not check. Returns the file, or its content if it is small."""
        size = self._file.seek(0, os.SEEK_END)
        if size != expected.bytes:
            raise _mismatch(self.url, "size", size, expected.bytes)
        if size <= _MAX_BUFFERED_BYTES:
            self._file.seek(0)
            content = self._file.read(size)
            self._check_crc(zlib.crc32(content), expected.crc32)
            return pa.BufferReader(content)
        if expected.footer_bytes:
            self._file.seek(size - expected.footer_bytes)
            self._check_crc(zlib.crc32(self._file.read(expected.footer_bytes)), expected.footer_crc32)
        else:
            # Sealed by an earlier version, whose manifest has no checksum of the footer.
            self._check_crc(files.checksum(self.url, self.options), expected.crc32)
        self._file.seek(0)
        return self._file

    def _check_crc(self, found: int, expected: int) -> None:
        if found != expected:
            raise _checksum_mismatch(self.url, found, expected)

    def _check_counts(self, count: int, expected: Segment | None) -> None:
        found = {"rows": self.count, "first offset": self.first, "last offset": self.last}
        wanted = {"rows": count, "first offset": self.first, "last offset": self.last}
        if expected is not None:
            found |= {"schema version": self.version}
            wanted = {
                "rows": expected.count,
                "first offset": expected.first,
                "last offset": expected.last,
                "schema version": expected.schema_version,
            }
        for name, value in wanted.items():
            if found[name] != value:
                raise _mismatch(self.url, name, found[name], value)

    def _bounds_of(self, group: int) -> tuple[int, int]:
        """Return the first and the last offset of a row group."""
        column = self._parquet.metadata.row_group(group).column(0)
        if column.path_in_schema != "offset" or not column.is_stats_set or not column.statistics.has_min_max:
            raise ValueError("a row group has no statistics of its offsets")
        return int(column.statistics.min), int(column.statistics.max)

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._parquet.close()
        self._file.close()

    def check(self, crc32: int) -> None:
        """Read the whole file. Raises SegmentDamaged if its checksum differs."""
        self._check_crc(files.checksum(self.url, self.options), crc32)

    def read(
        self,
        columns: Collection[str] = schema.COLUMNS,
        first: int = 0,
        last: int | None = None,
        queue: str | None = None,
        partition: int = 0,
        batch_rows: int = BATCH_ROWS,
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of the named columns, in the order of the table schema.

        Args:
            columns: Names of the columns.
            first: First offset.
            last: Last offset, inclusive; None for the end of the file.
            queue: Value of the column `queue`; None for the stream's name.
            partition: Value of the column `partition`.
            batch_rows: Maximum rows per batch.

        Raises:
            ValueError: A name is unknown.
            SegmentDamaged, SegmentMissing: The file can no longer be read.
        """
        name = self.stream if queue is None else queue
        wanted = table_schema(columns)
        stored = [field for field in wanted.names if field in schema.FILE_COLUMNS]
        for batch in self._batches([field for field in stored if field in self._filled], first, last, batch_rows):
            arrays = {field: _typed_column(batch, field) for field in stored}
            yield with_source(arrays, batch.num_rows, columns, name, partition)

    def group_of(self, offset: int) -> tuple[int, int]:
        """Return the bounds of the row group with this offset, or of the next one if the offset does not exist."""
        return next((bounds for bounds in self._bounds if bounds[1] >= offset), self._bounds[-1])

    def row_groups(self) -> Iterator[RowGroup]:
        """Yield the row groups."""
        for group, (first, last) in enumerate(self._bounds):
            yield RowGroup(first, last, self._statistics(group, "append_time"), self._statistics(group, "routing_key"))

    def _statistics(self, group: int, name: str) -> Any:
        """Return the minimum and the maximum of a column as Parquet stores them, None if they are unknown."""
        metadata = self._parquet.metadata.row_group(group)
        for number in range(metadata.num_columns):
            column = metadata.column(number)
            if column.path_in_schema == name:
                statistics = column.statistics
                known = statistics is not None and statistics.has_min_max and not statistics.null_count
                return (statistics.min_raw, statistics.max_raw) if known else None
        return None

    def message_batches(self, first: int, last: int) -> list[pa.RecordBatch]:
        """Return batches for `rebuild` with the offsets from `first` to `last`, inclusive.

        Raises:
            SegmentDamaged, SegmentMissing: The file can no longer be read.
        """
        return list(self._batches(list(MESSAGE_COLUMNS), first, last, BATCH_ROWS))

    def messages(
        self, first: int = 0, last: int | None = None, batch_rows: int = BATCH_ROWS
    ) -> Iterator[list[StoredMessage]]:
        """Yield the messages with the offsets from `first` to `last` (inclusive), byte for byte as they were published.

        Raises:
            SegmentDamaged, SegmentMissing: The file can no longer be read.
        """
        for batch in self._batches(list(MESSAGE_COLUMNS), first, last, batch_rows):
            try:
                found = rebuild(batch)
            except (ValueError, TypeError, KeyError, IndexError) as error:
                raise SegmentDamaged(self.url, str(error)) from error
            yield found

    def file_batches(self, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with all columns of the file schema, for rewriting the file."""
        for batch in self._batches([name for name in schema.FILE_COLUMNS if name in self._filled], 0, None, batch_rows):
            yield pa.RecordBatch.from_arrays(
                [_typed_column(batch, name) for name in schema.FILE_COLUMNS], schema=schema.FILE_SCHEMA
            )

    def _batches(self, names: list[str], first: int, last: int | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the named columns that the file has; also `offset` if rows have to be filtered."""
        end = self.last if last is None else last
        for group, (low, high) in enumerate(self._bounds):
            if high < first or low > end:
                continue
            whole = first <= low and high <= end
            present = [name for name in names if name in self._names]
            if not whole and "offset" not in present:
                present.append("offset")
            try:
                for batch in self._parquet.iter_batches(
                    batch_rows, row_groups=[group], columns=present or ["offset"], use_threads=False
                ):
                    if not whole:
                        batch = slice_offsets(batch, first, end)
                    if batch.num_rows:
                        yield batch
            except SegmentError:
                raise
            except Exception as error:
                raise _read_error(self.url, error) from error


def rebuild(batch: pa.RecordBatch) -> list[StoredMessage]:
    """Restore the messages of a batch with MESSAGE_COLUMNS. Raises ValueError if the columns are inconsistent."""
    columns: dict[str, list[Any]] = {
        name: batch.column(name).to_pylist() for name in MESSAGE_COLUMNS if name != "append_time"
    }
    times = batch.column("append_time").cast(pa.int64()).to_pylist()
    found: list[StoredMessage] = []
    for offset, time, protocol, exchange, key, durable, priority, body, raw, overlay in zip(
        columns["offset"],
        times,
        columns["protocol"],
        columns["exchange"],
        columns["routing_key"],
        columns["durable"],
        columns["priority"],
        columns["body"],
        columns["raw_header"],
        columns["raw_overlay"],
        strict=True,
    ):
        address = _address(exchange, key)
        if overlay is not None:
            address = decode_overlay(overlay).address or address
        kind = _format(protocol, raw)
        if kind != FORMAT_AMQP1:
            found.append(
                StoredMessage(
                    offset,
                    (time or 0) // 1000,
                    kind,
                    address,
                    raw,
                    -1 if kind == FORMAT_CLASS_AMQP09 else headers_at(raw),
                    body,
                    overlay,
                    -1 if priority is None else priority,
                    bool(durable),
                )
            )
        else:
            header, at, whole = unfold(raw, body)
            found.append(
                StoredMessage(
                    offset,
                    (time or 0) // 1000,
                    kind,
                    address,
                    header,
                    at,
                    whole,
                    overlay,
                    -1 if priority is None else priority,
                    bool(durable),
                )
            )
    return found


def _format(protocol: str, raw: bytes) -> int:
    """Return the format of a message; for 0-9 it depends on the class of the content."""
    kind = PROTOCOLS.index(protocol)
    return FORMAT_CLASS_AMQP09 if kind == FORMAT_BASIC_AMQP09 and class_of(raw) != BASIC else kind


def _address(exchange: str, routing_key: str) -> bytes:
    name = exchange.encode("utf-8")
    key = routing_key.encode("utf-8")
    # Exchange or key can exceed 255 bytes if U+FFFD replaced invalid UTF-8; the overlay has the exact address then.
    return bytes((min(len(name), 255),)) + name[:255] + bytes((min(len(key), 255),)) + key[:255]


def slice_offsets(batch: pa.RecordBatch, first: int, last: int) -> pa.RecordBatch:
    """Return the rows with offsets from `first` to `last`, inclusive. The rows must be sorted by offset."""
    column = batch.column("offset")
    values = column.buffers()[1]
    if values is None or not len(column):
        return batch
    offsets = memoryview(values).cast("q")  # numpy is optional
    low = column.offset
    high = low + len(column)
    begin = bisect_left(offsets, first, low, high)
    return batch.slice(begin - low, bisect_right(offsets, last, low, high) - begin)


def _typed_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column with its current type; null if it was not read, or the file is older than the column."""
    kind = schema.FILE_SCHEMA.field(name).type
    index = batch.schema.get_field_index(name)
    if index < 0:
        return _nulls(name, batch.num_rows)
    column = batch.column(index)
    return column if column.type == kind else column.cast(kind)


def _nulls(name: str, rows: int) -> pa.Array:
    if rows <= _CACHED_NULL_ROWS:
        return _cached_nulls(name).slice(0, rows)
    return pa.nulls(rows, schema.FILE_SCHEMA.field(name).type)


@cache
def _cached_nulls(name: str) -> pa.Array:
    """Return nulls to slice from: building them for nested columns takes longer than reading a batch."""
    return pa.nulls(_CACHED_NULL_ROWS, schema.FILE_SCHEMA.field(name).type)


def _mismatch(url: str, what: str, found: int, expected: int) -> SegmentDamaged:
    return SegmentDamaged(url, f"it is not the file that was sealed: {what} {found}, expected {expected}")


def _checksum_mismatch(url: str, found: int, expected: int) -> SegmentDamaged:
    return SegmentDamaged(url, f"its checksum is {found:08x}, expected {expected:08x}")


def _read_error(url: str, error: Exception) -> SegmentError:
    if isinstance(error, FileNotFoundError):
        return SegmentMissing(url, "the file does not exist")
    if isinstance(error, OSError) and not isinstance(error, pa.ArrowException):
        return SegmentMissing(url, f"it cannot be read: {files.error_text(error)}")
    return SegmentDamaged(url, f"it cannot be decoded: {files.error_text(error)}")
