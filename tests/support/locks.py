"""Locks between test processes, which share the directories under `build`."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Have one test process at a time run the block for a directory, which is created: others wait for what it builds."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / ".lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
