"""Batch reads of classic queues: copies of the ready messages, in queue order. The queue does not change.

A retried task reads the queue as it is then, so rows reflect a point in time, not a fixed range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from leveret.client.errors import Error
from leveret.segments.record_batches import DeliveredBatch, InvalidRecordBatch
from leveret.spark.connection import open_amqp091_connection
from leveret.spark.errors import ReadFailed
from leveret.spark.options import Settings
from leveret.spark.source.reading import reading_of
from leveret.spark.source.slice_reader import BatchBuilder
from leveret.spark.task_input import InTask

# Seconds to wait for the next record batch.
COPY_TIMEOUT = 60.0


class BrowseReader(InTask, DataSourceReader):
    """`read` of a classic queue, in one task."""

    def __init__(self, settings: Settings, queue: str) -> None:
        self.queue = queue
        self.reading = reading_of(settings)

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        builder = BatchBuilder(self.reading, self.queue)
        # Record batches of browsed messages need 0-9-1. The rows are the same.
        connection = open_amqp091_connection(self.reading.endpoint, "leveret-spark-browse")
        try:
            channel = connection.channel(confirms=False)
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
            connection.close()
