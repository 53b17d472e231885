"""The parts of a backup beside the copy of a log: uploads, the audit log, and segments."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from leveret.broker import metadata
from leveret.broker.segments import Segment
from leveret.management.backups import DATABASE
from leveret.management.operations.backup import BackupPart
from leveret.node.backup.copies import Crc32, FileCopier, crc_text, open_source
from leveret.node.backup.directory import (
    PARTIAL,
    BackupDamaged,
    BackupDirectory,
    BackupFailed,
    CopiedFile,
    CopiedLog,
    CopiedSegment,
)
from leveret.node.backup.sources import SegmentSource, find_segments
from leveret.node.segments import DIRECTORY as STREAMS
from leveret.storage import disk
from leveret.storage.checksums import decode_text
from leveret.storage.reading import open_read_only
from leveret.storage.upload_files import DIRECTORY as UPLOADS
from leveret.storage.verification import LogCheck

AUDIT: Final = "audit.sqlite"
_MAX_SHOWN: Final = 3


class SegmentKeeper:
    """The segments in a directory of backups.

    Args:
        directory: The directory.
        copier: Copies files to it.
        durable: Segments in the directory that a power cut cannot remove.

    Attributes:
        linked, copied, unchanged: The numbers of segments that were linked or copied, or that the directory had before.
    """

    def __init__(self, directory: BackupDirectory, copier: FileCopier, durable: set[str]) -> None:
        self._directory = directory
        self._copier = copier
        self._durable = durable
        self.linked = 0
        self.copied = 0
        self.unchanged = 0

    def keep(self, source: SegmentSource, segment: Segment) -> str:
        """Link or copy a segment unless the directory has it. Returns why it cannot be had, or ""."""
        self._copier.check()
        target = self._directory.segments / segment.path
        if target.exists():
            size = target.stat().st_size
            if size != segment.bytes:
                raise BackupFailed(f"{target} has {size} bytes, expected {segment.bytes}; delete it")
            if segment.path not in self._durable:
                self._copier.note(target.parent)
            self.unchanged += 1
            return ""
        location = source.location(segment.path)
        reading = source.open(segment.path)
        if reading is None:
            return f"the segment {location} is missing"
        with reading:
            disk.make_directories(target.parent, root=self._directory.segments)
            self._copier.note(target.parent)
            if source.link(segment.path, segment.bytes, target):
                self.linked += 1
                return ""
            crc = Crc32()
            partial = target.with_name(f"{target.name}{PARTIAL}")
            partial.unlink(missing_ok=True)
            size = self._copier.copy(reading, location, partial, source.mode(reading), crc)
        if (size, crc.hexdigest()) != (segment.bytes, crc_text(segment.crc32)):
            partial.unlink()
            return f"the segment {location} is damaged"
        partial.rename(target)
        self.copied += 1
        return ""


class LogCopier:
    """Copies what belongs to a log whose database is copied.

    Args:
        path: The directory of the backup.
        part: The part of the backup.
        copier: Copies files.
        keeper: Keeps segments.
        report: Shows the progress.

    Attributes:
        copied: The log in the backup.
        problems: What could not be copied because the broker does not have it.
    """

    def __init__(
        self, path: Path, part: BackupPart, copier: FileCopier, keeper: SegmentKeeper, report: Callable[[str], None]
    ) -> None:
        self._path = path
        self._part = part
        self._copier = copier
        self._keeper = keeper
        self._report = report
        self._place = Path(part.directory)
        self.copied = CopiedLog(
            path=str(self._place.relative_to(path)),
            files=[],
            segments=[],
            missing=[],
            left_out=0,
            streams="",
            uploads="",
        )
        self.problems: list[str] = []

    def run(self, *, leave_out_remote: bool) -> None:
        """Copy the files.

        Args:
            leave_out_remote: Whether to leave out segments at a URL.

        Raises:
            BackupFailed: The log is damaged, or a file cannot be read.
            OSError: A copy cannot be written.
        """
        self._report("database: checksums")
        definitions = _definitions(self._place / DATABASE, self._part.data)
        self._add(self._place / DATABASE)
        uploads = [(key, metadata.unpack(value)) for kind, key, value in definitions if kind == metadata.STAGED]
        if uploads:
            self._copy_uploads(uploads)
        self._copy_audit()
        segments = [Segment.unpack(value) for kind, _, value in definitions if kind == metadata.STREAM_SEGMENT]
        if segments:
            self._keep_segments(segments, leave_out_remote)

    def _add(self, file: Path) -> None:
        """Add a file that is in the backup."""
        self._copier.note(file.parent)
        self.copied.files.append(self._copier.describe(self._path, file))

    def _copy_uploads(self, uploads: list[tuple[str, dict[str, Any]]]) -> None:
        """Copy the files of uploads. The broker may extend them meanwhile, but changes nothing before a checkpoint."""
        source, target = Path(self._part.uploads), self._place / UPLOADS
        self.copied.uploads = self._unless_default(self._part.uploads, UPLOADS)
        target.mkdir(mode=disk.PRIVATE_DIRECTORY, exist_ok=True)
        for number, (key, upload) in enumerate(uploads):
            self._report(f"uploads: {number} of {len(uploads)}")
            name = upload["file"]
            digest = sha256()
            size = 0
            reading = open_source(source / name)
            if reading is not None:
                with reading:
                    size = self._copier.copy(reading, source / name, target / name, disk.PRIVATE_FILE, digest)
                path = str((target / name).relative_to(self._path))
                self.copied.files.append(CopiedFile(path=path, bytes=size, sha256=digest.hexdigest()))
            if size < max(upload["checkpoints"].values(), default=0):
                vhost, user, _, identifier = metadata.split_key(key)
                self._miss(
                    name,
                    f"the file {source / name} of upload '{identifier}' of user '{user}' in vhost '{vhost}' is missing or"
                    " too short",
                )

    def _copy_audit(self) -> None:
        """Copy the audit log, whose thread in the broker may write to it meanwhile."""
        source, target = Path(self._part.data, AUDIT), self._place / AUDIT
        if not source.exists():
            return
        disk.create_file(target)
        try:
            with (
                contextlib.closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as audit,
                contextlib.closing(sqlite3.connect(target)) as copy,
            ):
                audit.backup(copy)
        except sqlite3.Error as error:
            raise BackupFailed(f"the audit log {source} cannot be copied to {target}: {error}") from None
        disk.sync_file(target)
        self._add(target)

    def _keep_segments(self, segments: list[Segment], leave_out_remote: bool) -> None:
        part = self._part
        source = find_segments(part.streams or str(Path(part.data, STREAMS)), part.storage_options)
        self.copied.streams = self._unless_default(source.location("").rstrip("/"), STREAMS)
        if source.is_remote and leave_out_remote:
            self.copied.left_out = len(segments)
            return
        for number, segment in enumerate(segments):
            self._report(f"segments: {number} of {len(segments)}")
            problem = self._keeper.keep(source, segment)
            if problem:
                self._miss(segment.path, problem)
            else:
                self.copied.segments.append(CopiedSegment(path=segment.path, bytes=segment.bytes, crc32=segment.crc32))

    def _miss(self, name: str, problem: str) -> None:
        self.copied.missing.append(name)
        self.problems.append(problem)

    def _unless_default(self, place: str, default: str) -> str:
        """Return a place, or "" if it is the default one in the data directory."""
        return "" if place == str(Path(self._part.data, default)) else place


def _definitions(database: Path, data: str) -> list[tuple[str, str, bytes]]:
    """Verify the checksums in the copy of the log of a data directory. Returns its definitions. Raises `BackupDamaged`."""
    definitions = []
    try:
        with open_read_only(database) as connection:
            check = LogCheck(connection)
            damaged = [str(finding) for finding in check.run_checksums()]
            definitions = [(kind, decode_text(key), value) for kind, key, value in check.definitions()]
    except sqlite3.Error as error:
        damaged = [str(error)]
    if damaged:
        raise BackupDamaged(
            f"the log in {data} is damaged: {'; '.join(damaged[:_MAX_SHOWN])}; keep the earlier backups, stop the broker,"
            f" and run `leveret check {data}`"
        )
    return definitions
