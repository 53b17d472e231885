"""A complete backup, as it is read: to check it, and to restore it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from leveret.broker import metadata
from leveret.broker.errors import StorageFailed
from leveret.broker.segments import Segment
from leveret.management.backups import DATABASE
from leveret.node.backup.copies import Crc32, Digest, copy_pieces, crc_text, digest_pieces, open_source, read_pieces
from leveret.node.backup.directory import (
    MANIFEST,
    BackupDamaged,
    BackupDirectory,
    BackupFailed,
    CopiedLog,
    CopiedSegment,
    Manifest,
)
from leveret.node.checking import DirectoryCheck
from leveret.node.segments import DIRECTORY as STREAMS
from leveret.storage.upload_files import DIRECTORY as UPLOADS

_MAX_SHOWN: Final = 3


class StoredFile(NamedTuple):
    """A file of a backup.

    Attributes:
        path: The file.
        target: Its path in the data directory.
        bytes: Its size.
        checksum: Its checksum: CRC-32 of a segment, SHA-256 of others.
        is_segment: Whether it is a segment.
    """

    path: Path
    target: str
    bytes: int
    checksum: str
    is_segment: bool


class StoredBackup:
    """A complete backup.

    Args:
        directory: The directory of backups, locked.
        name: The name of the backup.
        report: Shows the progress.

    Attributes:
        directory: The directory of backups.
        name: The name of the backup.
        manifest: Its manifest.
        bytes: The size of its files.

    Raises:
        BackupFailed: The manifest is damaged, or of a later format.
    """

    def __init__(self, directory: BackupDirectory, name: str, report: Callable[[str], None]) -> None:
        self.directory = directory
        self._path = directory.path / name
        self._report = report
        self._done = 0
        self.name = name
        self.manifest: Manifest = directory.read(name)
        self.bytes = sum(file.bytes for log in self.manifest.logs for file in log.contents())

    def check(self) -> None:
        """Check the whole backup. Raises `BackupFailed` for the first fault."""
        self.check_databases()
        for log in self.manifest.logs:
            for file in self.files(log):
                self.read(file)

    def check_databases(self) -> None:
        """Check the databases, and that the backup has all files that they name. Raises `BackupFailed`."""
        for log in self.manifest.logs:
            database = self._path / log.path / DATABASE
            self._report(f"checking the records of {database}")
            self._check_complete(log, database, _definitions(database))

    def _check_complete(self, log: CopiedLog, database: Path, definitions: list[tuple[str, str, bytes]]) -> None:
        segments = {segment.path: segment for segment in log.segments}
        files = {file.path: file.bytes for file in log.files}
        for kind, _, value in definitions:
            if kind == metadata.STREAM_SEGMENT and not log.left_out:
                segment = Segment.unpack(value)
                name = segment.path
                is_there = segments.get(name) == CopiedSegment(path=name, bytes=segment.bytes, crc32=segment.crc32)
            elif kind == metadata.STAGED:
                upload = metadata.unpack(value)
                name = upload["file"]
                size = files.get(str(Path(log.path, UPLOADS, name)), 0)
                is_there = size >= max(upload["checkpoints"].values(), default=0)
            else:
                continue
            if not is_there and name not in log.missing:
                raise BackupDamaged(f"{self._path / MANIFEST} is damaged: it lacks the file {name}, which {database} names")

    def files(self, log: CopiedLog) -> Iterator[StoredFile]:
        """Yield the files of a log, the database first."""
        for file in log.files:
            yield StoredFile(self._path / file.path, file.path, file.bytes, file.sha256, is_segment=False)
        for segment in log.segments:
            path = self.directory.segments / segment.path
            target = str(Path(log.path, STREAMS, segment.path))
            yield StoredFile(path, target, segment.bytes, crc_text(segment.crc32), is_segment=True)

    def read(self, file: StoredFile, target: Path | None = None, mode: int = 0) -> None:
        """Verify a file, and copy it.

        Args:
            file: The file.
            target: The new file; None for no copy.
            mode: Its mode.

        Raises:
            BackupFailed: The file is damaged, missing or unreadable.
            OSError: The new file cannot be written.
        """
        digest: Digest = Crc32() if file.is_segment else sha256()
        reading = open_source(file.path)
        if reading is None:
            raise BackupDamaged(f"the backup is damaged: {file.path} is missing")
        with reading:
            pieces = self._counted(read_pieces(reading, file.path))
            size = digest_pieces(pieces, digest) if target is None else copy_pieces(pieces, target, mode, digest)
        found = digest.hexdigest()
        if size != file.bytes:
            raise BackupDamaged(f"the backup is damaged: {file.path} has {size} bytes, expected {file.bytes}")
        if found != file.checksum:
            raise BackupDamaged(f"the backup is damaged: the checksum of {file.path} is {found}, expected {file.checksum}")

    def _counted(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._done += len(piece)
            self._report(f"{self._done >> 20} of {self.bytes >> 20} MiB")
            yield piece


def _definitions(database: Path) -> list[tuple[str, str, bytes]]:
    """Check a database. Returns its definitions. Raises `BackupFailed`."""
    checked = DirectoryCheck(database.parent)
    try:
        definitions = checked.check_database(database)
    except sqlite3.Error as error:
        raise BackupDamaged(f"the backup is damaged: {database}: {error}") from None
    except StorageFailed as error:
        raise BackupFailed(str(error)) from None
    if checked.damaged:
        shown = "; ".join(checked.damaged[:_MAX_SHOWN])
        raise BackupDamaged(f"the backup is damaged: {database}: {shown}")
    return definitions
