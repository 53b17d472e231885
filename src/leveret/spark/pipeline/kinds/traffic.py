"""Traffic: statistics of the broker's messages by time windows, from the events that it publishes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from msgspec import field
from msgspec.structs import replace

from leveret.spark.pipeline.checks import Problem, check_table
from leveret.spark.pipeline.definition import Flow
from leveret.spark.pipeline.flow import start_flow
from leveret.spark.pipeline.model import Broker, Capture, Decode, ExchangeOutput, FlowSection, TableOutput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EVENTS = "amq.leveret.events"
# Schema of an event.
SCHEMA = (
    "event STRING NOT NULL, time BIGINT NOT NULL, vhost STRING, exchange STRING, routing_key STRING, queue STRING, "
    "size BIGINT, age_ms DOUBLE, outcome STRING, reason STRING, sample BIGINT"
)
# Columns of a window; a published window also has body, routing_key and content_type.
WINDOW = (
    "window_start",
    "window_end",
    "event",
    "vhost",
    "exchange",
    "queue",
    "messages",
    "rate",
    "octets",
    "mean_size",
    "largest",
    "age_p50_ms",
    "age_p99_ms",
)
# Accuracy of percentiles: their relative error is 1 / _ACCURACY.
_ACCURACY = 1000
# Prefix of the routing keys: it is followed by the event, and the queue or exchange.
KEY = "traffic."


class TrafficFlow(FlowSection, frozen=True, kw_only=True, tag="traffic"):
    """Statistics from the broker's own events; `capture` is optional."""

    LOCATIONS = ("report",)

    capture: Capture = field(default_factory=lambda: Capture(exchange=EVENTS))
    table: TableOutput | None = None
    exchange: ExchangeOutput | None = None
    # Length of a window, and how late events may arrive.
    window: float = 60.0
    late: float = 30.0
    # HTML page that is written after each batch.
    report: str | None = None
    trigger: float = 5.0

    def check(self) -> Iterator[Problem]:
        if self.table is None and self.exchange is None:
            yield (), "needs a table, an exchange, or both"
        if self.report is not None and self.table is None:
            yield ("report",), "is made from the table: set table as well"
        if self.window <= 0:
            yield ("window",), f"is {self.window:g}; expected more than 0 seconds"
        if self.late < 0:
            yield ("late",), f"is {self.late:g}; expected 0 or more seconds"
        if self.table is not None:
            yield from check_table(self.table, ("table",))
        if self.capture.queue is not None:
            yield ("capture", "queue"), "does not support windows that last across a restart; bind a stream to the events"

    def build(self, name: str) -> Flow:
        """Build a flow of windows.

        A window is written once, when it is closed. Events that arrive more than `late` seconds out of order are not
        counted.
        """
        after: Callable[[SparkSession], None] | None = None
        if self.report is not None and self.table is not None:
            path, report = self.table.path, self.report

            def after(spark: SparkSession) -> None:
                from leveret.spark.pipeline.reports.traffic_report import write_traffic_report

                write_traffic_report(spark, path, report)

        table, exchange = self.table, self.exchange
        if table is not None:
            table = replace(
                table,
                partition=table.partition if isinstance(table.partition, list) else ["day(window_start)"],
                columns=table.columns or list(WINDOW),
            )
        if exchange is not None:
            # Consumers of a topic exchange bind what they need; the rest is unroutable by design.
            exchange = replace(exchange, options={"onUnroutable": "drop", **exchange.options})
        return Flow(
            name,
            self.capture,
            Decode(format="json", schema=SCHEMA, on_error="drop"),
            None,
            lambda events: windows(events, self.window, self.late),
            True,
            "append",
            [table] if table is not None else [],
            [exchange] if exchange is not None else [],
            self.trigger,
            after,
        )

    def requirements(self) -> Iterator[str]:
        if self.report is not None:
            yield "jinja2>=3.1"


def traffic(
    spark: SparkSession,
    broker: Broker,
    table: TableOutput | None = None,
    exchange: ExchangeOutput | None = None,
    *,
    checkpoint: str,
    capture: Capture | None = None,
    window: float = 60.0,
    late: float = 30.0,
    report: str | None = None,
    name: str = "traffic",
    once: bool = False,
    trigger: float = 5.0,
) -> list[StreamingQuery]:
    """Start writing counts of the broker's events by windows to a table, a topic exchange, or both.

    Args:
        spark: The session.
        broker: The broker.
        table: Table to write the windows to.
        exchange: Exchange to publish the windows to.
        checkpoint: Directory of the query's state.
        capture: Stream of events; by default one is declared and bound to the exchange of events.
        window: Length of a window, in seconds.
        late: Seconds that a window waits for late events.
        report: Path of an HTML page that is written after each batch; needs the table.
        name: Name of the query.
        once: Process what is available now, then stop.
        trigger: Seconds between batches.
    """
    flow = TrafficFlow(
        capture=capture or Capture(exchange=EVENTS),
        table=table,
        exchange=exchange,
        window=window,
        late=late,
        report=report,
        trigger=trigger,
    )
    return start_flow(spark, flow.build(name), broker, checkpoint, once)


def windows(events: DataFrame, window: float, late: float) -> DataFrame:
    """Return a row per window, event, vhost, exchange and queue, which is also a message (`body`, `routing_key`).

    Args:
        events: DataFrame with the column `data` of `SCHEMA`.
        window: Length of a window, in seconds.
        late: Seconds that a window waits for late events.
    """
    from pyspark.sql import functions as F

    # Readers of streams and browsers get copies: these count as an event of their own, without latency.
    copy = F.coalesce(F.col("outcome") == "copy", F.lit(False))
    data = (
        events.select("data.*")
        .withColumn("at", F.timestamp_millis("time"))
        .withColumn("event", F.when(copy, "read").otherwise(F.col("event")))
        .withColumn("age_ms", F.when(~copy, F.col("age_ms")))
    )
    stands_for = F.coalesce("sample", F.lit(1))
    grouped = data.withWatermark("at", f"{late * 1000:.0f} milliseconds").groupBy(
        F.window("at", f"{window * 1000:.0f} milliseconds").alias("window"), "event", "vhost", "exchange", "queue"
    )
    counted = grouped.agg(
        F.sum(stands_for).alias("messages"),
        F.sum(stands_for * F.coalesce("size", F.lit(0))).alias("octets"),
        F.percentile_approx("age_ms", [0.5, 0.99], _ACCURACY).alias("ages"),
        F.max("size").alias("largest"),
    )
    columns: list[Column | str] = [
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        "event",
        "vhost",
        "exchange",
        "queue",
        "messages",
        (F.col("messages") / window).alias("rate"),
        "octets",
        (F.col("octets") / F.col("messages")).alias("mean_size"),
        "largest",
        F.col("ages")[0].alias("age_p50_ms"),
        F.col("ages")[1].alias("age_p99_ms"),
    ]
    rows: DataFrame = counted.select(*columns)
    name = F.when(F.coalesce("queue", F.lit("")) != "", F.col("queue")).otherwise(F.coalesce("exchange", F.lit("")))
    body = F.to_json(F.struct(*rows.columns), {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSX"})
    return (
        rows.withColumn("routing_key", F.concat(F.lit(KEY), "event", F.lit("."), name))
        .withColumn("content_type", F.lit("application/json"))
        .withColumn("body", body.cast("binary"))
    )
