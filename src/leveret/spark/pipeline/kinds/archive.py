"""Archives: messages of streams, queues or exchanges in a table, partitioned by day."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.spark.pipeline.definition import Flow
from leveret.spark.pipeline.flow import start_flow
from leveret.spark.pipeline.model import ArchiveFlow, Broker, Capture, Decode, TableOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def archive_flow(name: str, flow: ArchiveFlow) -> Flow:
    """Build a flow of kind "archive": every column of the messages, and their decoded bodies."""
    return Flow(name, flow.capture, flow.decode, tables=[flow.table], trigger=flow.trigger)


def archive(
    spark: SparkSession,
    broker: Broker,
    capture: Capture,
    table: TableOutput,
    *,
    checkpoint: str,
    decode: Decode | None = None,
    name: str = "archive",
    once: bool = False,
    trigger: float = 10.0,
) -> list[StreamingQuery]:
    """Start writing every captured message into a table, exactly once.

    Args:
        spark: The session.
        broker: The broker.
        capture: Source of the messages.
        table: The table.
        checkpoint: Directory of the query's state; a new one starts from the beginning.
        decode: Adds a typed column with the decoded body; messages that cannot be decoded go to its quarantine.
        name: Name of the query.
        once: Process what is available now, then stop.
        trigger: Seconds between batches.
    """
    flow = ArchiveFlow(capture=capture, table=table, decode=decode or Decode(), trigger=trigger)
    return start_flow(spark, archive_flow(name, flow), broker, checkpoint, once)
