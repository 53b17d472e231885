"""The restore of a backup to a new data directory."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from leveret.broker.errors import StorageFailed
from leveret.node.backup.directory import PARTIAL, BackupDirectory, BackupFailed, CopiedLog, Manifest
from leveret.node.backup.writing import DATABASE, Crc32, copy_content
from leveret.node.checking import DirectoryCheck
from leveret.node.segments import DIRECTORY as STREAMS
from leveret.storage import disk
from leveret.storage.presence import LogFiles
from leveret.storage.reading import LOG

_MAX_SHOWN: Final = 3


class _Expected(NamedTuple):
    """A file to restore: its place in the backup and in the data directory, its size and its checksum."""

    source: Path
    target: Path
    bytes: int
    checksum: str
    is_segment: bool


class Restorer:
    """The restore of one backup.

    A broker does not start on a directory whose restore was interrupted: the marker of the log says that there is a
    database, and each database gets its name last.

    Args:
        directory: The directory of backups, locked.
        name: The name of the backup.
        target: The new data directory.
        report: Shows the progress.

    Attributes:
        manifest: The manifest of the backup.
        bytes: The size of its files.

    Raises:
        BackupFailed: The manifest is damaged, or of a later format.
    """

    def __init__(self, directory: BackupDirectory, name: str, target: Path, report: Callable[[str], None]) -> None:
        self._directory = directory
        self._source = directory.path / name
        self.target = target
        self._report = report
        self._done = 0
        self.manifest: Manifest = directory.read(name)
        self.bytes = sum(file.bytes for log in self.manifest.logs for file in log.contents())

    def run(self) -> None:
        """Check and restore the backup.

        Raises:
            BackupFailed: The data directory is not empty, or cannot be written; or the backup is damaged.
        """
        is_new = not self.target.exists()
        self._check_target()
        for log in self.manifest.logs:
            self._check_database(self._source / log.path / DATABASE)
        try:
            disk.make_directories(self.target)
            owner = os.stat(self.target)
            for log in self.manifest.logs:
                self._restore_log(log)
            # The database of the data directory itself comes last: without it, no broker starts.
            for log in reversed(self.manifest.logs):
                self._complete(self.target / log.path)
            disk.sync_directory(self.target.parent)
            self._hand_over((owner.st_uid, owner.st_gid))
        except OSError as error:
            self._remove(is_new)
            path = error.filename or self.target
            raise BackupFailed(f"the backup cannot be restored: {error.strerror} ({path})") from None
        except BaseException:
            self._remove(is_new)
            raise

    def _check_target(self) -> None:
        target = self.target
        try:
            found = sorted(os.listdir(target)) if target.exists() else []
        except OSError as error:
            raise BackupFailed(f"{target} cannot be read: {error.strerror}") from None
        if found:
            shown = ", ".join(found[:_MAX_SHOWN]) + (", ..." if len(found) > _MAX_SHOWN else "")
            raise BackupFailed(
                f"the data directory {target} is not empty: it has {shown}; choose a new one with --data-dir"
            )

    def _check_database(self, database: Path) -> None:
        self._report("checking the database")
        checked = DirectoryCheck(database.parent)
        try:
            checked.check_database(database)
        except (sqlite3.Error, StorageFailed) as error:
            text = str(error)
            raise BackupFailed(text if str(database) in text else f"{database} is damaged: {text}") from None
        if checked.damaged:
            shown = "; ".join(checked.damaged[:_MAX_SHOWN])
            raise BackupFailed(f"{database} is damaged: {shown}")

    def _restore_log(self, log: CopiedLog) -> None:
        path = self.target / log.path
        disk.make_directories(path, root=self.target)
        LogFiles(path, LOG).mark()
        for file in self._expected(log):
            self._copy(file)
        for base, _, _ in os.walk(path, topdown=False):
            disk.sync_directory(base)

    def _expected(self, log: CopiedLog) -> Iterator[_Expected]:
        path = self.target / log.path
        for number, file in enumerate(log.files):
            target = self.target / (f"{file.path}{PARTIAL}" if number == 0 else file.path)
            yield _Expected(self._source / file.path, target, file.bytes, file.sha256, False)
        for segment in log.segments:
            source = self._directory.segments / segment.path
            yield _Expected(source, path / STREAMS / segment.path, segment.bytes, f"{segment.crc32:08x}", True)

    def _copy(self, file: _Expected) -> None:
        """Copy a file, sync it, and verify its checksum."""
        crc, digest = Crc32(), sha256()
        try:
            mode = stat.S_IMODE(file.source.stat().st_mode)
            disk.make_directories(file.target.parent, disk.directory_mode(mode), root=self.target)
            with open(file.source, "rb") as reading:
                disk.create_file(file.target, mode)
                with open(file.target, "r+b") as writing:
                    size = copy_content(reading.read, writing.write, crc if file.is_segment else digest, self._show)
                    writing.flush()
                    os.fsync(writing.fileno())
        except FileNotFoundError as error:
            if error.filename != str(file.source):
                raise
            raise BackupFailed(f"the backup is damaged: {file.source} is missing") from None
        found = f"{crc.value:08x}" if file.is_segment else digest.hexdigest()
        if size != file.bytes:
            raise BackupFailed(f"the backup is damaged: {file.source} has {size} bytes, expected {file.bytes}")
        if found != file.checksum:
            raise BackupFailed(f"the backup is damaged: the checksum of {file.source} is {found}, expected {file.checksum}")
        self._done += size

    def _show(self) -> None:
        self._report(f"{self._done >> 20} of {self.bytes >> 20} MiB")

    def _complete(self, path: Path) -> None:
        """Give a database its name.

        It was copied from a running broker, so a start expects its write-ahead log, of which nothing is missing.
        """
        files = LogFiles(path, LOG)
        disk.create_file(files.wal)
        disk.sync_directory(path)
        path.joinpath(f"{DATABASE}{PARTIAL}").rename(files.database)
        disk.sync_directory(path)

    def _hand_over(self, owner: tuple[int, int]) -> None:
        """Give everything to the owner of the data directory, for whom root may have restored it."""
        if os.geteuid() != 0:
            return
        for base, _, names in os.walk(self.target):
            for name in (base, *(os.path.join(base, name) for name in names)):
                os.chown(name, *owner)

    def _remove(self, is_new: bool) -> None:
        """Remove what was restored."""
        if not self.target.is_dir():
            return
        for name in os.listdir(self.target):
            path = self.target / name
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if is_new:
            self.target.rmdir()
