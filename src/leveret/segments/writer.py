"""Writing segments: rows in offset order go to a Parquet file, which appears atomically."""

from __future__ import annotations

import contextlib
import os
import tempfile
import zlib
from itertools import pairwise
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from leveret.segments import files, schema
from leveret.segments.columns import Rows, make_columns
from leveret.segments.errors import SegmentError
from leveret.segments.files import Options
from leveret.segments.manifest import Segment
from leveret.storage import disk

# Limits of a row group, which the writer buffers in memory; bytes are those of bodies and headers, approximately.
GROUP_ROWS: Final = 65_536
GROUP_BYTES: Final = 32 << 20
SUFFIX: Final = ".parquet"
TEMPORARY_SUFFIX: Final = ".unfinished"

# Columns with repeated values. For others, Parquet would build a dictionary and then discard it.
_DICTIONARY_COLUMNS: Final = [
    "protocol",
    "exchange",
    "routing_key",
    "content_type",
    "content_encoding",
    "reply_to",
    "type",
    "user_id",
    "app_id",
    "headers.key_value.key",
    "headers.key_value.value",
    "headers_json",
    "raw_header",
]
# Columns whose bounds let readers skip row groups. Bounds of others would only put message data into the footer.
_STATISTICS_COLUMNS: Final = ["offset", "append_time", "exchange", "routing_key"]


# Compressing bodies that are already compressed or encrypted costs a quarter of the time for a row and saves nothing. So a
# sample of the first bodies is compressed, and bodies are stored uncompressed unless it shrinks below this ratio.
_SAMPLE_BYTES: Final = 1 << 18
_MAX_COMPRESSED_RATIO: Final = 0.95
# Length of the metadata and magic number, at the end of the file.
_TRAILER_BYTES: Final = 8


def _leaves(kind: pa.DataType, path: str) -> list[str]:
    """Return the Parquet leaf columns of a field."""
    if pa.types.is_struct(kind):
        return [leaf for field in kind for leaf in _leaves(field.type, f"{path}.{field.name}")]
    if pa.types.is_map(kind):
        return _leaves(kind.key_type, f"{path}.key_value.key") + _leaves(kind.item_type, f"{path}.key_value.value")
    if pa.types.is_list(kind):
        return _leaves(kind.value_type, f"{path}.list.element")
    return [path]


_LEAVES: Final = [leaf for field in schema.FILE_SCHEMA for leaf in _leaves(field.type, field.name)]


class _Output:
    """The file that Arrow writes to; computes the checksum."""

    def __init__(self, path: str, mode: int) -> None:
        disk.create_file(path, mode)
        self.file = open(path, "wb")  # noqa: SIM115
        self.crc32 = 0
        self.size = 0
        self.closed = False

    def write(self, data: bytes | pa.Buffer) -> int:
        view = memoryview(data)
        if self.closed:
            return view.nbytes  # Arrow finishes every file, even a discarded one
        self.crc32 = zlib.crc32(view, self.crc32)
        self.size += view.nbytes
        return self.file.write(view)

    def flush(self) -> None:
        self.file.flush()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def close(self) -> None:
        """Flush and sync the file."""
        if not self.closed:
            self.closed = True
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()

    def discard(self) -> None:
        self.closed = True
        with contextlib.suppress(OSError):  # flushing the buffer may fail on a full disk
            self.file.close()


