"""The data source `amqp`: selects the reader or writer of each mode.

Spark imports this module in several processes for each query. Most of them need neither Arrow nor a connection, so it
imports these when they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from leveret.spark.errors import OptionError, SparkError
from leveret.spark.options import SOURCES, TABLE_PREFIX, Settings, own_options, read_options
from leveret.spark.source.modes import BATCH_READERS, FILTERING_BATCH_READERS, STREAM_READERS

if TYPE_CHECKING:
    from leveret.spark.source.target import Target

# Seconds to connect when a query is defined. An unreachable broker is more likely an error in the URL than a restart here.
INITIAL_CONNECT_TIMEOUT: Final = 5.0
# The source of flows whose tasks write files themselves, and its additional option with the task.
DIRECT: Final = "amqp_direct"
DIRECT_TASK: Final = "task"

_SPARK_OPTIONS = ("checkpointlocation", "queryname")
# Options without which a read uses those of the table.
_ADDRESS: Final = {"url", "hosts", *(name.lower() for name in SOURCES)}
# Key of the options in the metadata of a table's first column.
_METADATA: Final = "amqp"

Reader = TypeVar("Reader")


class AmqpDataSource(DataSource):
    """`spark.read.format("amqp")`, `spark.readStream`, `df.write`, `df.writeStream`, and SQL's `USING amqp`."""

    batch_readers = BATCH_READERS

    @classmethod
    def name(cls) -> str:
        return "amqp"

    def schema(self) -> StructType:
        from leveret.spark.connection import endpoint_of
        from leveret.spark.schema import table_schema

        options = own_options(self.options)
        settings = read_options(options)
        endpoint_of(settings)
        schema = table_schema(settings.columns)
        if any(name.lower().startswith(TABLE_PREFIX) for name in self.options):
            _keep_options(schema, settings, options)
        return schema

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

        if not self.options and _kept_options(schema):
            raise OptionError(
                "Spark does not pass the options of this table to INSERT INTO; expected a table of "
                'pyspark_amqp.create_tables, or DataFrame.write.format("amqp") with the options'
            )
        return batch_writer(self._sink_settings(), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from leveret.spark.sink.writer import stream_writer

        return stream_writer(self._sink_settings(), schema, overwrite)

    def _open_stream(self, schema: StructType) -> DataSourceStreamReader:
        settings, target = self._find(schema, True)
        return _open(STREAM_READERS, "readStream", settings, target)

    def _sink_settings(self) -> Settings:
        """Return the settings without Spark's own options, which Spark passes to sinks."""
        options = own_options(self.options)
        return read_options({name: value for name, value in options.items() if name not in _SPARK_OPTIONS})

    def _find(self, schema: StructType, streaming: bool) -> tuple[Settings, Target]:
        """Return the settings and the target. Closes its connection: readers are pickled and open their own."""
        from leveret.spark.connection import ControlClient, endpoint_of
        from leveret.spark.schema import check_schema
        from leveret.spark.source.target import find_target

        options = own_options(self.options)
        if not _ADDRESS & set(options):
            options = _kept_options(schema) | options
        settings = read_options(options)
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


def _keep_options(schema: StructType, settings: Settings, options: dict[str, str]) -> None:
    """Keep the options of a catalog table in its schema: Spark passes them when the table is created, and not to reads."""
    from leveret.spark.connection import has_password

    settings.source()
    if has_password(settings.url):
        raise OptionError(
            "option url: has a password, which users of the catalog could read; expected it in option passwordFile or in "
            "the environment variable LEVERET_PASSWORD"
        )
    schema.fields[0].metadata = {_METADATA: options}


def _kept_options(schema: StructType) -> dict[str, str]:
    return dict(schema.fields[0].metadata.get(_METADATA, {})) if schema.fields else {}


def _open(
    readers: Mapping[str, Callable[[Settings, Target], Reader]], how: str, settings: Settings, target: Target
) -> Reader:
    """Return the reader of the target's mode."""
    make = readers.get(target.mode)
    if make is None:
        raise OptionError(f"option mode: {how} does not support mode {target.mode} for {target}")
    return make(settings, target)
