"""The backup of a running broker."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from leveret.management.operations.backup import BackupPart, BackupProgress
from leveret.node.backup.copies import FileCopier
from leveret.node.backup.directory import INCOMPLETE, BackupDirectory, BackupFailed, Manifest
from leveret.node.backup.log_copies import LogCopier, SegmentKeeper
from leveret.storage import disk
from leveret.storage.copying import check_free

# Seconds between looks at the progress of the broker, and between signs of life while files are copied.
_LOOK_INTERVAL: Final = 0.1
_RENEW_INTERVAL: Final = 5.0


class BrokerCall(Protocol):
    """Calls an operation of the broker."""

    def __call__(self, name: str, /, **arguments: Any) -> Any:
        """Return the result. Raises an exception if there is no broker, or it refuses."""


class MadeBackup(NamedTuple):
    """A backup that is complete.

    Attributes:
        name: Its name.
        manifest: Its manifest.
        copied_bytes: Bytes of the files that were copied.
        linked, copied, unchanged: The numbers of segments that were linked or copied, or that the directory had before.
    """

    name: str
    manifest: Manifest
    copied_bytes: int
    linked: int
    copied: int
    unchanged: int


class _Renewal:
    """Renews the backup at the broker, in a thread. `check` raises the error of a renewal that has failed."""

    def __init__(self, renew: Callable[[], object]) -> None:
        self._renew = renew
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="leveret-renewal", daemon=True)

    def __enter__(self) -> _Renewal:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while not self._ended.wait(_RENEW_INTERVAL):
            try:
                self._renew()
            except Exception as error:
                self._error = error
                return


class BackupWriter:
    """A backup of a running broker.

    Args:
        directory: The directory of backups, locked.
        call: Calls the broker.
        report: Shows the progress.
        leave_out_remote: Whether to leave out segments at a URL.
    """

    def __init__(
        self,
        directory: BackupDirectory,
        call: BrokerCall,
        report: Callable[[str], None],
        *,
        leave_out_remote: bool = False,
    ) -> None:
        self._directory = directory
        self._call = call
        self._report = report
        self._leave_out_remote = leave_out_remote
        self._is_started = False

    def run(self) -> MadeBackup:
        """Make the backup.

        If that fails, the new backup is removed, and earlier ones stay as they are.

        Raises:
            BackupFailed: The broker, or this process, cannot copy something.
        """
        try:
            durable = self._directory.durable_segments()
            name = self._directory.begin()
        except OSError as error:
            raise _unwritten(error) from None
        path = self._directory.path / f"{name}{INCOMPLETE}"
        try:
            made = self._write(name, path, durable)
            self._directory.complete(name, made.manifest)
        except OSError as error:
            self._remove(path)
            with contextlib.suppress(OSError, BackupFailed):
                self._directory.sweep()  # the disk may be full
            raise _unwritten(error) from None
        except BaseException:
            self._remove(path)
            raise
        # The backup is complete, even if the broker has stopped since.
        with contextlib.suppress(Exception):
            self._end(path, complete=True)
        return made

    def _remove(self, path: Path) -> None:
        if self._is_started:
            with contextlib.suppress(Exception):
                self._end(path, complete=False)
        with contextlib.suppress(OSError):
            disk.remove_tree(path)

    def _end(self, path: Path, *, complete: bool) -> None:
        self._call("backup.end", directory=str(path), complete=complete)

    def _show(self, path: Path) -> list[BackupPart]:
        """Return the progress of the broker, and tell it that the backup continues."""
        return msgspec.convert(self._call("backup.show", directory=str(path)), BackupProgress).parts

    def _write(self, name: str, path: Path, durable: set[str]) -> MadeBackup:
        started = time.time()
        self._call("backup.start", directory=str(path))
        self._is_started = True
        self._directory.claim(self._show(path)[0].identity)
        parts = self._wait(path)
        keep_free = max(part.keep_free for part in parts)
        with _Renewal(lambda: self._show(path)) as renewal:

            def check() -> None:
                renewal.check()
                check_free(self._directory.path, keep_free)

            copier = FileCopier(self._directory.path, check)
            keeper = SegmentKeeper(self._directory, copier, durable)
            logs = [LogCopier(path, part, copier, keeper, self._report) for part in parts]
            for log in logs:
                log.run(leave_out_remote=self._leave_out_remote)
            copier.sync()
        # Without the broker's pins to the end, files may have been removed, for example if this process was suspended.
        self._show(path)
        manifest = Manifest(
            started=started,
            ended=time.time(),
            logs=[log.copied for log in logs],
            problems=[problem for log in logs for problem in log.problems],
        )
        copied_bytes = copier.bytes + sum(part.total for part in parts)
        return MadeBackup(name, manifest, copied_bytes, keeper.linked, keeper.copied, keeper.unchanged)

    def _wait(self, path: Path) -> list[BackupPart]:
        """Wait until the broker has copied its logs. Returns the parts of the backup."""
        while True:
            parts = self._show(path)
            for part in parts:
                if part.problem:
                    raise BackupFailed(f"the broker cannot copy its log to {part.directory}: {part.problem}")
            copied, total = sum(part.copied for part in parts), sum(part.total for part in parts)
            self._report(f"database: {copied >> 20} of {total >> 20} MiB")
            if all(part.complete for part in parts):
                return parts
            time.sleep(_LOOK_INTERVAL)


def _unwritten(error: OSError) -> BackupFailed:
    return BackupFailed(
        f"the backup cannot be written: {error.strerror} ({error.filename or error.filename2 or 'unknown file'})"
    )
