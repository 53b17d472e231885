"""The storage engines by their name in the configuration. A new engine is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from leveret._build import installation
from leveret.broker.errors import StorageFailed
from leveret.broker.log import Log
from leveret.storage.batched import BatchedLog
from leveret.storage.cluster import ClusterSettings
from leveret.storage.memory import MemoryLog
from leveret.storage.salvage import NOTHING_LOST, Salvage
from leveret.storage.spool import FileSpool
from leveret.storage.sqlite import RESERVE_BYTES, SqliteLog

# The durable log, and the log that deep queues page out to, or None if paging would free no memory.
Logs = tuple[Log, Log | None]
# Created from the data directory, `storage.synchronous` in upper case, in bytes `storage.reserve` and `limits.disk_free`,
# the accepted losses, and the place in PostgreSQL.
Make = Callable[[Path, str, int, int, Salvage, ClusterSettings | None], Logs]


def _make_sqlite(
    path: Path, synchronous: str, reserve: int, disk_free: int, salvage: Salvage, cluster: ClusterSettings | None
) -> Logs:
    return _with_overflow(
        SqliteLog(path, synchronous=synchronous, reserve_bytes=reserve, salvage=salvage), path, reserve, disk_free
    )


def _make_postgresql(
    path: Path, synchronous: str, reserve: int, disk_free: int, salvage: Salvage, cluster: ClusterSettings | None
) -> Logs:
    if cluster is None:
        raise StorageFailed("'storage.engine' is 'postgresql' without 'storage.dsn' or 'storage.dsn_file'")
    if salvage.drop_damaged:
        raise StorageFailed("--drop-damaged is not for 'storage.engine' 'postgresql'; restore the database from a backup")
    database = path / "log-0.sqlite"
    if database.exists():
        raise StorageFailed(
            f"the data directory {path} has a log in SQLite ({database.name}), which 'storage.engine' 'postgresql' does not"
            " read; copy it into an empty database with `leveret cluster import`, and choose another data directory with"
            " --data-dir"
        )
    try:
        # Imported here because only this engine needs the extra `cluster`.
        from leveret.storage.postgres import PostgresLog
    except ImportError as error:
        raise without_extra(error) from None
    log = PostgresLog(cluster, path / f"postgresql-{cluster.shard}.marker", shard=cluster.shard, salvage=salvage)
    return _with_overflow(log, path, reserve, disk_free)


def without_extra(error: ImportError) -> StorageFailed:
    """Return the error for an engine whose extra is not installed."""
    return StorageFailed(f"'storage.engine' 'postgresql' needs the extra `cluster` ({installation('cluster')}): {error}")


def _with_overflow(log: BatchedLog, path: Path, reserve: int, disk_free: int) -> Logs:
    overflow = SqliteLog(path, durable=False)
    # Incoming large bodies are refused before the disk is so full that all publishers have to wait.
    log.spool = overflow.spool = FileSpool(path, disk_free, 2 * reserve)
    return log, overflow


POSTGRESQL: Final = "postgresql"
SQLITE: Final = "sqlite"
# Keeps nothing across a restart, and needs no data directory.
MEMORY: Final = "memory"

ENGINES: dict[str, Make] = {
    SQLITE: _make_sqlite,
    MEMORY: lambda path, synchronous, reserve, disk_free, salvage, cluster: (MemoryLog(), None),
    POSTGRESQL: _make_postgresql,
}


def make_logs(
    engine: str,
    path: Path,
    *,
    synchronous: str = "FULL",
    reserve: int = RESERVE_BYTES,
    disk_free: int = 0,
    salvage: Salvage = NOTHING_LOST,
    cluster: ClusterSettings | None = None,
) -> Logs:
    """Create the logs of an engine in the directory `path`, or in `cluster`. `salvage` has the accepted losses.

    Raises `StorageFailed` for an unknown engine.
    """
    make = ENGINES.get(engine)
    if make is None:
        raise StorageFailed(f"storage engine {engine!r} does not exist; expected one of {', '.join(sorted(ENGINES))}")
    return make(path, synchronous, reserve, disk_free, salvage, cluster)
