"""Directories and files where the tables are, through Spark's own file systems: whatever Spark can write to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leveret.storage import disk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def as_it_is(path: str) -> str:
    """A path or URL for readers of Spark's, which take some characters in it for a pattern of names."""
    return re.sub(r"([][{}*?\\])", r"\\\1", path)


def sync_files(root: str, names: Iterable[str]) -> None:
    """Have files below a local directory on disk: their content, the checksums that Hadoop keeps beside them, and every
    directory from them up to the one that the root is in."""
    directories = {Path(root).parent}
    for name in names:
        path = Path(root, name)
        disk.sync_file(path)
        checksums = path.with_name(f".{path.name}.crc")
        if checksums.exists():
            disk.sync_file(checksums)
        directories.add(path.parent)
        directories.update(parent for parent in path.parents if parent.is_relative_to(root))
    for directory in sorted(directories, reverse=True):
        disk.sync_directory(directory)


class Files:
    """The file system of one URL or path."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        session: Any = spark._jsparkSession
        self._new_path = jvm.org.apache.hadoop.fs.Path
        self._system = self._new_path(root).getFileSystem(session.sessionState().newHadoopConf())
        self.root = root.rstrip("/")

    def _path(self, name: str) -> Any:
        return self._new_path(f"{self.root}/{name}" if name else self.root)

    def url(self, name: str = "") -> str:
        """The whole URL of a file."""
        return str(self._system.makeQualified(self._path(name)).toString())

    def exists(self, name: str) -> bool:
        return bool(self._system.exists(self._path(name)))

    def is_file(self, name: str) -> bool:
        path = self._path(name)
        return bool(self._system.exists(path) and self._system.getFileStatus(path).isFile())

    def sync(self, names: Iterable[str]) -> None:
        """Have files on disk that were written or renamed. Other file systems than that of the machine do it themselves."""
        if str(self._system.getUri().getScheme()) == "file":
            sync_files(str(self._system.makeQualified(self._path("")).toUri().getPath()), names)

    def make_directory(self, name: str) -> None:
        self._system.mkdirs(self._path(name))

    def remove(self, name: str) -> None:
        """A file or a directory with all that is in it; nothing where there is none."""
        self._system.delete(self._path(name), True)

    def move(self, source: str, target: str) -> bool:
        """Rename; False where there is no source, or the target is there."""
        return bool(self._system.rename(self._path(source), self._path(target)))

    def listing(self, name: str) -> list[str]:
        """Names in a directory; none where there is no directory."""
        path = self._path(name)
        if not self._system.exists(path):
            return []
        return sorted(status.getPath().getName() for status in self._system.listStatus(path))

    def files_under(self, name: str) -> list[tuple[str, int]]:
        """(path below the directory, octets) of all files in it."""
        path = self._path(name)
        if not self._system.exists(path):
            return []
        top = self._system.makeQualified(path).toUri().getPath()
        found = []
        entries = self._system.listFiles(path, True)
        while entries.hasNext():
            entry = entries.next()
            found.append((entry.getPath().toUri().getPath()[len(top) + 1:], int(entry.getLen())))
        return sorted(found)

    def read_text(self, name: str) -> str:
        stream = self._system.open(self._path(name))
        try:
            return bytes(stream.readAllBytes()).decode("utf-8")
        finally:
            stream.close()

    def write_text(self, name: str, text: str) -> None:
        """All of it or nothing is there: written beside and renamed."""
        beside = f"{name}.tmp"
        stream = self._system.create(self._path(beside), True)
        try:
            stream.write(text.encode("utf-8"))
            stream.hsync()
        finally:
            stream.close()
        self.remove(name)
        if not self.move(beside, name):
            raise OSError(f"{self.url(beside)} cannot be renamed to {name}")
        self.sync([name])
