"""The storage engines by the name that the configuration gives them. A new engine is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from leveret.broker.errors import StorageFailed
from leveret.broker.log import Log
from leveret.storage.memory import MemoryLog
from leveret.storage.sqlite import SqliteLog

ENGINES: dict[str, Callable[[Path], Log]] = {
    "sqlite": SqliteLog,
    "memory": lambda path: MemoryLog(),
}


def make_log(engine: str, path: Path) -> Log:
    """A log of the named engine that keeps its data in the directory `path`.

    Raises `StorageFailed` for a name that is not an engine's.
    """
    make = ENGINES.get(engine)
    if make is None:
        raise StorageFailed(f"there is no storage engine {engine!r}; known are {', '.join(sorted(ENGINES))}")
    return make(path)
