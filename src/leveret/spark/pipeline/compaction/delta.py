"""Compacts Delta tables with deltalake, one commit per partition. Flows may append at the same time."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from leveret.spark.pipeline.compaction.merging import BUSY, YOUNG, Compacted, Limits
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.model import TableOutput
from leveret.spark.pipeline.output.delta import location_of, log_paths
from leveret.spark.pipeline.output.files import sync_files

if TYPE_CHECKING:
    from deltalake import DeltaTable

_COLUMN = "partition."


def compact_table(output: TableOutput, limits: Limits) -> Compacted:
    """Compact the partitions of a table. The old files stay until the table is vacuumed.

    No other compaction may run: deltalake does not notice files that it has replaced meanwhile.

    Raises:
        PipelineError: There is no such table.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    location = location_of(output.path)
    try:
        table = DeltaTable(location)
    except TableNotFoundError:
        raise PipelineError(f"table {output.path}: is not a Delta table; expected a directory with _delta_log") from None
    found = Compacted()
    for values, files in _partitions(table).items():
        if sum(file["size_bytes"] * 2 < limits.target_bytes for file in files) > 1:
            if time.time() - max(file["modification_time"] for file in files) / 1000 < limits.min_age:
                found = found.plus(YOUNG)
            else:
                found = found.plus(_compact_partition(table, location, dict(values), limits))
    return found


def _partitions(table: DeltaTable) -> dict[tuple[tuple[str, Any], ...], list[dict[str, Any]]]:
    """Return the files by the values of their partition."""
    import pyarrow as pa

    found = defaultdict(list)
    for file in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        values = tuple((name, file.get(f"{_COLUMN}{name}")) for name in table.metadata().partition_columns)
        found[values].append(file)
    return dict(found)


def _compact_partition(table: DeltaTable, location: str, values: dict[str, Any], limits: Limits) -> Compacted:
    from deltalake import WriterProperties
    from deltalake.exceptions import CommitFailedError

    before, version = _paths(table), table.version()
    try:
        metrics = table.optimize.compact(
            partition_filters=[(name, "=", "" if value is None else value) for name, value in values.items()] or None,
            target_size=limits.target_bytes,
            writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
        )
    except CommitFailedError:  # another program has deleted rows
        table.update_incremental()
        return BUSY
    if "://" not in location:
        sync_files(location, _paths(table) - before)
        changed = [path for path in log_paths(version, table.version()) if Path(location, path).exists()]
        sync_files(location, changed)
    if not metrics["numFilesRemoved"]:
        return Compacted()
    return Compacted(1, metrics["numFilesRemoved"], metrics["numFilesAdded"])


def _paths(table: DeltaTable) -> set[str]:
    import pyarrow as pa

    # Paths in the log are percent-encoded.
    return {unquote(path) for path in pa.table(table.get_add_actions()).column("path").to_pylist()}
