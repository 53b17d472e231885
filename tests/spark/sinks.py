"""Helpers for sink tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from leveret import sync
from leveret.client.message import Message
from leveret.segments.schema import TABLE_SCHEMA
from leveret.spark.options import Settings, read_options
from leveret.spark.sink.plan import plan_sink
from leveret.spark.sink.schema import check_schema
from leveret.spark.sink.task import Written, write_task
from leveret.spark.sink.writer import batch_writer


def settings_of(url: str, **options: Any) -> Settings:
    return read_options({"url": url, **{name: str(value) for name, value in options.items()}})


def batch_of(**columns: Any) -> pa.RecordBatch:
    """Return a batch of table columns with their types."""
    schema = pa.schema([TABLE_SCHEMA.field(name) for name in columns])
    return pa.RecordBatch.from_arrays(
        [pa.array(values, schema.field(name).type) for name, values in columns.items()], schema=schema
    )


def write(url: str, *batches: pa.RecordBatch, **options: Any) -> Written:
    """Run one task of a batch write, without Spark."""
    settings = settings_of(url, **options)
    check_schema(from_arrow_schema(batches[0].schema), settings)
    return write_task(plan_sink(settings, False, False), iter(batches))


def write_and_commit(url: str, *tasks: list[pa.RecordBatch], **options: Any) -> list[Written]:
    """Run and commit a batch write with a task per list."""
    settings = settings_of(url, **options)
    writer = batch_writer(settings, from_arrow_schema(tasks[0][0].schema), False)
    written = [writer.write(iter(task)) for task in tasks]
    writer.commit(written)
    return written  # type: ignore[return-value]


def drain(connection: sync.Connection, queue: str) -> list[Message]:
    """Consume all messages of a queue."""
    found = []
    with connection.channel() as channel:
        while (message := channel.get(queue, no_ack=True)) is not None:
            found.append(message)
    return found


def bodies(messages: Iterator[Message] | list[Message]) -> list[bytes]:
    return [message.body for message in messages]
