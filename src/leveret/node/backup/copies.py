"""Copies of files with their checksums."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from leveret.node.backup.directory import BackupDamaged, BackupFailed, CopiedFile
from leveret.storage import disk

_PIECE: Final = 1 << 20


class Digest(Protocol):
    """A checksum, as in `hashlib`."""

    def update(self, data: bytes, /) -> None:
        """Add data."""

    def hexdigest(self) -> str:
        """Return the checksum of the data so far."""


class Crc32:
    """CRC-32 as a digest."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes, /) -> None:
        """Add data."""
        self._value = zlib.crc32(data, self._value)

    def hexdigest(self) -> str:
        """Return the checksum of the data so far."""
        return crc_text(self._value)


def crc_text(crc: int) -> str:
    """Return a CRC-32 as `Crc32.hexdigest` does."""
    return f"{crc:08x}"


def open_source(path: Path) -> BinaryIO | None:
    """Open a file to copy; None if it does not exist. Raises `BackupFailed` if it cannot be read."""
    try:
        return open(path, "rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BackupFailed(f"{path} cannot be read: {error.strerror}") from None


def read_pieces(file: BinaryIO, name: Path | str) -> Iterator[bytes]:
    """Yield the content of a file. Raises `BackupDamaged` if it cannot be read."""
    while True:
        try:
            piece = file.read(_PIECE)
        except Exception as error:  # file systems at a URL raise exceptions of any kind
            why = getattr(error, "strerror", None) or error
            raise BackupDamaged(f"{name} cannot be read: {why}") from None
        if not piece:
            return
        yield piece


def digest_pieces(pieces: Iterable[bytes], digest: Digest) -> int:
    """Digest the content of a file. Returns its size."""
    size = 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
    return size


def copy_pieces(pieces: Iterable[bytes], target: Path, mode: int, digest: Digest) -> int:
    """Write and digest the content of a file, and sync it.

    Args:
        pieces: The content.
        target: The new file.
        mode: Its mode.
        digest: The checksum.

    Returns:
        Its size.

    Raises:
        OSError: The file exists, or cannot be written. The error names it.
    """
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, disk.PRIVATE_FILE)
    with open(descriptor, "wb", buffering=0) as file:
        try:
            os.fchmod(descriptor, mode)
            size = digest_pieces(_written(pieces, file.write), digest)
            os.fsync(descriptor)
        except OSError as error:
            if error.filename is None:
                error.filename = str(target)
            raise
    return size


def _written(pieces: Iterable[bytes], write: Callable[[memoryview], int]) -> Iterator[bytes]:
    for piece in pieces:
        view = memoryview(piece)
        while len(view):
            view = view[write(view) :]
        yield piece


class FileCopier:
    """Copies files to a directory, and remembers what is to be synced.

    Args:
        root: The directory.
        check: Called before each piece; raises an exception to give up.

    Attributes:
        bytes: The bytes of all copies.
    """

    def __init__(self, root: Path, check: Callable[[], None]) -> None:
        self._root = root
        self.check = check
        # Directories with new entries.
        self._changed: set[Path] = set()
        self.bytes = 0

    def copy(self, file: BinaryIO, name: Path | str, target: Path, mode: int, digest: Digest) -> int:
        """Copy an open file to a new one of this mode, and sync that. Returns its size."""
        size = copy_pieces(self._checked(file, name), target, mode, digest)
        self.note(target.parent)
        self.bytes += size
        return size

    def describe(self, base: Path, path: Path) -> CopiedFile:
        """Return the entry of the manifest for a file of the backup in the directory `base`."""
        digest = sha256()
        with open(path, "rb") as file:
            size = digest_pieces(self._checked(file, path), digest)
        return CopiedFile(path=str(path.relative_to(base)), bytes=size, sha256=digest.hexdigest())

    def _checked(self, file: BinaryIO, name: Path | str) -> Iterator[bytes]:
        for piece in read_pieces(file, name):
            self.check()
            yield piece

    def note(self, directory: Path) -> None:
        """Note a directory with a new entry, which may be new itself."""
        while directory not in self._changed and directory != self._root.parent:
            self._changed.add(directory)
            directory = directory.parent

    def sync(self) -> None:
        """Sync the directories with new entries."""
        for directory in self._changed:
            disk.sync_directory(directory)
