"""The source of flows whose tasks write the files: that of streams, but for what its tasks do with what they read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from leveret.spark.options import Settings
from leveret.spark.pipeline.direct_task import TOLD, DirectTask
from leveret.spark.source import DIRECT, DIRECT_TASK, AmqpDataSource
from leveret.spark.stream_reader import StreamReader
from leveret.spark.target import Target


class DirectSource(AmqpDataSource):
    """`readStream` of streams, with an option more: `with_task`."""

    def __init__(self, options: dict[str, str]) -> None:
        given = dict(options)
        self._task = DirectTask(**json.loads(given.pop(DIRECT_TASK)))
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return DIRECT

    def schema(self) -> StructType:
        return from_arrow_schema(TOLD)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        settings, target = self._find(super().schema(), True)
        return DirectReader(settings, target, self._task)


class DirectReader(StreamReader):
    """Its rows are those of `DirectTask`."""

    def __init__(self, settings: Settings, target: Target, task: DirectTask) -> None:
        super().__init__(settings, target)
        self.task = task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.task.rows(super().read(partition))


def with_task(options: dict[str, str], task: DirectTask) -> dict[str, str]:
    """Options of the source."""
    return options | {DIRECT_TASK: json.dumps(asdict(task))}
