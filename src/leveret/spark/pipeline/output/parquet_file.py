"""Writes Parquet files from Arrow batches, with row groups of a reasonable size."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from leveret.storage import disk

# Limits of a row group: rows, and bytes.
MAX_GROUP_ROWS: Final = 1 << 17
MAX_GROUP_BYTES: Final = 32 << 20


class ParquetFile:
    """A file that is being written; rows are buffered because small row groups are expensive.

    Args:
        path: The file on a local file system.
        schema: Schema of the rows.
    """

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        self._writer = pq.ParquetWriter(path, schema, compression="zstd", compression_level=1)
        self._rows: list[pa.RecordBatch] = []
        self._count = 0
        self._n_bytes = 0

    def write(self, rows: pa.RecordBatch) -> None:
        self._rows.append(rows)
        self._count += rows.num_rows
        self._n_bytes += rows.nbytes
        if self._count >= MAX_GROUP_ROWS or self._n_bytes >= MAX_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_batches(self._rows, self._schema), self._count)
            self._rows = []
            self._count = self._n_bytes = 0

    def close(self) -> None:
        """Complete the file and sync its content."""
        self._flush()
        self._writer.close()
        disk.sync_file(self._path)
