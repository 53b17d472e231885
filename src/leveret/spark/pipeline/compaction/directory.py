"""Compacts tables of plain Parquet files, which any reader reads by listing directories.

No reader may see a row twice or miss one, but no file system replaces several files at once. So the files of a partition
are replaced together with their directory: a new directory gets the merged files and links to the others, and the two
directories are exchanged in one step (`renameat2`). Readers list the old directory or the new one. Writers of batches hold
the table's lock while they move files, so that no file enters the old directory during the exchange.

    TABLE/_leveret/compaction/<partition>      the new directory; after the exchange, the old one
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from leveret.spark.pipeline.compaction.merging import BUSY, YOUNG, Compacted, Limits, groups, merge, merged_name
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.model import TableOutput
from leveret.spark.pipeline.output.plans import unfinished_targets
from leveret.spark.pipeline.output.table_lock import OWN, lock_table
from leveret.storage import disk

_PLACE: Final = f"{OWN}/compaction"
_SUFFIX: Final = ".parquet"
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_UNSUPPORTED: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
# Entries that other formats have in their directories.
_OTHER_FORMATS: Final = {"_delta_log": "Delta", "metadata": "Iceberg", "_spark_metadata": "a Spark streaming query"}


def compact_table(output: TableOutput, limits: Limits) -> Compacted:
    """Compact the partitions of a table, each in one step. No other compaction may run.

    Raises:
        PipelineError: The table cannot be compacted without readers noticing.
    """
    path = output.path.removeprefix("file://")
    if "://" in path:
        raise PipelineError(
            f"table {output.path}: Parquet tables can only be compacted on a local file system, which can replace a "
            'directory in one step; use format = "delta" or "iceberg"'
        )
    root = Path(path)
    if not root.is_dir():
        raise PipelineError(f"table {output.path}: does not exist; expected a directory")
    for name, owner in _OTHER_FORMATS.items():
        if (root / name).exists():
            raise PipelineError(f"table {output.path}: is a table of {owner} ({name}), not one of plain Parquet files")
    _clear(root)
    found = Compacted()
    for directory in list(_partitions(root, output)):
        found = found.plus(_compact_partition(root, directory, limits))
    _clear(root)
    return found


def _clear(root: Path) -> None:
    """Remove what this compaction or one that was killed has left outside of the table's partitions."""
    if (root / _PLACE).exists():
        shutil.rmtree(root / _PLACE)


def _partitions(root: Path, output: TableOutput) -> Iterator[Path]:
    """Yield the directories that have data files."""
    for directory, inner, files in os.walk(root):
        directories = list(inner)
        inner[:] = sorted(name for name in inner if not name.startswith(("_", ".")))
        if not any(name.endswith(_SUFFIX) for name in files):
            continue
        if Path(directory) == root:
            raise PipelineError(
                f"table {output.path}: has no partitions, so its files cannot be replaced in one step; use a partition, "
                'or format = "delta" or "iceberg"'
            )
        if directories:
            raise PipelineError(f"table {output.path}: {directory} has both files and directories; expected a partition")
        yield Path(directory)


def _compact_partition(root: Path, directory: Path, limits: Limits) -> Compacted:
    before = {entry.name: entry.stat() for entry in os.scandir(directory)}
    if time.time() - max(stat.st_mtime for stat in before.values()) < limits.min_age:
        return YOUNG
    chosen = groups(
        sorted(name for name in before if name.endswith(_SUFFIX) and not name.startswith(("_", "."))),
        lambda name: before[name].st_size,
        lambda name: pq.read_schema(directory / name),
        limits.target_bytes,
    )
    if not chosen:
        return Compacted()
    place = root / _PLACE / directory.relative_to(root)
    place.mkdir(parents=True)
    _copy_access(directory, place)
    for group in chosen:
        merged = place / merged_name(group[0])
        merge((pq.ParquetFile(directory / name) for name in group), str(merged))
        _copy_access(directory / group[0], merged)
    removed = {name for group in chosen for name in group}
    # Hadoop's checksums of merged files would not match anything.
    dropped = removed | {f".{name}.crc" for name in removed}
    for name in before.keys() - dropped:
        os.link(directory / name, place / name)
    disk.sync_directories(place, root)
    with lock_table(root, exclusive=True):
        if set(os.listdir(directory)) != before.keys() or _unfinished(root, directory):
            return BUSY
        _exchange(place, directory)
        disk.sync_directory(directory.parent)
        disk.sync_directory(place.parent)
    shutil.rmtree(place)
    return Compacted(1, len(removed), len(chosen))


def _copy_access(source: Path, target: Path) -> None:
    """Give a new file or directory the owner and the mode of the one that it replaces."""
    own, wanted = target.stat(), source.stat()
    if (own.st_uid, own.st_gid) != (wanted.st_uid, wanted.st_gid):
        try:
            os.chown(target, wanted.st_uid, wanted.st_gid)
        except PermissionError:
            raise PipelineError(f"{source} belongs to another user; run the compaction as that user") from None
    shutil.copymode(source, target)


def _unfinished(root: Path, directory: Path) -> bool:
    """Return whether a batch is in the directory only in part: repeating it looks for its files there."""
    return any((root / target).parent == directory for target in unfinished_targets(root))


def _exchange(one: Path, other: Path) -> None:
    """Exchange two directories in one step."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        if number in _UNSUPPORTED:
            raise PipelineError(
                f"the file system of {other} cannot exchange directories, which compaction of a Parquet table needs; use "
                'a local one such as ext4 or XFS, or format = "delta" or "iceberg"'
            )
        raise OSError(number, os.strerror(number), str(other))
