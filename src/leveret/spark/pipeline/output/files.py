"""Files and directories of tables, through Spark's file systems: any location that Spark can write to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leveret.spark.pipeline.output.table_lock import lock_table
from leveret.storage import disk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def escape_glob(path: str) -> str:
    """Escape a path or URL for Spark's readers, which interpret glob patterns."""
    return re.sub(r"([][{}*?\\])", r"\\\1", path)


def sync_files(root: str, names: Iterable[str]) -> None:
    """Sync files below a local directory.

    That is their content, Hadoop's checksum files, and all directories up to the root's parent.
    """
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
    """Access to the file system of one URL or path. Names are relative to it."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        session: Any = spark._jsparkSession
        self._new_path = jvm.org.apache.hadoop.fs.Path
        self._system = self._new_path(root).getFileSystem(session.sessionState().newHadoopConf())
        self.root = root.rstrip("/")

    def _path(self, name: str) -> Any:
        return self._new_path(f"{self.root}/{name}" if name else self.root)

    def url(self, name: str = "") -> str:
        """Return the absolute URL of a file."""
        return str(self._system.makeQualified(self._path(name)).toString())

    def exists(self, name: str) -> bool:
        return bool(self._system.exists(self._path(name)))

    def is_file(self, name: str) -> bool:
        path = self._path(name)
        return bool(self._system.exists(path) and self._system.getFileStatus(path).isFile())

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        return int(self._system.getFileStatus(self._path(name)).getLen())

    def sync(self, names: Iterable[str]) -> None:
        """Sync files that were written or renamed. File systems other than the local one are durable themselves."""
        root = self._local_root()
        if root is not None:
            sync_files(root, names)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep a compaction from replacing directories of the table. Other writers may move files at the same time."""
        root = self._local_root()
        if root is None:  # compaction replaces directories of the local file system only
            yield
            return
        with lock_table(root, exclusive=False):
            yield

    def _local_root(self) -> str | None:
        """Return the path of the root on the local file system; None if it is on another one."""
        if str(self._system.getUri().getScheme()) != "file":
            return None
        return str(self._system.makeQualified(self._path("")).toUri().getPath())

    def make_directory(self, name: str) -> None:
        self._system.mkdirs(self._path(name))

    def remove(self, name: str) -> None:
        """Remove a file or a directory tree, if it exists."""
        self._system.delete(self._path(name), True)

    def move(self, source: str, target: str) -> bool:
        """Rename a file; returns False if the source does not exist or the target does."""
        return bool(self._system.rename(self._path(source), self._path(target)))

    def listing(self, name: str) -> list[str]:
        """Return the names in a directory; empty if it does not exist."""
        path = self._path(name)
        if not self._system.exists(path):
            return []
        return sorted(status.getPath().getName() for status in self._system.listStatus(path))

    def files_under(self, name: str) -> list[tuple[str, int]]:
        """Return (path relative to the directory, size in bytes) of all files below it."""
        path = self._path(name)
        if not self._system.exists(path):
            return []
        top = self._system.makeQualified(path).toUri().getPath()
        found = []
        entries = self._system.listFiles(path, True)
        while entries.hasNext():
            entry = entries.next()
            found.append((entry.getPath().toUri().getPath()[len(top) + 1 :], int(entry.getLen())))
        return sorted(found)

    def read_text(self, name: str) -> str:
        stream = self._system.open(self._path(name))
        try:
            return bytes(stream.readAllBytes()).decode("utf-8")
        finally:
            stream.close()

    def write_text(self, name: str, text: str) -> None:
        """Write a file atomically, under a temporary name and then renamed."""
        temporary = f"{name}.tmp"
        stream = self._system.create(self._path(temporary), True)
        try:
            stream.write(text.encode("utf-8"))
            stream.hsync()
        finally:
            stream.close()
        self.remove(name)
        if not self.move(temporary, name):
            raise OSError(f"{self.url(temporary)} could not be renamed to {name}")
        self.sync([name])
