"""Batch reads of streams: `spark.read` over a range of offsets. The broker keeps no state for them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from leveret.segments.schema import TABLE_SCHEMA
from leveret.spark.connection import ControlClient
from leveret.spark.errors import OffsetError, OptionError
from leveret.spark.options import OPTIONS, Settings
from leveret.spark.schema import columns_of
from leveret.spark.source.file_pins import PIN_SECONDS, FilePin, PinnedRange, pin
from leveret.spark.source.partitions import Slice, StreamPartition, plan
from leveret.spark.source.reading import reading_of
from leveret.spark.source.start_offsets import check_names, ending_offset, starting_offset
from leveret.spark.source.target import Target, streams_of
from leveret.spark.source.topology import StreamInfo, describe
from leveret.spark.task_input import InTask

_TRIGGER_OPTIONS: Final = ("maxMessagesPerTrigger", "maxBytesPerTrigger", "minMessagesPerTrigger", "maxTriggerDelay")


def check_batch(settings: Settings) -> None:
    """Raise OptionError for options of `readStream`, and for a read that would skip lost messages silently."""
    triggered = [option.name for option in OPTIONS if option.name in settings.given and option.name in _TRIGGER_OPTIONS]
    if triggered:
        raise OptionError(f"option {triggered[0]}: not valid in read, only in readStream")
    if not settings.fail_on_data_loss and settings.loss_directory is None:
        raise OptionError(
            "option failOnDataLoss: in read, false needs lossDirectory, because a batch read has no progress "
            "that shows what was skipped; set lossDirectory to a directory that the driver and all workers "
            "share"
        )


def ranges_of(settings: Settings, target: Target, control: ControlClient) -> list[Slice]:
    """Return the ranges that the options select now, without segments. Raises OptionError or OffsetError."""
    members = streams_of(target, control)
    check_names(settings, members)
    ranges = []
    for name, member in members.items():
        info = describe(control, name)
        first = starting_offset(settings, control, info, "earliest")
        stop = ending_offset(settings, control, info)
        if stop < first:
            option = "endingOffsets" if settings.ending_timestamp is None else "endingTimestamp"
            raise OffsetError(
                f"option {option}: the end of stream {name!r}, offset {stop}, is before its start, offset {first}"
            )
        ranges.append(Slice(name, member.partition, member.super_stream or name, info.id, first, stop))
    return ranges


def describe_part(part: Slice, control: ControlClient) -> StreamInfo:
    """Describe the stream of a slice, with the segments that contain the slice.

    Raises:
        OffsetError: The stream was deleted and declared again since the range was determined.
    """
    info = describe(control, part.stream, part.first, part.stop - 1)
    if info.id != part.id:
        raise OffsetError(
            f"stream {part.stream!r} was deleted and declared again since its range was determined (id "
            f"{part.id}, now {info.id}); run the read again"
        )
    return info


def pin_segments(part: Slice, control: ControlClient, file_pin: FilePin) -> Slice:
    """Return the slice with the segments that contain it, whose files are pinned. Raises OffsetError."""
    if not describe_part(part, control).segments:
        return part
    return replace(part, segments=pin(control, file_pin, PinnedRange(part.stream, part.first, part.stop - 1)))


class StreamBatchReader(InTask, DataSourceReader):
    """`read` of a stream, a super stream, several of them, or streams by pattern.

    The range is determined when Spark plans the query, unless `ranges` are given.
    """

    def __init__(self, settings: Settings, target: Target, ranges: Sequence[Slice] | None = None) -> None:
        check_batch(settings)
        self.settings = settings
        self.target = target
        self.ranges = ranges
        self.reading = reading_of(settings)

    def partitions(self) -> Sequence[InputPartition]:
        file_pin = FilePin(uuid.uuid4().hex, PIN_SECONDS)
        conditions = self.reading.conditions
        control = ControlClient(self.reading.endpoint)
        try:
            slices = ranges_of(self.settings, self.target, control) if self.ranges is None else list(self.ranges)
            slices = [conditions.narrow(part) for part in slices]
            if self.settings.history != "amqp":
                slices = [pin_segments(part, control, file_pin) if part.count else part for part in slices]
        finally:
            control.close()
        slices = [conditions.narrow_by_time(part) for part in slices]
        # Without a partition, Spark would create one whose value is None.
        settings = self.settings
        tasks = plan(slices, settings.min_partitions, settings.max_records_per_partition, file_pin)
        return tasks or [StreamPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamPartition)
        return self.reading.batches(partition)


class FilteringBatchReader(StreamBatchReader):
    """A batch read to which Spark pushes filters down. Spark refuses it unless the session enables that."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters. Returns those that Spark has to apply as well."""
        sources = {
            column.name: column.source
            for column in columns_of(self.settings.columns)
            if column.type == TABLE_SCHEMA.field(column.source).type
        }
        conditions = self.reading.conditions
        remaining = []
        for pushed in filters:
            conditions, exact = conditions.add(pushed, sources)
            if not exact:
                remaining.append(pushed)
        pattern = self.reading.routing_key_filter or conditions.routing_key_filter
        self.reading = replace(self.reading, conditions=conditions, routing_key_filter=pattern)
        return remaining
