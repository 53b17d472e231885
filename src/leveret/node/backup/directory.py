"""A directory of backups, and the manifest of a backup."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from leveret._build import __version__
from leveret.storage import disk

FORMAT: Final = 1
MARKER: Final = "leveret-backups"
MANIFEST: Final = "manifest.json"
SEGMENTS: Final = "segments"
INCOMPLETE: Final = ".incomplete"
# The end of the name of a file that is being copied.
PARTIAL: Final = ".partial"
_NAME: Final = re.compile(r"\d{8}T\d{6}Z(-\d+)?")


class BackupFailed(Exception):
    """A backup cannot be made, or cannot be restored. The message says why."""


class BackupDamaged(BackupFailed):
    """A file of a backup, or one to back up, is damaged or missing. The message names it."""


class _Marker(msgspec.Struct, kw_only=True):
    """The contents of the file that marks a directory of backups. `broker` is the identity of the broker, "" at first."""

    broker: str = ""


class CopiedFile(msgspec.Struct, kw_only=True):
    """A file of a backup. `path` is relative to the directory of the backup."""

    path: str
    bytes: int
    sha256: str


class CopiedSegment(msgspec.Struct, kw_only=True):
    """A segment. `path` is relative to the directory of segments, that of the broker and that of the backups."""

    path: str
    bytes: int
    crc32: int


class CopiedLog(msgspec.Struct, kw_only=True):
    """A log with what belongs to it.

    Attributes:
        path: Its directory in the backup, and in the data directory.
        files: Its files; the first one is the database.
        segments: Its segments.
        missing: Paths of the segments, and names of the files of uploads, that the broker does not have.
        left_out: The number of segments at a URL that the operator has left out.
        streams: The directory of its segments at the broker, or its URL; "" for the default.
        uploads: The same for its uploads.
    """

    path: str
    files: list[CopiedFile]
    segments: list[CopiedSegment]
    missing: list[str]
    left_out: int
    streams: str
    uploads: str

    def contents(self) -> Iterator[CopiedFile | CopiedSegment]:
        """Yield the files and the segments."""
        yield from self.files
        yield from self.segments


class Manifest(msgspec.Struct, kw_only=True):
    """The contents of a backup.

    Attributes:
        started: When it began, in seconds of Unix time. It has everything that was confirmed before.
        ended: When it was complete.
        logs: The logs, that of the data directory itself first.
        problems: What could not be copied because the broker does not have it.
    """

    started: float
    ended: float
    logs: list[CopiedLog]
    problems: list[str]


class _Version(msgspec.Struct, kw_only=True):
    """The fields of a manifest's file in all formats: the version of the format, and of Leveret that has written it."""

    format: int = FORMAT
    leveret: str = __version__


class _ManifestFile(_Version, kw_only=True):
    """The content of a manifest's file. `sha256` is the checksum of the manifest as it is in the file."""

    sha256: str
    manifest: msgspec.Raw


def _order(name: str) -> tuple[str, int]:
    """Return the sort key of a backup's name: its time, and its number among those with the same time."""
    stamp, _, number = name.partition("-")
    return stamp, int(number or 1)


