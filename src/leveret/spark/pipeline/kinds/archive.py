"""Archives: messages of streams, queues or exchanges in a table, partitioned by day."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import field

from leveret.spark.pipeline.checks import Problem, check_decode, check_table
from leveret.spark.pipeline.definition import Flow
from leveret.spark.pipeline.flow import start_flow
from leveret.spark.pipeline.model import Broker, Capture, Decode, FlowSection, TableOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class ArchiveFlow(FlowSection, frozen=True, kw_only=True, tag="archive"):
    table: TableOutput
    decode: Decode = field(default_factory=Decode)
    trigger: float = 10.0

    def check(self) -> Iterator[Problem]:
        yield from check_decode(self.decode)
        yield from check_table(self.table, ("table",))

    def build(self, name: str) -> Flow:
        """Build a flow with every column of the messages, and their decoded bodies."""
        return Flow(name, self.capture, self.decode, tables=[self.table], trigger=self.trigger)


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
    return start_flow(spark, flow.build(name), broker, checkpoint, once)