class SegmentWriter:
    """Writes one segment into a directory, a path or any URL that fsspec supports.

    Rows are buffered until a row group is full; `finish` puts the file in place. A local file is written to another name,
    synced and renamed, and the directories up to `root` are synced. For a URL the file is written to `spool` and uploaded.

    Args:
        directory: Directory of the segment.
        stream: Name of the stream.
        options: Options for fsspec.
        spool: Local directory for files to upload; None for that of temporary files.
        root: Local directory of all segments; None for `directory` itself.
        mode: Mode of a local file; modes of directories are derived from it.
    """

    def __init__(
        self,
        directory: str,
        stream: str,
        options: Options | None = None,
        spool: str | None = None,
        root: str | None = None,
        mode: int = disk.PRIVATE_FILE,
    ) -> None:
        self.directory = directory
        self.stream = stream
        self.options = options
        self.id = uuid4().hex
        self.groups: list[int] = []
        self.first = self.last = -1
        self.first_time = self.last_time = 0
        self.count = 0
        self.body_bytes = 0
        self._covered: tuple[int, int] | None = None
        self._buffered: list[dict[str, pa.Array]] = []
        self._buffered_rows = 0
        self._buffered_bytes = 0
        self._null = set(schema.FILE_COLUMNS)
        local = files.local_path(directory)
        self._root = root if root is not None else local or ""
        try:
            if local is not None:
                disk.make_directories(local, disk.directory_mode(mode), root)
                _widen_directories(local, self._root, disk.directory_mode(mode))
            elif spool is not None:
                disk.make_directories(spool)
            self._temporary = os.path.join(
                local if local is not None else spool or tempfile.gettempdir(), f".{self.id}{TEMPORARY_SUFFIX}"
            )
            self._output = _Output(self._temporary, mode if local is not None else disk.PRIVATE_FILE)
        except OSError as error:
            raise SegmentError(directory, f"no file can be created there: {error.strerror}") from error
        self._local = local
        self._writer: pq.ParquetWriter | None = None

    def append(self, rows: Rows) -> None:
        """Add rows. Their offsets must be higher than all previous ones.

        After an error the writer can only be aborted.

        Raises:
            SegmentError: Writing failed.
            ValueError: The offsets are not ascending.
        """
        if not len(rows):
            return
        offsets = rows.offsets
        if offsets[0] <= self.last or any(offset >= after for offset, after in pairwise(offsets)):
            raise ValueError(f"offset {offsets[0]} follows {self.last}: expected ascending offsets")
        self.append_columns(make_columns(rows), len(rows))

    def append_columns(self, columns: dict[str, pa.Array], count: int) -> None:
        """Add rows that are columns of the file schema already."""
        if self.first < 0:
            self.first = columns["offset"][0].as_py()
            self.first_time = _milliseconds(columns["append_time"][0])
        self.last = columns["offset"][count - 1].as_py()
        self.last_time = _milliseconds(columns["append_time"][count - 1])
        self.count += count
        begin = 0
        bodies, headers = columns["body"], columns["raw_header"]
        while begin < count:
            # As many rows as the group has room for, but at least one.
            take = min(count - begin, GROUP_ROWS - self._buffered_rows)
            n_bytes = _total_bytes(bodies, begin, take)
            # Columns derived from a header take about twice its size.
            others = 3 * _total_bytes(headers, begin, take)
            while take > 1 and self._buffered_bytes + n_bytes + others > GROUP_BYTES:
                take = max(take // 2, 1)
                n_bytes = _total_bytes(bodies, begin, take)
                others = 3 * _total_bytes(headers, begin, take)
            self._buffered.append({name: column.slice(begin, take) for name, column in columns.items()})
            self._buffered_rows += take
            self._buffered_bytes += n_bytes + others
            self.body_bytes += n_bytes
            begin += take
            if self._buffered_rows >= GROUP_ROWS or self._buffered_bytes >= GROUP_BYTES:
                self._write_group()

    def _write_group(self) -> None:
        if not self._buffered_rows:
            return
        buffered, self._buffered = self._buffered, []
        table = pa.Table.from_arrays(
            [
                pa.chunked_array([columns[name] for columns in buffered], type=schema.FILE_SCHEMA.field(name).type)
                for name in schema.FILE_COLUMNS
            ],
            schema=schema.FILE_SCHEMA,
        )
        self._null = {name for name in self._null if table.column(name).null_count == self._buffered_rows}
        try:
            if self._writer is None:
                self._writer = self._open_writer(table.column("body").chunk(0))
            self._writer.write_table(table, row_group_size=GROUP_ROWS)
        except OSError as error:
            raise SegmentError(self._temporary, f"it cannot be written: {error}") from error
        self.groups.append(self._buffered_rows)
        self._buffered_rows = 0
        self._buffered_bytes = 0

    def _open_writer(self, bodies: pa.Array | None = None) -> pq.ParquetWriter:
        """Create the Parquet writer. Some of the first `bodies` decide whether bodies are compressed."""
        codecs = dict.fromkeys(_LEAVES, "zstd")
        if bodies is not None and not _compresses_well(bodies):
            codecs["body"] = "none"
        return pq.ParquetWriter(
            pa.PythonFile(self._output, mode="w"),
            schema.FILE_SCHEMA.with_metadata(
                {
                    schema.VERSION_KEY: str(schema.SCHEMA_VERSION).encode(),
                    schema.STREAM_KEY: self.stream.encode("utf-8", "replace"),
                }
            ),
            compression=codecs,
            use_dictionary=_DICTIONARY_COLUMNS,
            write_statistics=_STATISTICS_COLUMNS,
            version="2.6",
            write_page_checksum=True,
        )

    def cover(self, first: int, last: int) -> None:
        """Set the range of offsets (inclusive) that the segment covers, which may exceed those of its rows."""
        self._covered = first, last

    def finish(self) -> Segment:
        """Put the file in place and return its manifest entry. On errors no file is left.

        Raises:
            ValueError: There are no rows, and `cover` was not called.
            SegmentError: Writing failed.
        """
        if self._covered is not None:
            self.first, self.last = self._covered
        if self.first < 0:
            self.abort()
            raise ValueError("a segment needs rows or a range of offsets")
        name = f"{self.first:020d}-{self.id}{SUFFIX}"
        try:
            self._write_group()
            if self._writer is None:
                self._writer = self._open_writer()
            self._writer.add_key_value_metadata(
                {
                    schema.FIRST_KEY: str(self.first).encode(),
                    schema.LAST_KEY: str(self.last).encode(),
                    schema.COUNT_KEY: str(self.count).encode(),
                    schema.NULL_COLUMNS_KEY: ",".join(sorted(self._null)).encode(),
                }
            )
            self._writer.close()
            self._output.close()
            footer_bytes, footer_crc32 = _footer_size_and_crc(self._temporary)
            if self._local is not None:
                os.rename(self._temporary, os.path.join(self._local, name))
                # Must be durable first: next the manifest names the file, and the log drops the messages.
                disk.sync_directories(self._local, self._root)
            else:
                files.upload(self._temporary, files.join(self.directory, name), self.options)
                os.unlink(self._temporary)
        except OSError as error:
            self.abort()
            raise SegmentError(files.join(self.directory, name), f"it cannot be written: {error}") from error
        except BaseException:
            self.abort()
            raise
        return Segment(
            id=self.id,
            path=name,
            first=self.first,
            last=self.last,
            count=self.count,
            bytes=self._output.size,
            body_bytes=self.body_bytes,
            first_time=self.first_time,
            last_time=self.last_time,
            schema_version=schema.SCHEMA_VERSION,
            crc32=self._output.crc32,
            groups=tuple(self.groups),
            footer_bytes=footer_bytes,
            footer_crc32=footer_crc32,
        )

    def abort(self) -> None:
        """Discard everything; no file is left."""
        self._buffered = []
        self._output.discard()
        try:
            os.unlink(self._temporary)
        except FileNotFoundError:
            pass


def is_temporary(name: str) -> bool:
    """Return whether a file name is that of an unfinished segment."""
    return name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)


