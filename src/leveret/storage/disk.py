"""File operations with explicit durability and permissions.

A file is durable once its content and every directory on its path are synced: until then, POSIX allows a file system to
lose the entry of a new file or directory. Modes are set by `fchmod`, so they do not depend on the umask.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from pathlib import Path
from typing import Final

PRIVATE_FILE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700
# The disk or the disk quota is full.
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
# Errors of file systems that cannot sync directories, or are read-only.
_NOT_SYNCED: Final = (errno.EINVAL, errno.EOPNOTSUPP, errno.EROFS)
_PROBE_PIECE: Final = 1 << 20
# Bytes of a removed file that are freed at a time, which takes a few milliseconds.
FREED_PIECE: Final = 8 << 20
# Mode bits that the owner needs to create a subdirectory.
_PASSABLE: Final = 0o300


def sync_file(path: str | Path) -> None:
    """Sync the content of a file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: str | Path) -> None:
    """Sync the entries of a directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise
    finally:
        os.close(descriptor)


def sync_directories(path: str | Path, up_to: str | Path) -> None:
    """Sync a directory and its parents up to and including `up_to`; only `path` if it is not below `up_to`."""
    current, last = Path(path).absolute(), Path(up_to).absolute()
    sync_directory(current)
    if last in current.parents:
        while current != last:
            current = current.parent
            sync_directory(current)


def sync_to_root(path: str | Path) -> None:
    """Sync a directory and all parents that this user may read. The user cannot have created the others."""
    for directory in (Path(path).absolute(), *Path(path).absolute().parents):
        with contextlib.suppress(PermissionError):
            sync_directory(directory)


def make_directories(path: str | Path, mode: int = PRIVATE_DIRECTORY, root: str | Path | None = None) -> None:
    """Create a directory and its missing parents. Does not sync them.

    Args:
        path: The directory.
        mode: Its exact mode, and that of the directories between it and `root`.
        root: The topmost directory that gets `mode`, `path` itself by default. Directories above it get their mode from
            the umask, as with `mkdir -p`, since other programs may use them too.
    """
    directory = Path(path).absolute()
    top = directory if root is None else Path(root).absolute()
    missing = [directory]
    while missing[-1].parent != missing[-1] and not missing[-1].is_dir():
        missing.append(missing[-1].parent)
    for place in reversed(missing):
        _make_directory(place, mode if place in (directory, top) or top in place.parents else None)


def _make_directory(directory: Path, mode: int | None) -> None:
    """Create one directory unless it exists, with exactly this mode; None applies the umask."""
    if directory.is_dir():
        return
    try:
        os.mkdir(directory, 0o777 if mode is None else mode)
    except FileExistsError:
        if not directory.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory)) from None
    else:
        os.chmod(directory, stat.S_IMODE(os.stat(directory).st_mode) | _PASSABLE if mode is None else mode)


def create_file(path: str | Path, mode: int = PRIVATE_FILE) -> bool:
    """Create an empty file with exactly this mode. Returns False if it exists."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    except FileExistsError:
        return False
    try:
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
    return True


def write_synced(path: str | Path, content: bytes) -> None:
    """Write a small private file, and sync it and its directory."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        os.fchmod(descriptor, PRIVATE_FILE)
        view = memoryview(content)
        while len(view):
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(Path(path).parent)


def remove_file(path: str | Path) -> None:
    """Remove a file. Its space is freed piece by piece: syncs of other files on the disk wait while a large one is freed.

    A file that has another name keeps its content, as with `os.unlink`.

    Raises:
        OSError: The file cannot be removed.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # a symbolic link, for example
        os.unlink(path)
        return
    try:
        os.unlink(path)
        # Only now, no other name can appear.
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
            with contextlib.suppress(OSError):  # closing frees what is left
                for size in range(found.st_size - FREED_PIECE, 0, -FREED_PIECE):
                    os.ftruncate(descriptor, size)
                    os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(path: str | Path) -> None:
    """Remove a directory with its contents, each file as `remove_file` does. Raises `OSError` if that is impossible."""
    for base, _, names in os.walk(path):
        for name in names:
            remove_file(Path(base, name))
    shutil.rmtree(path)


def has_no_space(directory: str | Path, size: int) -> bool:
    """Return whether `size` bytes do not fit on the disk or into the quota.

    SQLite recognizes ENOSPC but reports EDQUOT as an I/O error, so the error alone does not tell.
    """
    probe = Path(directory) / f".space-{os.getpid()}"
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            left = size
            while left > 0:
                left -= os.write(descriptor, bytes(min(left, _PROBE_PIECE)))
            os.fsync(descriptor)  # some file systems allocate space only now
        finally:
            os.close(descriptor)
    except OSError as error:
        return error.errno in NO_SPACE
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return False


def widen(path: str | Path, mode: int) -> None:
    """Add missing mode bits to a file or directory of the broker."""
    found = os.stat(path)
    if found.st_uid == os.geteuid() and found.st_mode & mode != mode:
        os.chmod(path, stat.S_IMODE(found.st_mode) | mode)


def directory_mode(file_mode: int) -> int:
    """Return the mode of a directory for files of this mode: users who may read the files may list and enter it."""
    return PRIVATE_DIRECTORY | file_mode | (file_mode & 0o444) >> 2
