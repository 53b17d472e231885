"""The copy of stopped logs in SQLite into an empty PostgreSQL database.

All that is copied counts only when the last transaction has removed the name of the import from `leveret.cluster`: until
then, no broker starts on the database, and another import starts from the beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from leveret.broker.errors import StorageFailed
from leveret.storage.cluster import ClusterSettings
from leveret.storage.postgres_joining import create
from leveret.storage.postgres_schema import CREATE_CLUSTER, SHARD_SCHEMAS, create_shard, shard_schema
from leveret.storage.postgres_session import Session, StoreLost, Unfit, unopened
from leveret.storage.sqlite_source import CHUNKS, LOG_TABLE, MARKS, METADATA, TABLES, Row, SqliteSource
from leveret.storage.worker import StoreBroken, StoreFull

# A transaction has at most this many rows, and ends after this many bytes.
BATCH_ROWS: Final = 2000
BATCH_BYTES: Final = 4 << 20
# Seconds between two reports.
REPORT_INTERVAL: Final = 1.0

_TYPES: Final = {
    LOG_TABLE: ("int8", "bytea", "bytea", "bytea"),
    CHUNKS: ("int8", "bytea", "int8"),
    METADATA: ("text", "bytea", "bytea", "int8"),
    MARKS: ("int8", "int8", "int8"),
}
# The bytes of a table, by which copies are compared.
_LENGTHS: Final = {
    LOG_TABLE: "length(settled) + length(entries) + length(data)",
    CHUNKS: "length(data)",
    METADATA: "length(key) + length(value)",
    MARKS: "0",
}
# The row stays locked until the end of the transaction. What is lost by a crash of the server is missed at the end.
_FENCE: Final = (
    "SELECT set_config('synchronous_commit', 'off', true) FROM leveret.cluster WHERE identity = ? AND importing IS NOT NULL"
    " FOR SHARE"
)
_SHARED: Final = "INSERT INTO leveret.shared SELECT r.*, 1 FROM unnest(?::text[], ?::bytea[], ?::bytea[]) r"


class Import:
    """One import.

    Args:
        settings: The place of the database, and the number of its shards.
        source: What is imported, for messages.
        report: Called with the progress, as text.

    Raises:
        StorageFailed: The server cannot be used.
    """

    def __init__(self, settings: ClusterSettings, source: str, report: Callable[[str], None]) -> None:
        self._source = source
        self._report = report
        self._identity: Any = None
        # For each shard: the source, and the rows and bytes of each table.
        self._copied: list[tuple[int, SqliteSource, dict[str, tuple[int, int]]]] = []
        try:
            self._session = Session(settings, "leveret")
        except (psycopg.Error, Unfit) as error:
            raise unopened(error) from None

    def close(self) -> None:
        """Close the connection. Never raises."""
        self._session.close()

    def run(self, sources: dict[int, SqliteSource], shards: int | None, records: Iterable[tuple[str, str, bytes]]) -> None:
        """Copy logs, and compare the copies.

        Args:
            sources: The log of each shard.
            shards: The number of shards, None for a broker of one process.
            records: Kind, key and value of the shared records.

        Raises:
            StorageFailed: The database is not empty, a log is damaged, or the server fails.
        """
        remedy = "run it again"
        try:
            self._begin()
            for shard, source in sources.items():
                self._copy(shard, source)
            self._compare()
            # The answer to the last commit may be lost.
            remedy = "start the broker, which says whether the import is complete"
            self._finish(shards, list(records))
        except (psycopg.Error, StoreLost, StoreFull, StoreBroken) as error:
            raise StorageFailed(f"the import has failed: {' '.join(str(error).split())}; {remedy}") from None

    def _begin(self) -> None:
        """Create the schema, after removing what an interrupted import has left."""
        session = self._session
        with session.transaction():
            if session.has_table("leveret.cluster"):
                found = None
                if session.has_column("leveret.cluster", "importing"):
                    found = session.execute("SELECT importing FROM leveret.cluster FOR UPDATE").fetchone()
                if found is None or found[0] is None:
                    raise StorageFailed(
                        "the database has a schema 'leveret' already; expected an empty database: create"
                        " another one, and name it in 'storage.dsn' or --store"
                    )
                self._report(f"removing what the interrupted import of {found[0]} has left")
                for (schema,) in session.execute(SHARD_SCHEMAS).fetchall():
                    session.execute(f"DROP SCHEMA {schema} CASCADE")
                session.execute("DROP SCHEMA leveret CASCADE")
            create(session, CREATE_CLUSTER)
            row = session.execute("UPDATE leveret.cluster SET importing = ? RETURNING identity", (self._source,)).fetchone()
            assert row is not None
            self._identity = row[0]

    def _copy(self, shard: int, source: SqliteSource) -> None:
        with self._batch() as session:
            create(session, create_shard(shard))
        copied: dict[str, tuple[int, int]] = {}
        reported = time.monotonic()
        for table in TABLES:
            rows = size = 0
            for batch in _batches(source.rows(table)):
                with self._batch() as session:
                    session.copy(f"{shard_schema(shard)}.{table}", _TYPES[table], batch)
                rows += len(batch)
                size += sum(map(_size, batch)) if table != MARKS else 0
                if time.monotonic() - reported >= REPORT_INTERVAL:
                    reported = time.monotonic()
                    self._report(f"shard {shard}: {rows:,} of {source.counts[table]:,} rows of '{table}'")
            copied[table] = rows, size
        self._copied.append((shard, source, copied))

    @contextmanager
    def _batch(self) -> Iterator[Session]:
        """Return the connection for one transaction. Raises `StorageFailed` if another import has started."""
        with self._session.transaction():
            if self._session.execute(_FENCE, (self._identity,)).fetchone() is None:
                raise _overtaken()
            yield self._session

    def _compare(self) -> None:
        """Compare the numbers and the bytes of all rows. Raises `StorageFailed` if they differ."""
        for shard, source, copied in self._copied:
            for table in TABLES:
                row = self._session.execute(
                    f"SELECT count(*), coalesce(sum({_LENGTHS[table]}), 0)::bigint FROM {shard_schema(shard)}.{table}"
                ).fetchone()
                assert row is not None
                if tuple(row) != copied[table] or row[0] != source.counts[table]:
                    raise StorageFailed(
                        f"table '{table}' of shard {shard} has {row[0]} rows and {row[1]} bytes in PostgreSQL; expected"
                        f" {source.counts[table]} rows and {copied[table][1]} bytes; run the import again"
                    )
            rows = ", ".join(f"{source.counts[table]:,} rows of '{table}'" for table in TABLES)
            self._report(f"shard {shard}: copied and compared {rows}")

    def _finish(self, shards: int | None, records: list[tuple[str, str, bytes]]) -> None:
        session = self._session
        session.warned = False
        with session.transaction():
            for shard, source, _ in self._copied:
                session.execute(
                    "UPDATE leveret.owner SET next_row = ?, clean = ? WHERE shard = ?",
                    (source.facts["next_row"], source.facts["clean"] == 1, shard),
                )
            values = (
                [kind for kind, _, _ in records],
                [key.encode("utf-8", "surrogateescape") for _, key, _ in records],
                [value for _, _, value in records],
            )
            session.execute(_SHARED, values)
            done = session.execute(
                "UPDATE leveret.cluster SET importing = NULL, shards = ?, version = 1 WHERE identity = ?"
                " AND importing IS NOT NULL",
                (shards, self._identity),
            )
            if not done.rowcount:
                raise _overtaken()
        session.replicate()


def _overtaken() -> StorageFailed:
    return StorageFailed("another import into this database has started; expected one at a time")


def _size(row: Row) -> int:
    return sum(len(value) for value in row if isinstance(value, bytes))


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Yield the rows in lists of bounded size."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += _size(row)
        if size >= BATCH_BYTES or len(batch) >= BATCH_ROWS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
