"""The lock of a table's directory on a local file system, between the writers of batches and a compaction."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

# Directory in a table with the plans of its batches; readers ignore it.
OWN: Final = "_leveret"
_LOCK: Final = f"{OWN}/lock"
_COMPACTION: Final = f"{OWN}/compaction.lock"
_NO_LOCKS: Final = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@contextmanager
def lock_table(root: str | Path, *, exclusive: bool) -> Iterator[None]:
    """Hold the lock of a table, shared by writers while they move files, exclusive while a directory is replaced.

    Writers continue without it on a file system that has no locks, where a compaction fails.
    """
    # Writers need not own the file, which a compaction of another user may have created.
    descriptor = _open(Path(root, _LOCK), os.O_RDWR if exclusive else os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        except OSError as error:
            if exclusive or error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(descriptor)


@contextmanager
def lock_compaction(root: str | Path) -> Iterator[None]:
    """Hold the lock of a table's only compaction. Raises BlockingIOError if another process holds it."""
    descriptor = _open(Path(root, _COMPACTION), os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path, access: int) -> int:
    path.parent.mkdir(exist_ok=True)
    return os.open(path, access | os.O_CREAT | os.O_CLOEXEC, 0o644)
