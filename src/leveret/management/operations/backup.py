"""Backups of a running broker: what the broker does for `leveret backup`, which copies the files."""

from __future__ import annotations

from pathlib import Path

from leveret.management.backups import Backup
from leveret.management.operations.operation import Context, Operation, Operations
from leveret.management.structs import Reply, Request


class InDirectory(Request, kw_only=True):
    """Request about the backup to a directory, an absolute path."""

    directory: str


class End(InDirectory, kw_only=True):
    """Request to end a backup. `complete` is for the audit log."""

    complete: bool


class BackupPart(Reply, kw_only=True):
    """The part of a backup that one process makes.

    Attributes:
        directory: The directory with the copy of its log.
        identity: The identity of its log.
        data: The directory of its log.
        keep_free: The bytes to leave free on the disk of the directory.
        streams: The directory of the segments of its streams, or its URL; "" if it seals no streams.
        storage_options: The file with options for that URL; "" for none.
        uploads: The directory of its uploads; "" if it has none.
        copied: The bytes of the log that are copied.
        total: The bytes of the log.
        complete: Whether the copy is complete and on disk.
        problem: Why the copy was given up; "" if it was not.
    """

    directory: str
    identity: str
    data: str
    keep_free: int
    streams: str
    storage_options: str
    uploads: str
    copied: int
    total: int
    complete: bool
    problem: str


class BackupProgress(Reply, kw_only=True):
    """The state of a backup: one part for each process with a log."""

    parts: list[BackupPart]


def _describe(context: Context, backup: Backup) -> BackupProgress:
    segments = context.broker.segments
    copy = backup.copy
    config = context.managed.config
    options = config.streams.storage_options_file
    return BackupProgress(
        parts=[
            BackupPart(
                directory=str(backup.directory),
                identity=context.broker.identity,
                data=str(config.server.data_path.absolute()),
                keep_free=backup.keep_free,
                streams="" if segments is None else segments.url_of("").rstrip("/"),
                storage_options="" if options is None else str(Path(options).absolute()),
                uploads=backup.uploads,
                copied=copy.copied,
                total=copy.total,
                complete=copy.is_complete,
                problem=copy.problem,
            )
        ]
    )


def start(context: Context, request: InDirectory) -> BackupProgress:
    """Start to copy the log, and keep the files of segments and uploads until the end of the backup."""
    return _describe(context, context.managed.backups.start(Path(request.directory)))


def show(context: Context, request: InDirectory) -> BackupProgress:
    """Return the progress of a backup, and renew it: without that, it ends after a minute."""
    return _describe(context, context.managed.backups.show(Path(request.directory)))


def end(context: Context, request: End) -> None:
    """End a backup, so that the broker removes files again."""
    context.managed.backups.end(Path(request.directory))


OPERATIONS: Operations = {
    "backup.start": Operation(start, InDirectory, BackupProgress, changes=True),
    "backup.show": Operation(show, InDirectory, BackupProgress),
    "backup.end": Operation(end, End, changes=True),
}
