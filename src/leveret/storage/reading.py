"""Reading of a log in SQLite that no broker uses, without changing it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leveret.broker.errors import StorageFailed
from leveret.storage.checksums import decode_text
from leveret.storage.data_directory import DirectoryLock
from leveret.storage.presence import LogFiles
from leveret.storage.verification import read_metadata

LOG = "log-0"


@contextmanager
def open_read_only(database: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to a database, and leave no files behind. The caller holds the lock of its directory.

    SQLite creates a write-ahead log and its index even for a read-only connection, and does not remove them. The next
    start would mistake the empty log for a missing one. `immutable` prevents this; the lock keeps the file unchanged.
    """
    wal, index = Path(f"{database}-wal"), Path(f"{database}-shm")
    options = "mode=ro" if wal.exists() else "mode=ro&immutable=1"
    had_index = index.exists()
    connection = sqlite3.connect(f"{database.absolute().as_uri()}?{options}", uri=True)
    connection.text_factory = decode_text
    try:
        yield connection
    finally:
        connection.close()
        if not had_index:
            index.unlink(missing_ok=True)


def read_definitions(directory: Path) -> list[tuple[str, str, bytes]]:
    """Return kind, key and value of each definition in the log of a directory; none if there is no log.

    Raises `StorageFailed` if another process uses the directory, files are missing, or definitions are damaged.
    """
    files = LogFiles(directory, LOG)
    lock = DirectoryLock(directory, f"{LOG}.lock")
    try:
        missing = files.missing()
        if missing:
            raise StorageFailed(f"{missing}; restore the directory {directory} from a backup")
        if not files.database.exists() or not files.database.stat().st_size:
            return []
        with open_read_only(files.database) as connection:
            return [(kind, decode_text(key), value) for kind, key, value in read_metadata(connection)]
    except (sqlite3.Error, ValueError) as error:
        raise StorageFailed(f"{files.database} cannot be read: {error}; check it with `leveret check`") from None
    finally:
        lock.release()
