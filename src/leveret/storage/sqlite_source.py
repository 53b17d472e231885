"""A stopped log in SQLite, as its copy into another engine reads it."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from leveret.broker import metadata
from leveret.broker.errors import StorageFailed
from leveret.storage.checksums import Checksums, RowDamaged, decode_text, definition_sum, number_sum
from leveret.storage.data_directory import DirectoryLock
from leveret.storage.presence import LogFiles
from leveret.storage.reading import LOG, open_read_only
from leveret.storage.sqlite_store import APPLICATION_ID, FORMAT_VERSION
from leveret.storage.verification import read_marks, read_metadata, read_state

Row = tuple[Any, ...]

LOG_TABLE: Final = "log"
CHUNKS: Final = "chunk"
METADATA: Final = "metadata"
MARKS: Final = "mark"
TABLES: Final = (LOG_TABLE, CHUNKS, METADATA, MARKS)


class SqliteSource:
    """The log in a directory, which is locked as long as this context lasts.

    Args:
        directory: The directory of the log.

    Attributes:
        directory: The same.
        facts: The facts about the log, such as `clean` and `next_row`.
        definitions: Kind, key and value of each definition.
        counts: The number of rows of each table.

    Raises:
        StorageFailed: On entry: another process uses the directory, or it has no complete log in the current format.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.facts: dict[str, int] = {}
        self.definitions: list[tuple[str, bytes, bytes]] = []
        self.counts: dict[str, int] = {}
        # Those of all rows and chunks: an engine other than SQLite has no older ones.
        self._checksums = Checksums(0, 0)

    def __enter__(self) -> SqliteSource:
        files = LogFiles(self.directory, LOG)
        self._file = files.database
        if not (files.database.exists() or files.wal.exists() or files.marker.exists()):
            raise StorageFailed(f"{self.directory} is not a Leveret data directory: it has no {files.database.name}")
        self._lock = DirectoryLock(self.directory, f"{LOG}.lock")
        try:
            missing = files.missing()
            if missing:
                raise StorageFailed(f"{missing}; restore the directory {self.directory} from a backup")
            self._opened = open_read_only(files.database)
            self._connection = self._opened.__enter__()
            try:
                self._read()
            except BaseException as error:
                self._opened.__exit__(type(error), error, None)
                raise
        except (sqlite3.Error, ValueError) as error:
            self._lock.release()
            raise self._damaged(str(error)) from None
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._opened.__exit__(kind, error, trace)
        self._lock.release()

    def _read(self) -> None:
        execute = self._connection.execute
        if execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise StorageFailed(f"{self._file} is not a Leveret database")
        version = execute("PRAGMA user_version").fetchone()[0]
        if version != FORMAT_VERSION:
            raise StorageFailed(
                f"{self._file} has format version {version}; expected {FORMAT_VERSION}: start and stop this version of"
                " Leveret once on the data directory"
                if version < FORMAT_VERSION
                else f"{self._file} has format version {version}, and this version of Leveret reads up to {FORMAT_VERSION};"
                " use the version that wrote it, or a later one"
            )
        self.facts = dict(read_state(self._connection))
        if "damaged" in self.facts:
            raise ValueError("the broker has found damage in it")
        self.definitions = [found for found in read_metadata(self._connection) if found[0] != metadata.OCCUPIED]
        for table in TABLES:
            self.counts[table] = execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        self.counts[METADATA] = len(self.definitions)

    def _damaged(self, why: str) -> StorageFailed:
        return StorageFailed(f"{self._file} is damaged: {why}; see `leveret check {self.directory}`")

    def names(self, kind: str) -> list[str]:
        """Return the keys of the definitions of a kind."""
        return [decode_text(key) for found, key, _ in self.definitions if found == kind]

    def rows(self, table: str) -> Iterator[Row]:
        """Yield the rows of a table with their checksums, as the other engine stores them.

        Raises:
            StorageFailed: One of them is damaged.
        """
        try:
            yield from {LOG_TABLE: self._log, CHUNKS: self._chunks, METADATA: self._metadata, MARKS: self._marks}[table]()
        except (sqlite3.Error, ValueError) as error:
            raise self._damaged(str(error)) from None

    def _log(self) -> Iterator[Row]:
        for row in self._connection.execute("SELECT id, settled, entries, data FROM log ORDER BY id"):
            try:
                self._checksums.check_row(*row)
            except (RowDamaged, TypeError, struct.error) as error:
                raise ValueError(self._fault(f"row {row[0]}", row[0] < self.facts["first_row"], error)) from None
            yield row

    def _chunks(self) -> Iterator[Row]:
        for row in self._connection.execute("SELECT id, data, crc FROM chunk ORDER BY id"):
            try:
                self._checksums.check_chunk(*row)
            except (RowDamaged, TypeError) as error:
                raise ValueError(self._fault(f"chunk {row[0]}", row[0] < self.facts["first_chunk"], error)) from None
            yield row

    def _fault(self, what: str, is_old: bool, error: Exception) -> str:
        age = " (it is from format version 1, which had no checksums: consume its messages first)" if is_old else ""
        return f"{what}: {error}{age}"

    def _metadata(self) -> Iterator[Row]:
        for kind, key, value in self.definitions:
            yield kind, key, value, definition_sum(kind, key, value)

    def _marks(self) -> Iterator[Row]:
        for queue, seq in read_marks(self._connection):
            yield queue, seq, number_sum(f"mark {queue}", seq)
