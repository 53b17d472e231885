"""The restore of a backup to a new data directory."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Final

from leveret.broker.errors import StorageFailed
from leveret.node.backup.directory import PARTIAL, BackupFailed, CopiedLog
from leveret.node.backup.stored import StoredBackup
from leveret.storage import disk
from leveret.storage.data_directory import DirectoryLock
from leveret.storage.presence import LogFiles
from leveret.storage.reading import LOG

_LOCK: Final = f"{LOG}.lock"
_MAX_SHOWN: Final = 3
# The bits of a segment's mode that stay: `storage.segments_mode` has no others.
_SEGMENT_MODE: Final = 0o640


class Restorer:
    """The restore of a backup.

    A broker does not start on a directory whose restore was interrupted: the marker of the log says that there is a
    database, and each database gets its name last.

    Args:
        backup: The backup.
        target: The new data directory, with an absolute path.
    """

    def __init__(self, backup: StoredBackup, target: Path) -> None:
        self._backup = backup
        self._logs = backup.manifest.logs
        self._target = target

    def run(self) -> None:
        """Check and restore the backup.

        Raises:
            BackupFailed: The data directory is not empty, is in use, or cannot be written; or the backup is damaged.
        """
        is_new = not self._target.exists()
        self._check_place()
        self._check_target(set())
        self._backup.check_databases()
        try:
            lock = DirectoryLock(self._target, _LOCK)
        except StorageFailed as error:
            raise BackupFailed(str(error)) from None
        try:
            self._check_target({_LOCK})
            self._restore(is_new)
        finally:
            lock.release()

    def _restore(self, is_new: bool) -> None:
        try:
            self._check_space()
            owner = os.stat(self._target)
            for log in self._logs:
                self._restore_log(log)
            for base, _, _ in os.walk(self._target, topdown=False):
                disk.sync_directory(base)
            # That of the data directory itself comes last: without it, no broker starts.
            for log in reversed(self._logs):
                self._complete(self._target / log.path)
            disk.sync_to_root(self._target.parent)
            self._hand_over((owner.st_uid, owner.st_gid))
        except OSError as error:
            self._remove(is_new)
            where = error.filename or self._target
            raise BackupFailed(f"the backup cannot be restored: {error.strerror} ({where})") from None
        except BaseException:
            self._remove(is_new)
            raise

    def _check_place(self) -> None:
        backups = self._backup.directory.path
        if self._target.resolve().is_relative_to(backups.resolve()):
            raise BackupFailed(
                f"the data directory {self._target} is in the directory of backups {backups}; choose another with"
                " --data-dir"
            )

    def _check_target(self, known: set[str]) -> None:
        target = self._target
        try:
            found = sorted(set(os.listdir(target)) - known) if target.exists() else []
        except OSError as error:
            raise BackupFailed(f"{target} cannot be read: {error.strerror}") from None
        if found:
            shown = ", ".join(found[:_MAX_SHOWN]) + (", ..." if len(found) > _MAX_SHOWN else "")
            raise BackupFailed(
                f"the data directory {target} is not empty: it has {shown}; choose a new one with --data-dir"
            )

    def _check_space(self) -> None:
        free = shutil.disk_usage(self._target).free
        if free < self._backup.bytes:
            raise BackupFailed(
                f"the backup has {self._backup.bytes} bytes, and {free} are free on the disk of {self._target}; free some"
                " space, or choose another disk with --data-dir"
            )

    def _restore_log(self, log: CopiedLog) -> None:
        path = self._target / log.path
        disk.make_directories(path, root=self._target)
        LogFiles(path, LOG).mark()
        database = log.files[0].path
        for file in self._backup.files(log):
            target = self._target / (f"{file.target}{PARTIAL}" if file.target == database else file.target)
            mode = disk.PRIVATE_FILE
            if file.is_segment:
                mode |= stat.S_IMODE(file.path.stat().st_mode) & _SEGMENT_MODE
            disk.make_directories(target.parent, disk.directory_mode(mode), root=self._target)
            self._backup.read(file, target, mode)

    def _complete(self, path: Path) -> None:
        """Give a database its name.

        It was copied from a running broker, so a start expects its write-ahead log, of which nothing is missing.
        """
        files = LogFiles(path, LOG)
        disk.create_file(files.wal)
        disk.sync_directory(path)
        files.database.with_name(f"{files.database.name}{PARTIAL}").rename(files.database)
        disk.sync_directory(path)

    def _hand_over(self, owner: tuple[int, int]) -> None:
        """Give everything to the owner of the data directory, for whom root may have restored it."""
        if os.geteuid() != 0:
            return
        for base, _, names in os.walk(self._target):
            for name in (base, *(os.path.join(base, name) for name in names)):
                os.chown(name, *owner, follow_symlinks=False)

    def _remove(self, is_new: bool) -> None:
        """Remove what was restored."""
        if not self._target.is_dir():
            return
        for name in os.listdir(self._target):
            path = self._target / name
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if is_new:
            self._target.rmdir()
