"""Compacts a table of any format, or all tables of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from leveret.spark.pipeline.compaction import delta, directory, iceberg
from leveret.spark.pipeline.compaction.merging import Compacted, Limits
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.model import Pipeline, TableOutput
from leveret.spark.pipeline.output.table_lock import lock_compaction
from leveret.spark.pipeline.run import flows_of

_FORMATS: Final = {
    "parquet": directory.compact_table,
    "delta": delta.compact_table,
    "iceberg": iceberg.compact_table,
}
DEFAULT_TARGET_BYTES: Final = 128 << 20
DEFAULT_MIN_AGE: Final = 3600.0


def compact(
    output: TableOutput, *, target_bytes: int = DEFAULT_TARGET_BYTES, min_age: float = DEFAULT_MIN_AGE
) -> Compacted:
    """Rewrite the small files of a table's finished partitions as few large ones. Readers see each row once at any time.

    Args:
        output: The table: its path and format, and for Iceberg its name and catalog.
        target_bytes: Approximate size of the new files. Files of at least half the size stay as they are.
        min_age: Seconds without a change after which a partition is finished.

    Returns:
        The numbers of partitions and files.

    Raises:
        PipelineError: There is no such table, its readers would notice, or another compaction of it is running, which is
            only known of a table on a local file system.
    """
    limits = Limits(target_bytes, min_age)
    root = Path(output.path.removeprefix("file://"))
    if not root.is_dir():
        return _FORMATS[output.format](output, limits)
    try:
        with lock_compaction(root):
            return _FORMATS[output.format](output, limits)
    except BlockingIOError:
        raise PipelineError(f"table {output.path}: is being compacted by another process") from None


def tables_of(pipeline: Pipeline) -> Iterator[TableOutput]:
    """Yield the tables that the flows of a pipeline have written, with those of the quarantine, each once."""
    found: dict[str, TableOutput] = {}
    for flow in flows_of(pipeline).values():
        for table in flow.tables:
            found.setdefault(table.path, table)
        if flow.has_quarantine:
            assert flow.decode.quarantine is not None
            found.setdefault(flow.decode.quarantine, TableOutput(path=flow.decode.quarantine))
    for path, table in found.items():
        if "://" in path or Path(path).exists():
            yield table
