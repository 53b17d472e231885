"""The page about the table of a traffic flow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.spark.pipeline.reports import charts
from leveret.spark.pipeline.reports.pages import Page, Panel, write_page

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

# Maximum points of a chart, and rows of a table.
MAX_POINTS = 180
MAX_ROWS = 12

EVENTS = ("published", "delivered", "read", "settled", "dead-lettered", "unroutable", "expired")
COLUMNS = ("event", "exchange", "queue", "messages", "rate", "octets", "mean_size", "age_p50_ms", "age_p99_ms")


def write_traffic_report(
    spark: SparkSession, table: str, path: str, hours: float | None = None, title: str = "Traffic"
) -> bool:
    """Write the page about a table; returns False if the table has no rows yet.

    Args:
        spark: The session.
        table: Directory of the table.
        path: Path of the page.
        hours: Hours to go back from the last window; None for everything.
        title: Title of the page.
    """
    from pyspark.errors import AnalysisException

    try:
        rows = spark.read.parquet(table)
    except AnalysisException:
        return False
    write_page(traffic_page(rows, hours, title), path)
    return True


def traffic_page(rows: DataFrame, hours: float | None = None, title: str = "Traffic") -> Page:
    """Build the page about the windows of a traffic flow."""
    from pyspark.sql import functions as F

    start, end = F.col("window_start").cast("double"), F.col("window_end").cast("double")
    span = rows.agg(F.min(start).alias("first"), F.max(end).alias("last"), F.min(end - start).alias("window")).first()
    if span is None or span["last"] is None:
        return Page(title, "There are no windows yet.")
    first, last, window = span["first"], span["last"], span["window"]
    if hours is not None:
        first = max(first, last - hours * 3600)
        rows = rows.where(start >= first)
    # If there are too many windows for a chart, adjacent ones are combined.
    step = window * max(1, -int(-(last - first) // (window * MAX_POINTS)))
    at = (F.floor((start - F.lit(first)) / step) * step + F.lit(first)).alias("at")
    timed = (
        rows.groupBy(at, "event")
        .agg(
            F.sum("messages").alias("messages"),
            F.sum("octets").alias("octets"),
            F.max("age_p50_ms").alias("p50"),
            F.max("age_p99_ms").alias("p99"),
        )
        .collect()
    )
    totals = {
        row["event"]: row
        for row in rows.groupBy("event")
        .agg(
            F.sum("messages").alias("messages"),
            F.sum("octets").alias("octets"),
            F.max("age_p99_ms").alias("p99"),
            F.expr("percentile_approx(age_p50_ms, 0.5)").alias("p50"),
        )
        .collect()
    }
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
    shown = shown[: charts.SERIES]
    page.panels.append(
        Panel(
            "Messages per second",
            "By event.",
            charts.line_chart(
                [(event, series(event, "messages", 1 / step, 0.0)) for event in shown], label="messages per second"
            ),
            charts.legend(shown),
            wide=True,
        )
    )
    page.panels.append(
        Panel(
            "Volume",
            "Bytes of published bodies per second.",
            charts.line_chart(
                [("published", series("published", "octets", 1 / step, 0.0))], charts.byte_size, 420, 200, True, "volume"
            ),
        )
    )
    aged = "delivered" if "delivered" in totals else "settled"
    page.panels.append(
        Panel(
            "Latency",
            "Time in the slowest queue until delivery.",
            charts.line_chart(
                [("median", series(aged, "p50", 1.0, None)), ("99th percentile", series(aged, "p99", 1.0, None))],
                charts.milliseconds,
                420,
                200,
                label="latency",
            ),
            charts.legend(["median", "99th percentile"]),
        )
    )
    page.panels += _busiest(rows)
    return page


def _tiles(
    totals: dict[str, Row], first: float, last: float, found: dict[tuple[float, str], Row], step: float
) -> list[tuple[str, str, str]]:
    published = totals.get("published")
    messages = published["messages"] if published else 0
    peak = max((row["messages"] / step for (_, event), row in found.items() if event == "published"), default=0.0)
    delivered = totals.get("delivered")
    dead = totals.get("dead-lettered")
    lost = sum(totals[event]["messages"] for event in ("unroutable", "expired") if event in totals)
    tiles = [
        ("Published", f"{messages:,}", f"{charts.number(messages / max(last - first, 1e-9))} per second on average"),
        ("Peak", f"{charts.number(peak)}/s", f"over {charts.duration(step)}"),
        (
            "Volume",
            charts.byte_size(published["octets"] if published else 0),
            f"{charts.byte_size(published['octets'] / messages)} per message" if published and messages else "",
        ),
        (
            "Delivered",
            f"{delivered['messages'] if delivered else 0:,}",
            f"median {charts.milliseconds(delivered['p50'])}" if delivered and delivered["p50"] is not None else "",
        ),
        ("Dead-lettered", f"{dead['messages'] if dead else 0:,}", f"{lost:,} unroutable or expired"),
    ]
    return tiles


def _busiest(rows: DataFrame) -> list[Panel]:
    """Build panels about exchanges and queues, busiest first."""
    from pyspark.sql import functions as F

    sums = [
        F.sum(F.when(F.col("event") == event, F.col("messages")).otherwise(0)).alias(event.replace("-", "_"))
        for event in EVENTS
    ]
    # Requests to the broker and their replies are not counted as traffic.
    rows = rows.where("coalesce(exchange, '') != 'leveret.control'")
    rows = rows.where("NOT coalesce(queue, '') LIKE 'amq.rabbitmq.reply-to%'")
    queues = (
        rows.where("coalesce(queue, '') != ''")
        .groupBy("queue")
        .agg(
            *sums,
            F.sum(F.when(F.col("event") == "routed", F.col("messages")).otherwise(0)).alias("routed"),
            F.sum("messages").alias("all"),
            F.max("age_p99_ms").alias("p99"),
        )
        .orderBy(F.desc("all"), "queue")
        .limit(MAX_ROWS)
        .collect()
    )
    exchanges = (
        rows.where("event = 'published'")
        .groupBy("exchange")
        .agg(F.sum("messages").alias("messages"), F.sum("octets").alias("octets"))
        .orderBy(F.desc("messages"), "exchange")
        .limit(MAX_ROWS)
        .collect()
    )
    return [
        Panel(
            "Busiest exchanges",
            "Messages published to them.",
            charts.bar_chart(
                [(row["exchange"] or "(default exchange)", row["messages"]) for row in exchanges], label="exchanges"
            ),
        ),
        Panel(
            "Busiest queues",
            "Messages routed to them, or delivered from them.",
            charts.bar_chart(
                [(row["queue"], max(row["routed"], row["delivered"])) for row in queues], kind=2, label="queues"
            ),
        ),
        Panel(
            "Queues",
            "",
            wide=True,
            headings=("Queue", "Routed", "Delivered", "Read", "Settled", "Dead-lettered", "Expired", "p99 latency"),
            rows=[
                (
                    row["queue"],
                    f"{row['routed']:,}",
                    f"{row['delivered']:,}",
                    f"{row['read']:,}",
                    f"{row['settled']:,}",
                    f"{row['dead_lettered']:,}",
                    f"{row['expired']:,}",
                    charts.milliseconds(row["p99"]) if row["p99"] is not None else "",
                )
                for row in queues
            ],
        ),
    ]
