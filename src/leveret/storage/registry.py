"""The storage engines by the name that the configuration gives them. A new engine is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from leveret.broker.errors import StorageFailed
from leveret.broker.log import Log
from leveret.storage.memory import MemoryLog
from leveret.storage.sqlite import SqliteLog

# The log of what is durable, and the one that deep queues page out to, or None where that would free no memory. Both
# from the data directory and `storage.synchronous` in upper case.
Logs = tuple[Log, Log | None]

ENGINES: dict[str, Callable[[Path, str], Logs]] = {
    "sqlite": lambda path, synchronous: (SqliteLog(path, synchronous=synchronous), SqliteLog(path, durable=False)),
    "memory": lambda path, synchronous: (MemoryLog(), None),
}


def make_logs(engine: str, path: Path, *, synchronous: str = "FULL") -> Logs:
    """The logs of the named engine that keeps its data in the directory `path`.

    Raises `StorageFailed` for a name that is not an engine's.
    """
    make = ENGINES.get(engine)
    if make is None:
        raise StorageFailed(f"there is no storage engine {engine!r}; known are {', '.join(sorted(ENGINES))}")
    return make(path, synchronous)
