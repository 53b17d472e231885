"""Compacts Iceberg tables, one commit per partition. Flows may append at the same time."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq

from leveret.spark.pipeline.compaction.merging import BUSY, YOUNG, Compacted, Limits, groups, merge, merged_name
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.model import TableOutput
from leveret.spark.pipeline.output.files import sync_files
from leveret.spark.pipeline.output.iceberg import open_table

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

# Key in the summary of a commit: the number of files that it has merged.
COMPACTED: Final = "leveret.compacted-files"
_CHUNK: Final = 1 << 20


class _File(NamedTuple):
    """A file of the table, and when it was added, in seconds; 0 if that is no longer known."""

    data: DataFile
    added: float


def compact_table(output: TableOutput, limits: Limits) -> Compacted:
    """Compact the partitions of a table, except those of an earlier partitioning. The old files stay for old snapshots.

    Raises:
        PipelineError: There is no such table, or it has delete files.
    """
    table = open_table(output)
    found = Compacted()
    for files in _partitions(table, output):
        found = found.plus(_compact_partition(table, files, limits))
    return found


def _partitions(table: Table, output: TableOutput) -> list[list[_File]]:
    """Return the files of each partition of the current partitioning, in the order of their names."""
    found: defaultdict[tuple[object, ...], list[_File]] = defaultdict(list)
    for file in _files(table, output):
        if file.data.spec_id == table.spec().spec_id:
            found[tuple(file.data.partition[index] for index in range(len(file.data.partition)))].append(file)
    return [sorted(files, key=lambda file: file.data.file_path) for files in found.values()]


def _files(table: Table, output: TableOutput) -> Iterator[_File]:
    from pyiceberg.manifest import ManifestContent

    snapshot = table.current_snapshot()
    if snapshot is None:
        return
    for manifest in snapshot.manifests(table.io):
        if manifest.content == ManifestContent.DELETES:
            raise PipelineError(
                f"table {output.path}: has rows that were deleted by delete files; compact it with the program that "
                "deletes rows"
            )
        for entry in manifest.fetch_manifest_entry(table.io):
            source = None if entry.snapshot_id is None else table.snapshot_by_id(entry.snapshot_id)
            yield _File(entry.data_file, 0.0 if source is None else source.timestamp_ms / 1000)


def _compact_partition(table: Table, files: list[_File], limits: Limits) -> Compacted:
    from pyiceberg.exceptions import CommitFailedException, ValidationException
    from pyiceberg.io.pyarrow import parquet_file_to_data_file

    chosen = groups(
        files, lambda file: file.data.file_size_in_bytes, lambda file: _schema(table, file.data), limits.target_bytes
    )
    if not chosen:
        return Compacted()
    if time.time() - max(file.added for file in files) < limits.min_age:
        return YOUNG
    merged = [_merge(table, [file.data for file in group]) for group in chosen]
    removed = sum(map(len, chosen))
    try:
        with (
            table.transaction() as transaction,
            transaction.update_snapshot(snapshot_properties={COMPACTED: str(removed)}).overwrite() as update,
        ):
            for group in chosen:
                for file in group:
                    update.delete_data_file(file.data)
            for path in merged:
                update.append_data_file(parquet_file_to_data_file(table.io, table.metadata, path))
    except (CommitFailedException, ValidationException):
        for path in merged:
            table.io.delete(path)
        table.refresh()
        return BUSY
    return Compacted(1, removed, len(merged))


def _schema(table: Table, file: DataFile) -> pa.Schema:
    with table.io.new_input(file.file_path).open() as stream:
        return pq.read_schema(stream)


def _merge(table: Table, files: list[DataFile]) -> str:
    """Merge files into a new one beside them, and return its URL."""
    directory, _, first = files[0].file_path.rpartition("/")
    target = f"{directory}/{merged_name(first)}"
    with tempfile.TemporaryDirectory() as temporary:
        local = Path(temporary, "merged.parquet")
        merge((pq.ParquetFile(table.io.new_input(file.file_path).open()) for file in files), str(local))
        with open(local, "rb") as source, table.io.new_output(target).create() as sink:
            while chunk := source.read(_CHUNK):
                sink.write(chunk)
    address = urlparse(target)
    if address.scheme in ("", "file"):
        # Before the commit, as the files of batches.
        sync_files(str(Path(address.path).parent), [Path(address.path).name])
    return target
