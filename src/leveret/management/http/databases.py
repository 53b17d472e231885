"""Small databases of the process, which it may lose."""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path

logger = logging.getLogger("leveret.http")


def open_database(path: Path, schema: str, version: int, content: str) -> sqlite3.Connection:
    """Open or create a database that one thread uses at a time.

    A file of another version, or one that is damaged, is replaced.

    Args:
        path: The file.
        schema: The statements that create the tables.
        version: The version of the schema.
        content: What the database has, for the log.

    Raises:
        OSError: The file cannot be created.
        sqlite3.Error: The database cannot be used.
    """
    for attempt in (1, 2):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            if found == version:
                return connection
            if found == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
                connection.executescript(f"BEGIN; {schema} PRAGMA user_version = {version}; COMMIT;")
                return connection
            reason = f"it has version {found}, expected {version}"
        except sqlite3.DatabaseError as error:
            reason = str(error)
        connection.close()
        if attempt == 2:
            break
        logger.warning("replacing the %s %s: %s", content, path, reason)
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
    raise sqlite3.DatabaseError(reason)
