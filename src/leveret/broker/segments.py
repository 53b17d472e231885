"""Sealed segments of streams: their manifest entries, and the abstract store that writes, reads and removes their files.

The oldest part of a stream becomes a file, a segment, once it is large or old enough. The broker knows only the manifest
(metadata of the log, kind `stream-segment`); the store defines the file format.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import mypyc_attr

from leveret.broker import metadata
from leveret.broker.errors import PreconditionFailed
from leveret.broker.kept_files import SEGMENTS, KeptFiles
from leveret.broker.streams.tables import StreamTables
from leveret.broker.timers import Timed, Timers

if TYPE_CHECKING:
    from leveret.broker.log import Loaded, Located
    from leveret.broker.streams.queue import StreamQueue

# Kinds of failures that a store reports.
AGAIN: Final = "again"  # a row of the log has moved: resolve the positions again
MISSING: Final = "missing"  # the file is not there
DAMAGED: Final = "damaged"  # it is, and is not what was written
FAILED: Final = "failed"  # no space, no network, no store: later perhaps
# After a failure the same is tried again so many milliseconds later, twice as many each time.
FIRST_RETRY: Final = 1_000
MAX_RETRY_DELAY: Final = 300_000
# Read leases on one file.
MAX_HOLDERS: Final = 1000


class SegmentSettings:
    """When the unsealed part of a stream becomes a segment, and how long files outlive their place in the manifest.

    sealing  whether that is done at all; what was sealed before is read and removed all the same
    size   bytes of bodies; age, grace in milliseconds
    merge_below  segments with fewer bytes of bodies are merged with their neighbours
    tables_after  streams have tables over their files, which follow changes so many milliseconds later; -1: they have none
    """

    def __init__(self, sealing: bool = True, size: int = 64_000_000, age: int = 600_000, grace: int = 60_000,
                 merge_below: int = 16_000_000, tables_after: int = -1) -> None:
        self.sealing = sealing
        self.size = size
        self.age = age
        self.grace = grace
        self.merge_below = merge_below
        self.tables_after = tables_after


class Segment:
    """A file of consecutive messages of one stream.

    id        unique within the stream, and never used again
    path      of the file, relative to the directory of the store
    first, last  offsets, inclusive; count: messages in it, fewer where some were erased
    octets, body_octets  of the file, and of the bodies in it
    first_time, last_time  when the first and the last message were appended, milliseconds of Unix time
    crc32     of the whole file
    footer_octets, footer_crc32  of its end, which says where everything else is; 0 and 0 for a file of an earlier version
    groups    rows of each row group
    starts, times   of each chunk, which is what is read at once: the offset of its first message, when that was appended
    """

    __slots__ = ("body_octets", "count", "crc32", "first", "first_time", "footer_crc32", "footer_octets", "groups", "id",
                 "last", "last_time", "octets", "path", "schema_version", "starts", "times")

    def __init__(self, id: str, path: str, first: int, last: int, count: int, octets: int, body_octets: int,
                 first_time: int, last_time: int, schema_version: int, crc32: int, groups: list[int], starts: array[int],
                 times: array[int], footer_octets: int = 0, footer_crc32: int = 0) -> None:
        self.id = id
        self.path = path
        self.first = first
        self.last = last
        self.count = count
        self.octets = octets
        self.body_octets = body_octets
        self.first_time = first_time
        self.last_time = last_time
        self.schema_version = schema_version
        self.crc32 = crc32
        self.groups = groups
        self.starts = starts
        self.times = times
        self.footer_octets = footer_octets
        self.footer_crc32 = footer_crc32

    def pack(self) -> bytes:
        """As a value of the manifest."""
        value: dict[str, Any] = self.entry()
        value["starts"] = list(self.starts)
        value["times"] = list(self.times)
        return metadata.pack(value)

    @staticmethod
    def unpack(value: bytes) -> Segment:
        """What `pack` gave."""
        fields = metadata.unpack(value)
        fields["starts"] = array("Q", fields["starts"])
        fields["times"] = array("Q", fields["times"])
        return Segment(**fields)

    def entry(self) -> dict[str, Any]:
        """Return its manifest entry for control replies."""
        return {
            "id": self.id, "path": self.path, "first": self.first, "last": self.last, "count": self.count,
            "octets": self.octets, "body_octets": self.body_octets, "first_time": self.first_time,
            "last_time": self.last_time, "schema_version": self.schema_version, "crc32": self.crc32,
            "groups": self.groups, "footer_octets": self.footer_octets, "footer_crc32": self.footer_crc32,
        }

    def chunk_at(self, offset: int) -> int:
        """The number of the chunk that has an offset of this segment, or would have it if it were not erased."""
        return max(bisect_right(self.starts, offset) - 1, 0)

    def chunk_end(self, number: int) -> int:
        """The offset behind a chunk."""
        return self.starts[number + 1] if number + 1 < len(self.starts) else self.last + 1

    def chunk_last(self, number: int) -> int:
        """When its last message was appended, at the latest."""
        return self.times[number + 1] if number + 1 < len(self.times) else self.last_time


class Written:
    """What a store says of a file that is complete, under its name, and on the disk. `id` and `path` as in `Segment`."""

    def __init__(self, id: str, path: str, count: int, octets: int, body_octets: int, crc32: int, groups: list[int],
                 schema_version: int, footer_octets: int = 0, footer_crc32: int = 0) -> None:
        self.id = id
        self.path = path
        self.count = count
        self.octets = octets
        self.body_octets = body_octets
        self.crc32 = crc32
        self.groups = groups
        self.schema_version = schema_version
        self.footer_octets = footer_octets
        self.footer_crc32 = footer_crc32

    def segment(self, first: int, last: int, first_time: int, last_time: int, starts: array[int],
                times: array[int]) -> Segment:
        """The entry of the manifest."""
        return Segment(self.id, self.path, first, last, self.count, self.octets, self.body_octets, first_time, last_time,
                       self.schema_version, self.crc32, self.groups, starts, times, self.footer_octets,
                       self.footer_crc32)


@mypyc_attr(allow_interpreted_subclasses=True)
class SealTask:
    """A segment that is being written. The store calls the methods on the event loop.

    directory  where it goes, relative to that of the store
    stream     name of the stream, which the file says of itself
    """

    def __init__(self, directory: str, stream: str) -> None:
        self.directory = directory
        self.stream = stream

    def next_part(self) -> None:
        """The store takes another part: call `part` or `finish` of it, now or later."""
        raise NotImplementedError

    def written(self, result: Written) -> None:
        raise NotImplementedError

    def failed(self, kind: str, text: str) -> None:
        """Nothing of it is left. With AGAIN try at once, otherwise after a while."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class SegmentStore:
    """Storage of segments. All methods are called on the event loop; none but `stop` blocks."""

    def start(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Begin. `post` runs a callable on the event loop, from any thread."""
        raise NotImplementedError

    def stop(self) -> None:
        """Abort unfinished work. Blocks briefly."""
        raise NotImplementedError

    def url_of(self, path: str) -> str:
        """Where others find a file: a path of this machine, or a URL."""
        raise NotImplementedError

    def seal(self, task: SealTask) -> None:
        """Write a segment: `task.next_part` says when the first part is wanted."""
        raise NotImplementedError

    def part(self, task: SealTask, located: Located, first: int, times: array[int]) -> None:
        """More of a segment: where its messages stand in the log, the offset of the first one, and when they were appended:
        pairs of (how many messages, milliseconds). The store releases what is located when it has read it."""
        raise NotImplementedError

    def finish(self, task: SealTask) -> None:
        """All parts were given."""
        raise NotImplementedError

    def abandon(self, task: SealTask) -> None:
        """The segment is not wanted any more: leave no file. The task hears nothing more."""
        raise NotImplementedError

    def read(self, segment: Segment, first: int, last: int, done: Callable[[list[Loaded], str, str], None]) -> None:
        """Read messages back by their offsets, both inclusive. `done` gets those that there are, and what went wrong: kind
        and text, both "" where nothing did."""
        raise NotImplementedError

    def merge(self, sources: list[Segment], directory: str, stream: str,
              done: Callable[[Written | None, str, str], None]) -> None:
        """Make one file of neighbours; directory and stream as for a `SealTask`. `done` gets what was written, or None and
        what went wrong: kind and text."""
        raise NotImplementedError

    def work(self, task: str, arguments: bytes, done: Callable[[bytes, str, str], None]) -> None:
        """Have something done that takes its time, and of which the broker's core knows the name alone: JSON in, JSON out.
        `done` gets the result, and what went wrong: kind and text, both "" where nothing did."""
        raise NotImplementedError

    def remove(self, paths: list[str]) -> None:
        """Remove files, as far as they are there."""
        raise NotImplementedError

    def find(self, directory: str, done: Callable[[list[str]], None]) -> None:
        """The paths of all files in a directory and those below it, unfinished ones included. `done` is not called if they
        cannot be listed."""
        raise NotImplementedError


class Leases(Timed):
    """Files that no manifest names any more, until they may be removed: after the grace time, and after all read leases.

    A lease belongs to a holder, and is one for each file: it lasts although the stream gives the file up meanwhile.
    """

    def __init__(self, store: SegmentStore, timers: Timers, grace: int) -> None:
        super().__init__()
        self.store = store
        self.timers = timers
        self.grace = grace
        self.held: dict[str, dict[str, int]] = {}
        self.retired: dict[str, int] = {}

    def hold(self, holder: str, paths: Iterable[str], until: int) -> None:
        """Keep files until then, or until `release`; milliseconds of Unix time. What the holder holds already it holds as
        long. PreconditionFailed where too many hold one."""
        self._prune()
        for path in paths:
            holders = self.held.setdefault(path, {})
            if holder not in holders and len(holders) >= MAX_HOLDERS:
                raise PreconditionFailed(f"{len(holders)} holders have a read lease on {path}, which is the most that there"
                                         " may be: releasing them, or waiting for their ends, helps")
            holders[holder] = until
        for holders in self.held.values():
            if holder in holders:
                holders[holder] = max(until, holders[holder])
        self._schedule()

    def _prune(self) -> None:
        """Forget leases that have ended."""
        now = self.timers.now()
        for path, holders in list(self.held.items()):
            for name in [name for name, until in holders.items() if until <= now]:
                del holders[name]
            if not holders:
                del self.held[path]

    def release(self, holder: str) -> None:
        for path in [path for path, holders in self.held.items() if holders.pop(holder, None) is not None and not holders]:
            del self.held[path]
        self._schedule()

    def holders(self, path: str, now: int) -> list[str]:
        """Who keeps a file."""
        return sorted(holder for holder, until in self.held.get(path, {}).items() if until > now)

    def retire(self, paths: Iterable[str]) -> None:
        """Files that were unregistered, on disk: remove them when it is time."""
        due = self.timers.now() + self.grace
        for path in paths:
            self.retired[path] = due
        self._schedule()

    def fire(self, now: int) -> None:
        expired = [path for path in self.retired if self._due(path) <= now]
        for path in expired:
            del self.retired[path]
            self.held.pop(path, None)
        if expired:
            self.store.remove(expired)
        self._schedule()

    def _due(self, path: str) -> int:
        holders = self.held.get(path)
        return max(self.retired[path], *holders.values()) if holders else self.retired[path]

    def _schedule(self) -> None:
        if self.retired:
            self.timers.at(max(min(map(self._due, self.retired)), 1), self)
        else:
            self.timers.cancel(self)


class Segments:
    """What a broker has for its streams: a store, when to use it, and the files that wait for their removal.

    home  the directory of this broker's files in the store: others may keep theirs beside it
    tables  over the files of streams, None where there are none
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
        """The manifest of a stream is another one, on disk; or the stream is deleted."""
        if self.tables is not None:
            self.tables.changed(stream)

    def url_of(self, path: str) -> str:
        return self.store.url_of(path)

    def sweep(self, known: set[str], kept: KeptFiles) -> None:
        """Remove the files that no manifest knows: those of a seal that was cut short, and those that waited for their
        removal. `known`: the paths of all manifests at the start."""
        self.store.find(self.home, _Sweep(self.leases, known, kept).found)


class _Sweep:
    def __init__(self, leases: Leases, known: set[str], kept: KeptFiles) -> None:
        self.leases = leases
        self.known = known
        self.kept = kept

    def found(self, paths: list[str]) -> None:
        self.leases.retire(self.kept.removable(SEGMENTS, paths, self.known))
