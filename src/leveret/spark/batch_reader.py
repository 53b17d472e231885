"""Streams as tables: `spark.read` of a range of offsets. Nothing is remembered at the broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from leveret.spark.connection import ControlClient
from leveret.spark.errors import OffsetError, OptionError
from leveret.spark.options import OPTIONS, Settings
from leveret.spark.planning import Slice, StreamPartition, plan
from leveret.spark.reading import reading_of
from leveret.spark.starting import check_names, ending_offset, starting_offset
from leveret.spark.stream_reader import hold
from leveret.spark.target import Target, streams_of
from leveret.spark.topology import describe

_OF_TRIGGERS: Final = ("maxMessagesPerTrigger", "maxBytesPerTrigger", "minMessagesPerTrigger", "maxTriggerDelay")


class StreamBatchReader(DataSourceReader):
    """`read` of a stream, a super stream, or streams by pattern. The range is fixed when the query is planned."""

    def __init__(self, settings: Settings, target: Target) -> None:
        triggered = [option.name for option in OPTIONS if option.name in settings.given and option.name in _OF_TRIGGERS]
        if triggered:
            raise OptionError(f"option {triggered[0]}: not taken by read; it is for readStream")
        self.settings = settings
        self.target = target
        self.reading = reading_of(settings)

    def partitions(self) -> Sequence[InputPartition]:
        settings = self.settings
        control = ControlClient(self.reading.endpoint)
        try:
            names = streams_of(self.target, control)
            check_names("startingOffsets", settings.starting_offsets, list(names))
            check_names("endingOffsets", settings.ending_offsets, list(names))
            holder = uuid.uuid4().hex
            slices = [self._slice(control, name, number, holder) for name, number in names.items()]
        finally:
            control.close()
        planned = plan(slices, settings.min_partitions)
        # Without any Spark would make up one whose value is None.
        return planned or [StreamPartition(())]

    def _slice(self, control: ControlClient, name: str, number: int, holder: str) -> Slice:
        info = describe(control, name)
        first = starting_offset(self.settings, control, info, "earliest")
        stop = ending_offset(self.settings, info)
        if stop < first:
            raise OffsetError(f"option endingOffsets: stream {name!r} would end at offset {stop}, before it begins at "
                              f"{first}")
        if stop == first:
            return Slice(name, number, info.id, first, stop)
        segments = describe(control, name, first, stop - 1).segments
        if segments and self.settings.history != "amqp":
            segments = hold(control, name, holder, first, stop - 1)
        return Slice(name, number, info.id, first, stop, segments)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamPartition)
        return self.reading.batches(partition.slices)
