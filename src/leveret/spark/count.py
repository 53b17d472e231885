"""Counts messages of streams without reading their bodies.

Offsets are contiguous except for messages that were erased, which the manifest counts for each segment. Only a segment
with erased messages that is partly in the range is read, and only its offsets.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from leveret.segments.manifest import Segment
from leveret.spark.connection import ControlClient
from leveret.spark.data_source import INITIAL_CONNECT_TIMEOUT
from leveret.spark.load import load
from leveret.spark.options import option_texts, read_options
from leveret.spark.schema import columns_of
from leveret.spark.source.batch_reader import check_batch, describe_part, ranges_of
from leveret.spark.source.partitions import Slice
from leveret.spark.source.reading import Reading, reading_of
from leveret.spark.source.slice_reader import SliceReader
from leveret.spark.source.target import find_streams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COLUMNS = "columns"


def count(spark: SparkSession, /, **options: object) -> int:
    """Return the number of messages that `spark.read.format("amqp")` with these options reads.

    The count comes from the offsets of the streams and from the manifest of their segments. With `routingKeyFilter`, Spark
    reads the routing keys.

    Args:
        spark: The session.
        **options: Options of the data source.

    Raises:
        OptionError, OffsetError, BrokerUnreachable: The messages cannot be counted, for example those of a classic queue.
    """
    given = option_texts(options)
    settings = read_options(given)
    check_batch(settings)
    columns_of(settings.columns)
    if settings.routing_key_filter is not None:
        others = {name: value for name, value in given.items() if name.lower() != _COLUMNS}
        return load(spark, **others, columns="offset").count()
    reading = replace(reading_of(settings), columns=("offset",))
    with closing(ControlClient(reading.endpoint, reconnect_timeout=INITIAL_CONNECT_TIMEOUT)) as control:
        target = find_streams(settings, control, 'spark.read.format("amqp") and count() of the DataFrame, which browses it')
        return sum(_count(part, reading, control) for part in ranges_of(settings, target, control))


def _count(part: Slice, reading: Reading, control: ControlClient) -> int:
    if not part.count:
        return 0
    info = describe_part(part, control)
    kept = part.part(max(part.first, info.first), max(part.stop, info.first))
    return kept.count - sum(_erased(kept, segment, reading) for segment in info.segments)


def _erased(part: Slice, segment: Segment, reading: Reading) -> int:
    """Return how many messages of a segment that are in the range were erased."""
    erased = segment.last - segment.first + 1 - segment.count
    if not erased or (part.first <= segment.first and segment.last < part.stop):
        return erased
    inside = replace(part, first=max(part.first, segment.first), stop=min(part.stop, segment.last + 1), segments=(segment,))
    return inside.count - sum(int(rows.num_rows) for rows in SliceReader(reading, inside).batches())
