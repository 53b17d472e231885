"""The options with which tasks read slices.

The driver only passes them to its tasks. What reads the slices is imported in the tasks, so that queries start faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import pyarrow as pa

from leveret.spark.connection import Endpoint, endpoint_of
from leveret.spark.options import Settings
from leveret.spark.schema import names_super_stream
from leveret.spark.source.conditions import NO_CONDITIONS, Conditions
from leveret.spark.source.file_pins import PinRenewal
from leveret.spark.source.partitions import StreamPartition
from leveret.spark.source.storage_options import storage_options


@dataclass(frozen=True, slots=True)
class Reading:
    """The options that tasks need to read slices.

    Attributes:
        by_topic: Whether rows have the name of a super stream instead of the name of the partition's stream.
        conditions: Rows that do not meet them are not needed.
    """

    endpoint: Endpoint
    columns: tuple[str, ...] | None
    history: str = "auto"
    headers_format: str = "both"
    routing_key_filter: str | None = None
    prefetch: int | None = None
    batch_rows: int = 16_384
    fail_on_data_loss: bool = True
    storage_options_file: str | None = None
    loss_directory: str | None = None
    by_topic: bool = False
    conditions: Conditions = NO_CONDITIONS

    def batches(self, task: StreamPartition) -> Iterator[pa.RecordBatch]:
        """Yield all slices with the schema that Spark expects, renewing the pin of their files meanwhile."""
        from leveret.spark.source.slice_reader import SliceReader

        with nullcontext() if task.file_pin is None else PinRenewal(self.endpoint, task.file_pin):
            for part in task.slices:
                yield from SliceReader(self, part, task.file_pin).batches()


def reading_of(settings: Settings) -> Reading:
    """Return the reading options. Raises OptionError for an unreadable file."""
    storage_options(settings.storage_options_file)
    return Reading(
        endpoint_of(settings),
        settings.columns,
        settings.history,
        settings.headers_format,
        settings.routing_key_filter,
        settings.prefetch,
        settings.arrow_batch_rows,
        settings.fail_on_data_loss,
        settings.storage_options_file,
        settings.loss_directory,
        names_super_stream(settings.columns),
    )
