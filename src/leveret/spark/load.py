"""Batch reads of streams in which Spark reads the sealed segments with its own Parquet reader.

`load` returns the same DataFrame as `spark.read.format("amqp")` with another plan: Spark decodes only the columns that the
query uses and skips row groups that its filters exclude, and only messages that are not sealed come over AMQP. A Python
data source can do neither, and Spark processes Arrow batches more slowly than Parquet.

The driver runs in advance the checks that tasks of the data source run while they read: it opens every file, compares it
with the manifest (size, rows, first and last offset) and checks that segments are contiguous. Files are immutable and
pinned; Spark fails if it cannot read one.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from leveret.segments.errors import SegmentError
from leveret.segments.manifest import Segment
from leveret.segments.reader import open_segment
from leveret.spark import values
from leveret.spark.connection import ControlClient, endpoint_of
from leveret.spark.data_source import INITIAL_CONNECT_TIMEOUT, AmqpDataSource
from leveret.spark.errors import OptionError, ReadFailed
from leveret.spark.options import STREAM, Settings, option_texts, read_options
from leveret.spark.register import PUSHDOWN
from leveret.spark.schema import BODY_JSON, OMITTED_COLUMNS, columns_of, names_super_stream, table_schema
from leveret.spark.source.batch_reader import (
    FilteringBatchReader,
    StreamBatchReader,
    check_batch,
    pin_segments,
    ranges_of,
)
from leveret.spark.source.file_pins import FilePin
from leveret.spark.source.partitions import Slice
from leveret.spark.source.slice_reader import topic_expression
from leveret.spark.source.storage_options import storage_options
from leveret.spark.source.target import Target, find_streams

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

logger = logging.getLogger("leveret.spark")

_RANGES: Final = "ranges"
_RANGE_OPTIONS: Final = (
    "startingoffsets",
    "startingtimestamp",
    "startingoffsetsbytimestampstrategy",
    "endingoffsets",
    "endingtimestamp",
)
# Options of Spark's Parquet reader that override the session's: no file is skipped silently, no time is shifted.
STRICT_OPTIONS: Final = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}
# Characters that Spark interprets as a glob pattern in paths.
GLOB_CHARACTERS: Final = frozenset("{}[]*?\\")
# Schemes whose names differ between fsspec and Hadoop.
_SCHEMES: Final = {"s3": "s3a", "gcs": "gs"}
# Files that are checked in parallel.
_CHECK_THREADS: Final = 8
_SOURCE_COLUMNS: Final = ("queue", "partition")


def load(spark: SparkSession, /, *, pin_for: str = "1h", **options: Any) -> DataFrame:
    """Read streams as a table, like `spark.read.format("amqp")` with these options.

    The range is determined, and the files are checked and pinned, when this is called.

    Args:
        spark: The session.
        pin_for: Time for which retention keeps the files, such as "2h": it must cover the last action, and is at most a
            day.
        **options: Options of the data source. If `history` is "segments", a file that cannot be opened or does not match
            the manifest is an error; otherwise the rest of its stream is read by the data source.

    Raises:
        OptionError, OffsetError, BrokerUnreachable: The streams cannot be read.
    """
    given = option_texts(options)
    settings = read_options(given)
    check_batch(settings)
    if BODY_JSON in (column.name for column in columns_of(settings.columns)):
        raise OptionError(
            f'option columns: {BODY_JSON!r} is not in the files; expected body and amqp10, or spark.read.format("amqp")'
        )
    control = ControlClient(endpoint_of(settings), reconnect_timeout=INITIAL_CONNECT_TIMEOUT)
    try:
        target = find_streams(settings, control, 'spark.read.format("amqp") to read a queue')
        parts = ranges_of(settings, target, control)
        if settings.history != "amqp":
            file_pin = FilePin(uuid.uuid4().hex, _seconds(pin_for))
            parts = [pin_segments(part, control, file_pin) if part.count else part for part in parts]
    finally:
        control.close()
    sealed = [_readable_prefix(part, settings) for part in parts]
    rest = [replace(part, first=files.stop, segments=()) for part, files in zip(parts, sealed, strict=True)]
    frames = [_from_files(spark, files, settings) for files in sealed if files.segments]
    if not frames or any(part.count for part in rest):
        # Planning this read takes Spark most of a second, so it is skipped if there is nothing to read.
        frames.append(_from_data_source(spark, given, rest))
    return reduce(_union, frames)


def _union(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.union(other)


def _seconds(pin_for: str) -> float:
    try:
        found = values.duration(pin_for)
    except values.InvalidValue as error:
        raise OptionError(f"pin_for: {pin_for!r} is invalid; expected {error.args[0]}") from None
    if not 0 < found <= 86_400:
        raise OptionError(f"pin_for: {pin_for!r} is out of range; expected more than 0 s and at most 1d")
    return found


# Files


def _readable_prefix(part: Slice, settings: Settings) -> Slice:
    """Return the leading part of a slice that is sealed in contiguous segments whose files match the manifest."""
    following = list(_contiguous(part))
    options = storage_options(settings.storage_options_file)

    def check(segment: Segment) -> SegmentError | None:
        try:
            open_segment(segment.path, options, segment).close()
        except SegmentError as error:
            return error
        return None

    good = []
    with ThreadPoolExecutor(_CHECK_THREADS) as pool:
        for segment, error in zip(following, pool.map(check, following), strict=True):
            if error is not None:
                if settings.history == "segments":
                    raise ReadFailed(f"{error}; set option history to auto to read these messages over AMQP") from None
                logger.warning("%s; the data source reads stream %r from offset %d", error, part.stream, segment.first)
                break
            good.append(segment)
    stop = min(good[-1].last + 1, part.stop) if good else part.first
    return replace(part, stop=stop, segments=tuple(good))


def _contiguous(part: Slice) -> Iterator[Segment]:
    """Yield the segments from the start of a slice up to the first offset that is not in a segment."""
    position = part.first
    for segment in part.segments:
        if segment.first > position or GLOB_CHARACTERS & set(segment.path):
            return
        if segment.last >= position:
            yield segment
            position = segment.last + 1


def _from_files(spark: SparkSession, part: Slice, settings: Settings) -> DataFrame:
    from pyspark.sql import functions as F

    whole = table_schema()
    stored = StructType([field for field in whole.fields if field.name not in _SOURCE_COLUMNS])
    frame = spark.read.schema(stored).options(**STRICT_OPTIONS).parquet(*[_path(segment.path) for segment in part.segments])
    offset = F.col("offset")
    if part.first > part.segments[0].first:
        frame = frame.where(offset >= part.first)
    if part.stop <= part.segments[-1].last:
        frame = frame.where(offset < part.stop)
    if settings.routing_key_filter is not None:
        # In Java's regular expressions `$` also matches before a final line terminator.
        matches = topic_expression(settings.routing_key_filter).removesuffix("$") + r"\z"
        frame = frame.where(F.col("routing_key").rlike(matches))
    omitted = OMITTED_COLUMNS[settings.headers_format]
    queue = part.topic if names_super_stream(settings.columns) else part.stream

    def given(value: str | int | None) -> Column:
        # Makes the column nullable, like all columns of the data source.
        return F.nullif(F.lit(value), F.lit(None))

    sources = {name: F.lit(None).cast(whole[name].dataType) for name in omitted}
    frame = frame.withColumns({**sources, "queue": given(queue), "partition": given(part.partition)})
    return frame.select([F.expr(column.expression).alias(column.name) for column in columns_of(settings.columns)])


def _path(url: str) -> str:
    """Return the path as Hadoop writes it."""
    scheme, mark, rest = url.partition("://")
    return f"{_SCHEMES.get(scheme, scheme)}{mark}{rest}" if mark else f"file://{url}"


# Messages that are not in files


class FixedRangesSource(AmqpDataSource):
    """The data source with fixed ranges."""

    range_reader = StreamBatchReader

    @classmethod
    def name(cls) -> str:
        return "amqp_ranges"

    def reader(self, schema: StructType) -> DataSourceReader:
        options = dict(self.options)
        ranges = [Slice(*part) for part in json.loads(options.pop(_RANGES))]
        settings = read_options(options)
        kind, name = settings.source()
        return self.range_reader(settings, Target(STREAM, kind, name), ranges)

    def schema(self) -> StructType:
        return table_schema(read_options({name: value for name, value in self.options.items() if name != _RANGES}).columns)


class FilteringRangesSource(FixedRangesSource):
    """The data source with fixed ranges for sessions that push filters down."""

    range_reader = FilteringBatchReader

    @classmethod
    def name(cls) -> str:
        return "amqp_filtering_ranges"


def _from_data_source(spark: SparkSession, given: dict[str, str], parts: Sequence[Slice]) -> DataFrame:
    pushes = spark.conf.get(PUSHDOWN, "false") == "true"
    source = FilteringRangesSource if pushes else FixedRangesSource
    spark.dataSource.register(source)
    options = {name: value for name, value in given.items() if name.lower() not in _RANGE_OPTIONS}
    ranges = json.dumps(
        [[part.stream, part.partition, part.topic, part.id, part.first, part.stop] for part in parts if part.count]
    )
    return spark.read.format(source.name()).options(**options, **{_RANGES: ranges}).load()
