"""Batch reads of classic queues: copies of the ready messages, in queue order. The queue does not change.

A retried task reads the queue as it is then, so rows reflect a point in time, not a fixed range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from leveret.client.errors import Error
from leveret.segments.record_batches import DeliveredBatch, InvalidRecordBatch
from leveret.spark.connection import ControlClient
from leveret.spark.errors import ReadFailed
from leveret.spark.options import Settings
from leveret.spark.source.slice_reader import BatchBuilder, reading_of

# Seconds to wait for the next record batch.
COPY_TIMEOUT = 60.0


class BrowseReader(DataSourceReader):
    """`read` of a classic queue, in one task."""

    def __init__(self, settings: Settings, queue: str) -> None:
        self.queue = queue
        # Record batches of browsed messages need 0-9-1, which the broker accepts on the same port. The rows are the same.
        reading = reading_of(settings)
        self.reading = replace(reading, endpoint=replace(reading.endpoint, protocol="0-9-1"))

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        builder = BatchBuilder(self.reading, self.queue)
        control = ControlClient(self.reading.endpoint, "leveret-spark-browse")
        try:
            channel = control.connection().channel(confirms=False)
            consumer = channel.consume(self.queue, no_ack=True, arguments={"x-browse": True, "x-packed": True})
            while True:
                delivered = DeliveredBatch(consumer.next(COPY_TIMEOUT).body)
                if not delivered.count:
                    return
                delivered.rows.times = None
                yield from builder.batches(delivered.rows)
        except (Error, InvalidRecordBatch) as error:
            raise ReadFailed(f"queue {self.queue!r} was not read completely: {error}") from None
        finally:
            control.close()
