"""The sealer process: writes, reads, merges and removes segments at the broker's request.

It reads the messages to seal from the rows of the broker's log, so that they do not pass through the broker again.
Reads run in their own thread because consumers wait for them; all other requests run in order. The process exits when its
request pipe is closed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import struct
import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import BinaryIO, Final

import msgspec
import pyarrow as pa

from leveret.broker.log import RowsAddress
from leveret.broker.segments import AGAIN, DAMAGED, FAILED, MISSING
from leveret.segments import files, process_frames, tasks
from leveret.segments.columns import Rows
from leveret.segments.errors import SegmentDamaged, SegmentError, SegmentMissing, SegmentTooNew, masked
from leveret.segments.manifest import Segment
from leveret.segments.process_frames import Reply, Request, Setup
from leveret.segments.reader import SegmentReader, StoredMessage, open_verified, rebuild, slice_offsets
from leveret.segments.records import Record
from leveret.segments.rewriting import merge
from leveret.segments.storage_options import read_options
from leveret.segments.writer import SegmentWriter, is_temporary
from leveret.storage import disk
from leveret.storage.located import LogReader, RowMoved
from leveret.storage.row_sources import SourceFailed, open_source

# Open files and decoded row groups that are cached between reads.
_MAX_OPEN_FILES: Final = 16
_MAX_CACHED_GROUPS: Final = 2
# Only the owner of the log may begin these. A broker that was frozen while it lists the files also gets those of the next
# owner, which it does not know. It cannot remove them, since it has to own the log then, after the listing.
_OWNERS_OPERATIONS: Final = frozenset(
    (process_frames.SEAL, process_frames.MERGE, process_frames.TASK, process_frames.REMOVE, process_frames.FIND)
)
# The broker takes precedence when CPU time is scarce.
_NICENESS: Final = 5


class Sealer:
    """Handles all requests but reads; `reply` sends a reply."""

    def __init__(self, setup: Setup, reply: Callable[[Reply], None]) -> None:
        self.directory = setup.directory
        self.source = open_source(RowsAddress(setup.engine, setup.rows, is_local=False))
        self.log = LogReader(self.source)
        self.spool = setup.spool
        self.options = None if setup.options_file is None else read_options(setup.options_file)
        self.mode = setup.mode
        self.location = tasks.SegmentLocation(self.directory, self.options, self.spool, setup.catalog, setup.mode)
        self.reply = reply
        self.writers: dict[int, tuple[str, SegmentWriter]] = {}
        self._cleared: set[str] = set()

    def handle(self, request: Request) -> None:
        """Handle one request."""
        number: int = request["n"]
        try:
            if request["op"] in _OWNERS_OPERATIONS:
                self.source.check_owner()
            match request["op"]:
                case process_frames.SEAL:
                    self._start_segment(number, request["directory"], request["stream"])
                case process_frames.PART:
                    if number in self.writers:
                        self._append_part(number, request["runs"], request["first"], request["times"])
                        self.reply(Reply(n=number))
                case process_frames.FINISH:
                    directory, writer = self.writers.pop(number)
                    self.reply(Reply(n=number, written=_entry(directory, writer.finish())))
                case process_frames.ABANDON:
                    self._abort(number)
                case process_frames.MERGE:
                    self.reply(Reply(n=number, written=self._merge(request)))
                case process_frames.TASK:
                    result, *error = tasks.run(self.location, request["name"], request["arguments"])
                    self.reply(Reply(n=number, error=(error[0], error[1]) if error[0] else None, result=result))
                case process_frames.REMOVE:
                    self._remove(request["paths"])
                    self.reply(Reply(n=number))
                case process_frames.FIND:
                    self.reply(Reply(n=number, paths=self._list_files(request["directory"])))
        except Exception as error:
            self._abort(number)
            self.reply(Reply(n=number, error=_error(error, self.directory)))

    def _url(self, path: str) -> str:
        return files.join(self.directory, path)

    def _writer(self, directory: str, stream: str) -> SegmentWriter:
        disk.make_directories(self.spool)
        url = self._url(directory)
        place = files.local_path(url) or self.spool
        if place not in self._cleared:
            # Only one process runs at a time, so unfinished files come from an earlier one that was killed.
            self._cleared.add(place)
            for name in filter(is_temporary, files.list_names(place)):
                files.remove(files.join(place, name))
        return SegmentWriter(url, stream, self.options, self.spool, self.location.local_root(), self.mode)

    def _start_segment(self, number: int, directory: str, stream: str) -> None:
        self.writers[number] = (directory, self._writer(directory, stream))

    def _append_part(self, number: int, runs: bytes, first: int, times: list[int]) -> None:
        words: array[int] = array("Q")
        words.frombytes(runs)
        columns = self.log.read(words)
        count = len(columns.bodies)
        spread: list[int] = []
        for at in range(0, len(times), 2):
            spread += [times[at + 1]] * times[at]
        formats: list[int] | int = columns.formats
        if columns.formats.count(columns.formats[0]) == count:
            formats = columns.formats[0]
        overlays = columns.overlays if any(columns.overlays) else None
        self.writers[number][1].append(
            Rows(
                list(range(first, first + count)),
                spread,
                formats,
                columns.addresses,
                columns.headers,
                columns.bodies,
                overlays,
            )
        )

    def _abort(self, number: int) -> None:
        found = self.writers.pop(number, None)
        if found is not None:
            with contextlib.suppress(OSError):
                found[1].abort()

    def _merge(self, request: Request) -> Request:
        readers: list[SegmentReader] = []
        directory: str = request["directory"]
        try:
            for source in request["sources"]:
                segment = manifest_entry(source)
                readers.append(open_verified(self._url(segment.path), self.options, segment))
            return _entry(directory, merge(readers, self._writer(directory, request["stream"])))
        finally:
            for reader in readers:
                reader.close()

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            url = self._url(path)
            with contextlib.suppress(SegmentError):  # removed at the next start
                files.remove(url, self.options)
            local = files.local_path(url)
            if local is not None:
                with contextlib.suppress(OSError):
                    os.rmdir(os.path.dirname(local))

    def _list_files(self, directory: str) -> list[str]:
        return [f"{directory}/{name}" for name in files.list_tree(self._url(directory), self.options)]


class SegmentReads:
    """Handles reads, which serve consumers of the broker."""

    def __init__(self, sealer: Sealer) -> None:
        self.sealer = sealer
        self.readers: OrderedDict[str, SegmentReader] = OrderedDict()
        self.groups: OrderedDict[tuple[str, int], list[pa.RecordBatch]] = OrderedDict()

    def handle(self, request: Request) -> None:
        try:
            rows = self._read(manifest_entry(request["segment"]), request["first"], request["last"])
            reply = Reply(n=request["n"], rows=[_row_fields(row) for row in rows])
        except Exception as error:
            reply = Reply(n=request["n"], error=_error(error, self.sealer.directory))
        self.sealer.reply(reply)

    def _read(self, segment: Segment, first: int, last: int) -> list[StoredMessage]:
        reader = self._reader(segment)
        rows: list[StoredMessage] = []
        while first <= last:
            low, high = reader.group_of(first)
            if low > last or high < first:
                break
            for batch in self._group(segment.path, reader, low, high):
                wanted = slice_offsets(batch, first, last)
                if wanted.num_rows:
                    rows += rebuild(wanted)
            first = high + 1
        return rows

    def _group(self, path: str, reader: SegmentReader, low: int, high: int) -> list[pa.RecordBatch]:
        key = (path, low)
        batches = self.groups.get(key)
        if batches is None:
            batches = reader.message_batches(low, high)
            self.groups[key] = batches
            if len(self.groups) > _MAX_CACHED_GROUPS:
                self.groups.popitem(last=False)
        self.groups.move_to_end(key)
        return batches

    def _reader(self, segment: Segment) -> SegmentReader:
        path = segment.path
        reader = self.readers.get(path)
        if reader is None:
            url = self.sealer._url(path)
            reader = open_verified(url, self.sealer.options, segment)
            self.readers[path] = reader
            if len(self.readers) > _MAX_OPEN_FILES:
                self.readers.popitem(last=False)[1].close()
        self.readers.move_to_end(path)
        return reader


def manifest_entry(fields: Request) -> Segment:
    """Convert the fields of a request to a manifest entry."""
    return msgspec.convert(fields, Segment)


def _entry(directory: str, segment: Segment) -> Request:
    entry: Request = msgspec.to_builtins(segment)
    entry["path"] = f"{directory}/{segment.path}"
    return entry


def _row_fields(row: StoredMessage) -> Record:
    return (
        row.offset,
        row.time,
        row.format,
        row.address,
        row.header,
        row.headers_at,
        row.body,
        row.overlay,
        row.priority,
        row.persistent,
    )


def _error(error: Exception, directory: str) -> tuple[str, str]:
    """Return the kind and the text of an error. `directory` is where the segments are."""
    kind = FAILED
    if isinstance(error, RowMoved):
        kind = AGAIN
    elif isinstance(error, SegmentMissing):
        kind = MISSING
    elif isinstance(error, (SegmentDamaged, SegmentTooNew)):
        kind = DAMAGED
    elif isinstance(error, OSError):
        return kind, f"{masked(directory)}: {error}"
    elif not isinstance(error, (SegmentError, SourceFailed, ValueError, IndexError, struct.error)):
        return kind, f"{type(error).__name__}: {error}"
    return kind, str(error) or type(error).__name__


def _serve(requests: queue.SimpleQueue[Request], handle: Callable[[Request], None]) -> None:
    while True:
        handle(requests.get())


def run(requests: BinaryIO, replies: BinaryIO) -> None:
    """Handle requests until the pipe is closed."""
    data = process_frames.read(requests)
    if data is None:
        return
    setup = msgspec.msgpack.decode(data, type=Setup)
    # Segments and table metadata contain message data: only the broker's user, or users that `mode` admits, may read them.
    os.umask(0o777 & ~disk.directory_mode(setup.mode))
    lock = threading.Lock()

    def reply(frame: Reply) -> None:
        data = process_frames.encode(frame)
        try:
            with lock:
                replies.write(data)
                replies.flush()
        except OSError:
            os._exit(0)  # the broker was killed

    sealer = Sealer(setup, reply)
    reads_handler = SegmentReads(sealer)
    jobs: queue.SimpleQueue[Request] = queue.SimpleQueue()
    reads: queue.SimpleQueue[Request] = queue.SimpleQueue()
    for waiting, handle in ((jobs, sealer.handle), (reads, reads_handler.handle)):
        threading.Thread(target=_serve, args=(waiting, handle), daemon=True).start()
    while True:
        data = process_frames.read(requests)
        if data is None:
            return
        request: Request = msgspec.msgpack.decode(data)
        (reads if request["op"] == process_frames.READ else jobs).put(request)


def main() -> None:
    """Run the process: requests on descriptor 0, replies on 1."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    gc.set_threshold(50_000, 20, 20)
    os.umask(0o077)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not end up between the frames
    run(sys.stdin.buffer, replies)
    os._exit(0)  # the broker has exited: do not wait for the threads


if __name__ == "__main__":
    main()
