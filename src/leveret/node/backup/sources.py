"""Sources of the segments that a backup keeps: a directory, or a URL."""

from __future__ import annotations

import errno
import os
import stat
from abc import ABC, abstractmethod
from pathlib import Path
from typing import BinaryIO, Final

from leveret._build import installation
from leveret.node.backup.copies import open_source
from leveret.node.backup.directory import BackupFailed
from leveret.segments.errors import SegmentMissing, masked
from leveret.segments.storage_options import read_options
from leveret.storage import disk

# Errors of file systems, or between two, that cannot link a file.
_NOT_LINKED: Final = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


class SegmentSource(ABC):
    """The directory of a log's segments, or its URL. Paths are relative to it.

    Attributes:
        is_remote: Whether it is a URL.
    """

    is_remote = False

    @abstractmethod
    def location(self, path: str) -> str:
        """Return the absolute path of a segment, or its URL without credentials."""

    @abstractmethod
    def open(self, path: str) -> BinaryIO | None:
        """Open a segment; None if it does not exist. Raises `BackupFailed` if it cannot be read."""

    @abstractmethod
    def link(self, path: str, size: int, target: Path) -> bool:
        """Make a hard link to a segment of this size. Returns False if it has another size, or cannot be linked."""

    @abstractmethod
    def mode(self, file: BinaryIO) -> int:
        """Return the mode for the copy of an open segment."""


class LocalSegments(SegmentSource):
    """Segments in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def location(self, path: str) -> str:
        """Return the path."""
        return str(self._directory / path)

    def open(self, path: str) -> BinaryIO | None:
        """Open a segment."""
        return open_source(self._directory / path)

    def link(self, path: str, size: int, target: Path) -> bool:
        """Make a hard link, but not to a symbolic link, which would not keep the file."""
        source = self._directory / path
        found = source.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size != size:
            return False
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno in _NOT_LINKED:
                return False
            raise
        return True

    def mode(self, file: BinaryIO) -> int:
        """Return the mode of the segment."""
        return stat.S_IMODE(os.fstat(file.fileno()).st_mode)


class RemoteSegments(SegmentSource):
    """Segments at a URL, which are always copied.

    Args:
        url: The URL of their directory.
        options_file: A file with options for the file system; "" for none.

    Raises:
        BackupFailed: The options cannot be read, or the extra `segments` is not installed.
    """

    is_remote = True

    def __init__(self, url: str, options_file: str) -> None:
        try:
            # Imported here because URLs need the extra `segments`.
            from leveret.segments import files

            self._options = read_options(options_file) if options_file else None
        except ImportError:
            raise BackupFailed(
                f"segments are at {masked(url)} ('streams.directory'), and cannot be read without the extra `segments`;"
                f" install it ({installation('segments')})"
            ) from None
        except (OSError, ValueError) as error:
            raise BackupFailed(f"'streams.storage_options_file': {options_file} cannot be read: {error}") from None
        self._files = files
        self._url = url

    def location(self, path: str) -> str:
        """Return the URL without credentials."""
        return masked(self._files.join(self._url, path))

    def open(self, path: str) -> BinaryIO | None:
        """Open a segment."""
        try:
            return self._files.open_file(self._files.join(self._url, path), self._options)
        except SegmentMissing as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise BackupFailed(str(error)) from None

    def link(self, path: str, size: int, target: Path) -> bool:
        """Return False."""
        return False

    def mode(self, file: BinaryIO) -> int:
        """Return that of private files."""
        return disk.PRIVATE_FILE


def find_segments(location: str, options_file: str) -> SegmentSource:
    """Return the source for a directory or URL of segments. Raises `BackupFailed` like `RemoteSegments`."""
    scheme, separator, path = location.partition("://")
    if not separator:
        return LocalSegments(Path(location))
    if scheme == "file":
        return LocalSegments(Path(path))
    return RemoteSegments(location, options_file)
