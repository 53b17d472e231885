"""The data source of direct flows: reads streams like `amqp`, but its tasks write files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from leveret.spark.data_source import DIRECT, DIRECT_TASK, AmqpDataSource
from leveret.spark.options import Settings
from leveret.spark.pipeline.direct.task import FILE_SCHEMA, DirectTask
from leveret.spark.source.stream_reader import StreamReader
from leveret.spark.source.target import Target


class DirectSource(AmqpDataSource):
    """`readStream` of streams with an additional option, see `with_task`."""

    def __init__(self, options: dict[str, str]) -> None:
        given = dict(options)
        self._task = DirectTask(**json.loads(given.pop(DIRECT_TASK)))
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return DIRECT

    def schema(self) -> StructType:
        return from_arrow_schema(FILE_SCHEMA)

    def _open_stream(self, schema: StructType) -> DataSourceStreamReader:
        settings, target = self._find(super().schema(), True)
        return DirectReader(settings, target, self._task)


class DirectReader(StreamReader):
    """Reads streams; its tasks write files and yield the rows of `DirectTask`."""

    def __init__(self, settings: Settings, target: Target, task: DirectTask) -> None:
        super().__init__(settings, target)
        self.task = task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.task.rows(super().read(partition))


def with_task(options: dict[str, str], task: DirectTask) -> dict[str, str]:
    """Return the options of the data source with those of the task."""
    return options | {DIRECT_TASK: json.dumps(asdict(task))}
