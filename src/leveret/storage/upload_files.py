"""Contents of uploads, one file each, in the directory `staged` of the data directory, or in one that all nodes share.

A file is removed when the last reference to its body is dropped: the upload was aborted, or the message created from it
was settled. The next start removes files without a definition.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from leveret.broker.errors import ContentTooLarge
from leveret.broker.uploads import UploadBody, UploadStore
from leveret.storage import disk

logger = logging.getLogger("leveret.storage")

DIRECTORY: Final = "staged"
# A body is staged, then written to the write-ahead log, then to the file of the log.
COPIES: Final = 3


class UploadFiles(UploadStore):
    """The directory of uploads.

    Args:
        data_directory: The data directory.
        keep_free: Bytes of disk space to leave free.
        shared: A directory that all nodes share; each log has its own one in it. Default: the data directory.
        unshared: What to set so that other nodes find the uploads; "" if that is not needed.

    Attributes:
        top: The directory that exists; those in it are synced.
    """

    def __init__(self, data_directory: Path, keep_free: int, shared: Path | None = None, unshared: str = "") -> None:
        self.top = data_directory if shared is None else shared
        self.is_shared = shared is not None
        self.unshared = unshared
        self.keep_free = keep_free
        self.is_pinned = False
        # Files to remove when they are no longer pinned.
        self._removed: list[Path] = []
        self._directory = self.top / DIRECTORY
        # Announced bytes of uploads that have not arrived yet.
        self._expected = 0
        # Reentrant: a body may be released anywhere, even during a call of this class.
        self._lock = threading.RLock()

    def attach(self, identity: str) -> None:
        if self.is_shared:
            self._directory = self.top / identity

    def create(self, name: str, size: int | None) -> UploadBody:
        needed = 0 if size is None else size * COPIES
        try:
            disk.make_directories(self._directory)
            free = shutil.disk_usage(self._directory).free - self.keep_free - self._expected
            if free < max(needed, 1):
                raise self.refusal(size or 0, "too little space is free on the disk")
            file = os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.close(file)
        except OSError as error:
            raise self.refusal(size or 0, str(error.strerror)) from None
        return UploadFile(self, self._directory / name, 0, needed, size is not None)

    def find(self, name: str, size: int | None) -> UploadBody | None:
        path = self._directory / name
        try:
            there = path.stat().st_size
        except OSError:
            return None
        if size is not None and there > size:
            path.unlink()
            return None
        return UploadFile(self, path, there, 0 if size is None else (size - there) * COPIES, size is not None)

    def names(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return os.listdir(self._directory)
        return []

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            # A former owner of the log may remove it, too.
            (self._directory / name).unlink(missing_ok=True)

    def pin(self) -> str:
        self.is_pinned = True
        return str(self._directory)

    def unpin(self) -> None:
        with self._lock:
            self.is_pinned = False
            removed, self._removed = self._removed, []
        if removed:
            threading.Thread(target=_remove, args=(removed,), name="leveret-uploads", daemon=True).start()

    def unlink(self, path: Path) -> None:
        """Remove a file unless it is pinned."""
        with self._lock:
            if self.is_pinned:
                self._removed.append(path)
                return
        _remove([path])

    def expect(self, size: int) -> None:
        """Change the number of expected bytes."""
        with self._lock:
            self._expected += size

    def has_room(self, size: int) -> bool:
        """Return whether `size` bytes may be written now."""
        return shutil.disk_usage(self._directory).free >= self.keep_free + size

    def has_room_for_copies(self, size: int) -> bool:
        """Return whether a body of `size` bytes without a reservation may be copied to the log."""
        free = shutil.disk_usage(self._directory).free - self.keep_free - self._expected
        return free >= size * (COPIES - 1)

    def refusal(self, size: int, why: str) -> ContentTooLarge:
        """Log and return the error for the sender."""
        logger.warning("refused an upload of %d bytes: %s (%s)", size, why, self._directory)
        return ContentTooLarge(
            f"the broker has no room for an upload of {size} bytes: {why}; the setting is limits.disk_free"
        )


def _remove(paths: list[Path]) -> None:
    """Remove files. The next start removes one that cannot be removed."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


class UploadFile(UploadBody):
    """One upload. Its file is open only during writes, since many may be queued."""

    __slots__ = ("_announced", "_expected", "_file", "_kept", "_path", "_place")

    def __init__(self, place: UploadFiles, path: Path, size: int, expected: int, announced: bool) -> None:
        super().__init__()
        self.size = size
        self._place = place
        self._path = path
        self._expected = expected
        self._announced = announced
        self._kept = False
        self._file = -1
        place.expect(expected)

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            place = self._place
            size = self.size + len(data)
            if not place.has_room(len(data)) or not (self._announced or place.has_room_for_copies(size)):
                raise place.refusal(size, "too little space is free on the disk")
            if self._file < 0:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            while len(view):
                written = os.pwrite(self._file, view, self.size)
                self.size += written
                view = view[written:]
        except OSError as error:
            raise self._place.refusal(self.size + len(data), str(error.strerror)) from None
        arrived = min(len(data) * COPIES, self._expected)
        self._expected -= arrived
        self._place.expect(-arrived)

    def read(self, at: int, length: int) -> bytes:
        end = min(at + length, self.size)
        pieces: list[bytes] = []
        file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while at < end:
                data = os.pread(file, end - at, at)
                if not data:
                    raise OSError(0, "the file of an upload is truncated")
                pieces.append(data)
                at += len(data)
        finally:
            os.close(file)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def cut(self, size: int) -> None:
        os.truncate(self._path, size)
        self.size = size

    def sync(self) -> None:
        disk.sync_file(self._path)
        disk.sync_directories(self._path.parent, self._place.top)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def keep(self) -> None:
        self._kept = True

    def __del__(self) -> None:
        self.close()
        self._place.expect(-self._expected)
        if not self._kept:
            self._place.unlink(self._path)
