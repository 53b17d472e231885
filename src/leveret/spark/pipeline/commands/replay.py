"""Replay: publishes an archive, or a part of a stream, to an exchange.

Messages are published in the order in which they were appended, and in offset order within each partition. They are written
in steps, each under the replay's name and a version that encodes how many messages were published so far and a digest of
them. A replay that is started again under its name resumes after its last step and publishes nothing twice; if that step is
not part of the current selection, it fails. With a rate, a step has the messages of one second.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from leveret.spark.pipeline.capture import control_client
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.model import Broker, ExchangeOutput
from leveret.spark.pipeline.output import delta
from leveret.spark.pipeline.output.exchanges import publishable, sink_options
from leveret.spark.pipeline.output.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

# Messages per step without a rate, and the minimum with one: planning a smaller step costs more than publishing it.
STEP_MESSAGES = 200_000
MIN_STEP_MESSAGES = 50

# Bits of a version that contain the digest; the count is above them.
_BITS = 20
# Messages from queues have no append time, so a range of offsets replaces a second. They precede all others.
_OFFSETS_PER_SECOND = 10_000
_UNTIMED_BASE = -(1 << 40)

_SECOND, _PART = "__second", "__part"


def replay(
    spark: SparkSession,
    broker: Broker,
    messages: DataFrame | str,
    to: ExchangeOutput,
    *,
    name: str,
    where: str | None = None,
    since: str | None = None,
    until: str | None = None,
    rate: float | None = None,
    partitions: int | None = None,
    echo: Callable[[str], None] | None = None,
) -> int:
    """Publish archived messages with their original properties.

    Args:
        spark: The session.
        broker: The broker.
        messages: Directory of a table that `archive` wrote, or a DataFrame with the columns of messages.
        to: Target to publish to. Without exchange or routing key, each message's original one is used.
        name: Name of the replay. Messages that were published under it are not published again.
        where: SQL expression over the columns of messages.
        since: First append time, such as "2026-11-22 10:00:00", in UTC.
        until: Append time of the first message that is not published.
        rate: Messages per second over all partitions; must not change when the replay is resumed.
        partitions: Tasks that publish in parallel; messages of one queue and partition stay in one task.
        echo: Called with lines of progress.

    Returns:
        The number of published messages, including those of earlier runs.
    """
    from pyspark.sql import functions as F

    df = _read_archive(spark, messages) if isinstance(messages, str) else messages
    df = _selected(df, where, since, until)
    if rate is not None and not rate > 0:
        raise PipelineError(f"replay: rate is {rate!r}; expected more than 0 messages per second")
    size = STEP_MESSAGES if rate is None else max(MIN_STEP_MESSAGES, math.ceil(rate))
    planned = _steps(df, size).persist()
    try:
        steps = planned.groupBy(_SECOND, _PART).count().orderBy(_SECOND, _PART).collect()
        options = {**sink_options(to, broker), "txnAppId": f"replay-{name}"}
        groups = _group_steps(steps, size)
        versions = _versions(groups, to)
        done = _completed_steps(broker, options["txnAppId"], name, versions)
        before: int = sum(size for group in groups[:done] for _, _, size in group)
        began, sent = time.monotonic(), 0
        for group, version in zip(groups[done:], versions[done:], strict=True):
            count = sum(size for _, _, size in group)
            if rate is not None:
                time.sleep(max(0.0, began + sent / rate - time.monotonic()))
            first, last = group[0], group[-1]
            second, part = F.col(_SECOND), F.col(_PART)
            # The first condition lets Spark skip cached partitions.
            step = planned.where(second.between(first[0], last[0])).where(
                ((second > first[0]) | (part >= first[1])) & ((second < last[0]) | (part <= last[1]))
            )
            rows = publishable(_ordered(step, partitions), to)
            rows.write.format("amqp").options(**options).option("txnVersion", version).mode("append").save()
            sent += count
            if echo is not None:
                until = f", until {_time(last[0])}" if last[0] >= 0 else ""
                echo(f"{before + sent:,} messages{until}")
    finally:
        planned.unpersist()
    return before + sent


def _read_archive(spark: SparkSession, path: str) -> DataFrame:
    from pyspark.errors import PySparkException

    try:
        if Files(spark, path).exists(delta.LOG):
            return delta.read_table(spark, path)
        return spark.read.parquet(path)
    except PySparkException as error:
        raise PipelineError(
            f"replay: table {path}: {str(error).strip().splitlines()[0]}; expected the directory of an archive"
        ) from None


def _versions(groups: list[list[Row]], to: ExchangeOutput) -> list[int]:
    """Return the version of each step: the number of messages up to its end, then a digest of them and their target."""
    digest = hashlib.sha256(repr((to.exchange, to.routing_key)).encode())
    versions, count = [], 0
    for group in groups:
        digest.update(repr([tuple(step) for step in group]).encode())
        count += sum(size for _, _, size in group)
        versions.append(count << _BITS | int.from_bytes(digest.digest()[:4]) >> 32 - _BITS)
    return versions


def _completed_steps(broker: Broker, application: str, name: str, versions: list[int]) -> int:
    """Return the number of steps published under the replay's name. PipelineError if they differ from these."""
    client = control_client(broker, application)
    try:
        last = client.request("stage.last", app=application)["batch"]
    finally:
        client.close()
    if last is None:
        return 0
    if last not in versions:
        raise PipelineError(
            f"replay: {name!r} has published {last >> _BITS:,} messages, which are not the first ones of "
            "the current selection; use the same messages, exchange, key and rate as before, or "
            "another name"
        )
    return versions.index(last) + 1


def _selected(df: DataFrame, where: str | None, since: str | None, until: str | None) -> DataFrame:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    missing = [column for column in ("queue", "partition", "offset", "append_time", "body") if column not in df.columns]
    if missing:
        raise PipelineError(
            f"replay: the messages have no column {missing[0]}; expected an archive with the columns of messages"
        )
    try:
        if where is not None:
            df = df.where(where)
        for text, sign in ((since, ">="), (until, "<")):
            if text is not None:
                df = df.where(f"append_time {sign} TIMESTAMP '{text}'")
    except PySparkException as error:
        raise PipelineError(f"replay: where, since or until: {str(error).strip().splitlines()[0]}") from None
    untimed = F.floor(F.col("offset") / _OFFSETS_PER_SECOND) + _UNTIMED_BASE
    return df.withColumn(_SECOND, F.coalesce(F.unix_seconds("append_time"), untimed))


def _steps(df: DataFrame, size: int) -> DataFrame:
    """Add the second of each message and its part of that second; no part has more than `size` messages."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    within = Window.partitionBy(_SECOND).orderBy("append_time", "queue", "partition", "offset")
    return df.withColumn(_PART, F.floor((F.row_number().over(within) - 1) / size).cast("int"))


def _group_steps(steps: list[Row], size: int) -> list[list[Row]]:
    """Group consecutive parts as long as they have at most `size` messages."""
    groups: list[list[Row]] = []
    count = 0
    for step in steps:
        if not groups or count + step[2] > size:
            groups.append([])
            count = 0
        groups[-1].append(step)
        count += step[2]
    return groups


def _ordered(df: DataFrame, partitions: int | None) -> DataFrame:
    """Put the messages of each queue and partition into one task, sorted by offset."""
    if partitions is None:
        partitions = df.sparkSession.sparkContext.defaultParallelism
    whole = df.repartition(partitions, "queue", "partition")
    return whole.sortWithinPartitions("append_time", "queue", "partition", "offset").drop(_SECOND, _PART)


def _time(second: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(second))
