"""An archive, or a part of a stream, back to an exchange.

Messages go in the order in which they were appended, each partition's in its own order. They are written in steps, each
under the replay's name and a version, which says how many messages were published with it and which ones: a replay that is
started again under its name goes on where it was, and publishes nothing twice; where that is not to be found in what is
selected now, it is refused. With a rate, a step is what a second may take.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leveret.spark.pipeline.capture import control_client
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.exchanges import publishable, sink_options
from leveret.spark.pipeline.model import Broker, ExchangeOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Messages of a step without a rate, and the least of one with: smaller ones cost more to plan than to publish.
STEP = 200_000
LEAST = 50

# Bits of a version below the count.
_BITS = 20
# Messages of a queue have no time: so many positions of theirs are taken for a second, and all of these for the first ones.
_POSITIONS = 10_000
_UNTIMED = -(1 << 40)

_SECOND, _PART = "__second", "__part"


def replay(spark: SparkSession, broker: Broker, messages: DataFrame | str, to: ExchangeOutput, *, name: str,
           where: str | None = None, since: str | None = None, until: str | None = None, rate: float | None = None,
           partitions: int | None = None, echo: Callable[[str], None] | None = None) -> int:
    """Publish archived messages with their original properties; how many they were, with those of an earlier run.

    messages      a table that `archive` wrote, or any DataFrame with the messages' columns
    to            without exchange or routing key: where each message was published first
    name          of the replay: what was published under it is not published again
    where         an SQL expression over the messages' columns
    since, until  times of appending, such as "2026-11-22 10:00:00", UTC; the latter is not included
    rate          messages a second, over all partitions; the same when the replay goes on
    partitions    tasks that publish at a time; messages of one queue and partition are in one of them
    """
    from pyspark.sql import functions as F

    df = _archived(spark, messages) if isinstance(messages, str) else messages
    df = _selected(df, where, since, until)
    if rate is not None and not rate > 0:
        raise PipelineError(f"replay: rate is {rate!r}; expected messages a second, more than 0")
    size = STEP if rate is None else max(LEAST, math.ceil(rate))
    planned = _steps(df, size).persist()
    try:
        steps = planned.groupBy(_SECOND, _PART).count().orderBy(_SECOND, _PART).collect()
        options = {**sink_options(to, broker), "txnAppId": f"replay-{name}"}
        groups = _grouped(steps, size)
        versions = _versions(groups, to)
        done = _steps_done(broker, options["txnAppId"], name, versions)
        before: int = sum(size for group in groups[:done] for _, _, size in group)
        began, sent = time.monotonic(), 0
        for group, version in zip(groups[done:], versions[done:], strict=True):
            count = sum(size for _, _, size in group)
            if rate is not None:
                time.sleep(max(0.0, began + sent / rate - time.monotonic()))
            first, last = group[0], group[-1]
            second, part = F.col(_SECOND), F.col(_PART)
            # The first condition is one that Spark passes over cached parts by.
            step = planned.where(second.between(first[0], last[0])).where(
                ((second > first[0]) | (part >= first[1])) & ((second < last[0]) | (part <= last[1])))
            rows = publishable(_in_order(step, partitions), to)
            rows.write.format("amqp").options(**options).option("txnVersion", version).mode("append").save()
            sent += count
            if echo is not None:
                until = f", until {_time(last[0])}" if last[0] >= 0 else ""
                echo(f"{before + sent:,} messages{until}")
    finally:
        planned.unpersist()
    return before + sent


def _archived(spark: SparkSession, path: str) -> DataFrame:
    from pyspark.errors import PySparkException

    try:
        return spark.read.parquet(path)
    except PySparkException as error:
        raise PipelineError(f"replay: table {path}: {str(error).strip().splitlines()[0]}; expected the directory of an "
                            "archive") from None


def _versions(groups: list[list[Any]], to: ExchangeOutput) -> list[int]:
    """Of each step: the messages up to its end, and behind that a digest of where they go and of which they are."""
    digest = hashlib.sha256(repr((to.exchange, to.routing_key)).encode())
    versions, count = [], 0
    for group in groups:
        digest.update(repr([tuple(step) for step in group]).encode())
        count += sum(size for _, _, size in group)
        versions.append(count << _BITS | int.from_bytes(digest.digest()[:4]) >> 32 - _BITS)
    return versions


def _steps_done(broker: Broker, application: str, name: str, versions: list[int]) -> int:
    """How many steps were published under the replay's name. `PipelineError` where they were other ones."""
    client = control_client(broker, application)
    try:
        last = client.request("stage.last", app=application)["batch"]
    finally:
        client.close()
    if last is None:
        return 0
    if last not in versions:
        raise PipelineError(f"replay: {name!r} has published {last >> _BITS:,} messages, and not the first ones of those "
                            "that are selected now; expected the same messages, exchange, key and rate as before, or "
                            "another name")
    return versions.index(last) + 1


def _selected(df: DataFrame, where: str | None, since: str | None, until: str | None) -> DataFrame:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    missing = [column for column in ("queue", "partition", "offset", "append_time", "body") if column not in df.columns]
    if missing:
        raise PipelineError(f"replay: the messages have no column {missing[0]}; expected an archive with the messages' "
                            "columns")
    try:
        if where is not None:
            df = df.where(where)
        for text, sign in ((since, ">="), (until, "<")):
            if text is not None:
                df = df.where(f"append_time {sign} TIMESTAMP '{text}'")
    except PySparkException as error:
        raise PipelineError(f"replay: where, since or until: {str(error).strip().splitlines()[0]}") from None
    untimed = F.floor(F.col("offset") / _POSITIONS) + _UNTIMED
    return df.withColumn(_SECOND, F.coalesce(F.unix_seconds("append_time"), untimed))


def _steps(df: DataFrame, size: int) -> DataFrame:
    """With the second and the part of it that each message is in: no part has more than `size`."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    within = Window.partitionBy(_SECOND).orderBy("append_time", "queue", "partition", "offset")
    return df.withColumn(_PART, F.floor((F.row_number().over(within) - 1) / size).cast("int"))


def _grouped(steps: list[Any], size: int) -> list[list[Any]]:
    """Parts that follow each other, together as long as they are not more than `size`."""
    groups: list[list[Any]] = []
    count = 0
    for step in steps:
        if not groups or count + step[2] > size:
            groups.append([])
            count = 0
        groups[-1].append(step)
        count += step[2]
    return groups


def _in_order(df: DataFrame, partitions: int | None) -> DataFrame:
    """Each queue's and partition's messages in one task, by offset."""
    if partitions is None:
        partitions = df.sparkSession.sparkContext.defaultParallelism
    whole = df.repartition(partitions, "queue", "partition")
    return whole.sortWithinPartitions("append_time", "queue", "partition", "offset").drop(_SECOND, _PART)


def _time(second: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(second))
