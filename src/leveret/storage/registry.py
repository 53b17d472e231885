"""The storage engines by their name in the configuration. A new engine is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from leveret.broker.errors import StorageFailed
from leveret.broker.log import Log
from leveret.storage.memory import MemoryLog
from leveret.storage.salvage import NOTHING_LOST, Salvage
from leveret.storage.spool import FileSpool
from leveret.storage.sqlite import RESERVE_BYTES, SqliteLog

# The durable log, and the log that deep queues page out to, or None if paging would free no memory. Created from the data
# directory, `storage.synchronous` in upper case, and in bytes `storage.reserve` and `limits.disk_free`.
Logs = tuple[Log, Log | None]


def _make_sqlite(path: Path, synchronous: str, reserve: int, disk_free: int, salvage: Salvage) -> Logs:
    log = SqliteLog(path, synchronous=synchronous, reserve_bytes=reserve, salvage=salvage)
    overflow = SqliteLog(path, durable=False)
    # Incoming large bodies are refused before the disk is so full that all publishers have to wait.
    log.spool = overflow.spool = FileSpool(path, disk_free, 2 * reserve)
    return log, overflow


SQLITE: Final = "sqlite"
# Keeps nothing across a restart, and needs no data directory.
MEMORY: Final = "memory"

ENGINES: dict[str, Callable[[Path, str, int, int, Salvage], Logs]] = {
    SQLITE: _make_sqlite,
    MEMORY: lambda path, synchronous, reserve, disk_free, salvage: (MemoryLog(), None),
}


def make_logs(
    engine: str,
    path: Path,
    *,
    synchronous: str = "FULL",
    reserve: int = RESERVE_BYTES,
    disk_free: int = 0,
    salvage: Salvage = NOTHING_LOST,
) -> Logs:
    """Create the logs of an engine in the directory `path`. `salvage` has the accepted losses.

    Raises `StorageFailed` for an unknown engine.
    """
    make = ENGINES.get(engine)
    if make is None:
        raise StorageFailed(f"storage engine {engine!r} does not exist; expected one of {', '.join(sorted(ENGINES))}")
    return make(path, synchronous, reserve, disk_free, salvage)