def _compresses_well(bodies: pa.Array) -> bool:
    """Return whether compressing such bodies is worth the time."""
    sample = bodies
    while len(sample) > 1 and _total_bytes(sample, 0, len(sample)) > _SAMPLE_BYTES:
        sample = sample.slice(0, len(sample) // 2)
    data = b"".join(filter(None, sample.to_pylist()))[:_SAMPLE_BYTES]
    return not data or pa.Codec("zstd").compress(data).size < _MAX_COMPRESSED_RATIO * len(data)


def _milliseconds(moment: pa.Scalar) -> int:
    return (moment.value or 0) // 1000


def _total_bytes(bodies: pa.Array, begin: int, count: int) -> int:
    """Return the total size of some of the bodies."""
    slice = bodies.slice(begin, count)
    offsets = slice.buffers()[1]
    if offsets is None or not count:
        return 0
    ends = memoryview(offsets).cast("i")
    return int(ends[slice.offset + count] - ends[slice.offset])


def _footer_size_and_crc(path: str) -> tuple[int, int]:
    """Return size and CRC-32 of a Parquet file's footer: the metadata, its length, and the magic number."""
    with open(path, "rb") as file:
        file.seek(-_TRAILER_BYTES, os.SEEK_END)
        size = int.from_bytes(file.read(4), "little") + _TRAILER_BYTES
        file.seek(-size, os.SEEK_END)
        return size, zlib.crc32(file.read())


def _widen_directories(directory: str, root: str, mode: int) -> None:
    """Set the mode that readers of the files need on the directories up to the root, which may predate the setting."""
    path = os.path.abspath(directory)
    while True:
        disk.widen(path, mode)
        if path == os.path.abspath(root) or path == os.path.dirname(path):
            return
        path = os.path.dirname(path)
