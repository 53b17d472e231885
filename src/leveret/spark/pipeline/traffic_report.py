"""The page about the table of `traffic`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.spark.pipeline import charts
from leveret.spark.pipeline.pages import Page, Panel, write_page

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Points of a chart, at most, and rows of a table.
POINTS = 180
ROWS = 12

EVENTS = ("published", "delivered", "read", "settled", "dead-lettered", "unroutable", "expired")
COLUMNS = ("event", "exchange", "queue", "messages", "rate", "octets", "mean_size", "age_p50_ms", "age_p99_ms")


def write_traffic_report(spark: SparkSession, table: str, path: str, hours: float | None = None,
                         title: str = "Traffic") -> bool:
    """Make the page from the table; False where the table has no row yet.

    hours  how far back from its last window; None for all of it
    """
    from pyspark.errors import AnalysisException

    try:
        rows = spark.read.parquet(table)
    except AnalysisException:
        return False
    write_page(traffic_page(rows, hours, title), path)
    return True


def traffic_page(rows: DataFrame, hours: float | None = None, title: str = "Traffic") -> Page:
    """The page about windows that `traffic` made."""
    from pyspark.sql import functions as F

    start, end = F.col("window_start").cast("double"), F.col("window_end").cast("double")
    span = rows.agg(F.min(start).alias("first"), F.max(end).alias("last"), F.min(end - start).alias("window")).first()
    if span is None or span["last"] is None:
        return Page(title, "There is no window yet.")
    first, last, window = span["first"], span["last"], span["window"]
    if hours is not None:
        first = max(first, last - hours * 3600)
        rows = rows.where(start >= first)
    # Windows that are too many for a chart are taken together.
    step = window * max(1, -int(-(last - first) // (window * POINTS)))
    at = (F.floor((start - F.lit(first)) / step) * step + F.lit(first)).alias("at")
    timed = rows.groupBy(at, "event").agg(
        F.sum("messages").alias("messages"), F.sum("octets").alias("octets"), F.max("age_p50_ms").alias("p50"),
        F.max("age_p99_ms").alias("p99")).collect()
    totals = {row["event"]: row for row in rows.groupBy("event").agg(
        F.sum("messages").alias("messages"), F.sum("octets").alias("octets"), F.max("age_p99_ms").alias("p99"),
        F.expr("percentile_approx(age_p50_ms, 0.5)").alias("p50")).collect()}
    times = [first + step * index for index in range(max(1, round((last - first) / step)))]
    shown = [event for event in EVENTS if event in totals]
    shown += sorted(event for event in totals if event not in EVENTS and event != "routed")
    found = {(round(row["at"], 3), row["event"]): row for row in timed}

    def series(event: str, column: str, scale: float, gap: float | None) -> list[charts.Point]:
        values = []
        for time in times:
            row = found.get((round(time, 3), event))
            value = gap if row is None or row[column] is None else row[column] * scale
            values.append((time, value))
        return values

    page = Page(title, f"{charts.clock(first, 1e9)} to {charts.clock(last, 1e9)}, windows of {charts.duration(window)}")
    page.tiles = _tiles(totals, first, last, found, step)
    shown = shown[:charts.SERIES]
    page.panels.append(Panel(
        "Messages a second", "By what happened to them.", charts.line_chart(
            [(event, series(event, "messages", 1 / step, 0.0)) for event in shown], label="messages a second"),
        charts.legend(shown), wide=True))
    page.panels.append(Panel(
        "Volume", "Octets of bodies a second, as published.", charts.line_chart(
            [("published", series("published", "octets", 1 / step, 0.0))], charts.octets, 420, 200, True, "volume")))
    aged = "delivered" if "delivered" in totals else "settled"
    page.panels.append(Panel(
        "Latency", "In the slowest queue, before delivery.", charts.line_chart(
            [("median", series(aged, "p50", 1.0, None)), ("99th percentile", series(aged, "p99", 1.0, None))],
            charts.milliseconds, 420, 200, label="latency"), charts.legend(["median", "99th percentile"])))
    page.panels += _places(rows)
    return page


def _tiles(totals: dict[str, Any], first: float, last: float, found: dict[Any, Any], step: float) -> list[Any]:
    published = totals.get("published")
    messages = published["messages"] if published else 0
    peak = max((row["messages"] / step for (_, event), row in found.items() if event == "published"), default=0.0)
    delivered = totals.get("delivered")
    dead = totals.get("dead-lettered")
    lost = sum(totals[event]["messages"] for event in ("unroutable", "expired") if event in totals)
    tiles = [
        ("Published", f"{messages:,}", f"{charts.number(messages / max(last - first, 1e-9))} a second on average"),
        ("Peak", f"{charts.number(peak)}/s", f"over {charts.duration(step)}"),
        ("Volume", charts.octets(published["octets"] if published else 0),
         f"{charts.octets(published['octets'] / messages)} a message" if published and messages else ""),
        ("Delivered", f"{delivered['messages'] if delivered else 0:,}",
         f"median {charts.milliseconds(delivered['p50'])}" if delivered and delivered["p50"] is not None else ""),
        ("Dead-lettered", f"{dead['messages'] if dead else 0:,}", f"{lost:,} unroutable or expired"),
    ]
    return tiles


def _places(rows: DataFrame) -> list[Panel]:
    """Queues and exchanges, busiest first."""
    from pyspark.sql import functions as F

    sums = [F.sum(F.when(F.col("event") == event, F.col("messages")).otherwise(0)).alias(event.replace("-", "_"))
            for event in EVENTS]
    # What carries requests to the broker and their answers is no traffic of anybody's.
    rows = rows.where("coalesce(exchange, '') != 'leveret.control'")
    rows = rows.where("NOT coalesce(queue, '') LIKE 'amq.rabbitmq.reply-to%'")
    queues = (rows.where("coalesce(queue, '') != ''").groupBy("queue")
              .agg(*sums, F.sum(F.when(F.col("event") == "routed", F.col("messages")).otherwise(0)).alias("routed"),
                   F.sum("messages").alias("all"), F.max("age_p99_ms").alias("p99"))
              .orderBy(F.desc("all"), "queue").limit(ROWS).collect())
    exchanges = (rows.where("event = 'published'").groupBy("exchange")
                 .agg(F.sum("messages").alias("messages"), F.sum("octets").alias("octets"))
                 .orderBy(F.desc("messages"), "exchange").limit(ROWS).collect())
    return [
        Panel("Busiest exchanges", "Messages published to them.", charts.bar_chart(
            [(row["exchange"] or "(default exchange)", row["messages"]) for row in exchanges], label="exchanges")),
        Panel("Busiest queues", "Messages routed to them, or delivered from them.", charts.bar_chart(
            [(row["queue"], max(row["routed"], row["delivered"])) for row in queues], kind=2,
            label="queues")),
        Panel("Queues", "", wide=True,
              headings=("Queue", "Routed", "Delivered", "Read", "Settled", "Dead-lettered", "Expired", "p99 latency"),
              rows=[(row["queue"], f"{row['routed']:,}", f"{row['delivered']:,}", f"{row['read']:,}", f"{row['settled']:,}",
                     f"{row['dead_lettered']:,}", f"{row['expired']:,}",
                     charts.milliseconds(row["p99"]) if row["p99"] is not None else "") for row in queues]),
    ]
