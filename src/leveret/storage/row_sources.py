"""Reading of a log's rows by another process than the one that writes them: the sealer of streams."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from leveret.broker.log import RowsAddress
from leveret.storage.checksums import Checksums, decode_text

SQLITE: Final = "sqlite"
POSTGRESQL: Final = "postgresql"
# Seconds to wait for a lock of the writer.
_LOCK_TIMEOUT: Final = 5


class SourceFailed(Exception):
    """The rows cannot be read, now or for good."""


class RowSource(ABC):
    """The rows of a log, which it reads one at a time, so that the writer never waits for it.

    It connects when it is used, and again after a failure.

    Attributes:
        checksums: What has checksums.
    """

    def __init__(self) -> None:
        self.checksums = Checksums(0, 0)

    @abstractmethod
    def check_owner(self) -> None:
        """Raise `SourceFailed` unless the broker of this process still owns the log."""

    @abstractmethod
    def read_row(self, row_id: int) -> tuple[int, bytes, bytes] | None:
        """Return the size of the settled column of a row, its index and its data; None if there is no such row.

        Raises:
            SourceFailed: The rows cannot be read.
        """

    @abstractmethod
    def read_chunks(self, first: int, last: int) -> list[tuple[int, bytes, int | None]]:
        """Return id, data and checksum of the chunks that exist, both ends inclusive.

        Raises:
            SourceFailed: The chunks cannot be read.
        """

    @abstractmethod
    def close(self) -> None:
        """Disconnect. Never raises."""


class SqliteRows(RowSource):
    """The rows in the database of a broker on this machine.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def check_owner(self) -> None:
        """Do nothing: the owner has locked the directory, and this process ends with it."""

    def read_row(self, row_id: int) -> tuple[int, bytes, bytes] | None:
        rows = self._query("SELECT length(settled), entries, data FROM log WHERE id = ?", row_id)
        return rows[0] if rows else None

    def read_chunks(self, first: int, last: int) -> list[tuple[int, bytes, int | None]]:
        return self._query("SELECT id, data, crc FROM chunk WHERE id BETWEEN ? AND ? ORDER BY id", first, last)

    def _query(self, query: str, *values: int) -> list[Any]:
        try:
            if self._connection is None:
                self._connection = self._connect()
            return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            self.close()
            raise SourceFailed(str(error)) from error

    def _connect(self) -> sqlite3.Connection:
        uri = f"{self._path.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_LOCK_TIMEOUT)
        try:
            connection.text_factory = decode_text
            connection.execute("PRAGMA cache_size = -8192")
            facts = dict(connection.execute("SELECT name, value FROM state WHERE name IN ('first_row', 'first_chunk')"))
            self.checksums = Checksums(facts["first_row"], facts["first_chunk"])
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _open_sqlite(fields: Mapping[str, Any]) -> RowSource:
    return SqliteRows(Path(fields["path"]))


def _open_postgresql(fields: Mapping[str, Any]) -> RowSource:
    # Imported here because only this engine needs the extra `cluster`.
    from leveret.storage.postgres_rows import PostgresRows

    return PostgresRows(fields)


_SOURCES: Final[dict[str, Callable[[Mapping[str, Any]], RowSource]]] = {
    SQLITE: _open_sqlite,
    POSTGRESQL: _open_postgresql,
}


def open_source(address: RowsAddress) -> RowSource:
    """Return the rows at an address."""
    return _SOURCES[address.engine](address.fields)
