"""Chooses small Parquet files and merges them into large ones, row for row and in order."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from leveret.spark.pipeline.output.parquet_file import MAX_GROUP_ROWS, ParquetFile

# Ending of the name of a merged file, which a later merge replaces.
_MERGED: Final = re.compile(r"-c[0-9a-f]{8}$")
_SUFFIX: Final = ".parquet"

File = TypeVar("File")


class Limits(NamedTuple):
    """Limits of a compaction.

    Attributes:
        target_bytes: Approximate size of merged files. Files of at least half the size are left as they are.
        min_age: Seconds since the last change of a partition; younger partitions are not finished.
    """

    target_bytes: int
    min_age: float


class Compacted(NamedTuple):
    """Result of a compaction.

    Attributes:
        partitions: Number of partitions with merged files.
        removed: Number of files that were merged.
        added: Number of files into which they were merged.
        busy: Number of partitions that were left because a writer changed them meanwhile.
        young: Number of partitions that are not finished.
    """

    partitions: int = 0
    removed: int = 0
    added: int = 0
    busy: int = 0
    young: int = 0

    def plus(self, other: Compacted) -> Compacted:
        return Compacted(*(mine + more for mine, more in zip(self, other, strict=True)))


BUSY: Final = Compacted(busy=1)
YOUNG: Final = Compacted(young=1)


def groups(
    files: Iterable[File], size: Callable[[File], int], schema: Callable[[File], pa.Schema], target_bytes: int
) -> list[list[File]]:
    """Return groups of at least two small files with equal schemas, in the order given, of about the target size each."""
    small = [file for file in files if size(file) * 2 < target_bytes]
    if len(small) < 2:
        return []
    found: list[list[File]] = []
    current: list[tuple[pa.Schema, list[File]]] = []
    for file in small:
        own = schema(file)
        group = next((group for known, group in current if known.equals(own, check_metadata=True)), None)
        if group is None:
            current.append((own, [file]))
            continue
        group.append(file)
        if sum(map(size, group)) >= target_bytes:
            found.append(group)
            current = [(known, other) for known, other in current if other is not group]
    found += [group for _, group in current]
    return [group for group in found if len(group) > 1]


def merged_name(first: str) -> str:
    """Return a new name for the file into which files are merged, which sorts like the first one's."""
    return f"{_MERGED.sub('', first.removesuffix(_SUFFIX))}-c{uuid.uuid4().hex[:8]}{_SUFFIX}"


def merge(sources: Iterable[pq.ParquetFile], target: str) -> None:
    """Write the rows of all files, whose schemas are equal, to a new file and sync it."""
    merged: ParquetFile | None = None
    for source in sources:
        with source:
            if merged is None:
                merged = ParquetFile(target, source.schema_arrow)
            for batch in source.iter_batches(batch_size=MAX_GROUP_ROWS):
                merged.write(batch)
    assert merged is not None, "no files to merge"
    merged.close()