class BackupDirectory:
    """A directory of backups. Its methods need `lock`.

    Args:
        path: The directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.segments = path / SEGMENTS

    @contextmanager
    def lock(self, *, shared: bool = False) -> Iterator[None]:
        """Lock the directory against other commands.

        Args:
            shared: Whether other commands may lock it as shared at the same time, as restores do.

        Raises:
            BackupFailed: Another command uses the directory, or it cannot be read.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise BackupFailed(f"the directory {self.path} cannot be read: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise BackupFailed(f"another `leveret backup` or `restore` uses {self.path}; wait until it ends") from None
        except OSError:
            pass  # a file system without locks
        try:
            yield
        finally:
            os.close(descriptor)

    def create(self) -> None:
        """Mark an empty directory as one of backups, in which files are removed.

        Raises:
            BackupFailed: The directory has other contents.
        """
        if self.exists():
            return
        if set(os.listdir(self.path)) - {f"{MARKER}{PARTIAL}"}:
            raise BackupFailed(
                f"{self.path} has other contents than backups of Leveret; choose an empty directory, or a new one"
            )
        self._mark(_Marker())

    def claim(self, identity: str) -> None:
        """Note whose backups are in the directory.

        Args:
            identity: The identity of the broker's log.

        Raises:
            BackupFailed: The directory has backups of another broker, or its marker is damaged.
        """
        path = self.path / MARKER
        try:
            found = msgspec.json.decode(path.read_bytes(), type=_Marker).broker
        except msgspec.DecodeError as error:
            raise BackupFailed(f"{path} is damaged: {error}; choose another directory") from None
        if found and found != identity:
            raise BackupFailed(
                f"{self.path} has backups of another broker, {found}; this one is {identity}: choose another"
            )
        if not found:
            self._mark(_Marker(broker=identity))

    def _mark(self, marker: _Marker) -> None:
        partial = self.path / f"{MARKER}{PARTIAL}"
        disk.write_synced(partial, msgspec.json.encode(marker) + b"\n")
        partial.rename(self.path / MARKER)
        disk.sync_directory(self.path)

    def exists(self) -> bool:
        """Return whether this is a directory of backups."""
        return (self.path / MARKER).exists()

    def names(self) -> list[str]:
        """Return the names of the complete backups, oldest first."""
        return [name for name in self._directories() if (self.path / name / MANIFEST).exists()]

    def _directories(self) -> list[str]:
        return sorted((name for name in os.listdir(self.path) if _NAME.fullmatch(name)), key=_order)

    def interrupted(self) -> list[str]:
        """Return the names of the directories of incomplete backups, oldest first."""
        found = (name for name in os.listdir(self.path) if name.endswith(INCOMPLETE))
        return sorted(name for name in found if _NAME.fullmatch(name.removesuffix(INCOMPLETE)))

    def is_interrupted(self, name: str) -> bool:
        """Return whether the backup of this name is incomplete."""
        return f"{name}{INCOMPLETE}" in self.interrupted()

    def read(self, name: str) -> Manifest:
        """Return the manifest of a complete backup.

        Raises:
            BackupDamaged: It is damaged.
            BackupFailed: It has a later format.
        """
        path = self.path / name / MANIFEST
        try:
            content = path.read_bytes()
            version = msgspec.json.decode(content, type=_Version)
            if version.format > FORMAT:
                raise BackupFailed(
                    f"{path} has format version {version.format}, and this version of leveret reads up to {FORMAT};"
                    f" install leveret {version.leveret} or later"
                )
            file = msgspec.json.decode(content, type=_ManifestFile)
            if sha256(file.manifest).hexdigest() != file.sha256:
                raise BackupDamaged(f"{path} is damaged: its checksum is wrong")
            manifest = msgspec.json.decode(file.manifest, type=Manifest)
        except (OSError, msgspec.DecodeError) as error:
            raise BackupDamaged(f"{path} is damaged: {getattr(error, 'strerror', None) or error}") from None
        logs = manifest.logs
        paths = [log.path for log in logs] + [file.path for log in logs for file in log.contents()]
        if any(Path(path).is_absolute() or ".." in Path(path).parts for path in paths):
            raise BackupDamaged(f"{path} is damaged: it names files outside of the backup")
        return manifest

    def durable_segments(self) -> set[str]:
        """Return the paths of segments that are there even after a power cut: those of the latest complete backup."""
        names = self.names()
        if names:
            with suppress(BackupFailed):  # a damaged manifest must not prevent a new backup
                return {segment.path for log in self.read(names[-1]).logs for segment in log.segments}
        return set()

    def begin(self) -> str:
        """Create the directory of a new backup, and remove incomplete ones.

        Returns:
            The name of the backup. It comes after all others, even if the clock was set back.
        """
        for name in self.interrupted():
            disk.remove_tree(self.path / name)
        stamp, number = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), 1
        names = self._directories()
        if names and _order(names[-1]) >= (stamp, number):
            stamp, number = _order(names[-1])
            number += 1
        name = stamp if number == 1 else f"{stamp}-{number}"
        (self.path / f"{name}{INCOMPLETE}").mkdir(mode=disk.PRIVATE_DIRECTORY)
        return name

    def complete(self, name: str, manifest: Manifest) -> None:
        """Write the manifest of a backup whose files are on disk, and make it a complete one."""
        incomplete = self.path / f"{name}{INCOMPLETE}"
        partial = incomplete / f"{MANIFEST}{PARTIAL}"
        content = msgspec.json.format(msgspec.json.encode(manifest))
        file = _ManifestFile(sha256=sha256(content).hexdigest(), manifest=msgspec.Raw(content))
        disk.write_synced(partial, msgspec.json.encode(file) + b"\n")
        partial.rename(incomplete / MANIFEST)
        disk.sync_directory(incomplete)
        incomplete.rename(self.path / name)
        disk.sync_directory(self.path)

    def remove_old(self, keep: int) -> None:
        """Remove all complete backups but the latest ones, and the segments that only they have."""
        for name in self.names()[:-keep]:
            incomplete = self.path / f"{name}{INCOMPLETE}"
            (self.path / name).rename(incomplete)
            # Otherwise, after a power cut, it could be a complete backup that lacks files.
            disk.sync_directory(self.path)
            disk.remove_tree(incomplete)
        self.sweep()

    def sweep(self) -> None:
        """Remove the segments that no complete backup has. Raises `BackupFailed` if a manifest is damaged."""
        logs = [log for name in self.names() for log in self.read(name).logs]
        known = {segment.path for log in logs for segment in log.segments}
        for base, _, names in os.walk(self.segments, topdown=False):
            for name in names:
                path = Path(base, name)
                if str(path.relative_to(self.segments)) not in known:
                    path.unlink()
            with suppress(OSError):
                os.rmdir(base)  # unless something is left in it
