"""Helpers for pipeline tests: publishing messages, and running queries to their end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from leveret import sync
from leveret.spark.pipeline.capture import no_messages
from tests.spark.support import TIMEOUT


def publish(connection: sync.Connection, exchange: str, bodies: Iterable[bytes], key: str = "k", **properties: Any) -> None:
    """Publish durable messages and wait for their confirms."""
    with connection.channel() as channel, channel.publisher(exchange, key) as publisher:
        for body in bodies:
            publisher.publish(body, persistent=True, **properties)
        publisher.flush()


def orders(count: int, start: int = 0) -> list[bytes]:
    return [
        json.dumps({"id": number, "customer": f"c{number % 3}", "amount": number / 4}).encode()
        for number in range(start, start + count)
    ]


def run_to_end(queries: Sequence[Any]) -> None:
    """Wait for queries that were started with `once`; raises their errors."""
    for query in queries:
        assert query.awaitTermination(TIMEOUT), "the query does not end"


def messages(spark: SparkSession, bodies: Sequence[bytes | None], **columns: Any) -> DataFrame:
    """Return a DataFrame with all columns of messages and offsets from 0."""
    empty = no_messages(spark)
    rows = [(offset, None if body is None else bytearray(body)) for offset, body in enumerate(bodies)]
    df = spark.createDataFrame(rows, "offset BIGINT, body BINARY")
    given = {
        "queue": F.lit("q"),
        "partition": F.lit(0),
        "routing_key": F.lit("k"),
        "exchange": F.lit(""),
        "append_time": F.timestamp_seconds(F.lit(1_700_000_000) + F.col("offset")),
        **columns,
    }
    return df.select(
        *(
            df[field.name]
            if field.name in ("offset", "body")
            else F.lit(given.get(field.name)).cast(field.dataType).alias(field.name)
            for field in empty.schema.fields
        )
    )
