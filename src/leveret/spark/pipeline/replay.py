"""An archive, or a part of a stream, back to an exchange.

Messages go in the order in which they were appended, each partition's in its own order. They are written in steps, each
under the replay's name and the step's number: a replay that is started again under its name goes on where it was, and
publishes nothing twice. With a rate, a step is what a second may take.
"""

from __future__ import annotations

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
    rate          messages a second, over all partitions
    partitions    tasks that publish at a time; messages of one queue and partition are in one of them
    """
    from pyspark.sql import functions as F

    df = spark.read.parquet(messages) if isinstance(messages, str) else messages
    df = _selected(df, where, since, until)
    if rate is not None and not rate > 0:
        raise PipelineError(f"replay: rate is {rate!r}; expected messages a second, more than 0")
    size = STEP if rate is None else max(LEAST, math.ceil(rate))
    planned = _steps(df, size).persist()
    try:
        steps = planned.groupBy(_SECOND, _PART).count().orderBy(_SECOND, _PART).collect()
        options = {**sink_options(to, broker), "txnAppId": f"replay-{name}"}
        done = _published_steps(broker, options["txnAppId"])
        began, sent, before = time.monotonic(), 0, 0
        for number, group in enumerate(_grouped(steps, size)):
            count = sum(size for _, _, size in group)
            if number <= done:
                before += count
                continue
            if rate is not None:
                time.sleep(max(0.0, began + sent / rate - time.monotonic()))
            first, last = group[0], group[-1]
            second, part = F.col(_SECOND), F.col(_PART)
            # The first condition is one that Spark passes over cached parts by.
            step = planned.where(second.between(first[0], last[0])).where(
                ((second > first[0]) | (part >= first[1])) & ((second < last[0]) | (part <= last[1])))
            rows = publishable(_in_order(step, partitions), to)
            rows.write.format("amqp").options(**options).option("txnVersion", number).mode("append").save()
            sent += count
            if echo is not None:
                echo(f"{before + sent:,} messages, until {_time(last[0])}")
    finally:
        planned.unpersist()
    return before + sent


def _published_steps(broker: Broker, application: str) -> int:
    """The last step that was published under a replay's name; -1 where there is none."""
    client = control_client(broker, application)
    try:
        last = client.request("stage.last", app=application)["batch"]
    finally:
        client.close()
    return -1 if last is None else int(last)


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
    return df.withColumn(_SECOND, F.unix_seconds("append_time"))


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
