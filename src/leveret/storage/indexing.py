"""Indexing of the rows of a database at a start: before the broker serves, or in a thread beside it if there are many.

Rows that were there at the start do not change until they are indexed: the log settles, copies and deletes only rows that
it knows, and new rows have higher ids. So the thread needs no snapshot, which would keep the write-ahead log from
restarting: it reads slices, each with a cursor of its own, through a connection of its own.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.log import Log, RowIndex
from leveret.storage.checksums import Checksums
from leveret.storage.recovery import Breaks, Rebuilder, Rebuilt
from leveret.storage.rows import SLOT_BITS, SLOT_MASK
from leveret.storage.verification import Connection

if TYPE_CHECKING:
    from leveret.storage.sqlite import SqliteLog
    from leveret.storage.sqlite_store import SqliteStore

logger = logging.getLogger("leveret.storage")

# The exceptions that damaged rows cause.
MALFORMED: Final = (ValueError, IndexError, KeyError, TypeError, struct.error)
# Rows that one cursor reads, and bytes of their columns.
SLICE_ROWS: Final = 2000
SLICE_BYTES: Final = 4 << 20

_SETTLED: Final = "SELECT id, settled, length(entries), length(data) FROM log WHERE id > ? AND id < ? ORDER BY id LIMIT ?"
_INDEX: Final = "SELECT id, length(settled), entries, length(data) FROM log WHERE id > ? AND id < ? ORDER BY id LIMIT ?"


class _Stopped(Exception):
    """The broker stops before all rows are indexed."""


class RowScan:
    """Reads the rows below the ids of new ones in two passes, and rebuilds them in memory.

    `breaks` is for a scan in a thread beside the event loop, `slice_rows` for a database that returns slices whole.
    """

    def __init__(
        self,
        connection: Connection,
        checksums: Checksums,
        log: Log,
        rebuilt: Rebuilt,
        breaks: Breaks | None = None,
        slice_rows: int = SLICE_ROWS,
    ) -> None:
        self._connection = connection
        self._checksums = checksums
        self._rebuilt = rebuilt
        self._breaks = breaks if breaks is not None else Breaks(wanted=False, report=log.on_progress)
        self._rebuilder = Rebuilder(log, self._breaks)
        self._first = self._last = 0
        self._slice_rows = slice_rows
        self._passes = 0
        self._reached = 0
        self.stopped = False

    def run(self) -> None:
        """Read the rows. Raises one of `MALFORMED` if they are damaged, or an error of the database."""
        execute = self._connection.execute
        rebuilt = self._rebuilt
        rebuilder = self._rebuilder
        checksums = self._checksums
        ends = "SELECT min(id), max(id) FROM log WHERE id < ?"
        first, last = execute(ends, (rebuilt.next_row,)).fetchone()
        self._first, self._last = first or 0, last or 0
        for row_id, settled, index_size, data_size in self._rows(_SETTLED):
            checksums.check_settled(row_id, settled)
            rebuilder.settled(row_id, settled, index_size, data_size)
        rebuilder.resolve_settled()
        self._passes, self._reached = 1, self._first
        for row_id, settled_size, index, data_size in self._rows(_INDEX):
            checksums.check_index(row_id, settled_size, index, data_size)
            rebuilder.index(row_id, index, data_size)
        rebuilder.finish(rebuilt)
        if rebuilder.dangling:
            place = rebuilder.dangling[0]
            raise ValueError(f"the message of record {place & SLOT_MASK} of row {place >> SLOT_BITS} is missing")
        chunks = execute("SELECT id FROM chunk WHERE id < ? ORDER BY id", (rebuilt.next_chunk,)).fetchall()
        rebuilt.find_orphans(chunk for (chunk,) in chunks)
        self._passes = 2

    def _rows(self, query: str) -> Iterator[tuple[int, Any, Any, int]]:
        last = self._first - 1
        while True:
            before = last
            size = 0
            cursor = self._connection.execute(query, (last, self._rebuilt.next_row, self._slice_rows))
            for row in cursor:
                yield row
                last = self._reached = row[0]
                self._breaks.take()
                if self.stopped:
                    raise _Stopped
                size += len(row[1] if isinstance(row[1], bytes) else row[2])
                if size > SLICE_BYTES:
                    break
            cursor.close()
            if last == before:
                return

    def progress(self) -> float:
        if self._passes == 2:
            return 1.0
        return (self._passes + (self._reached - self._first) / (self._last - self._first + 1)) / 2 if self._reached else 0.0


class StoreIndex(RowIndex):
    """The rows of a database that are indexed after it was opened."""

    def __init__(self, log: SqliteLog, store: SqliteStore, rebuilt: Rebuilt) -> None:
        self._log = log
        self._store = store
        self._rebuilt = rebuilt
        self._scan: RowScan | None = None
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        self._store.scan(self._log, self._rebuilt)
        for _ in self.adopting():
            pass

    def start(self, done: Callable[[], None]) -> None:
        connection = self._store.connect()
        self._scan = RowScan(connection, self._store.checksums, self._log, self._rebuilt, Breaks(wanted=True))
        self._thread = threading.Thread(
            target=self._index, args=(connection, self._scan, done), name="leveret-index", daemon=True
        )
        self._thread.start()

    def _index(self, connection: sqlite3.Connection, scan: RowScan, done: Callable[[], None]) -> None:
        try:
            with contextlib.closing(connection):
                # A checkpoint or an operator's program may lock the database for a moment.
                connection.execute("PRAGMA busy_timeout = 5000")
                try:
                    scan.run()
                except (sqlite3.Error, *MALFORMED) as error:
                    self._store.remember_damage(connection)
                    raise RuntimeError(f"the log cannot be indexed: {error}; the next start checks all of it") from None
        except _Stopped:
            pass
        except Exception as error:
            self._log.post(partial(self._log.fail, str(error) or type(error).__name__))
        else:
            self._log.post(done)

    def adopting(self) -> Iterator[int]:
        yield from self._log.adopting(self._rebuilt)
        self._log.indexed()

    def progress(self) -> float:
        return 0.0 if self._scan is None else self._scan.progress()

    def stop(self) -> None:
        """End the thread before everything is indexed. Blocks for the slice that it reads."""
        if self._scan is not None:
            self._scan.stopped = True
        if self._thread is not None:
            self._thread.join()
