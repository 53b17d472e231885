"""The backup of a running broker."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol

from leveret._build import __version__
from leveret.broker import metadata
from leveret.broker.segments import Segment
from leveret.node.backup.directory import (
    FORMAT,
    INCOMPLETE,
    PARTIAL,
    BackupDirectory,
    BackupFailed,
    CopiedFile,
    CopiedLog,
    CopiedSegment,
    Manifest,
)
from leveret.node.segments import DIRECTORY as STREAMS
from leveret.storage import disk
from leveret.storage.checksums import decode_text
from leveret.storage.reading import LOG, open_read_only
from leveret.storage.upload_files import DIRECTORY as UPLOADS
from leveret.storage.verification import read_metadata

AUDIT: Final = "audit.sqlite"
DATABASE: Final = f"{LOG}.sqlite"
# Seconds between looks at the progress of the broker, and between signs of life while files are copied.
_LOOK_INTERVAL: Final = 0.1
_RENEW_INTERVAL: Final = 5.0
_PIECE: Final = 1 << 20
# Errors of file systems, or between two, that cannot link a file.
_NOT_LINKED: Final = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


class BrokerCall(Protocol):
    """Calls an operation of the broker."""

    def __call__(self, name: str, /, **arguments: Any) -> Any:
        """Return the result. Raises an exception if there is no broker, or it refuses."""


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


class Crc32:
    """CRC-32 with the interface of a hash."""

    def __init__(self) -> None:
        self.value = 0

    def update(self, data: bytes, /) -> None:
        """Add data."""
        self.value = zlib.crc32(data, self.value)


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
        owner: The user and the group of the broker, which writes to the directory.

    Attributes:
        copied_bytes: Bytes of the files that were copied.
        linked, copied, unchanged: The numbers of segments that were linked or copied, or that the directory had before.
    """

    def __init__(
        self, directory: BackupDirectory, call: BrokerCall, report: Callable[[str], None], owner: tuple[int, int]
    ) -> None:
        self._directory = directory
        self._call = call
        self._report = report
        self._owner = owner
        self._problems: list[str] = []
        self._is_started = False
        # Directories with new entries.
        self._changed: set[Path] = set()
        self.copied_bytes = 0
        self.linked = 0
        self.copied = 0
        self.unchanged = 0

    def run(self) -> Manifest:
        """Make the backup.

        If that fails, the new backup is removed, and earlier ones stay as they are.

        Raises:
            BackupFailed: The broker, or this process, cannot copy something.
        """
        try:
            name = self._directory.begin()
        except OSError as error:
            raise _unwritten(error) from None
        path = self._directory.path / f"{name}{INCOMPLETE}"
        try:
            manifest = self._write(name, path)
            self._directory.complete(manifest)
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
        return manifest

    def _remove(self, path: Path) -> None:
        if self._is_started:
            with contextlib.suppress(Exception):
                self._end(path, complete=False)
        shutil.rmtree(path, ignore_errors=True)

    def _end(self, path: Path, *, complete: bool) -> None:
        self._call("backup.end", directory=str(path), complete=complete)

    def _write(self, name: str, path: Path) -> Manifest:
        if os.geteuid() == 0:
            os.chown(path, *self._owner)
        started = time.time()
        began = self._call("backup.start", directory=str(path))
        self._is_started = True
        self._directory.claim(began["parts"][0]["identity"])
        parts = self._wait(path)
        with _Renewal(lambda: self._call("backup.show", directory=str(path))) as renewal:
            logs = [self._copy_log(path, part, renewal.check) for part in parts]
            logs[0].files += self._copy_audit(path, Path(parts[0]["data"]))
            for directory in self._changed:
                disk.sync_directory(directory)
            renewal.check()
        return Manifest(
            format=FORMAT,
            name=name,
            leveret=__version__,
            started=started,
            ended=time.time(),
            logs=logs,
            problems=self._problems,
        )

    def _wait(self, path: Path) -> list[dict[str, Any]]:
        """Wait until the broker has copied its logs. Returns the parts of the backup."""
        while True:
            parts: list[dict[str, Any]] = self._call("backup.show", directory=str(path))["parts"]
            for part in parts:
                if part["problem"]:
                    raise BackupFailed(f"the broker cannot copy its log to {part['directory']}: {part['problem']}")
            copied, total = (sum(part[name] for part in parts) for name in ("copied", "total"))
            self._report(f"database: {copied >> 20} of {total >> 20} MiB")
            if all(part["complete"] for part in parts):
                self.copied_bytes += total
                return parts
            time.sleep(_LOOK_INTERVAL)

    def _copy_log(self, path: Path, part: dict[str, Any], check: Callable[[], None]) -> CopiedLog:
        """Copy what belongs to a log whose database is copied."""
        place = Path(part["directory"])
        try:
            with open_read_only(place / DATABASE) as connection:
                definitions = [(kind, decode_text(key), value) for kind, key, value in read_metadata(connection)]
        except (sqlite3.Error, ValueError) as error:
            raise BackupFailed(
                f"the log in {part['data']} is damaged: {error}; stop the broker and run `leveret check {part['data']}`"
            ) from None
        self._note(place)
        self._report("database: checksum")
        files = [_describe(path, place / DATABASE, check)]
        default_streams, default_uploads = str(Path(part["data"], STREAMS)), str(Path(part["data"], UPLOADS))
        streams = part["streams"] or default_streams
        segments = [Segment.unpack(value) for kind, _, value in definitions if kind == metadata.STREAM_SEGMENT]
        uploads = [(key, metadata.unpack(value)) for kind, key, value in definitions if kind == metadata.STAGED]
        files += self._copy_uploads(path, place / UPLOADS, Path(part["uploads"]), uploads, check)
        kept = self._keep_segments(streams, segments, check)
        return CopiedLog(
            path=str(place.relative_to(path)),
            files=files,
            segments=kept,
            streams=streams if kept and streams != default_streams else "",
            uploads=part["uploads"] if uploads and part["uploads"] != default_uploads else "",
        )

    def _copy_uploads(
        self, path: Path, target: Path, source: Path, uploads: list[tuple[str, dict[str, Any]]], check: Callable[[], None]
    ) -> list[CopiedFile]:
        """Copy the files of uploads. The broker may extend them meanwhile, but changes nothing before a checkpoint."""
        copied = []
        for number, (key, upload) in enumerate(uploads):
            self._report(f"uploads: {number} of {len(uploads)}")
            target.mkdir(mode=disk.PRIVATE_DIRECTORY, exist_ok=True)
            digest = sha256()
            try:
                size = self._copy(source / upload["file"], target / upload["file"], digest, check)
            except FileNotFoundError:
                size = 0
            if size < max(upload["checkpoints"].values(), default=0):
                vhost, user, _, identifier = metadata.split_key(key)
                self._problems.append(
                    f"the file {source / upload['file']} of upload '{identifier}' of user '{user}' in vhost '{vhost}' is"
                    " missing or too short"
                )
            if size:
                file = str((target / upload["file"]).relative_to(path))
                copied.append(CopiedFile(path=file, bytes=size, sha256=digest.hexdigest()))
        return copied

    def _copy_audit(self, path: Path, data: Path) -> list[CopiedFile]:
        """Copy the audit log, whose thread in the broker may write to it meanwhile."""
        source = data / AUDIT
        if not source.exists():
            return []
        target = path / AUDIT
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
        self._note(path)
        return [_describe(path, target, lambda: None)]

    # Segments

    def _keep_segments(self, streams: str, segments: Iterable[Segment], check: Callable[[], None]) -> list[CopiedSegment]:
        """Link or copy the segments of a log, unless the directory has them."""
        found = list(segments)
        if "://" in streams:
            if found:
                self._problems.append(
                    f"{len(found)} segments are in {streams}, which backups leave out; protect them there, for example by"
                    " versions of the bucket"
                )
            return []
        kept = []
        for number, segment in enumerate(found):
            self._report(f"segments: {number} of {len(found)}")
            check()
            if self._keep_segment(Path(streams, segment.path), segment, check):
                kept.append(CopiedSegment(path=segment.path, bytes=segment.octets, crc32=segment.crc32))
        return kept

    def _keep_segment(self, source: Path, segment: Segment, check: Callable[[], None]) -> bool:
        """Link or copy a segment unless the directory has it. Returns whether the directory has it now."""
        target = self._directory.segments / segment.path
        if target.exists():
            size, expected = target.stat().st_size, segment.octets
            if size != expected:
                raise BackupFailed(f"{target} has {size} bytes, expected {expected}; delete it")
            self.unchanged += 1
            return True
        disk.make_directories(target.parent, root=self._directory.segments)
        self._note(target.parent)
        try:
            if source.stat().st_size == segment.octets and self._link(source, target):
                self.linked += 1
                return True
            crc = Crc32()
            partial = target.with_name(f"{target.name}{PARTIAL}")
            size = self._copy(source, partial, crc, check)
            if (size, crc.value) == (segment.octets, segment.crc32):
                partial.rename(target)
                self.copied += 1
                return True
            partial.unlink()
            self._problems.append(f"the segment {source} is damaged")
        except FileNotFoundError as error:
            if error.filename != str(source):
                raise
            self._problems.append(f"the segment {source} is missing")
        return False

    def _link(self, source: Path, target: Path) -> bool:
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno in _NOT_LINKED:
                return False
            raise
        return True

    # Files

    def _copy(self, source: Path, target: Path, digest: _Hash, check: Callable[[], None]) -> int:
        """Copy a file and sync it. Returns its size."""
        with open(source, "rb") as reading:
            disk.create_file(target)
            with open(target, "r+b") as writing:
                writing.truncate()
                os.fchmod(writing.fileno(), stat.S_IMODE(os.fstat(reading.fileno()).st_mode))
                size = copy_content(reading.read, writing.write, digest, check)
                writing.flush()
                os.fsync(writing.fileno())
        self._note(target.parent)
        self.copied_bytes += size
        return size

    def _note(self, directory: Path) -> None:
        """Note a directory with a new entry, which may be new itself."""
        while directory not in self._changed and directory != self._directory.path.parent:
            self._changed.add(directory)
            directory = directory.parent


def copy_content(
    read: Callable[[int], bytes], write: Callable[[bytes], object], digest: _Hash, check: Callable[[], None]
) -> int:
    """Copy and digest the content of a file, calling `check` now and then. Returns its size."""
    size = 0
    while piece := read(_PIECE):
        check()
        digest.update(piece)
        write(piece)
        size += len(piece)
    return size


def _describe(path: Path, file: Path, check: Callable[[], None]) -> CopiedFile:
    digest = sha256()
    with open(file, "rb") as reading:
        size = copy_content(reading.read, lambda piece: None, digest, check)
    return CopiedFile(path=str(file.relative_to(path)), bytes=size, sha256=digest.hexdigest())


def _unwritten(error: OSError) -> BackupFailed:
    return BackupFailed(
        f"the backup cannot be written: {error.strerror} ({error.filename or error.filename2 or 'unknown file'})"
    )
