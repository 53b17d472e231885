"""The storage engines by the name that the configuration gives them. A new engine is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from leveret.broker.errors import StorageFailed
from leveret.broker.log import Log
from leveret.storage.memory import MemoryLog
from leveret.storage.sqlite import RESERVE_OCTETS, SqliteLog

# The log of what is durable, and the one that deep queues page out to, or None where that would free no memory. Both
# from the data directory, `storage.synchronous` in upper case, and `storage.reserve` in octets.
Logs = tuple[Log, Log | None]

ENGINES: dict[str, Callable[[Path, str, int], Logs]] = {
    "sqlite": lambda path, synchronous, reserve: (
        SqliteLog(path, synchronous=synchronous, reserve_bytes=reserve), SqliteLog(path, durable=False)),
    "memory": lambda path, synchronous, reserve: (MemoryLog(), None),
}


def make_logs(engine: str, path: Path, *, synchronous: str = "FULL", reserve: int = RESERVE_OCTETS) -> Logs:
    """The logs of the named engine that keeps its data in the directory `path`.

    Raises `StorageFailed` for a name that is not an engine's.
    """
    make = ENGINES.get(engine)
    if make is None:
        raise StorageFailed(f"there is no storage engine {engine!r}; known are {', '.join(sorted(ENGINES))}")
    return make(path, synchronous, reserve)
