"""The readers of the data source by mode. A new mode is one function here, and a choice of the option `mode`.

A reader is imported when it is used, so that Spark's Python processes start faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from leveret.spark.options import BROWSE, LEASE, SPOOL, STREAM, Settings

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader

    from leveret.spark.source.target import Target


def _browse(settings: Settings, target: Target) -> DataSourceReader:
    from leveret.spark.source.browse_reader import BrowseReader

    return BrowseReader(settings, target.name)


def _stream_batch(settings: Settings, target: Target) -> DataSourceReader:
    from leveret.spark.source.batch_reader import StreamBatchReader

    return StreamBatchReader(settings, target)


def _filtering_stream_batch(settings: Settings, target: Target) -> DataSourceReader:
    from leveret.spark.source.batch_reader import FilteringBatchReader

    return FilteringBatchReader(settings, target)


def _stream(settings: Settings, target: Target) -> DataSourceStreamReader:
    from leveret.spark.source.stream_reader import StreamReader

    return StreamReader(settings, target)


def _lease(settings: Settings, target: Target) -> DataSourceStreamReader:
    from leveret.spark.lease.reader import LeaseReader

    return LeaseReader(settings, target.name)


def _spool(settings: Settings, target: Target) -> DataSourceStreamReader:
    from leveret.spark.spool.reader import SpoolReader

    return SpoolReader(settings, target.name, target.kind)


# For `spark.read`.
BATCH_READERS: Final[Mapping[str, Callable[[Settings, Target], DataSourceReader]]] = {
    STREAM: _stream_batch,
    BROWSE: _browse,
}
# For `spark.read` in a session that pushes filters down.
FILTERING_BATCH_READERS: Final = {**BATCH_READERS, STREAM: _filtering_stream_batch}
# For `spark.readStream`.
STREAM_READERS: Final[Mapping[str, Callable[[Settings, Target], DataSourceStreamReader]]] = {
    STREAM: _stream,
    LEASE: _lease,
    SPOOL: _spool,
}
