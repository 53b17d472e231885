"""The data directory of a log: its lock and its disk reserve."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

from leveret.broker.errors import StorageFailed
from leveret.storage import disk

try:
    import fcntl
except ImportError:  # not a POSIX system: only the engine locks its file
    fcntl = None  # type: ignore[assignment]


class DirectoryInUse(StorageFailed):
    """Another process holds the lock of a data directory."""


# Whether `DirectoryLock` excludes other processes by itself.
LOCKS: Final = fcntl is not None


class DirectoryLock:
    """An exclusive lock of a data directory, held until `release` or the end of the process.

    Raises `DirectoryInUse` if another process holds it, `StorageFailed` if the directory cannot be created or written.
    """

    def __init__(self, directory: Path, name: str) -> None:
        try:
            disk.make_directories(directory)
            created = disk.create_file(directory / name)
            self._file = os.open(directory / name, os.O_RDWR | os.O_CLOEXEC)
            if created and hasattr(os, "fchown"):
                # A command run by root must not lock out the user of the broker.
                owner = os.stat(directory)
                with contextlib.suppress(PermissionError):
                    os.fchown(self._file, owner.st_uid, owner.st_gid)
        except OSError as error:
            raise StorageFailed(
                f"the data directory {directory} cannot be used: {error.strerror}; make it writable for"
                " the user that leveret runs as, or choose another with --data-dir"
            ) from None
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.read(self._file, 20).decode("ascii", "replace").strip()
                os.close(self._file)
                process = f"process {holder}" if holder else "another process"
                raise DirectoryInUse(
                    f"the data directory {directory} is in use by {process}; stop that process, or"
                    " choose another directory with --data-dir"
                ) from None
        self._write(f"{os.getpid()}\n")

    def _write(self, holder: str) -> None:
        """Write the process id of the holder, for operators. The lock works without it, so errors are ignored."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, holder.encode("ascii"), 0)

    def release(self) -> None:
        self._write("")
        os.close(self._file)


class Reserve:
    """A file that reserves disk space for use when the disk is full.

    size  bytes; 0 for no reserve
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self.size = size
        self.is_allocated = False

    def allocate(self) -> bool:
        """Allocate the space. Returns False if there is too little."""
        if self.is_allocated or not self.size:
            return True
        try:
            self._path.unlink(missing_ok=True)
            disk.create_file(self._path)
            with open(self._path, "r+b") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, self.size)
                else:
                    file.write(bytes(self.size))
        except OSError:
            self.release()
            return False
        self.is_allocated = True
        return True

    def release(self) -> None:
        """Free the space."""
        self.is_allocated = False
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def free(self) -> int:
        """Return the free bytes of the file system, without the reserve."""
        return shutil.disk_usage(self._path.parent).free
