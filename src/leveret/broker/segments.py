"""Sealed segments of streams: their manifest entries, and the abstract store that writes, reads and removes their files.

The oldest part of a stream becomes a file, a segment, once it is large or old enough. The broker knows only the manifest
(metadata of the log, kind `stream-segment`); the store defines the file format.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from leveret.broker import metadata
from leveret.broker.errors import PreconditionFailed
from leveret.broker.kept_files import SEGMENTS, KeptFiles
from leveret.broker.metadata import Record
from leveret.broker.segment_names import STORED_NAMES
from leveret.broker.streams.tables import StreamTables
from leveret.broker.timers import Timed, Timers

if TYPE_CHECKING:
    from leveret.broker.log import Loaded, Located
    from leveret.broker.streams.queue import StreamQueue

logger = logging.getLogger("leveret.broker")

# Kinds of failures that a store reports.
AGAIN: Final = "again"  # a row of the log was moved: resolve the positions again
MISSING: Final = "missing"  # the file does not exist
DAMAGED: Final = "damaged"  # the file differs from what was written
FAILED: Final = "failed"  # no space, no network, no store: retry later
# Milliseconds before the first retry after a failure; doubled for each further one.
FIRST_RETRY: Final = 1_000
MAX_RETRY_DELAY: Final = 300_000
# Maximum number of read leases on one file.
MAX_HOLDERS: Final = 1000
_ATTRIBUTES: Final = {stored: name for name, stored in STORED_NAMES.items()}


class SegmentSettings:
    """Thresholds for sealing the oldest part of a stream, and the time that files stay after they left the manifest.

    sealing  whether streams are sealed; existing segments are read and removed in any case
    size   bytes of bodies; age, grace in milliseconds
    merge_below  segments with fewer bytes of bodies are merged with their neighbours
    tables_after  delay of updates of the tables over the files, in milliseconds; -1 for no tables
    """

    def __init__(
        self,
        sealing: bool = True,
        size: int = 64_000_000,
        age: int = 600_000,
        grace: int = 60_000,
        merge_below: int = 16_000_000,
        tables_after: int = -1,
    ) -> None:
        self.sealing = sealing
        self.size = size
        self.age = age
        self.grace = grace
        self.merge_below = merge_below
        self.tables_after = tables_after


class Segment:
    """A file of consecutive messages of one stream.

    id        unique within the stream, and never reused
    path      of the file, relative to the directory of the store
    first, last  offsets, inclusive; count: number of messages, fewer if some were erased
    bytes, body_bytes  size of the file, and of the bodies in it
    first_time, last_time  append times of the first and the last message, milliseconds of Unix time
    crc32     of the file
    footer_bytes, footer_crc32  size and checksum of the footer, which locates everything else; 0 for a file of an earlier
              version
    groups    rows of each row group
    starts, times   of each chunk, the unit of reading: offset and append time of its first message
    """

    __slots__ = (
        "body_bytes",
        "bytes",
        "count",
        "crc32",
        "first",
        "first_time",
        "footer_bytes",
        "footer_crc32",
        "groups",
        "id",
        "last",
        "last_time",
        "path",
        "schema_version",
        "starts",
        "times",
    )

    def __init__(
        self,
        id: str,
        path: str,
        first: int,
        last: int,
        count: int,
        bytes: int,
        body_bytes: int,
        first_time: int,
        last_time: int,
        schema_version: int,
        crc32: int,
        groups: list[int],
        starts: array[int],
        times: array[int],
        footer_bytes: int = 0,
        footer_crc32: int = 0,
    ) -> None:
        self.id = id
        self.path = path
        self.first = first
        self.last = last
        self.count = count
        self.bytes = bytes
        self.body_bytes = body_bytes
        self.first_time = first_time
        self.last_time = last_time
        self.schema_version = schema_version
        self.crc32 = crc32
        self.groups = groups
        self.starts = starts
        self.times = times
        self.footer_bytes = footer_bytes
        self.footer_crc32 = footer_crc32

    def pack(self) -> bytes:
        """Encode it as a value of the manifest."""
        value: Record = self.entry()
        value["starts"] = list(self.starts)
        value["times"] = list(self.times)
        return metadata.pack(value)

    @staticmethod
    def unpack(value: bytes) -> Segment:
        """Decode the output of `pack`."""
        fields = _attributes_of(metadata.unpack(value))
        fields["starts"] = array("Q", fields["starts"])
        fields["times"] = array("Q", fields["times"])
        return Segment(**fields)

    def entry(self) -> Record:
        """Return its manifest entry, without the chunks."""
        fields = {
            "id": self.id,
            "path": self.path,
            "first": self.first,
            "last": self.last,
            "count": self.count,
            "bytes": self.bytes,
            "body_bytes": self.body_bytes,
            "first_time": self.first_time,
            "last_time": self.last_time,
            "schema_version": self.schema_version,
            "crc32": self.crc32,
            "groups": self.groups,
            "footer_bytes": self.footer_bytes,
            "footer_crc32": self.footer_crc32,
        }
        return {STORED_NAMES.get(name, name): value for name, value in fields.items()}

    def chunk_at(self, offset: int) -> int:
        """Return the number of the chunk with an offset of this segment, even if the message was erased."""
        return max(bisect_right(self.starts, offset) - 1, 0)

    def chunk_end(self, number: int) -> int:
        """Return the offset after a chunk."""
        return self.starts[number + 1] if number + 1 < len(self.starts) else self.last + 1

    def chunk_last(self, number: int) -> int:
        """Return the latest possible append time of a message in a chunk."""
        return self.times[number + 1] if number + 1 < len(self.times) else self.last_time


def _attributes_of(entry: Record) -> Record:
    """Return the attributes in a manifest entry."""
    return {_ATTRIBUTES.get(name, name): value for name, value in entry.items()}


class Written:
    """The store's report on a complete file, which is on disk under its name. `id` and `path` as in `Segment`."""

    def __init__(
        self,
        id: str,
        path: str,
        count: int,
        bytes: int,
        body_bytes: int,
        crc32: int,
        groups: list[int],
        schema_version: int,
        footer_bytes: int = 0,
        footer_crc32: int = 0,
    ) -> None:
        self.id = id
        self.path = path
        self.count = count
        self.bytes = bytes
        self.body_bytes = body_bytes
        self.crc32 = crc32
        self.groups = groups
        self.schema_version = schema_version
        self.footer_bytes = footer_bytes
        self.footer_crc32 = footer_crc32

    @staticmethod
    def read(entry: Record) -> Written:
        """Return the report in a manifest entry of the store, whose offsets and times are ignored."""
        fields = _attributes_of(entry)
        return Written(
            fields["id"],
            fields["path"],
            fields["count"],
            fields["bytes"],
            fields["body_bytes"],
            fields["crc32"],
            list(fields["groups"]),
            fields["schema_version"],
            fields["footer_bytes"],
            fields["footer_crc32"],
        )

    def segment(
        self, first: int, last: int, first_time: int, last_time: int, starts: array[int], times: array[int]
    ) -> Segment:
        """Return the entry of the manifest."""
        return Segment(
            self.id,
            self.path,
            first,
            last,
            self.count,
            self.bytes,
            self.body_bytes,
            first_time,
            last_time,
            self.schema_version,
            self.crc32,
            self.groups,
            starts,
            times,
            self.footer_bytes,
            self.footer_crc32,
        )


