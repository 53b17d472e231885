"""The reader of a streaming query whose source could not be opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from leveret.segments.typed_json import Document
from leveret.spark.errors import SparkError


class FailedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the error at Spark's first call.

    When `streamReader` raises an error, Spark adds an UnboundLocalError of its own to the trace.
    """

    def __init__(self, error: SparkError) -> None:
        self._error = error

    def _fail(self) -> NoReturn:
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:
        self._fail()

    def initialOffset(self) -> dict[str, Document]:
        self._fail()

    def latestOffset(self, start: dict[str, Document], limit: ReadLimit) -> dict[str, Document]:
        self._fail()

    def partitions(self, start: dict[str, Document], end: dict[str, Document]) -> Sequence[InputPartition]:
        self._fail()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._fail()

    def commit(self, end: dict[str, Document]) -> None:
        self._fail()
