"""Verification of a data directory without a broker, for `leveret check`."""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from leveret.broker import metadata
from leveret.broker.errors import StorageFailed
from leveret.broker.kept_files import SEGMENTS, STAGED
from leveret.broker.segments import Segment
from leveret.config.values import Setting
from leveret.node.segments import DIRECTORY
from leveret.storage.checksums import decode_text
from leveret.storage.data_directory import DirectoryLock
from leveret.storage.presence import LogFiles
from leveret.storage.reading import LOG, open_read_only
from leveret.storage.sqlite_store import APPLICATION_ID, FORMAT_VERSION
from leveret.storage.upload_files import DIRECTORY as UPLOAD_DIRECTORY
from leveret.storage.verification import LogCheck

_PIECE: Final = 1 << 20
_MALFORMED: Final = (ValueError, KeyError, TypeError, msgspec.MsgspecError)


class DirectoryCheck:
    """Verification of a data directory that no broker uses. It changes nothing, but creates a missing lock file.

    Args:
        path: The data directory.
        segments: The directory or URL of sealed segments; None for the default in the data directory.
        options: Additional fsspec options.

    Attributes:
        damaged: Descriptions of damaged or missing parts.
        notes: Observations that are not damage.
        counts: Counts by part of the directory.
    """

    def __init__(self, path: Path, segments: str | None = None, options: Mapping[str, Setting] | None = None) -> None:
        self.path = path
        self.segments = segments if segments is not None else str(path / DIRECTORY)
        self.options = options
        self._kept: set[str] = set()
        self._salvaged: set[str] = set()
        self.damaged: list[str] = []
        self.notes: list[str] = []
        self.counts: dict[str, dict[str, int]] = {}

    def run(self) -> None:
        """Check the directory. Raises `StorageFailed` if it is in use, not a data directory, or in a newer format."""
        files = LogFiles(self.path, LOG)
        if not self.path.is_dir():
            raise StorageFailed(f"the directory {self.path} does not exist")
        if not (files.database.exists() or files.wal.exists() or files.marker.exists()):
            raise StorageFailed(f"{self.path} is not a Leveret data directory: it has no {files.database.name}")
        lock = DirectoryLock(self.path, f"{LOG}.lock")
        try:
            missing = files.missing()
            if missing:
                self.damaged.append(missing)
            if files.database.exists() and files.database.stat().st_size:
                self._check_log(files.database)
        finally:
            lock.release()

    def _check_log(self, database: Path) -> None:
        try:
            definitions = self.check_database(database)
        except sqlite3.Error as error:
            self.damaged.append(f"{database}: {error}")
            return
        self._kept = {key for kind, key, _ in definitions if kind == metadata.KEPT_FILE}
        self._salvaged = {key for kind, key, _ in definitions if kind == metadata.SALVAGED}
        self._check_segments([(key, value) for kind, key, value in definitions if kind == metadata.STREAM_SEGMENT])
        self._check_uploads([(key, value) for kind, key, value in definitions if kind == metadata.STAGED])

    def check_database(self, database: Path) -> list[tuple[str, str, bytes]]:
        """Check a log that no broker uses, and return its definitions. Leaves no files behind.

        Raises:
            sqlite3.Error: The file cannot be read.
            StorageFailed: It is not a log, or in a newer format.
        """
        with open_read_only(database) as connection:
            return self._read(connection, database)

    def _read(self, connection: sqlite3.Connection, database: Path) -> list[tuple[str, str, bytes]]:
        """Check the log and return its definitions."""
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if not tables:
            return []
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise StorageFailed(f"{database} is not a Leveret database")
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > FORMAT_VERSION:
            raise StorageFailed(
                f"{database} has format version {version}, and this version of Leveret reads up to"
                f" {FORMAT_VERSION}; check it with the version that wrote it, or a later one"
            )
        for (verdict,) in connection.execute("PRAGMA integrity_check(20)"):
            if verdict != "ok":
                self.damaged.append(f"{database}: {verdict}")
        check = LogCheck(connection)
        self.damaged += [str(finding) for finding in check.run()]
        self.counts["log"] = check.counts
        bare = check.counts["rows_without_checksum"]
        if bare:
            self.notes.append(f"{bare} rows in an earlier format have no checksum; rewriting adds it")
        return [(kind, decode_text(key), value) for kind, key, value in check.definitions()]

    def _check_segments(self, entries: list[tuple[str, bytes]]) -> None:
        known: set[str] = set()
        total = 0
        for key, value in entries:
            try:
                segment = Segment.unpack(value)
            except _MALFORMED:
                continue  # already reported by the check of the log
            known.add(segment.path)
            total += segment.bytes
            fault = self._segment_fault(segment)
            if fault:
                stream = "/".join(metadata.split_key(key)[:2])
                self.damaged.append(
                    f"segment {segment.path} of stream {stream} (offsets {segment.first} to {segment.last})"
                    f" is damaged: {fault}"
                )
        self.counts["segments"] = {"files": len(known), "octets": total}
        if "://" not in self.segments:
            directories = {path.split("/", 1)[0] for path in known}
            paths = {
                str((Path(base) / name).relative_to(self.segments))
                for directory in directories
                for base, _, names in os.walk(Path(self.segments, directory))
                for name in names
            }
            self._note_others(SEGMENTS, paths - known, "beside the segments are in no manifest")

    def _segment_fault(self, segment: Segment) -> str:
        """Return the fault of a segment's file, or ""."""
        size = found = 0
        try:
            with self._open(segment.path) as file:
                while piece := file.read(_PIECE):
                    size += len(piece)
                    found = zlib.crc32(piece, found)
        except FileNotFoundError:
            return "the file does not exist"
        except Exception as error:  # file systems raise exceptions of their own
            return f"it cannot be read: {error}"
        if size != segment.bytes:
            return f"it has {size} bytes, expected {segment.bytes}"
        if found != segment.crc32:
            return f"its checksum is {found:08x}, expected {segment.crc32:08x}"
        return ""

    def _open(self, path: str) -> BinaryIO:
        if "://" not in self.segments:
            return open(Path(self.segments, path), "rb")
        # Imported here because URLs need the extra `segments`.
        from leveret.segments import files

        return files.open_file(files.join(self.segments, path), self.options)

    def _check_uploads(self, entries: list[tuple[str, bytes]]) -> None:
        known: set[str] = set()
        for key, value in entries:
            try:
                found = metadata.unpack(value)
                vhost, user, _, identifier = metadata.split_key(key)
                name, checkpoints = found["file"], found["checkpoints"]
            except _MALFORMED:
                continue
            known.add(name)
            expected = max(checkpoints.values(), default=0)
            try:
                size = (self.path / UPLOAD_DIRECTORY / name).stat().st_size
            except OSError:
                size = -1
            if size < expected:
                self.damaged.append(
                    f"upload '{identifier}' of user '{user}' in vhost '{vhost}' has {max(size, 0)} bytes,"
                    f" expected {expected} as at its last checkpoint"
                )
        self.counts["staged"] = {"contents": len(known)}
        directory = self.path / UPLOAD_DIRECTORY
        others = {path.name for path in directory.iterdir()} - known if directory.is_dir() else set()
        self._note_others(STAGED, others, f"in {UPLOAD_DIRECTORY} belong to no upload")

    def _note_others(self, place: str, others: set[str], what: str) -> None:
        """Record files that no definition refers to."""
        kept = {name for name in others if place in self._salvaged or metadata.make_key(place, name) in self._kept}
        if kept:
            self.notes.append(
                f"{len(kept)} files {what}: the broker keeps them, because lost parts of the log may refer to them"
            )
        if others - kept:
            self.notes.append(f"{len(others - kept)} files {what}: the broker removes them")
