"""The column `body_json`, and `pyspark_amqp.from_body`, which parses it by a schema."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pyspark_amqp
from leveret import sync
from leveret.client import amqp10
from leveret.spark.errors import OptionError
from tests.spark.source.test_history import seal
from tests.spark.support import declare_stream, publish, read, run
from tests.support.broker import LeveretProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id BIGINT, at TIMESTAMP, tags ARRAY<STRING>"
ROWS = [(1, None, ["a"]), (2, None, ["b", "c"]), (3, None, None), (None, None, None), (4, None, None)]


def publish_all(broker: LeveretProcess, connection: sync.Connection, queue: str) -> None:
    """Publish the messages of `ROWS` over AMQP 0-9-1 and 1.0."""
    publish(connection, queue, ['{"id": 1, "tags": ["a"]}'])
    with sync.connect(broker.url(), protocol="1.0") as opened, opened.sender(f"/queues/{queue}") as sender:
        for body in (amqp10.Value({"id": 2, "tags": ["b", "c"]}), amqp10.Value('{"id": 3}'), amqp10.Value("text")):
            sender.send(amqp10.Message(body=body))
    publish(connection, queue, ['{"id": 4}'])


def parsed(frame: DataFrame) -> list[Any]:
    rows = frame.orderBy("offset").select(pyspark_amqp.from_body(SCHEMA).alias("it")).select("it.*").collect()
    return [(row["id"], row["at"], row["tags"]) for row in rows]


def test_bodies_are_parsed_by_a_schema(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name)
    publish_all(broker, connection, name)
    options = {"stream": name, "startingOffsets": "earliest", "columns": "offset,body_json"}
    tail = read(spark, broker.url(), **options)
    assert [row.body_json for row in tail.orderBy("offset").collect()] == [
        '{"id": 1, "tags": ["a"]}',
        '{"id":2,"tags":["b","c"]}',
        '{"id": 3}',
        '"text"',
        '{"id": 4}',
    ]
    assert parsed(tail) == ROWS
    seal(broker, connection, name, len(ROWS))
    publish_all(broker, connection, name)
    assert parsed(read(spark, broker.url(), **options)) == ROWS * 2
    run(spark, broker.url(), tmp_path, **options)
    assert parsed(spark.read.parquet(str(tmp_path / "out"))) == ROWS * 2
    # The JSON text of publishers is in `value`, too.
    value = pyspark_amqp.from_body(SCHEMA, "value", mode="PERMISSIVE", allowComments=True)
    kafka = read(spark, broker.url(), stream=name, columns="kafka").orderBy("offset").select(value["id"].alias("id"))
    assert [row.id for row in kafka.collect()] == [1, None, 3, None, 4] * 2
    with pytest.raises(OptionError, match="'body_json' is not in the files"):
        pyspark_amqp.load(spark, url=broker.url(), **options)


def test_bodies_in_a_queue(spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name, durable=True)
    publish_all(broker, connection, name)
    assert parsed(read(spark, broker.url(), queue=name, columns="body_json,offset")) == ROWS
