"""Tasks that write a table's files themselves: messages are read, decoded and written as Arrow batches.

Spark receives one row per message, nearly all of them empty, so that its counts are right; the last rows of a task name its
files. Undecided messages go unchanged to separate files, for Spark to decode.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from leveret.spark.pipeline.decoding.arrow_json import json_decoder
from leveret.spark.pipeline.output.parquet_file import ParquetFile
from leveret.storage import disk

# One row per written file: its name, its directory in the table, and whether its messages are undecided.
FILE_SCHEMA: Final = pa.schema([("file", pa.string()), ("place", pa.string()), ("undecided", pa.bool_())])
# Files that are open at a time; around midnight there are two.
_MAX_OPEN_FILES: Final = 4
FORMATS: Final = {"day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H", "month": "%Y-%m"}


@dataclass(frozen=True)
class DirectTask:
    """Writes the files of a task.

    Attributes:
        directory: Directory of the files until they are moved into the table; shared if tasks run on several machines.
        column: Name of the decoded column.
        schema: Its schema as JSON, "" if nothing is decoded.
        partitions: (name, "day", "hour" or "month") of `append_time`.
        timezone: Time zone of the partitions.
    """

    directory: str
    column: str = ""
    schema: str = ""
    partitions: Sequence[tuple[str, str]] = ()
    timezone: str = "UTC"

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the messages and yield the rows for Spark."""
        os.makedirs(self.directory, exist_ok=True)
        decoder = json_decoder(StructType.fromJson(json.loads(self.schema)), self.timezone) if self.schema else None
        files, undecided = _Files(self.directory), _Files(self.directory)
        # Rows not yet passed to Spark; at least one per file, and each file has at least one message.
        pending_rows = 0
        for batch in batches:
            pending_rows += batch.num_rows
            if decoder is not None:
                value, decided = decoder.decode(batch)
                if decided is not None:
                    undecided.write("", batch.filter(pc.invert(decided)))
                batch = batch.append_column(self.column, value)
                if decided is not None:
                    batch = batch.filter(decided)
            for place, rows in self._split_by_directory(batch):
                files.write(place, rows)
            kept = len(files.written) + len(undecided.written)
            if pending_rows > kept:
                yield _empty(pending_rows - kept)
                pending_rows = kept
        files.close()
        undecided.close()
        if pending_rows:
            yield _file_rows(
                [(name, place, False) for name, place in files.written]
                + [(name, place, True) for name, place in undecided.written]
            )

    def _split_by_directory(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Split a batch by the directories of its rows."""
        if not batch.num_rows:
            return
        if not self.partitions:
            yield "", batch
            return
        times = batch.column("append_time")
        ends = pc.min_max(times)
        place = self._directory_of(ends["min"].as_py())
        if place == self._directory_of(ends["max"].as_py()):
            yield place, batch
            return
        rows: dict[str, list[int]] = {}
        for number, time in enumerate(times.to_pylist()):
            rows.setdefault(self._directory_of(time), []).append(number)
        for place, numbers in rows.items():
            yield place, batch.take(pa.array(numbers))

    def _directory_of(self, time: datetime) -> str:
        local = time.astimezone(ZoneInfo(self.timezone))
        return "/".join(f"{name}={local.strftime(FORMATS[kind])}" for name, kind in self.partitions)


class _Files:
    """Files of one task. `written` has (name, directory) of all files; they are complete once `close` has returned."""

    def __init__(self, directory: str) -> None:
        self.written: list[tuple[str, str]] = []
        self._directory = directory
        self._open: OrderedDict[str, ParquetFile] = OrderedDict()

    def write(self, place: str, rows: pa.RecordBatch) -> None:
        file = self._open.get(place)
        if file is None:
            if len(self._open) == _MAX_OPEN_FILES:
                self._open.popitem(last=False)[1].close()
            name = f"{uuid.uuid4().hex}.parquet"
            file = self._open[place] = ParquetFile(os.path.join(self._directory, name), rows.schema)
            self.written.append((name, place))
        self._open.move_to_end(place)
        file.write(rows)

    def close(self) -> None:
        """Close all files and make them durable, also for a driver on another machine."""
        for file in self._open.values():
            file.close()
        if self.written:
            disk.sync_directory(self._directory)


def _empty(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(count, kind) for kind in FILE_SCHEMA.types], schema=FILE_SCHEMA)


def _file_rows(files: list[tuple[str, str, bool]]) -> pa.RecordBatch:
    columns = zip(*files, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, FILE_SCHEMA.types, strict=True)], schema=FILE_SCHEMA
    )