@mypyc_attr(allow_interpreted_subclasses=True)
class SealTask:
    """A segment that is being written. The store calls the methods on the event loop.

    directory  directory of the file, relative to that of the store
    stream     name of the stream, which is stored in the file
    """

    def __init__(self, directory: str, stream: str) -> None:
        self.directory = directory
        self.stream = stream

    @abstractmethod
    def next_part(self) -> None:
        """Ask for another part: call `part` or `finish` of the store, now or later."""

    @abstractmethod
    def written(self, result: Written) -> None:
        """Take over the complete file."""

    @abstractmethod
    def failed(self, kind: str, text: str) -> None:
        """Handle a failure, after which no file is left. Retry at once for AGAIN, otherwise after a delay."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SegmentStore:
    """Storage of segments. All methods are called on the event loop; none but `stop` blocks."""

    @abstractmethod
    def start(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Start. `post` runs a callable on the event loop, from any thread."""

    @abstractmethod
    def stop(self) -> None:
        """Abort unfinished work. Blocks briefly."""

    @abstractmethod
    def url_of(self, path: str) -> str:
        """Return the public location of a file: a path on this machine, or a URL."""

    @abstractmethod
    def seal(self, task: SealTask) -> None:
        """Write a segment. `task.next_part` is called when the first part is wanted."""

    @abstractmethod
    def part(self, task: SealTask, located: Located, first: int, times: array[int]) -> None:
        """Add a part to a segment.

        Args:
            task: The segment.
            located: Positions of the messages in the log, which the store releases after reading.
            first: Offset of the first message.
            times: Append times as pairs of a number of messages and milliseconds.
        """

    @abstractmethod
    def finish(self, task: SealTask) -> None:
        """End a segment after its last part."""

    @abstractmethod
    def abandon(self, task: SealTask) -> None:
        """Discard a segment and its file. No more methods of the task are called."""

    @abstractmethod
    def read(self, segment: Segment, first: int, last: int, done: Callable[[list[Loaded], str, str], None]) -> None:
        """Read messages by their offsets, both inclusive.

        `done` gets the existing ones, and the kind and the text of an error, both "" for none.
        """

    @abstractmethod
    def merge(
        self, sources: list[Segment], directory: str, stream: str, done: Callable[[Written | None, str, str], None]
    ) -> None:
        """Merge neighbours into one file; directory and stream as for a `SealTask`.

        `done` gets the new file, or None and the kind and text of an error.
        """

    @abstractmethod
    def work(self, task: str, arguments: bytes, done: Callable[[bytes, str, str], None]) -> None:
        """Run a long task of the store by its name: JSON in, JSON out.

        `done` gets the result, and the kind and the text of an error, both "" for none.
        """

    @abstractmethod
    def remove(self, paths: list[str]) -> None:
        """Remove files, except missing ones."""

    @abstractmethod
    def find(self, directory: str, done: Callable[[list[str]], None]) -> None:
        """List all files in a directory and its subdirectories, including incomplete ones.

        `done` is not called if they cannot be listed.
        """


