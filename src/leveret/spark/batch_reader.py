"""Streams as tables: `spark.read` of a range of offsets. Nothing is remembered at the broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from leveret.spark.connection import ControlClient
from leveret.spark.errors import OffsetError, OptionError
from leveret.spark.holding import HOLD, Held, Holding, hold
from leveret.spark.options import OPTIONS, Settings
from leveret.spark.planning import Slice, StreamPartition, plan
from leveret.spark.reading import reading_of
from leveret.spark.starting import check_names, ending_offset, starting_offset
from leveret.spark.target import Target, streams_of
from leveret.spark.topology import describe

_OF_TRIGGERS: Final = ("maxMessagesPerTrigger", "maxBytesPerTrigger", "minMessagesPerTrigger", "maxTriggerDelay")


def check_batch(settings: Settings) -> None:
    """`OptionError` for options that are for `readStream` alone, and for a read that would lose messages in silence."""
    triggered = [option.name for option in OPTIONS if option.name in settings.given and option.name in _OF_TRIGGERS]
    if triggered:
        raise OptionError(f"option {triggered[0]}: not taken by read; it is for readStream")
    if not settings.fail_on_data_loss and settings.loss_directory is None:
        raise OptionError("option failOnDataLoss: false is taken by read with lossDirectory only, since a batch read has "
                          "no progress that would show what was left out; expected a directory that the driver and all "
                          "workers share")


def ranges_of(settings: Settings, target: Target, control: ControlClient) -> list[Slice]:
    """What the options say is to be read, as it is now; without segments. `OptionError`, `OffsetError`."""
    names = streams_of(target, control)
    check_names("startingOffsets", settings.starting_offsets, list(names))
    check_names("endingOffsets", settings.ending_offsets, list(names))
    ranges = []
    for name, number in names.items():
        info = describe(control, name)
        first = starting_offset(settings, control, info, "earliest")
        stop = ending_offset(settings, info)
        if stop < first:
            raise OffsetError(f"option endingOffsets: stream {name!r} would end at offset {stop}, before it begins at "
                              f"{first}")
        ranges.append(Slice(name, number, info.id, first, stop))
    return ranges


def with_segments(part: Slice, control: ControlClient, holding: Holding) -> Slice:
    """The same with the segments that have some of it, which are held. `OffsetError` where the stream is another one by
    now."""
    info = describe(control, part.stream, part.first, part.stop - 1)
    if info.id != part.id:
        raise OffsetError(f"stream {part.stream!r} was deleted and declared again since its range was fixed (id {part.id}, "
                          f"now {info.id}); expected to read it anew")
    if not info.segments:
        return part
    return replace(part, segments=hold(control, holding, Held(part.stream, part.first, part.stop - 1)))


class StreamBatchReader(DataSourceReader):
    """`read` of a stream, a super stream, or streams by pattern. The range is fixed when the query is planned, or before
    that by `ranges`."""

    def __init__(self, settings: Settings, target: Target, ranges: Sequence[Slice] | None = None) -> None:
        check_batch(settings)
        self.settings = settings
        self.target = target
        self.ranges = ranges
        self.reading = reading_of(settings)

    def partitions(self) -> Sequence[InputPartition]:
        holding = Holding(uuid.uuid4().hex, HOLD)
        control = ControlClient(self.reading.endpoint)
        try:
            slices = ranges_of(self.settings, self.target, control) if self.ranges is None else list(self.ranges)
            if self.settings.history != "amqp":
                slices = [with_segments(part, control, holding) if part.count else part for part in slices]
        finally:
            control.close()
        # Without any Spark would make up one whose value is None.
        return plan(slices, self.settings.min_partitions, holding) or [StreamPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamPartition)
        return self.reading.batches(partition)
