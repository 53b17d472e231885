"""Writing a segment: rows in the order of their offsets become one Parquet file, which appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
import zlib
from itertools import pairwise
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from leveret.segments import files, schema
from leveret.segments.columns import Rows, make_columns
from leveret.segments.errors import SegmentError
from leveret.segments.files import Options
from leveret.segments.manifest import Segment
from leveret.storage import disk

# A row group has at most so many rows, and about so many octets of bodies and headers: what a writer holds in memory.
GROUP_ROWS: Final = 65_536
GROUP_OCTETS: Final = 32 << 20
SUFFIX: Final = ".parquet"
TEMPORARY: Final = ".unfinished"

# Values that come again and again; others would only fill a dictionary that is given up.
_DICTIONARY: Final = ["protocol", "exchange", "routing_key", "content_type", "content_encoding", "reply_to", "type",
                      "user_id", "app_id", "headers.key_value.key", "headers.key_value.value", "headers_json", "raw_header"]
# What readers skip row groups by. Bounds of other columns would only be octets of messages in the footer.
_STATISTICS: Final = ["offset", "append_time", "exchange", "routing_key"]


# Bodies that are compressed or encrypted already would only be copied, at a quarter of what a row takes. So the first ones
# are tried, up to so many octets, and bodies are stored as they are where those do not become so much shorter.
_TRIED: Final = 1 << 18
_WORTHWHILE: Final = 0.95
# The length of the metadata, and the magic number.
_ENDING: Final = 8


def _leaves(kind: pa.DataType, path: str) -> list[str]:
    """The columns as Parquet has them, below a field."""
    if pa.types.is_struct(kind):
        return [leaf for field in kind for leaf in _leaves(field.type, f"{path}.{field.name}")]
    if pa.types.is_map(kind):
        return _leaves(kind.key_type, f"{path}.key_value.key") + _leaves(kind.item_type, f"{path}.key_value.value")
    if pa.types.is_list(kind):
        return _leaves(kind.value_type, f"{path}.list.element")
    return [path]


_LEAVES: Final = [leaf for field in schema.FILE_SCHEMA for leaf in _leaves(field.type, field.name)]


class _Output:
    """The file that Arrow writes to, with the checksum of what it has written."""

    def __init__(self, path: str, mode: int) -> None:
        disk.create_file(path, mode)
        self.file = open(path, "wb")  # noqa: SIM115
        self.crc32 = 0
        self.octets = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        if self.closed:
            return view.nbytes  # Arrow ends every file that it began, even one that is not wanted any more
        self.crc32 = zlib.crc32(view, self.crc32)
        self.octets += view.nbytes
        return self.file.write(view)

    def flush(self) -> None:
        self.file.flush()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.octets

    def close(self) -> None:
        """Everything is on disk then."""
        if not self.closed:
            self.closed = True
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()

    def abandon(self) -> None:
        self.closed = True
        with contextlib.suppress(OSError):  # there may be no room for what it has buffered
            self.file.close()


class SegmentWriter:
    """Writes one segment into a directory, which may be any URL that fsspec knows.

    Rows are held until a row group is full; `finish` puts the file in its place. A local file is written beside its place,
    synced and renamed, and the directories up to `root` are synced; for another place it is written to `spool` (a local
    directory; that for temporary files if None) and copied from there.

    root  the local directory that all segments are in; None for `directory` itself
    mode  of a local file; directories get what goes with it
    """

    def __init__(self, directory: str, stream: str, options: Options | None = None, spool: str | None = None,
                 root: str | None = None, mode: int = disk.PRIVATE_FILE) -> None:
        self.directory = directory
        self.stream = stream
        self.options = options
        self.id = uuid4().hex
        self.groups: list[int] = []
        self.first = self.last = -1
        self.first_time = self.last_time = 0
        self.count = 0
        self.body_octets = 0
        self._covered: tuple[int, int] | None = None
        self._held: list[dict[str, pa.Array]] = []
        self._held_rows = 0
        self._held_octets = 0
        self._null = set(schema.FILE_COLUMNS)
        local = files.local_path(directory)
        self._root = root if root is not None else local or ""
        try:
            if local is not None:
                disk.make_directories(local, disk.directory_mode(mode), root)
                _widen(local, self._root, disk.directory_mode(mode))
            elif spool is not None:
                disk.make_directories(spool)
            self._temporary = os.path.join(local if local is not None else spool or tempfile.gettempdir(),
                                           f".{self.id}{TEMPORARY}")
            self._output = _Output(self._temporary, mode if local is not None else disk.PRIVATE_FILE)
        except OSError as error:
            raise SegmentError(directory, f"no file can be made there: {error.strerror}") from error
        self._local = local
        self._writer: pq.ParquetWriter | None = None

    def append(self, rows: Rows) -> None:
        """Add rows, whose offsets go on where those before ended. SegmentError where the disk fails, ValueError for rows
        out of order; the writer is of no use any more after either, but for `abort`."""
        if not len(rows):
            return
        offsets = rows.offsets
        if offsets[0] <= self.last or any(offset >= after for offset, after in pairwise(offsets)):
            raise ValueError(f"offset {offsets[0]} follows {self.last}: expected growing ones")
        self.append_columns(make_columns(rows), len(rows))

    def append_columns(self, columns: dict[str, pa.Array], count: int) -> None:
        """Add rows that are columns of the file's schema already."""
        if self.first < 0:
            self.first = columns["offset"][0].as_py()
            self.first_time = _milliseconds(columns["append_time"][0])
        self.last = columns["offset"][count - 1].as_py()
        self.last_time = _milliseconds(columns["append_time"][count - 1])
        self.count += count
        begin = 0
        bodies, headers = columns["body"], columns["raw_header"]
        while begin < count:
            # As many as there is room for in the group, and one at least.
            take = min(count - begin, GROUP_ROWS - self._held_rows)
            octets = _octets(bodies, begin, take)
            # What is made of a header takes as much again, or twice.
            others = 3 * _octets(headers, begin, take)
            while take > 1 and self._held_octets + octets + others > GROUP_OCTETS:
                take = max(take // 2, 1)
                octets = _octets(bodies, begin, take)
                others = 3 * _octets(headers, begin, take)
            self._held.append({name: column.slice(begin, take) for name, column in columns.items()})
            self._held_rows += take
            self._held_octets += octets + others
            self.body_octets += octets
            begin += take
            if self._held_rows >= GROUP_ROWS or self._held_octets >= GROUP_OCTETS:
                self._write_group()

    def _write_group(self) -> None:
        if not self._held_rows:
            return
        held, self._held = self._held, []
        table = pa.Table.from_arrays(
            [pa.chunked_array([columns[name] for columns in held], type=schema.FILE_SCHEMA.field(name).type)
             for name in schema.FILE_COLUMNS], schema=schema.FILE_SCHEMA)
        self._null = {name for name in self._null if table.column(name).null_count == self._held_rows}
        try:
            if self._writer is None:
                self._writer = self._begin(table.column("body").chunk(0))
            self._writer.write_table(table, row_group_size=GROUP_ROWS)
        except OSError as error:
            raise SegmentError(self._temporary, f"it cannot be written: {error}") from error
        self.groups.append(self._held_rows)
        self._held_rows = 0
        self._held_octets = 0

    def _begin(self, bodies: pa.Array | None = None) -> pq.ParquetWriter:
        """`bodies`: some of the first ones, by which it is seen how they are stored."""
        codecs = dict.fromkeys(_LEAVES, "zstd")
        if bodies is not None and not _shrink(bodies):
            codecs["body"] = "none"
        return pq.ParquetWriter(
            pa.PythonFile(self._output, mode="w"),
            schema.FILE_SCHEMA.with_metadata({schema.VERSION_KEY: str(schema.SCHEMA_VERSION).encode(),
                                              schema.STREAM_KEY: self.stream.encode("utf-8", "replace")}),
            compression=codecs, use_dictionary=_DICTIONARY, write_statistics=_STATISTICS, version="2.6",
            write_page_checksum=True,
        )

    def cover(self, first: int, last: int) -> None:
        """The segment covers these offsets (inclusive), though some of the first or last rows are not there any more, or
        none at all."""
        self._covered = first, last

    def finish(self) -> Segment:
        """Put the file in its place, and tell the manifest of it. ValueError where there are no rows and no offsets are
        covered, SegmentError where it fails; the file is not there then."""
        if self._covered is not None:
            self.first, self.last = self._covered
        if self.first < 0:
            self.abort()
            raise ValueError("a segment without rows is not written")
        name = f"{self.first:020d}-{self.id}{SUFFIX}"
        try:
            self._write_group()
            if self._writer is None:
                self._writer = self._begin()
            self._writer.add_key_value_metadata({
                schema.FIRST_KEY: str(self.first).encode(), schema.LAST_KEY: str(self.last).encode(),
                schema.COUNT_KEY: str(self.count).encode(),
                schema.NULL_COLUMNS_KEY: ",".join(sorted(self._null)).encode()})
            self._writer.close()
            self._output.close()
            footer_octets, footer_crc32 = _footer_of(self._temporary)
            if self._local is not None:
                os.rename(self._temporary, os.path.join(self._local, name))
                # The manifest names the file next, and then the log lets go of its messages.
                disk.sync_directories(self._local, self._root)
            else:
                files.put(self._temporary, files.join(self.directory, name), self.options)
                os.unlink(self._temporary)
        except OSError as error:
            self.abort()
            raise SegmentError(files.join(self.directory, name), f"it cannot be written: {error}") from error
        except BaseException:
            self.abort()
            raise
        return Segment(id=self.id, path=name, first=self.first, last=self.last, count=self.count,
                       octets=self._output.octets, body_octets=self.body_octets, first_time=self.first_time,
                       last_time=self.last_time, schema_version=schema.SCHEMA_VERSION, crc32=self._output.crc32,
                       groups=tuple(self.groups), footer_octets=footer_octets, footer_crc32=footer_crc32)

    def abort(self) -> None:
        """Leave no file."""
        self._held = []
        self._output.abandon()
        try:
            os.unlink(self._temporary)
        except FileNotFoundError:
            pass


def is_temporary(name: str) -> bool:
    """Whether a file of this name is one that a writer did not finish."""
    return name.startswith(".") and name.endswith(TEMPORARY)


def _shrink(bodies: pa.Array) -> bool:
    """Whether it is worthwhile to compress such bodies."""
    sample = bodies
    while len(sample) > 1 and _octets(sample, 0, len(sample)) > _TRIED:
        sample = sample.slice(0, len(sample) // 2)
    octets = b"".join(filter(None, sample.to_pylist()))[:_TRIED]
    return not octets or pa.Codec("zstd").compress(octets).size < _WORTHWHILE * len(octets)


def _milliseconds(moment: pa.Scalar) -> int:
    return (moment.value or 0) // 1000


def _octets(bodies: pa.Array, begin: int, count: int) -> int:
    """Octets of some of the bodies."""
    slice = bodies.slice(begin, count)
    offsets = slice.buffers()[1]
    if offsets is None or not count:
        return 0
    ends = memoryview(offsets).cast("i")
    return int(ends[slice.offset + count] - ends[slice.offset])


def _footer_of(path: str) -> tuple[int, int]:
    """Size and checksum of what a Parquet file ends with: its metadata, their length, and the magic number."""
    with open(path, "rb") as file:
        file.seek(-_ENDING, os.SEEK_END)
        size = int.from_bytes(file.read(4), "little") + _ENDING
        file.seek(-size, os.SEEK_END)
        return size, zlib.crc32(file.read())


def _widen(directory: str, root: str, mode: int) -> None:
    """Let those pass the directories from the root on who may read the files: some may be from before that was set."""
    path = os.path.abspath(directory)
    while True:
        disk.widen(path, mode)
        if path == os.path.abspath(root) or path == os.path.dirname(path):
            return
        path = os.path.dirname(path)