class Leases(Timed):
    """Files that have left the manifest, until their removal after the grace time and the end of all read leases.

    A lease belongs to a holder and to one file. It is valid even if the stream drops the file in the meantime.
    """

    def __init__(self, store: SegmentStore, timers: Timers, grace: int) -> None:
        super().__init__()
        self.store = store
        self.timers = timers
        self.grace = grace
        self.holders_by_path: dict[str, dict[str, int]] = {}
        self.retired: dict[str, int] = {}
        self.pinned_until = 0

    def pin_all(self, until: int) -> None:
        """Keep all files until a time in milliseconds of Unix time; 0 to keep them no longer."""
        self.pinned_until = until
        self._schedule()

    def hold(self, holder: str, paths: Iterable[str], until: int) -> None:
        """Keep files until a time in milliseconds of Unix time, or until `release`.

        Extends the existing leases of the holder. Raises PreconditionFailed if a file has too many holders.
        """
        self._prune()
        for path in paths:
            holders = self.holders_by_path.setdefault(path, {})
            if holder not in holders and len(holders) >= MAX_HOLDERS:
                raise PreconditionFailed(
                    f"file '{path}' has {len(holders)} read leases, the maximum: release one, or wait until one expires"
                )
            holders[holder] = until
        for holders in self.holders_by_path.values():
            if holder in holders:
                holders[holder] = max(until, holders[holder])
        self._schedule()

    def _prune(self) -> None:
        """Remove expired leases."""
        now = self.timers.now()
        for path, holders in list(self.holders_by_path.items()):
            for name in [name for name, until in holders.items() if until <= now]:
                del holders[name]
            if not holders:
                del self.holders_by_path[path]

    def release(self, holder: str) -> None:
        for path, holders in list(self.holders_by_path.items()):
            if holders.pop(holder, None) is not None and not holders:
                del self.holders_by_path[path]
        self._schedule()

    def holders(self, path: str, now: int) -> list[str]:
        """Return the holders of a file."""
        return sorted(holder for holder, until in self.holders_by_path.get(path, {}).items() if until > now)

    def retire(self, paths: Iterable[str]) -> None:
        """Schedule the removal of files that were unregistered, on disk."""
        due = self.timers.now() + self.grace
        for path in paths:
            self.retired[path] = due
        self._schedule()

    def fire(self, now: int) -> None:
        expired = [path for path in self.retired if self._due(path) <= now]
        for path in expired:
            del self.retired[path]
            self.holders_by_path.pop(path, None)
        if expired:
            self.store.remove(expired)
        self._schedule()

    def _due(self, path: str) -> int:
        holders = self.holders_by_path.get(path, {})
        return max(self.retired[path], self.pinned_until, *holders.values())

    def _schedule(self) -> None:
        if not self.retired:
            self.timers.cancel(self)
        elif self.pinned_until > self.timers.now():
            # Many files may be retired during a backup, so they are not searched each time.
            self.timers.at(self.pinned_until, self)
        else:
            self.timers.at(max(min(map(self._due, self.retired)), 1), self)


class Segments:
    """The sealing of a broker's streams: store, settings, and files to be removed.

    home  the directory of this broker's files in the store, which several brokers may share
    tables  tables over the files of streams; None for no tables
    """

    def __init__(self, store: SegmentStore, settings: SegmentSettings, timers: Timers) -> None:
        self.store = store
        self.settings = settings
        self.leases = Leases(store, timers, settings.grace)
        self.home = ""
        self.tables: StreamTables | None = None
        if settings.tables_after >= 0:
            self.tables = StreamTables(store, timers, settings.tables_after)

    def changed(self, stream: StreamQueue) -> None:
        """Note that the manifest of a stream changed (on disk), or that the stream was deleted."""
        if self.tables is not None:
            self.tables.changed(stream)

    def url_of(self, path: str) -> str:
        return self.store.url_of(path)

    def sweep(self, known: set[str], kept: KeptFiles) -> None:
        """Remove the files that are in no manifest: incomplete segments, and files whose removal was pending.

        `known` has the paths of all manifests at the start.
        """
        self.store.find(self.home, _Sweep(self, known, kept).found)


class _Sweep:
    def __init__(self, segments: Segments, known: set[str], kept: KeptFiles) -> None:
        self.segments = segments
        self.known = known
        self.kept = kept

    def found(self, paths: list[str]) -> None:
        segments = self.segments
        missing = sorted(path for path in self.known.difference(paths) if path.startswith(f"{segments.home}/"))
        if missing:
            logger.warning(
                "%d of %d segments are missing in the directory of segments, such as %s; set 'streams.directory' to the"
                " directory that they were written to, or restore them",
                len(missing),
                len(self.known),
                segments.url_of(missing[0]),
            )
        segments.leases.retire(self.kept.removable(SEGMENTS, paths, self.known))
