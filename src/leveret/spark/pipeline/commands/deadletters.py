"""Triage of dead letters: why, where and when messages died, as a table and as an HTML page."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from leveret.spark.pipeline.model import Broker
from leveret.spark.pipeline.output.exchanges import broker_options
from leveret.spark.pipeline.reports import charts
from leveret.spark.pipeline.reports.pages import Page, Panel, write_page

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Maximum rows of a table on the page, and bytes of a body that it shows.
MAX_ROWS = 15
BODY_BYTES = 80
# Age classes by their upper limit in seconds.
AGES = ((60, "1 min"), (600, "10 min"), (3600, "1 h"), (6 * 3600, "6 h"), (86400, "1 d"), (7 * 86400, "7 d"))
OLDER = "older"
# For messages without x-death.
NO_REASON = "not dead-lettered"


def deadletters(
    spark: SparkSession,
    broker: Broker,
    queue: str,
    *,
    where: str | None = None,
    table: str | None = None,
    report: str | None = None,
) -> DataFrame:
    """Read a queue or a stream of dead letters; nothing is removed.

    Args:
        spark: The session.
        broker: The broker.
        queue: Name of the queue or stream.
        where: SQL expression over the columns of `triaged`.
        table: Directory of Parquet files that is replaced by the result.
        report: Path of an HTML page about the result.
    """
    messages = spark.read.format("amqp").options(**broker_options(broker)).option("queue", queue).load()
    found = triaged(messages)
    if where is not None:
        found = found.where(where)
    if table is not None:
        found.write.mode("overwrite").parquet(table)
        found = spark.read.parquet(table)
    if report is not None:
        kept = found.persist()
        try:
            write_page(deadletters_page(kept, queue), report)
        finally:
            kept.unpersist()
    return found


def triaged(messages: DataFrame, now: float | None = None) -> DataFrame:
    """Return the messages with columns about their latest death in front.

    reason, dead_queue, dead_exchange, dead_key   of the latest death; exchange and key are those it was published with
    deaths                                        total number of deaths of the message
    died_at, age_s                                when it died, and the seconds from then until `now` (Unix time)
    """
    from pyspark.sql import functions as F

    now = time.time() if now is None else now
    newest = F.try_element_at("x_death", F.lit(1))
    deaths = F.coalesce(
        F.aggregate("x_death", F.lit(0).cast("bigint"), lambda total, death: total + death["count"]),
        F.lit(0).cast("bigint"),
    )
    died = F.coalesce(newest["time"], F.col("append_time"))
    return messages.select(
        F.coalesce(newest["reason"], F.lit(NO_REASON)).alias("reason"),
        newest["queue"].alias("dead_queue"),
        newest["exchange"].alias("dead_exchange"),
        F.try_element_at(newest["routing_keys"], F.lit(1)).alias("dead_key"),
        deaths.alias("deaths"),
        died.alias("died_at"),
        F.greatest(F.lit(0.0), F.lit(now) - died.cast("double")).alias("age_s"),
        *messages.columns,
    )


def age_class(age: Column) -> Column:
    """Return the class of an age in seconds, named by its upper limit."""
    from pyspark.sql import functions as F

    found = F.lit(OLDER)
    for seconds, name in reversed(AGES):
        found = F.when(age <= seconds, name).otherwise(found)
    return found


def groups(found: DataFrame) -> DataFrame:
    """Group the result of `triaged` by reason, queue, exchange and key, largest groups first."""
    from pyspark.sql import functions as F

    return (
        found.groupBy("reason", "dead_queue", "dead_exchange", "dead_key")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.min("died_at").alias("first"),
            F.max("died_at").alias("last"),
            F.max("deaths").alias("deaths"),
        )
        .orderBy(F.desc("count"), "reason", "dead_queue", "dead_key")
    )


def deadletters_page(found: DataFrame, queue: str) -> Page:
    """Build the page about the result of `triaged`."""
    from pyspark.sql import functions as F

    total = found.agg(
        F.count(F.lit(1)).alias("messages"),
        F.sum(F.octet_length("body")).alias("bytes"),
        F.max("age_s").alias("oldest"),
        F.min("age_s").alias("newest"),
        F.max("deaths").alias("deaths"),
    ).first()
    assert total is not None
    page = Page(f"Dead letters in {queue}", "Why messages died, where, and how long ago.")
    if not total["messages"]:
        page.subtitle = "There are no dead letters."
        return page
    page.tiles = [
        ("Dead letters", f"{total['messages']:,}", f"{charts.byte_size(total['bytes'] or 0)} of bodies"),
        ("Oldest", charts.duration(round(total["oldest"])), "since it died"),
        ("Newest", charts.duration(round(total["newest"])), "since it died"),
        ("Most deaths", f"{total['deaths']:,}", "of one message"),
    ]

    def counted(column: Column | str, limit: int = MAX_ROWS) -> list[tuple[str, float]]:
        rows = (
            found.groupBy(F.coalesce(column, F.lit("")).alias("of"))
            .count()
            .orderBy(F.desc("count"), "of")
            .limit(limit)
            .collect()
        )
        return [(row["of"] or "(none)", row["count"]) for row in rows]

    ages = dict(counted(age_class(F.col("age_s"))))
    page.panels = [
        Panel("By reason", "Reason of the latest death.", charts.bar_chart(counted("reason"), kind=3, label="by reason")),
        Panel(
            "By age",
            "Time since the latest death, up to.",
            charts.column_chart(
                [(name, ages.get(name, 0)) for name in (*(name for _, name in AGES), OLDER)], kind=1, label="by age"
            ),
        ),
        Panel("By queue", "Queue in which they died.", charts.bar_chart(counted("dead_queue"), label="by queue")),
        Panel(
            "By routing key",
            "Key with which they were published.",
            charts.bar_chart(counted("dead_key"), kind=2, label="by routing key"),
        ),
    ]
    page.panels.append(
        Panel(
            "Groups",
            "What a re-drive by reason, queue and key would select.",
            wide=True,
            headings=("Reason", "Queue", "Exchange", "Routing key", "Messages", "Most deaths", "First", "Last"),
            rows=[
                (
                    row["reason"],
                    row["dead_queue"] or "",
                    row["dead_exchange"] or "",
                    row["dead_key"] or "",
                    f"{row['count']:,}",
                    f"{row['deaths']:,}",
                    _time(row["first"]),
                    _time(row["last"]),
                )
                for row in groups(found).limit(MAX_ROWS).collect()
            ],
        )
    )
    oldest = (
        found.orderBy(F.desc("age_s"), "offset")
        .limit(MAX_ROWS)
        .select(
            "reason",
            "dead_queue",
            "dead_key",
            "died_at",
            "message_id",
            F.expr(f"substring(body, 1, {BODY_BYTES})").alias("body"),
        )
        .collect()
    )
    page.panels.append(
        Panel(
            "Oldest",
            f"The first {BODY_BYTES} bytes of their bodies.",
            wide=True,
            headings=("Died", "Reason", "Queue", "Routing key", "Message id", "Body"),
            rows=[
                (
                    _time(row["died_at"]),
                    row["reason"],
                    row["dead_queue"] or "",
                    row["dead_key"] or "",
                    row["message_id"] or "",
                    _text(row["body"]),
                )
                for row in oldest
            ],
        )
    )
    return page


def _time(value: object) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S}" if value is not None else ""


def _text(body: bytes | None) -> str:
    return "".join(char if char.isprintable() else "·" for char in bytes(body or b"").decode("utf-8", "replace"))
