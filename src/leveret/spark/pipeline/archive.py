"""Messages of streams, queues or exchanges in a table, by day."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.spark.pipeline.flow import Flow, start_flow
from leveret.spark.pipeline.model import ArchiveFlow, Broker, Capture, Decode, TableOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def archive_flow(name: str, flow: ArchiveFlow) -> Flow:
    """What a flow of kind "archive" does: every column of the messages, and what the bodies hold."""
    return Flow(name, flow.capture, flow.decode, tables=[flow.table], trigger=flow.trigger)


def archive(spark: SparkSession, broker: Broker, capture: Capture, table: TableOutput, *, checkpoint: str,
            decode: Decode | None = None, name: str = "archive", once: bool = False,
            trigger: float = 10.0) -> list[StreamingQuery]:
    """Start to write every captured message into a table, exactly once.

    checkpoint  directory of the query's state; another one begins anew
    decode      adds a typed column of what the bodies hold; messages that do not fit go to its quarantine
    once        take what is there now, and end
    trigger     seconds between batches
    """
    flow = ArchiveFlow(capture=capture, table=table, decode=decode or Decode(), trigger=trigger)
    return start_flow(spark, archive_flow(name, flow), broker, checkpoint, once)
