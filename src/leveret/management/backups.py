"""The part of a process in a backup: it copies its log, and keeps the files that the backup needs."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from leveret.broker.errors import PreconditionFailed
from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.log import LogCopy
    from leveret.config import Config

logger = logging.getLogger("leveret.broker")

# Milliseconds for which a backup continues without a sign of life of its command.
TIMEOUT: Final = 60_000
# The name of the copy, as that of the log.
DATABASE: Final = "log-0.sqlite"
_POSTGRESQL: Final = "postgresql"
_SQLITE: Final = "sqlite"


class Backup(Timed):
    """A backup in progress. It ends by itself if its command does not renew it.

    Args:
        backups: The backups of the process.
        directory: The directory of the copy.
        keep_free: Bytes to leave free on its disk.
        copy: The copy of the log.
        uploads: The directory of the uploads, "" for none.
    """

    def __init__(self, backups: Backups, directory: Path, keep_free: int, copy: LogCopy, uploads: str) -> None:
        super().__init__()
        self._backups = backups
        self.directory = directory
        self.keep_free = keep_free
        self.copy = copy
        self.uploads = uploads

    def fire(self, now: int) -> None:
        """End the backup: its command was killed, or suspended."""
        logger.warning(
            "ended the backup to %s: `leveret backup` has not renewed it for %d seconds", self.directory, TIMEOUT // 1000
        )
        self._backups.end(self.directory)


class Backups:
    """The backups of a process, of which one at a time is in progress.

    Args:
        broker: The broker.
        config: Its configuration.
    """

    def __init__(self, broker: Broker, config: Config) -> None:
        self._broker = broker
        self._config = config
        self._current: Backup | None = None

    def start(self, directory: Path) -> Backup:
        """Start to copy the log to a directory, and keep the files of segments and uploads until the end of the backup.

        Raises:
            PreconditionFailed: The log cannot be copied, another backup is in progress, or the directory cannot be used.
        """
        self._check_engine()
        if self._current is not None:
            raise PreconditionFailed(
                f"a backup to {self._current.directory} is in progress; wait until it ends, which takes at most"
                f" {TIMEOUT // 1000} seconds if `leveret backup` was killed"
            )
        keep_free = self._prepare(directory)
        broker = self._broker
        uploads = "" if broker.uploads.place is None else broker.uploads.place.pin()
        copy = broker.log.copy_to(str(directory / DATABASE), keep_free)
        self._current = Backup(self, directory, keep_free, copy, uploads)
        self._renew(self._current)
        return self._current

    def show(self, directory: Path) -> Backup:
        """Return the backup to a directory, and renew it. Raises `PreconditionFailed` if there is none."""
        if self._current is None or self._current.directory != directory:
            raise PreconditionFailed(
                f"no backup to {directory} is in progress: the broker has restarted, or has heard nothing from"
                f" `leveret backup` for {TIMEOUT // 1000} seconds; run the command again"
            )
        self._renew(self._current)
        return self._current

    def end(self, directory: Path) -> None:
        """End the backup to a directory, if it is in progress. An unfinished copy is removed."""
        current = self._current
        if current is None or current.directory != directory:
            return
        self._current = None
        current.copy.cancel()
        broker = self._broker
        broker.timers.cancel(current)
        if broker.segments is not None:
            broker.segments.leases.pin_all(0)
        if broker.uploads.place is not None:
            broker.uploads.place.unpin()

    def _renew(self, backup: Backup) -> None:
        until = self._broker.timers.now() + TIMEOUT
        self._broker.timers.at(until, backup)
        if self._broker.segments is not None:
            self._broker.segments.leases.pin_all(until)

    def _check_engine(self) -> None:
        engine = self._config.storage.engine
        if engine == _POSTGRESQL:
            raise PreconditionFailed(
                "the messages of this broker are in PostgreSQL ('storage.engine' is 'postgresql'); back up that database"
                " with pg_basebackup, as docs/cluster.md describes under 'Back up and restore'"
            )
        if engine != _SQLITE:
            raise PreconditionFailed(f"'storage.engine' is '{engine}': this broker stores nothing that can be backed up")

    def _prepare(self, directory: Path) -> int:
        """Create the directory of the copy. Return the bytes to leave free on its disk: 0 if only backups are there."""
        config = self._config
        data = config.server.data_path.resolve()
        for setting, place in (
            ("server.data_dir", str(data)),
            ("streams.directory", config.streams.directory),
            ("uploads.directory", config.uploads.directory),
        ):
            # A broker removes files there that it does not know.
            if place is not None and "://" not in place and directory.resolve().is_relative_to(Path(place).resolve()):
                raise PreconditionFailed(
                    f"the backup {directory} is in the directory {place} ('{setting}'); choose another directory"
                )
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            is_same_disk = os.stat(directory).st_dev == os.stat(data).st_dev
        except OSError as error:
            raise PreconditionFailed(
                f"the broker cannot use the directory {directory}: {error.strerror}; expected a directory that its user may"
                " write, and that its systemd unit, if any, makes visible (ReadWritePaths=)"
            ) from None
        return config.limits.disk_free + config.storage.reserve if is_same_disk else 0
