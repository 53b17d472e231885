"""Re-drive: publishes dead letters to their original exchange again, exactly once.

The queue's messages are leased in batches. The selected messages of a lease batch are published under the re-drive's name
and the batch's number. Then the batch is committed with the other messages as exceptions, which returns them to the queue.
A re-drive can be interrupted and resumed at any point: no message is published twice or lost.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from leveret.segments.typed_json import Document
from leveret.spark.connection import ControlClient, Endpoint, endpoint_of
from leveret.spark.options import read_options
from leveret.spark.pipeline.commands.deadletters import triaged
from leveret.spark.pipeline.errors import PipelineError
from leveret.spark.pipeline.model import Broker, ExchangeOutput
from leveret.spark.pipeline.output.exchanges import broker_options, publishable, sink_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# Messages per lease batch: a commit lists the messages that are not selected, and the size of a request is limited.
BATCH_MESSAGES = 4000

_INDEX = "__index"
_NAME = re.compile(r"redrive-(\d+)-[0-9a-f]{8}\Z")


def redrive(
    spark: SparkSession,
    broker: Broker,
    queue: str,
    *,
    where: str | None = None,
    to: ExchangeOutput | None = None,
    resume: str | None = None,
    limit: int | None = None,
    echo: Callable[[str], None] | None = None,
) -> tuple[int, int]:
    """Publish the dead letters of a classic queue again.

    Args:
        spark: The session.
        broker: The broker.
        queue: Name of the queue.
        where: SQL expression over the columns of `triaged`; None for all messages. Ages refer to the start of the re-drive.
        to: Target to publish to. None for the exchange and key that each message had when it died; a message that was
        never
            dead-lettered stays.
        resume: Name of an unfinished re-drive with the same `where` and `to`.
        limit: Maximum number of messages to examine, oldest first; None for all that are in the queue now.
        echo: Called with lines of progress.

    Returns:
        The number of published messages, and the number of messages that stay in the queue.
    """
    output = to if to is not None else ExchangeOutput()
    name = _name(where, output, resume)
    endpoint = endpoint_of(read_options(broker_options(broker)))
    client = ControlClient(endpoint, f"leveret {name}")
    try:
        _check_others(client, queue, name)
        acquired = client.request("lease.acquire", queue=queue, lease=name)
        if echo is not None:
            echo(f"re-drive {name}")
        published = kept = 0
        for batch, count in _plan_batches(client, queue, name, acquired, limit):
            table = _read(endpoint, queue, name, acquired["epoch"], batch, count)
            rows = triaged(spark.createDataFrame(table), int(name.split("-")[1]) / 1000)
            selected = _selected(rows, where, to is None).persist()
            try:
                indices = {row[0] for row in selected.select(_INDEX).collect()}
                if indices:
                    ordered = selected.coalesce(1).sortWithinPartitions(_INDEX)
                    publishable(ordered, output).write.format("amqp").options(**sink_options(output, broker)).option(
                        "txnAppId", name
                    ).option("txnVersion", batch).mode("append").save()
            finally:
                selected.unpersist()
            back: dict[str, Document] = {"except": [index for index in range(count) if index not in indices]}
            client.request("lease.commit", queue=queue, lease=name, epoch=acquired["epoch"], batch=batch, **back)
            published, kept = published + len(indices), kept + count - len(indices)
            if echo is not None:
                echo(f"{published:,} published, {kept:,} stay")
        client.request("lease.release", queue=queue, lease=name)
        return published, kept
    finally:
        client.close()


def _name(where: str | None, to: ExchangeOutput, resume: str | None) -> str:
    """Return the name, which contains the start time and a digest of the arguments, so that resuming selects the same."""
    digest = f"{zlib.crc32(repr((where, to)).encode()):08x}"
    if resume is None:
        return f"redrive-{time.time() * 1000:.0f}-{digest}"
    if not _NAME.match(resume):
        raise PipelineError(f"resume is {resume!r}; expected the name that a re-drive prints at its start")
    if not resume.endswith(digest):
        raise PipelineError(f"resume: {resume} was started with another where, exchange or routing key; use the same ones")
    return resume


def _check_others(client: ControlClient, queue: str, name: str) -> None:
    for lease in client.request("lease.list", queue=queue)["leases"]:
        other = lease["lease"]
        if _NAME.match(other) and other != name:
            raise PipelineError(
                f"queue {queue!r}: {other} is not finished; resume it, or release its lease with `leveret leases release`"
            )


def _plan_batches(
    client: ControlClient, queue: str, name: str, acquired: dict[str, Document], limit: int | None
) -> list[tuple[int, int]]:
    """Lease all batches and return their (number, size).

    All are leased before the first is committed, so that returned messages are not leased again.
    """
    planned = [(int(one["batch"]), int(one["count"])) for one in acquired["planned"]]
    if acquired["committed"]:
        return planned
    messages = int(client.request("queue.describe", queue=queue)["messages"])
    left = (messages if limit is None else min(limit, messages)) - sum(count for _, count in planned)
    while left > 0:
        after = planned[-1][0] if planned else 0
        leased = client.request(
            "lease.plan",
            queue=queue,
            lease=name,
            epoch=acquired["epoch"],
            after=after,
            max_messages=min(BATCH_MESSAGES, left),
        )
        if not leased["count"]:
            break
        planned.append((int(leased["batch"]), int(leased["count"])))
        left -= int(leased["count"])
    return planned


def _read(endpoint: Endpoint, queue: str, name: str, epoch: int, batch: int, count: int) -> pa.Table:
    """Read the messages of a lease batch, with their indices in it."""
    import pyarrow as pa

    from leveret.spark.lease.fetch import LeaseSlice, read_slice

    slices = read_slice(endpoint, LeaseSlice(queue, name, epoch, batch, 0, count), None, "both", None, BATCH_MESSAGES)
    table = pa.Table.from_batches(list(slices))
    return table.append_column(_INDEX, pa.array(range(table.num_rows), pa.int32()))


def _selected(rows: DataFrame, where: str | None, back: bool) -> DataFrame:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    if where is not None:
        try:
            rows = rows.where(where)
        except PySparkException as error:
            raise PipelineError(f"re-drive: where: {str(error).strip().splitlines()[0]}") from None
    if back:
        rows = rows.where("dead_exchange IS NOT NULL AND dead_key IS NOT NULL")
        rows = rows.withColumn("exchange", F.col("dead_exchange")).withColumn("routing_key", F.col("dead_key"))
    return rows
