"""The database of the SQLite engine: schema, transactions, recovery and size.

`log(id, settled, entries, data)` has a row for each commit (or piece of one), with the index before the data, so that
reading the index does not touch the data's pages. `chunk` has the pieces of large bodies, `metadata` the definitions,
`mark` the sequence numbers that each queue may have used, `state` the rest. Everything has a checksum: rows of `log` in
their columns (see `checksums`), others in a column `crc`. An ordinary commit is one statement: an
insert into the view `turn`, whose trigger also deletes rows. Each statement releases the GIL once, and reacquiring it
from a busy event loop takes up to one switch interval.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import struct
from pathlib import Path
from typing import Final

from leveret.broker import metadata
from leveret.broker.errors import StorageFailed
from leveret.broker.log import Log, Recovery
from leveret.storage import disk
from leveret.storage.batch import Commit, RowImage
from leveret.storage.checkpointer import Checkpointer
from leveret.storage.checksums import Checksums, RowDamaged, chunk_sum, decode_text, definition_sum, number_sum, row_columns
from leveret.storage.copying import DatabaseCopy
from leveret.storage.data_directory import LOCKS, Reserve
from leveret.storage.indexing import MALFORMED, RowScan
from leveret.storage.recovery import Rebuilt
from leveret.storage.salvage import NOTHING_LOST, Salvage
from leveret.storage.verification import (
    STATE,
    Finding,
    LogCheck,
    Repair,
    definition_type_fault,
    mark_salvaged,
    number_type_fault,
    read_marks,
    read_metadata,
    read_state,
)
from leveret.storage.worker import Interleave, StoreBroken, StoreFull, chunk_bytes, copied_row

logger = logging.getLogger("leveret.storage")

# "Lvrt", in the header of the file.
APPLICATION_ID: Final = 0x4C767274
# 1 had no checksums. In 2, streams contained only messages that the log has under their own ids.
FORMAT_VERSION: Final = 3
FIRST_WITH_CHECKSUMS: Final = 2
PAGE_BYTES: Final = 4096

# A checkpoint begins when the write-ahead log has grown by this many pages, and when the engine is idle.
CHECKPOINT_PAGES: Final = 4096
# Maximum size of the write-ahead log after a restart, and of an idle store. It is not truncated below: a sync of bytes that
# overwrite others takes 0.12 ms where one that extends the file takes 0.2 ms.
KEPT_WAL_BYTES: Final = 2 * CHECKPOINT_PAGES * PAGE_BYTES
# On a disk with little free space, an idle store keeps at most this part of it, so that an alarm can end.
KEPT_WAL_PART: Final = 8
# With more pages in the write-ahead log, a commit waits for the checkpoint.
MAX_WAL_PAGES: Final = 4 * CHECKPOINT_PAGES
# The same while space is short: the write-ahead log cannot use free pages of the database.
SHORT_CHECKPOINT_PAGES: Final = 128
# Free pages kept in the database for the next messages, and how many are returned in one step.
SPARE_PAGES: Final = 2048
VACUUM_PAGES: Final = 1024
# A failed commit ran out of space if this many bytes beyond its size cannot be written either.
PROBE_BYTES: Final = 1 << 20
# Writes to the database, the write-ahead log and its index, where SQLite reports a full quota as an I/O error.
_FAILED_WRITES: Final = (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_TRUNCATE, sqlite3.SQLITE_IOERR_SHMSIZE)
# Databases up to this size are checked completely after an unclean stop.
CHECK_BYTES: Final = 64 << 20
# Larger logs are indexed while the broker serves. One of this size takes at most about 0.5 s, with a row per message.
INDEXED_BYTES: Final = 4 << 20
# Steps of SQLite's virtual machine between two reports of progress: some milliseconds.
PROGRESS_STEPS: Final = 1_000_000

_SCHEMA: Final = (
    "CREATE TABLE log(id INTEGER PRIMARY KEY, settled BLOB, entries BLOB, data BLOB)",
    "CREATE TABLE chunk(id INTEGER PRIMARY KEY, data BLOB, crc INTEGER)",
    "CREATE TABLE metadata(kind TEXT, key BLOB, value BLOB, crc INTEGER, PRIMARY KEY (kind, key)) WITHOUT ROWID",
    "CREATE TABLE mark(queue INTEGER PRIMARY KEY, seq INTEGER, crc INTEGER)",
    "CREATE TABLE state(name TEXT PRIMARY KEY, value INTEGER, crc INTEGER) WITHOUT ROWID",
)
_MIGRATION: Final = tuple(f"ALTER TABLE {table} ADD COLUMN crc INTEGER" for table in ("chunk", "metadata", "mark", "state"))

_TURN: Final = (
    "CREATE TEMP VIEW turn AS SELECT 0 AS id, NULL AS settled, NULL AS entries, NULL AS data, NULL AS dead",
    "CREATE TEMP TRIGGER turn_insert INSTEAD OF INSERT ON turn BEGIN"
    " INSERT INTO log VALUES (new.id, new.settled, new.entries, new.data);"
    " DELETE FROM log WHERE id IN (SELECT value FROM json_each(new.dead)); END",
)
_INSERT: Final = "INSERT INTO log VALUES (?, ?, ?, ?)"
_PUT: Final = "INSERT OR REPLACE INTO metadata VALUES (?, ?, ?, ?)"
_MARK: Final = "INSERT OR REPLACE INTO mark VALUES (?, ?, ?)"
_STATE: Final = "INSERT OR REPLACE INTO state VALUES (?, ?, ?)"
_INSERT_AND_DELETE: Final = "INSERT INTO turn VALUES (?, ?, ?, ?, ?)"
_DELETE: Final = "DELETE FROM log WHERE id IN (SELECT value FROM json_each(?))"


def _set_state(connection: sqlite3.Connection, name: str, value: int) -> None:
    connection.execute(_STATE, (name, value, number_sum(name, value)))


def _explain(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", None)
    return f"{error} ({name})" if name else str(error)


class SqliteStore:
    """One database file, one connection (and another for checkpoints beside commits). Implements `worker.Store`.

    synchronous  FULL or EXTRA; OFF for a file that need not outlive the process
    salvage      the losses that the operator accepts for this start
    incomplete   whether the operator accepted missing files of the log
    """

    def __init__(
        self, path: Path, synchronous: str, reserve: Reserve, salvage: Salvage = NOTHING_LOST, incomplete: bool = False
    ) -> None:
        self.path = path
        self._salvage = salvage
        self._incomplete = incomplete
        self.reserve = reserve
        self._synchronous = synchronous
        self._wal_pages = 0
        self._short = False
        # A file that is never synced has no slow checkpoints.
        self._shared = LOCKS and synchronous != "OFF"
        self.checksums = Checksums(0, 0)
        self._version = FORMAT_VERSION
        self._keeper: sqlite3.Connection | None = None
        self._finished = False
        self._connection: sqlite3.Connection = self._open()
        self.checkpointer: Checkpointer | None = None

    # Opening

    def connect(self) -> sqlite3.Connection:
        """Open a plain connection to the database."""
        connection = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=0, cached_statements=64
        )
        connection.text_factory = decode_text
        return connection

    def _open(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = None
        try:
            # SQLite copies the mode of this file to its other files.
            if disk.create_file(self.path):
                disk.sync_directory(self.path.parent)
            connection = self.connect()
            if not self._shared:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            if Path(f"{self.path}-journal").exists():
                # A crash interrupted the creation: roll it back, which a read-only connection cannot.
                connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            self._keep_wal()
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
            if tables and application != APPLICATION_ID:
                raise StorageFailed(
                    f"{self.path} is a database, but not a leveret log; choose another directory with --data-dir"
                )
            if version > FORMAT_VERSION:
                raise StorageFailed(
                    f"{self.path} has format version {version}, and this version of leveret reads up to"
                    f" {FORMAT_VERSION}; install the version of leveret that wrote it, or a later one"
                )
            if not tables:
                self._create(connection)
                self._keep_wal()
            else:
                self._version = version
            self._configure(connection)
        except OSError as error:
            raise StorageFailed(f"{self.path} cannot be created: {error.strerror}") from None
        except sqlite3.Error as error:
            self._close(connection)
            raise self._unopened(error) from None
        except StorageFailed:
            self._close(connection)
            raise
        return connection

    def _keep_wal(self) -> None:
        """Keep the write-ahead log after `close` unless the log was finished.

        SQLite deletes it with the last connection, but a database that was not closed properly must have one (see
        `presence`). A read-only connection cannot delete it, and prevents the others from being the last.
        """
        if self._shared and self._keeper is None and self.path.stat().st_size:
            self._keeper = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=ro",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                timeout=0,
            )
            self._keeper.execute("SELECT count(*) FROM sqlite_schema").fetchone()

    def _create(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            connection.execute(statement)
        for name in STATE:
            _set_state(connection, name, 1)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        connection.execute("COMMIT")

    def _configure(self, connection: sqlite3.Connection) -> None:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StorageFailed(f"the file system of {self.path} does not allow a write-ahead log")
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("PRAGMA checkpoint_fullfsync = ON")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute(f"PRAGMA journal_size_limit = {KEPT_WAL_BYTES}")
        connection.execute("PRAGMA cache_size = -16384")
        # Some builds overwrite deleted pages with zeros by default, which doubles the bytes written.
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("PRAGMA temp_store = MEMORY")
        for statement in _TURN:
            connection.execute(statement)

    def _open_checkpointer(self) -> None:
        if not self._shared:
            return
        connection = self.connect()
        # Bind the connection now, to the file that was checked and locked.
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        connection.execute("PRAGMA checkpoint_fullfsync = ON")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("SELECT count(*) FROM state").fetchone()
        self.checkpointer = Checkpointer(connection)

    def _unopened(self, error: sqlite3.Error) -> StorageFailed:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StorageFailed(
                f"the data directory {self.path.parent} is in use by another process; stop that"
                " process, or choose another directory with --data-dir"
            )
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return self.damaged(_explain(error))
        if code == sqlite3.SQLITE_FULL or self._over_quota(error, 0):
            return StorageFailed(f"no space is left to open {self.path}; free some disk space, then start again")
        return StorageFailed(f"{self.path} cannot be opened: {_explain(error)}")

    def damaged(self, why: str) -> StorageFailed:
        """Return the error for a damaged database."""
        if self._salvage.drop_damaged:
            way = "--drop-damaged cannot help, because the structure of the file is damaged"
        else:
            way = (
                f"or start once with --drop-damaged (drop_damaged=True of an embedded broker), which drops the damaged"
                f" items and logs their contents (`leveret check {self.path.parent}` lists all of them)"
            )
        return StorageFailed(
            f"{self.path} is damaged ({why}); restore the directory {self.path.parent} from a backup;"
            f" {way}; or move the directory away to start with an"
            f" empty log, and recover readable data with `sqlite3 {self.path.name} .recover`"
        )

    # Recovery

    def recover(self, log: Log, index_later: bool) -> Rebuilt:
        """Read the state of the log. Raises `StorageFailed` if the database is damaged.

        With `index_later`, the rows of a large log are not read: see `Rebuilt.indexed`.
        """
        on_progress = log.on_progress
        if on_progress is not None:
            # Also during checks of the whole file.
            self._connection.set_progress_handler(on_progress, PROGRESS_STEPS)
        try:
            return self._recover(log, index_later)
        except sqlite3.Error as error:
            raise self._unopened(error) from None
        except MALFORMED as error:
            raise self.damaged(str(error)) from None
        finally:
            self._connection.set_progress_handler(None, 0)

    def _recover(self, log: Log, index_later: bool) -> Rebuilt:
        execute = self._connection.execute
        rebuilt = Rebuilt()
        recovery = rebuilt.recovery
        state = dict(execute("SELECT name, value FROM state"))
        # A missing fact is damage and counts as an unclean stop.
        recovery.clean = state.get("clean") == 1
        small = self.path.stat().st_size <= CHECK_BYTES
        if not recovery.clean and small and not self._salvage.drop_damaged:
            self._check_structure()
        if not self._salvage.drop_damaged:
            if "damaged" in state or (not recovery.clean and small):
                self._refuse_damage(LogCheck(self._connection).run())
            elif self._version < FIRST_WITH_CHECKSUMS:
                self._refuse_damage(LogCheck(self._connection).run_definitions())
        if self._version < FIRST_WITH_CHECKSUMS:
            self._migrate()
        elif self._version < FORMAT_VERSION:
            execute(f"PRAGMA user_version = {FORMAT_VERSION}")
            self._version = FORMAT_VERSION
        if self._salvage.drop_damaged:
            recovery.dropped = self._drop_damaged()
        if self._incomplete:
            execute("BEGIN IMMEDIATE")
            mark_salvaged(self._connection)
            execute("COMMIT")
        state = dict(execute("SELECT name, value FROM state"))
        try:
            self._read_definitions(rebuilt)
            rebuilt.next_row = max(state["next_row"], (execute("SELECT max(id) FROM log").fetchone()[0] or 0) + 1)
            rebuilt.next_chunk = (execute("SELECT max(id) FROM chunk").fetchone()[0] or 0) + 1
            rebuilt.indexed = not (index_later and self._is_large(recovery, state))
            found = recovery.metadata.pop((metadata.OCCUPIED, ""), None)
            if found is not None and recovery.clean:
                occupied = metadata.unpack(found)
                if occupied["next_row"] == state["next_row"]:
                    recovery.occupied = frozenset(occupied["queues"])
            if rebuilt.indexed:
                RowScan(self._connection, self.checksums, log, rebuilt).run()
        except MALFORMED:
            self._refuse_damage(LogCheck(self._connection).run())
            raise
        if "damaged" in state:
            execute("DELETE FROM state WHERE name = 'damaged'")
        _set_state(self._connection, "clean", 0)
        self._checkpoint("TRUNCATE")
        # An operator who inspects the database by hand may lock it for a moment.
        execute("PRAGMA busy_timeout = 5000")
        self._open_checkpointer()
        return rebuilt

    def _is_large(self, recovery: Recovery, state: dict[str, int]) -> bool:
        """Return whether the rows are to be indexed after the start, through another connection."""
        if not self._shared or recovery.dropped or "damaged" in state:
            return False
        sizes = self.statistics()
        return sizes["file_bytes"] + sizes["wal_bytes"] > INDEXED_BYTES

    def scan(self, log: Log, rebuilt: Rebuilt) -> None:
        """Read the rows of a large log before its start. Raises `StorageFailed` if they are damaged."""
        try:
            try:
                RowScan(self._connection, self.checksums, log, rebuilt).run()
            except MALFORMED:
                self._refuse_damage(LogCheck(self._connection).run())
                raise
        except sqlite3.Error as error:
            raise self._unopened(error) from None
        except MALFORMED as error:
            raise self.damaged(str(error)) from None

    def remember_damage(self, connection: sqlite3.Connection) -> None:
        """Make the next start check everything. Called by the thread that has found damage, with its connection."""
        with contextlib.suppress(sqlite3.Error):
            _set_state(connection, "damaged", 1)

    def _read_definitions(self, rebuilt: Rebuilt) -> None:
        """Read everything but the rows and chunks. Raises `ValueError` if anything is damaged."""
        recovery = rebuilt.recovery
        facts = dict(read_state(self._connection))
        self.checksums = Checksums(facts["first_row"], facts["first_chunk"])
        recovery.metadata = {
            (kind, key.decode("utf-8", "surrogateescape")): value for kind, key, value in read_metadata(self._connection)
        }
        recovery.last_seq = dict(read_marks(self._connection))

    def _migrate(self) -> None:
        """Migrate a log of format 1: definitions and marks get checksums now, rows when they are rewritten.

        Values of the wrong type get none: they are damaged, and the operator decided to drop them.
        """
        connection = self._connection
        execute = connection.execute
        execute("BEGIN IMMEDIATE")
        for statement in _MIGRATION:
            execute(statement)
        definitions = [
            item for item in execute("SELECT kind, key, value FROM metadata").fetchall() if not definition_type_fault(*item)
        ]
        connection.executemany(_PUT, ((*item, definition_sum(*item)) for item in definitions))
        marks = [
            (queue, seq)
            for queue, seq in execute("SELECT queue, seq FROM mark").fetchall()
            if not number_type_fault(f"mark {queue}", seq)
        ]
        connection.executemany(_MARK, ((queue, seq, number_sum(f"mark {queue}", seq)) for queue, seq in marks))
        facts = {
            name: value
            for name, value in execute("SELECT name, value FROM state").fetchall()
            if not number_type_fault(name, value)
        }
        last_row = execute("SELECT max(id) FROM log").fetchone()[0] or 0
        last_chunk = execute("SELECT max(id) FROM chunk").fetchone()[0] or 0
        next_row = max(facts.get("next_row", 1), last_row + 1)
        if "next_row" in facts:
            facts["next_row"] = next_row
        for name, value in (facts | {"first_row": next_row, "first_chunk": last_chunk + 1}).items():
            _set_state(connection, name, value)
        execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        execute("COMMIT")
        rows = execute("SELECT count(*) FROM log").fetchone()[0]
        logger.info(
            "migrated %s from format version %d to %d: %d definitions have checksums, and %d rows get theirs"
            " when they are rewritten",
            self.path,
            self._version,
            FORMAT_VERSION,
            len(definitions),
            rows,
        )
        self._version = FORMAT_VERSION

    # Damage

    def _check_structure(self) -> None:
        """Raise `StorageFailed` if SQLite finds the file malformed."""
        verdict = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise self.damaged(verdict)

    def _refuse_damage(self, findings: list[Finding]) -> None:
        """Raise `StorageFailed` if there are findings."""
        if findings:
            shown = "; ".join(str(finding) for finding in findings[:3])
            more = f"; and {len(findings) - 3} more" if len(findings) > 3 else ""
            raise self.damaged(f"{shown}{more}")

    def _drop_damaged(self) -> list[tuple[str, str]]:
        """Drop and log damaged items. Returns the kinds and keys of dropped definitions."""
        findings = LogCheck(self._connection).run()
        if not findings:
            logger.warning("%s: no damage found, nothing dropped", self.path)
        for finding in findings:
            logger.error("%s: dropped: %s", self.path, finding)
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            dropped = Repair(self._connection, findings).run()
            self._check_structure()
        except BaseException:
            self._roll_back()
            raise
        self._connection.execute("COMMIT")
        return dropped

    def _damaged_row(self, row_id: int, error: Exception) -> StoreBroken:
        """Return the error for a damaged row."""
        text = f"row {row_id} of the log is damaged: {error}"
        with contextlib.suppress(sqlite3.Error, *MALFORMED):
            text = str(LogCheck(self._connection).finding_of(row_id, error))
        self._remember_damage(row_id)
        return StoreBroken(text)

    def _unread(self, number: int, error: sqlite3.Error) -> Exception:
        """Translate an SQLite error raised while a row or chunk was read."""
        self._remember_damage(number)
        return self._translated(error)

    def _remember_damage(self, number: int) -> None:
        """Make the next start check everything.

        Rolls back a commit in progress first, since its rollback would undo this too.
        """
        self._roll_back()
        with contextlib.suppress(sqlite3.Error):
            _set_state(self._connection, "damaged", number)

    # Commits

    def commit(self, commit: Commit) -> None:
        if self.checkpointer is not None:
            self.checkpointer.committing()
        self._raise_checkpoint_error()
        try:
            self._write(commit)
        except sqlite3.Error as error:
            self._roll_back()
            raise self._translated(error, commit.pending_bytes) from None
        except StoreBroken:
            self._roll_back()
            raise

    def _translated(self, error: sqlite3.Error, size: int = 0) -> Exception:
        """Translate an SQLite error raised while `size` bytes were written."""
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
            return StoreFull("no space is left for the log")
        if self._over_quota(error, size):
            return StoreFull("no space is left for the log: the disk quota is used up")
        return StoreBroken(_explain(error))

    def _over_quota(self, error: sqlite3.Error, size: int) -> bool:
        """Return whether a write failed for lack of space.

        A failed sync is an I/O error whatever its cause: it is unknown which earlier writes are on disk.
        """
        return getattr(error, "sqlite_errorcode", 0) in _FAILED_WRITES and disk.has_no_space(
            self.path.parent, size + PROBE_BYTES
        )

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _write(self, commit: Commit) -> None:
        execute = self._connection.execute
        images = commit.images
        self._wal_pages += 4 * len(commit.deletes) + 2
        dead = "[" + ",".join(map(str, commit.deletes)) + "]" if commit.deletes else None
        if not (commit.copies or commit.chunks or commit.dead_chunks or commit.puts or commit.marks or commit.next_row):
            if len(images) == 1:
                image = images[0]
                settled, index, data = row_columns(image)
                self._wal_pages += len(data) // PAGE_BYTES + 3
                if dead is None:
                    execute(_INSERT, (image.id, settled, index, data))
                else:
                    execute(_INSERT_AND_DELETE, (image.id, settled, index, data, dead))
                return
            if not images:
                if dead is not None:
                    execute(_DELETE, (dead,))
                return
        execute("BEGIN IMMEDIATE")
        for image in images:
            self._insert(image)
        for plan in commit.copies:
            self._insert(copied_row(plan, self._fetch_row))
        for chunk_id, pieces in commit.chunks:
            chunk = chunk_bytes(pieces)
            execute("INSERT INTO chunk VALUES (?, ?, ?)", (chunk_id, chunk, chunk_sum(chunk_id, chunk)))
            self._wal_pages += 260
        for first, last in commit.dead_chunks:
            execute("DELETE FROM chunk WHERE id BETWEEN ? AND ?", (first, last))
        if dead is not None:
            execute(_DELETE, (dead,))
        for (kind, name), value in commit.puts.items():
            key = name.encode("utf-8", "surrogateescape")
            if value is None:
                execute("DELETE FROM metadata WHERE kind = ? AND key = ?", (kind, key))
            else:
                execute(_PUT, (kind, key, value, definition_sum(kind, key, value)))
        for queue_id, seq in commit.marks.items():
            if seq:
                execute(_MARK, (queue_id, seq, number_sum(f"mark {queue_id}", seq)))
            else:
                execute("DELETE FROM mark WHERE queue = ?", (queue_id,))
        if commit.next_row:
            _set_state(self._connection, "next_row", commit.next_row)
        execute("COMMIT")
        self._wal_pages += 4 + len(commit.puts) + len(commit.marks)

    def _insert(self, image: RowImage) -> None:
        settled, index, data = row_columns(image)
        self._wal_pages += len(data) // PAGE_BYTES + 3
        self._connection.execute(_INSERT, (image.id, settled, index, data))

    # Reading

    def read_row(self, row_id: int) -> tuple[bytes, bytes] | None:
        row = self._fetch_row(row_id)
        return (row[1], row[2]) if row is not None else None

    def _fetch_row(self, row_id: int) -> tuple[bytes, bytes, bytes] | None:
        """Return the columns of a row, None if it does not exist. Raises `StoreBroken` if it is damaged."""
        try:
            row: tuple[bytes, bytes, bytes] | None = self._connection.execute(
                "SELECT settled, entries, data FROM log WHERE id = ?", (row_id,)
            ).fetchone()
        except sqlite3.Error as error:
            raise self._unread(row_id, error) from None
        if row is None:
            return None
        settled, index, data = row
        try:
            self.checksums.check_row(row_id, settled, index, data)
        except (RowDamaged, TypeError, struct.error) as error:
            raise self._damaged_row(row_id, error) from None
        return row

    def read_chunks(self, first: int, count: int) -> list[bytes]:
        try:
            rows = self._connection.execute(
                "SELECT id, data, crc FROM chunk WHERE id BETWEEN ? AND ? ORDER BY id", (first, first + count - 1)
            ).fetchall()
        except sqlite3.Error as error:
            raise self._unread(first, error) from None
        if len(rows) != count:
            raise StoreBroken(f"chunks {first} to {first + count - 1} of the log are missing")
        for chunk_id, data, found in rows:
            try:
                self.checksums.check_chunk(chunk_id, data, found)
            except (RowDamaged, TypeError) as error:
                self._remember_damage(chunk_id)
                raise StoreBroken(f"chunk {chunk_id} of a large body is damaged: {error}") from None
        return [data for _, data, _ in rows]

    def copy(self, copy: DatabaseCopy, interleave: Interleave) -> None:
        """Write a copy, from this connection: commits of another one would restart it."""
        copy.write(self._connection, interleave)

    # Housekeeping

    def tidy(self) -> None:
        pages = self._wal_pages
        checkpointer = self.checkpointer
        if self._short:
            if pages >= SHORT_CHECKPOINT_PAGES:
                self._finish_checkpoint("TRUNCATE")
        elif pages >= CHECKPOINT_PAGES and (checkpointer is None or checkpointer.advance(pages) or pages >= MAX_WAL_PAGES):
            self._finish_checkpoint("PASSIVE")

    def maintain(self) -> bool:
        """Return free pages to the file system, a bounded number at a time."""
        try:
            free = self._connection.execute("PRAGMA freelist_count").fetchone()[0]
            if free > SPARE_PAGES:
                # Each step of this statement returns one page, and `execute` makes only one step.
                self._connection.executescript(f"PRAGMA incremental_vacuum({min(VACUUM_PAGES, free - SPARE_PAGES)})")
                self._wal_pages += VACUUM_PAGES
        except sqlite3.Error as error:
            raise self._translated(error) from None
        if free > SPARE_PAGES:
            if self._wal_pages >= CHECKPOINT_PAGES:
                self._finish_checkpoint("TRUNCATE")
            return True
        if self._wal_pages:
            self._finish_checkpoint("TRUNCATE" if self._short or self._wal_is_large() else "PASSIVE")
        elif self._wal_is_large():
            self._finish_checkpoint("TRUNCATE")
        return False

    def _wal_is_large(self) -> bool:
        """Return whether the write-ahead log is larger than what the store keeps."""
        try:
            size = os.stat(f"{self.path}-wal").st_size
            return size > min(KEPT_WAL_BYTES, self.reserve.free() // KEPT_WAL_PART)
        except OSError:
            return False

    def _finish_checkpoint(self, mode: str) -> None:
        """Copy the rest of the write-ahead log into the database, so that the log restarts."""
        if self.checkpointer is not None:
            self.checkpointer.wait()
            self._raise_checkpoint_error()
            self.checkpointer.restart()
        try:
            self._checkpoint(mode)
        except sqlite3.Error as error:
            raise self._translated(error) from None

    def _checkpoint(self, mode: str) -> None:
        self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        self._wal_pages = 0

    def _raise_checkpoint_error(self) -> None:
        if self.checkpointer is not None and self.checkpointer.error is not None:
            error = self._translated(self.checkpointer.error)
            if isinstance(error, StoreFull):
                self.checkpointer.error = None
            raise error

    # Space

    def space(self, pending: int) -> str:
        reason = self._shortage(pending)
        self._short = bool(reason)
        return reason

    def _shortage(self, pending: int) -> str:
        reserve = self.reserve
        if not reserve.size:
            return ""
        free = reserve.free()
        # Pending bytes go to the write-ahead log first, and from there to the database.
        needed = reserve.size + 2 * pending + self._wal_pages * PAGE_BYTES
        if reserve.is_allocated:
            if free >= (needed + reserve.size // 4 if self._short else needed):
                return ""
            return f"{free} bytes are free on the disk of {self.path.parent}; expected at least {needed}"
        if free >= needed + reserve.size + reserve.size // 4 and reserve.allocate():
            return ""
        return f"the disk of {self.path.parent} is full"

    def make_room(self) -> None:
        self.reserve.release()
        with contextlib.suppress(StoreFull):
            self._finish_checkpoint("TRUNCATE")

    def statistics(self) -> dict[str, int]:
        figures = {"free_bytes": self.reserve.free()}
        for name, suffix in (("file_bytes", ""), ("wal_bytes", "-wal")):
            try:
                figures[name] = Path(f"{self.path}{suffix}").stat().st_size
            except OSError:
                figures[name] = 0
        return figures

    # Shutdown

    def finish(self, commit: Commit) -> None:
        """Write the last commit and the mark of a clean shutdown. Raises `StoreFull` or `StoreBroken`."""
        self.commit(commit)
        try:
            _set_state(self._connection, "clean", 1)
            self._finished = True
        except sqlite3.Error as error:
            raise self._translated(error) from None

    def close(self) -> None:
        """Release the file. Never raises."""
        if self.checkpointer is not None:
            self.checkpointer.close()
        self._close(self._connection)

    def _close(self, connection: sqlite3.Connection | None) -> None:
        """Close a connection and the one that keeps the write-ahead log: the latter first if the log can be deleted."""
        keeper, self._keeper = self._keeper, None
        for one in (keeper, connection) if self._finished else (connection, keeper):
            if one is not None:
                with contextlib.suppress(sqlite3.Error):
                    one.close()
