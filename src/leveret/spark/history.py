"""Streams as tables whose sealed part Spark reads by itself.

`load` gives the DataFrame of `spark.read.format("amqp")`, from another plan: the segment files are read by Spark's own
Parquet reader, which decodes only the columns that the query uses and skips what its filters exclude; what is not sealed
comes over AMQP. A Python data source can do neither, and Arrow's batches take Spark longer than Parquet's.

What the tasks of the data source check while they read is seen to beforehand here: the driver opens every file and compares
it with the manifest (octets, rows, first and last offset), and sees that one goes on where the one before ends. Files never
change, and are held; Spark fails where one cannot be read as it is.
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
from leveret.spark.batch_reader import StreamBatchReader, check_batch, ranges_of, with_segments
from leveret.spark.connection import ControlClient, endpoint_of
from leveret.spark.errors import OptionError, ReadFailed
from leveret.spark.holding import Holding
from leveret.spark.options import STREAM, Settings, read_options
from leveret.spark.planning import Slice
from leveret.spark.reading import topic_expression
from leveret.spark.schema import table_schema
from leveret.spark.source import PATIENCE_AT_FIRST, AmqpDataSource
from leveret.spark.storage import storage_options
from leveret.spark.target import Target, find_target

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger("leveret.spark")

_RANGES: Final = "ranges"
_OF_THE_RANGE: Final = ("startingoffsets", "endingoffsets", "startingtimestamp", "columns")
# Of Spark's Parquet reader, whatever the session says: nothing is left out in silence, and no times are shifted.
STRICT: Final = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false", "datetimeRebaseMode": "CORRECTED",
                  "parquet.page.verify-checksum.enabled": "true"}
# What it would take for a pattern in a path.
GLOB: Final = frozenset("{}[]*?\\")
# Schemes that fsspec and Hadoop name differently.
_SCHEMES: Final = {"s3": "s3a", "gcs": "gs"}
# Files whose footers are read at a time.
_AT_ONCE: Final = 8
_WITHOUT_FILES: Final = ("queue", "partition")


def load(spark: SparkSession, /, *, hold: str = "1h", **options: Any) -> DataFrame:
    """Streams as a table: what `spark.read.format("amqp")` gives with these options (keywords; those with points by `**`).

    The range is fixed now, and the files are checked and held now. `hold` is how long retention leaves them alone: a time
    such as "2h", from now to the end of the last action, at most a day.

    A file that cannot be opened, or is another one than the manifest says, is an error where `history` is "segments";
    otherwise its stream is read by the data source from there on. `OptionError`, `OffsetError`, `BrokerUnreachable`.
    """
    given = {name: _text(value) for name, value in options.items()}
    settings = read_options(given)
    check_batch(settings)
    columns = table_schema(settings.columns).names
    control = ControlClient(endpoint_of(settings), patience=PATIENCE_AT_FIRST)
    try:
        target = find_target(settings, control, False)
        if target.mode != STREAM:
            raise OptionError(f"option {target.kind}: {target.name!r} is no stream; expected one, or "
                              "spark.read.format(\"amqp\"), which reads queues")
        parts = ranges_of(settings, target, control)
        if settings.history != "amqp":
            holding = Holding(uuid.uuid4().hex, _seconds(hold))
            parts = [with_segments(part, control, holding) if part.count else part for part in parts]
    finally:
        control.close()
    sealed = [_usable(part, settings) for part in parts]
    rest = [replace(part, first=files.stop, segments=()) for part, files in zip(parts, sealed, strict=True)]
    frames = [_from_files(spark, files, settings, columns) for files in sealed if files.segments]
    if not frames or any(part.count for part in rest):
        # Planning it takes Spark a good part of a second, so it is left out where it has nothing to read.
        frames.append(_rest(spark, given, rest, columns))
    return reduce(_union, frames)


def _union(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.union(other)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _seconds(hold: str) -> float:
    try:
        found = values.duration(hold)
    except values.BadValue as error:
        raise OptionError(f"hold: {hold!r} cannot be used; expected {error.args[0]}") from None
    if not 0 < found <= 86_400:
        raise OptionError(f"hold: {hold!r} is no time that files can be held; expected more than none, and a day at most")
    return found


# Files

def _usable(part: Slice, settings: Settings) -> Slice:
    """The sealed beginning of a slice: segments that follow each other, whose files are what the manifest says."""
    following = list(_following(part))
    options = storage_options(settings.storage_options_file)

    def check(segment: Segment) -> SegmentError | None:
        try:
            open_segment(segment.path, options, segment).close()
        except SegmentError as error:
            return error
        return None

    good = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for segment, error in zip(following, pool.map(check, following), strict=True):
            if error is not None:
                if settings.history == "segments":
                    raise ReadFailed(f"{error}; history=auto reads these messages over AMQP instead") from None
                log.warning("%s; stream %r is read by the data source from offset %d on", error, part.stream, segment.first)
                break
            good.append(segment)
    stop = min(good[-1].last + 1, part.stop) if good else part.first
    return replace(part, stop=stop, segments=tuple(good))


def _following(part: Slice) -> Iterator[Segment]:
    """Segments from the beginning of a slice to the first offset that is in none."""
    position = part.first
    for segment in part.segments:
        if segment.first > position or GLOB & set(segment.path):
            return
        if segment.last >= position:
            yield segment
            position = segment.last + 1


def _from_files(spark: SparkSession, part: Slice, settings: Settings, columns: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as F

    whole = table_schema()
    stored = StructType([field for field in whole.fields if field.name not in _WITHOUT_FILES])
    frame = spark.read.schema(stored).options(**STRICT).parquet(*[_path(segment.path) for segment in part.segments])
    offset = F.col("offset")
    if part.first > part.segments[0].first:
        frame = frame.where(offset >= part.first)
    if part.stop <= part.segments[-1].last:
        frame = frame.where(offset < part.stop)
    if settings.routing_key_filter is not None:
        # In Java's expressions `$` is also before a line end.
        matches = topic_expression(settings.routing_key_filter).removesuffix("$") + r"\z"
        frame = frame.where(F.col("routing_key").rlike(matches))
    empty = {"map": "headers_json", "json": "headers"}.get(settings.headers_format)

    def given(value: str | int) -> Column:
        # Like all columns of the data source it may be null, for all that Spark is to know.
        return F.nullif(F.lit(value), F.lit(None))

    def column(name: str) -> Column:
        if name == "queue":
            return given(part.stream).alias(name)
        if name == "partition":
            return given(part.partition).alias(name)
        if name == empty:
            return F.lit(None).cast(whole[name].dataType).alias(name)
        return F.col(name)

    return frame.select([column(name) for name in columns])


def _path(url: str) -> str:
    """As Hadoop names it."""
    scheme, mark, rest = url.partition("://")
    return f"{_SCHEMES.get(scheme, scheme)}{mark}{rest}" if mark else f"file://{url}"


# What is in no file

class RestOfStreams(AmqpDataSource):
    """The data source, with ranges that are fixed already."""

    @classmethod
    def name(cls) -> str:
        return "amqp_ranges"

    def reader(self, schema: StructType) -> DataSourceReader:
        options = dict(self.options)
        ranges = [Slice(*part) for part in json.loads(options.pop(_RANGES))]
        settings = read_options(options)
        kind, name = settings.source()
        return StreamBatchReader(settings, Target(STREAM, kind, name), ranges)

    def schema(self) -> StructType:
        return table_schema(read_options({name: value for name, value in self.options.items() if name != _RANGES}).columns)


def _rest(spark: SparkSession, given: dict[str, str], parts: Sequence[Slice], columns: Sequence[str]) -> DataFrame:
    spark.dataSource.register(RestOfStreams)
    options = {name: value for name, value in given.items() if name.lower() not in _OF_THE_RANGE}
    ranges = json.dumps([[part.stream, part.partition, part.id, part.first, part.stop] for part in parts if part.count])
    options |= {_RANGES: ranges, "columns": ",".join(columns)}
    return spark.read.format(RestOfStreams.name()).options(**options).load()
