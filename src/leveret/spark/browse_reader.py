"""Classic queues as tables: copies of what is ready, in its order. Nothing is taken away, and nobody else notices.

A task that reads such a queue again reads what is there then: rows are those of one moment, not of one range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from leveret.client.errors import Error
from leveret.segments.packed import PackDamaged, Packed
from leveret.spark.connection import ControlClient
from leveret.spark.errors import ReadFailed
from leveret.spark.options import Settings
from leveret.spark.reading import BatchMaker, reading_of

# Seconds in which the next of the copies has to come.
PATIENCE = 60.0


class BrowseReader(DataSourceReader):
    """`read` of a classic queue, in one task."""

    def __init__(self, settings: Settings, queue: str) -> None:
        self.queue = queue
        # Copies in packs are had over 0-9-1, which the broker takes on the same port. What comes is the same.
        reading = reading_of(settings)
        self.reading = replace(reading, endpoint=replace(reading.endpoint, protocol="0-9-1"))

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        made = BatchMaker(self.reading, self.queue)
        control = ControlClient(self.reading.endpoint, "leveret-spark-browse")
        try:
            channel = control.connection().channel(confirms=False)
            consumer = channel.consume(self.queue, no_ack=True, arguments={"x-browse": True, "x-packed": True})
            while True:
                pack = Packed(consumer.next(PATIENCE).body)
                if not pack.count:
                    return
                pack.rows.times = None
                yield from made.batches(pack.rows)
        except (Error, PackDamaged) as error:
            raise ReadFailed(f"queue {self.queue!r} was not read to its end: {error}") from None
        finally:
            control.close()
