"""The sealer process: writes, reads, merges and removes segments, as the broker asks for.

It reads the messages to be sealed from the file of the broker's log, so that they do not pass through the broker once more.
What readers wait for has a thread of its own; everything else is done in the order in which it was asked for. The process
ends with the pipe that its questions come from.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import queue
import sqlite3
import struct
import sys
import threading
import tomllib
from array import array
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import pyarrow as pa

from leveret.broker.segments import AGAIN, DAMAGED, FAILED, MISSING
from leveret.segments import files, process_frames, tasks
from leveret.segments.columns import Rows
from leveret.segments.errors import SegmentDamaged, SegmentError, SegmentMissing, SegmentTooNew, masked
from leveret.segments.manifest import Segment
from leveret.segments.process_frames import Answer, Setup
from leveret.segments.reader import SegmentReader, Stored, between, open_whole, rebuild
from leveret.segments.rewriting import merge
from leveret.segments.writer import SegmentWriter, is_temporary
from leveret.storage import disk
from leveret.storage.located import LogReader, RowGone

# Open files, and decoded row groups, that are kept for the next read.
_OPEN: Final = 16
_GROUPS: Final = 2
# The broker goes first where there is too little time of the processors.
_NICE: Final = 5

Question = dict[str, Any]


class Sealer:
    """Answers questions. `answer` sends one."""

    def __init__(self, setup: Setup, answer: Callable[[Answer], None]) -> None:
        self.directory = setup.directory
        self.database = Path(setup.database)
        self.spool = setup.spool
        self.options = _options(setup.options_file)
        self.mode = setup.mode
        self.place = tasks.Place(self.directory, self.options, self.spool, setup.catalog, setup.mode)
        self.answer = answer
        self.writers: dict[int, tuple[str, SegmentWriter]] = {}
        self.log: LogReader | None = None
        self._cleared: set[str] = set()

    def do(self, question: Question) -> None:
        """Answer one question of the thread that does not read."""
        number: int = question["n"]
        try:
            match question["op"]:
                case process_frames.SEAL:
                    self._begin(number, question["directory"], question["stream"])
                case process_frames.PART:
                    if number in self.writers:
                        self._part(number, question["runs"], question["first"], question["times"])
                        self.answer(Answer(n=number))
                case process_frames.FINISH:
                    directory, writer = self.writers.pop(number)
                    self.answer(Answer(n=number, written=_entry(directory, writer.finish())))
                case process_frames.ABANDON:
                    self._abort(number)
                case process_frames.MERGE:
                    self.answer(Answer(n=number, written=self._merge(question)))
                case process_frames.TASK:
                    result, *error = tasks.run(self.place, question["name"], question["arguments"])
                    self.answer(Answer(n=number, error=(error[0], error[1]) if error[0] else None, result=result))
                case process_frames.REMOVE:
                    self._remove(question["paths"])
                    self.answer(Answer(n=number))
                case process_frames.FIND:
                    self.answer(Answer(n=number, paths=self._find(question["directory"])))
        except Exception as error:
            self._abort(number)
            self.answer(Answer(n=number, error=_error(error, self.directory)))

    def _url(self, path: str) -> str:
        return files.join(self.directory, path)

    def _writer(self, directory: str, stream: str) -> SegmentWriter:
        disk.make_directories(self.spool)
        url = self._url(directory)
        place = files.local_path(url) or self.spool
        if place not in self._cleared:
            # What is unfinished there is of a process before this one, which was killed. There is but one at a time.
            self._cleared.add(place)
            for name in filter(is_temporary, files.names_in(place)):
                files.remove(files.join(place, name))
        return SegmentWriter(url, stream, self.options, self.spool, self.place.local_root(), self.mode)

    def _begin(self, number: int, directory: str, stream: str) -> None:
        self.writers[number] = (directory, self._writer(directory, stream))

    def _part(self, number: int, runs: bytes, first: int, times: list[int]) -> None:
        if self.log is None:
            self.log = LogReader(self.database)
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
        self.writers[number][1].append(Rows(list(range(first, first + count)), spread, formats, columns.addresses,
                                            columns.headers, columns.bodies, overlays))

    def _abort(self, number: int) -> None:
        found = self.writers.pop(number, None)
        if found is not None:
            with contextlib.suppress(OSError):
                found[1].abort()

    def _merge(self, question: Question) -> dict[str, Any]:
        readers: list[SegmentReader] = []
        directory: str = question["directory"]
        try:
            for source in question["sources"]:
                segment = manifest_entry(source)
                readers.append(open_whole(self._url(segment.path), self.options, segment))
            return _entry(directory, merge(readers, self._writer(directory, question["stream"])))
        finally:
            for reader in readers:
                reader.close()

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            url = self._url(path)
            with contextlib.suppress(SegmentError):  # found, and tried again, at the next start
                files.remove(url, self.options)
            local = files.local_path(url)
            if local is not None:
                with contextlib.suppress(OSError):
                    os.rmdir(os.path.dirname(local))

    def _find(self, directory: str) -> list[str]:
        return [f"{directory}/{name}" for name in files.names_below(self._url(directory), self.options)]


class Readings:
    """Reads segments for readers of the broker."""

    def __init__(self, sealer: Sealer) -> None:
        self.sealer = sealer
        self.readers: OrderedDict[str, SegmentReader] = OrderedDict()
        self.groups: OrderedDict[tuple[str, int], list[pa.RecordBatch]] = OrderedDict()

    def do(self, question: Question) -> None:
        try:
            rows = self._read(manifest_entry(question["segment"]), question["first"], question["last"])
            answer = Answer(n=question["n"], rows=[_packed(row) for row in rows])
        except Exception as error:
            answer = Answer(n=question["n"], error=_error(error, self.sealer.directory))
        self.sealer.answer(answer)

    def _read(self, segment: Segment, first: int, last: int) -> list[Stored]:
        reader = self._reader(segment)
        rows: list[Stored] = []
        while first <= last:
            low, high = reader.group_of(first)
            if low > last or high < first:
                break
            for batch in self._group(segment.path, reader, low, high):
                wanted = between(batch, first, last)
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
            if len(self.groups) > _GROUPS:
                self.groups.popitem(last=False)
        self.groups.move_to_end(key)
        return batches

    def _reader(self, segment: Segment) -> SegmentReader:
        path = segment.path
        reader = self.readers.get(path)
        if reader is None:
            url = self.sealer._url(path)
            reader = open_whole(url, self.sealer.options, segment)
            self.readers[path] = reader
            if len(self.readers) > _OPEN:
                self.readers.popitem(last=False)[1].close()
        self.readers.move_to_end(path)
        return reader


def manifest_entry(fields: dict[str, Any]) -> Segment:
    """What the broker says of a segment."""
    return msgspec.convert(fields, Segment)


def _entry(directory: str, segment: Segment) -> dict[str, Any]:
    entry: dict[str, Any] = msgspec.to_builtins(segment)
    entry["path"] = f"{directory}/{segment.path}"
    return entry


def _packed(row: Stored) -> Any:
    return (row.offset, row.time, row.format, row.address, row.header, row.headers_at, row.body, row.overlay, row.priority,
            row.persistent)


def _error(error: Exception, directory: str) -> tuple[str, str]:
    """The kind and the text of what went wrong; `directory` where the segments are."""
    kind = FAILED
    if isinstance(error, RowGone):
        kind = AGAIN
    elif isinstance(error, SegmentMissing):
        kind = MISSING
    elif isinstance(error, (SegmentDamaged, SegmentTooNew)):
        kind = DAMAGED
    elif isinstance(error, OSError):
        return kind, f"{masked(directory)}: {error}"
    elif not isinstance(error, (SegmentError, sqlite3.Error, ValueError, IndexError, struct.error)):
        return kind, f"{type(error).__name__}: {error}"
    return kind, str(error) or type(error).__name__


def _options(path: str | None) -> dict[str, Any] | None:
    """What fsspec is told besides the URL."""
    if path is None:
        return None
    octets = Path(path).read_bytes()
    found: dict[str, Any] = json.loads(octets) if path.endswith(".json") else tomllib.loads(octets.decode("utf-8"))
    return found


def _serve(jobs: queue.SimpleQueue[Question], do: Callable[[Question], None]) -> None:
    while True:
        do(jobs.get())


def run(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer until there are no more questions."""
    octets = process_frames.read(questions)
    if octets is None:
        return
    setup = msgspec.msgpack.decode(octets, type=Setup)
    # Messages, and in the metadata of tables what is in them, are for the broker's user, and whoever may read segments.
    os.umask(0o777 & ~disk.directory_mode(setup.mode))
    lock = threading.Lock()

    def answer(frame: Answer) -> None:
        data = process_frames.encode(frame)
        try:
            with lock:
                answers.write(data)
                answers.flush()
        except OSError:
            os._exit(0)  # the broker was killed

    sealer = Sealer(setup, answer)
    readings = Readings(sealer)
    jobs: queue.SimpleQueue[Question] = queue.SimpleQueue()
    reads: queue.SimpleQueue[Question] = queue.SimpleQueue()
    for waiting, do in ((jobs, sealer.do), (reads, readings.do)):
        threading.Thread(target=_serve, args=(waiting, do), daemon=True).start()
    while True:
        octets = process_frames.read(questions)
        if octets is None:
            return
        question: Question = msgspec.msgpack.decode(octets)
        (reads if question["op"] == process_frames.READ else jobs).put(question)


def main() -> None:
    """The process: questions on descriptor 0, answers on 1."""
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    gc.set_threshold(50_000, 20, 20)
    os.umask(0o077)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what others print must not get between the frames
    run(sys.stdin.buffer, answers)
    os._exit(0)  # whatever the threads are doing: the broker is gone, and nobody wants it any more


if __name__ == "__main__":
    main()
