"""The database of the audit log: an SQLite file with a bounded size and age, used by one thread."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from leveret.management.audit.records import AuditRecord
from leveret.management.json_values import encode_json

_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE records (
    id INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER NOT NULL, user TEXT NOT NULL, source TEXT NOT NULL,
    action TEXT NOT NULL, kind TEXT NOT NULL, vhost TEXT NOT NULL, name TEXT NOT NULL,
    before BLOB NOT NULL, after BLOB NOT NULL
);
CREATE INDEX records_by_time ON records (time);
"""
_COLUMNS: Final = "time, user, source, action, kind, vhost, name, before, after"
_SIZE: Final = "length(user) + length(source) + length(name) + length(before) + length(after) + 100"
# Records that are deleted at a time when the log is full.
_PIECE: Final = 500


class Filter(msgspec.Struct, kw_only=True):
    """Conditions on records; empty ones are ignored. Times are in milliseconds, `until` is exclusive."""

    user: str = ""
    action: str = ""
    kind: str = ""
    vhost: str = ""
    name: str = ""
    since: int = 0
    until: int = 0


class AuditStore:
    """The database.

    Args:
        path: The file.
        max_size: Maximum bytes of the records; the oldest are deleted beyond it.
        max_age: Seconds after which records are deleted; 0 keeps them.

    Raises:
        OSError, sqlite3.Error: The file cannot be used.
    """

    def __init__(self, path: Path, max_size: int, max_age: float) -> None:
        self._max_size = max_size
        self._max_age = max_age
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            self._connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
        elif version != _VERSION:
            raise sqlite3.DatabaseError(f"it has version {version}, expected {_VERSION}")
        self._size = self._size_of("id > ?", 0)

    def close(self) -> None:
        self._connection.close()

    def last_id(self) -> int:
        """Return the highest id so far."""
        row = self._connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'records'").fetchone()
        return 0 if row is None else int(row[0])

    def add(self, records: Sequence[AuditRecord]) -> None:
        """Add records, at least one, and delete old ones."""
        rows = [
            (
                record.id,
                record.time,
                *(_text(value) for value in (record.user, record.source, record.action, record.kind)),
                *(_text(value) for value in (record.vhost, record.name)),
                encode_json(record.before),
                encode_json(record.after),
            )
            for record in records
        ]
        with self._connection:
            self._connection.execute("BEGIN")
            self._connection.executemany(f"INSERT INTO records (id, {_COLUMNS}) VALUES (?{', ?' * 9})", rows)
            self._size += self._size_of("id >= ?", records[0].id)
            self._trim()
        self._connection.execute("PRAGMA incremental_vacuum(1000)").fetchall()

    def _trim(self) -> None:
        if self._max_age:
            self._delete("time < ?", int((time.time() - self._max_age) * 1000))
        while self._size > self._max_size:
            oldest = self._connection.execute("SELECT max(id) FROM (SELECT id FROM records ORDER BY id LIMIT ?)", (_PIECE,))
            (last,) = oldest.fetchone()
            if last is None:
                return
            self._delete("id <= ?", last)

    def _delete(self, condition: str, value: int) -> None:
        size = self._size_of(condition, value)
        if size:
            self._connection.execute(f"DELETE FROM records WHERE {condition}", (value,))
            self._size -= size

    def _size_of(self, condition: str, value: int) -> int:
        (size,) = self._connection.execute(
            f"SELECT coalesce(sum({_SIZE}), 0) FROM records WHERE {condition}", (value,)
        ).fetchone()
        return int(size)

    def search(self, wanted: Filter, offset: int, count: int) -> tuple[list[AuditRecord], int]:
        """Return the newest records that meet the conditions, after the first `offset` of them, and the number of all."""
        conditions = ["1"]
        values: list[str | float] = []
        for column in ("user", "kind", "vhost"):
            if getattr(wanted, column):
                conditions.append(f"{column} = ?")
                values.append(getattr(wanted, column))
        for column in ("action", "name"):
            if getattr(wanted, column):
                conditions.append(f"instr(lower({column}), lower(?))")
                values.append(getattr(wanted, column))
        for operator, limit in ((">=", wanted.since), ("<", wanted.until)):
            if limit:
                conditions.append(f"time {operator} ?")
                values.append(limit)
        where = " AND ".join(conditions)
        (total,) = self._connection.execute(f"SELECT count(*) FROM records WHERE {where}", values).fetchone()
        rows = self._connection.execute(
            f"SELECT id, {_COLUMNS} FROM records WHERE {where} ORDER BY id DESC LIMIT ? OFFSET ?", [*values, count, offset]
        )
        return [_record(row) for row in rows], int(total)


def _text(value: str) -> str:
    """Return a text that SQLite takes: a name may have bytes that are not UTF-8."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _record(row: tuple[Any, ...]) -> AuditRecord:
    id, time, user, source, action, kind, vhost, name, before, after = row
    return AuditRecord(
        id=id,
        time=time,
        user=user,
        source=source,
        action=action,
        kind=kind,
        vhost=vhost,
        name=name,
        before=msgspec.json.decode(before),
        after=msgspec.json.decode(after),
    )
