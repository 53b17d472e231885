"""Detection of missing files in a data directory.

SQLite accepts a database without its write-ahead log as complete, and creates a new one if there is none. The broker
would start empty, with the default user, so it refuses to start if there is evidence of missing files:

- `log-0.marker`, which is written and synced after the first commit: a database must exist from then on;
- the state in the database. A database that was not closed properly has a write-ahead log, whose directory entry is
  synced before the state is written.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Final

from leveret.storage import disk

# Directories whose files are defined in the log.
_DEPENDENT: Final = ("streams", "staged")
ORPHANED: Final = ".orphaned"


class LogFiles:
    """The files of one log in a data directory. `name` is the name of the log, such as `log-0`."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.database = directory / f"{name}.sqlite"
        self.wal = directory / f"{name}.sqlite-wal"
        self.marker = directory / f"{name}.marker"
        self._incomplete = directory / f"{name}.incomplete"

    def missing(self) -> str:
        """Describe the missing files and the evidence that they existed. Returns "" if nothing is missing."""
        if not _size(self.database):
            others = self._others()
            if others:
                how = "empty" if self.database.exists() else "missing"
                exist = "exists" if len(others) == 1 else "exist"
                return f"the database {self.database} is {how}, but {', '.join(others)} {exist}"
        elif not self.wal.exists():
            clean = _was_closed(self.database)
            if clean is False:
                return (
                    f"the write-ahead log {self.wal} is missing, and {self.database.name} was not closed properly: the"
                    " last commits are only in the write-ahead log"
                )
            if clean is None and self.marker.exists():
                return f"the database {self.database} has no tables, but {self.marker.name} exists"
        return ""

    def _others(self) -> list[str]:
        """Return the names of the files that would not exist without a database."""
        found = [self.wal.name] if _size(self.wal) else []
        if self.marker.exists():
            found.append(self.marker.name)
        return found + [name for name in _DEPENDENT if _has_files(self.directory / name)]

    def accept_missing(self) -> None:
        """Record that the operator accepts the missing files, in a file that exists until the log has the record.

        Without the file, a start after a crash would find nothing missing and remove files without a definition.
        """
        disk.write_synced(self._incomplete, b"files of the log were missing, and --accept-missing was given\n")

    def accepted(self) -> bool:
        """Return whether missing files were accepted and the log has no record of it yet."""
        return self._incomplete.exists()

    def forget_missing(self) -> None:
        """Remove the record of missing files, since the log has one now."""
        self._incomplete.unlink(missing_ok=True)

    def put_aside(self) -> None:
        """Keep a write-ahead log without its database, which SQLite would delete. The caller holds the directory lock."""
        if not _size(self.database) and _size(self.wal):
            target = name = f"{self.wal}{ORPHANED}"
            number = 1
            while os.path.lexists(target):
                number += 1
                target = f"{name}-{number}"
            self.wal.rename(target)
            disk.sync_directory(self.directory)

    def mark(self) -> None:
        """Write the marker: there was a commit, so a database must exist from now on."""
        if not self.marker.exists():
            disk.write_synced(self.marker, b"leveret keeps its log beside this file\n")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _has_files(directory: Path) -> bool:
    return any(names for _, _, names in os.walk(directory))


def _was_closed(database: Path) -> bool | None:
    """Return whether a database without a write-ahead log was closed properly; None if that is unknown."""
    with contextlib.suppress(sqlite3.Error):
        connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                return None
            found = connection.execute("SELECT value FROM state WHERE name = 'clean'").fetchone()
            return bool(found[0]) if found else True
        finally:
            connection.close()
    return True  # not a leveret database, or a damaged one: opening it reports that
