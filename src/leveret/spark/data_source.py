"""The data source `amqp`: selects the reader or writer of each mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from leveret.spark.connection import ControlClient, endpoint_of
from leveret.spark.errors import OptionError, SparkError
from leveret.spark.options import Settings, read_options
from leveret.spark.schema import check_schema, table_schema
from leveret.spark.source.modes import BATCH_READERS, FILTERING_BATCH_READERS, STREAM_READERS
from leveret.spark.source.target import Target, find_target

# Seconds to connect when a query is defined. An unreachable broker is more likely an error in the URL than a restart here.
INITIAL_CONNECT_TIMEOUT: Final = 5.0
# The source of flows whose tasks write files themselves, and its additional option with the task.
DIRECT: Final = "amqp_direct"
DIRECT_TASK: Final = "task"

_SPARK_OPTIONS = ("checkpointlocation", "queryname")

Reader = TypeVar("Reader")


class AmqpDataSource(DataSource):
    """`spark.read.format("amqp")`, `spark.readStream`, `df.write`, `df.writeStream`, and SQL's `USING amqp`."""

    batch_readers = BATCH_READERS

    @classmethod
    def name(cls) -> str:
        return "amqp"

    def schema(self) -> StructType:
        settings = read_options(self.options)
        endpoint_of(settings)
        return table_schema(settings.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        settings, target = self._find(schema, False)
        return _open(self.batch_readers, "read", settings, target)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from leveret.spark.source.failed_reader import FailedReader

        try:
            return self._open_stream(schema)
        except SparkError as error:
            return FailedReader(error)

    # Spark passes both by name.
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from leveret.spark.sink.writer import batch_writer

        return batch_writer(self._sink_settings(), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from leveret.spark.sink.writer import stream_writer

        return stream_writer(self._sink_settings(), schema, overwrite)

    def _open_stream(self, schema: StructType) -> DataSourceStreamReader:
        settings, target = self._find(schema, True)
        return _open(STREAM_READERS, "readStream", settings, target)

    def _sink_settings(self) -> Settings:
        """Return the settings without Spark's own options, which Spark passes to sinks."""
        return read_options({name: value for name, value in self.options.items() if name.lower() not in _SPARK_OPTIONS})

    def _find(self, schema: StructType, streaming: bool) -> tuple[Settings, Target]:
        """Return the settings and the target. Closes its connection: readers are pickled and open their own."""
        settings = read_options(self.options)
        check_schema(schema, settings.columns)
        control = ControlClient(endpoint_of(settings), reconnect_timeout=INITIAL_CONNECT_TIMEOUT)
        try:
            return settings, find_target(settings, control, streaming)
        finally:
            control.close()

    def __repr__(self) -> str:
        return "AmqpDataSource()"


class FilteringDataSource(AmqpDataSource):
    """The data source for sessions that push filters down: Spark refuses readers that take filters in others."""

    batch_readers = FILTERING_BATCH_READERS


def _open(
    readers: Mapping[str, Callable[[Settings, Target], Reader]], how: str, settings: Settings, target: Target
) -> Reader:
    """Return the reader of the target's mode."""
    make = readers.get(target.mode)
    if make is None:
        raise OptionError(f"option mode: {how} does not support mode {target.mode} for {target}")
    return make(settings, target)
