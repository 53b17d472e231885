"""Batch and streaming reads of streams: content, start and end, and batch sizes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pyspark_amqp
from leveret import sync
from leveret.spark.data_source import AmqpDataSource
from leveret.spark.errors import OptionError
from tests.spark.source.test_history import seal
from tests.spark.support import (
    bodies,
    declare_stream,
    declare_super_stream,
    numbers,
    publish,
    read,
    run,
    start,
    written,
)
from tests.support.broker import LeveretProcess
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("protocol", ["0-9-1", "1.0"])
def test_a_batch_read_returns_all_messages(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, protocol: str
) -> None:
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 5000))
    frame = read(spark, broker.url(), stream=name, protocol=protocol)
    assert bodies(frame) == numbers(0, 5000)
    assert bodies(
        read(
            spark,
            broker.url(),
            stream=name,
            startingOffsets=f'{{"{name}": 10}}',
            endingOffsets=f'{{"{name}": 20}}',
            protocol=protocol,
        )
    ) == numbers(10, 20)
    assert bodies(read(spark, broker.url(), stream=name, startingOffsets="latest")) == []


def test_a_queue_that_is_a_stream_is_read_as_one(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str
) -> None:
    declare_stream(connection, name)
    publish(connection, name, ["a", "b"])
    assert bodies(read(spark, broker.url(), queue=name)) == ["a", "b"]


def test_large_and_many_messages_are_divided_into_tasks(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str
) -> None:
    declare_stream(connection, name)
    publish(connection, name, [b"x" * (3 << 20), *numbers(0, 999)])
    frame = read(spark, broker.url(), stream=name, minPartitions="4", arrowBatchRows="100")
    assert frame.rdd.getNumPartitions() == 4
    rows = sorted(frame.selectExpr("offset", "length(body) AS size").collect())
    assert [row.offset for row in rows] == list(range(1000))
    assert rows[0].size == 3 << 20


def test_only_requested_columns_are_read(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str
) -> None:
    declare_stream(connection, name)
    publish(connection, name, ["a"], headers={"k": 1})
    frame = read(spark, broker.url(), stream=name, columns="body,queue,headers,headers_json", headersFormat="json")
    assert frame.columns == ["body", "queue", "headers", "headers_json"]
    row = frame.collect()[0]
    assert (row.queue, row.headers, json.loads(row.headers_json)) == (name, None, {"k": 1})
    row = read(spark, broker.url(), stream=name, columns="headers,headers_json", headersFormat="map").collect()[0]
    assert (row.headers, row.headers_json) == ({"k": "1"}, None)


def test_routing_key_filter(spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    declare_stream(connection, name)
    with connection.channel() as channel:
        channel.bind_queue(name, "amq.topic", f"{name}.#")
        for key in ("a.eu", "b.eu", "a.us", "a.eu.x"):
            channel.publish(key, f"{name}.{key}", "amq.topic")
    frame = read(spark, broker.url(), stream=name, routingKeyFilter=f"{name}.*.eu", columns="offset,body")
    assert bodies(frame) == ["a.eu", "b.eu"]
    assert bodies(read(spark, broker.url(), stream=name, routingKeyFilter="#.eu.#")) == ["a.eu", "b.eu", "a.eu.x"]
    assert bodies(read(spark, broker.url(), stream=name, routingKeyFilter="nothing")) == []


def test_partitions_of_a_super_stream(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_super_stream(connection, name, 3)
    keys = [f"key-{number}" for number in range(60)]
    with connection.channel() as channel:
        for key in keys:
            channel.publish(key, key, name)
    rows = read(spark, broker.url(), superStream=name).collect()
    assert sorted(row.body.decode() for row in rows) == sorted(keys)
    assert {(row.queue, row.partition) for row in rows} == {(f"{name}-{number}", number) for number in range(3)}
    run(spark, broker.url(), tmp_path, superStream=name, startingOffsets="earliest")
    # A partition that is added later is read from its beginning.
    declare_super_stream(connection, name, 4)
    publish(connection, f"{name}-3", ["late"])
    run(spark, broker.url(), tmp_path, superStream=name, startingOffsets="earliest")
    assert sorted(written(spark, tmp_path)) == sorted([*keys, "late"])


def test_streams_by_pattern(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    for suffix in ("a", "b", "other"):
        declare_stream(connection, f"{name}-{suffix}")
        publish(connection, f"{name}-{suffix}", [suffix])
    pattern = f"{name}-[a-c]"
    run(spark, broker.url(), tmp_path, streamPattern=pattern, startingOffsets="earliest")
    assert written(spark, tmp_path) == ["a", "b"]
    declare_stream(connection, f"{name}-c")
    publish(connection, f"{name}-c", ["c"])
    run(spark, broker.url(), tmp_path, streamPattern=pattern, startingOffsets="earliest")
    assert written(spark, tmp_path) == ["a", "b", "c"]


def test_admission_control(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 25))
    query = run(spark, broker.url(), tmp_path, stream=name, startingOffsets="earliest", maxMessagesPerTrigger="10")
    sizes = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert sizes == [10, 10, 5]
    assert written(spark, tmp_path) == numbers(0, 25)


def test_a_batch_waits_for_a_minimum_of_messages(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name)
    query = start(
        spark,
        broker.url(),
        tmp_path,
        available_now=False,
        stream=name,
        startingOffsets="earliest",
        minMessagesPerTrigger="10",
        maxTriggerDelay="1h",
    )
    try:
        publish(connection, name, numbers(0, 6))

        def latest() -> Any:
            progress = query.lastProgress
            found = progress["sources"][0].get("latestOffset") if progress is not None else None
            return json.loads(found) if found else None

        waiting = wait_until(latest)
        wait_until(lambda: latest()["lag"] == 6)
        assert waiting["lost"] == 0
        publish(connection, name, numbers(6, 12))
        wait_until(lambda: sum(progress["numInputRows"] for progress in query.recentProgress) == 12)
    finally:
        query.stop()
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [12]


def test_starting_timestamp(spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    declare_stream(connection, name)
    publish(connection, name, ["old"])
    later = int(time.time() * 1000) + 3_600_000
    assert bodies(read(spark, broker.url(), stream=name, startingTimestamp="0")) == ["old"]
    assert bodies(read(spark, broker.url(), stream=name, startingTimestamp=str(later))) == []


def test_sql(spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 10))
    url = broker.url(user="guest", password="guest")
    table = "t" + name.replace("-", "")
    spark.sql(f"CREATE TEMPORARY VIEW {table} USING amqp OPTIONS (url '{url}', stream '{name}')")
    assert spark.sql(f"SELECT count(*) AS n, max(CAST(CAST(body AS STRING) AS INT)) AS top FROM {table}").collect() == [
        (10, 9)
    ]


def test_spark_never_shows_the_password(
    spark: SparkSession, own_password: LeveretProcess, name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = own_password.url()
    assert "pa55word" in url
    with sync.connect(url) as connection:
        declare_stream(connection, name)
        publish(connection, name, ["a"])
    frame = read(spark, url, stream=name)
    frame.explain(extended=True)
    assert bodies(frame) == ["a"]
    query = run(spark, url, tmp_path, stream=name, startingOffsets="earliest")
    query.explain(extended=True)
    shown = capfd.readouterr()
    texts = [shown.out, shown.err, json.dumps(query.recentProgress, default=str), str(query.lastProgress)]
    texts += [file.read_text(errors="replace") for file in (tmp_path / "checkpoint").rglob("*") if file.is_file()]
    assert not [text for text in texts if "pa55word" in text]
    with pytest.raises(Exception, match=r"no connection to amqp://guest@127\.0\.0\.1:1/") as raised:
        read(spark, "amqp://guest:pa55word@127.0.0.1:1/?connect_timeout=1", stream=name).collect()
    assert "pa55word" not in str(raised.value)


def test_the_columns_of_kafka(spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    """Sealed and unsealed messages, by the data source and by Spark's own reader."""
    declare_super_stream(connection, name, 2)
    publish(connection, f"{name}-1", ["a"], headers={"text": "grün", "number": 7})
    seal(broker, connection, f"{name}-1", 1)
    publish(connection, f"{name}-1", ["b"])
    frame = read(spark, broker.url(), superStream=name, columns="kafka")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    rows = sorted(frame.collect(), key=lambda row: row.offset)
    found = [(bytes(row.key), bytes(row.value), row.topic, row.partition, row.offset) for row in rows]
    assert found == [(f"{name}-1".encode(), b"a", name, 1, 0), (f"{name}-1".encode(), b"b", name, 1, 1)]
    assert {header.key: bytes(header.value) for header in rows[0].headers} == {"text": "grün".encode(), "number": b"7"}
    assert all(row.timestamp is not None for row in rows)
    loaded = pyspark_amqp.load(spark, url=broker.url(), superStream=name, columns="kafka")
    assert loaded.schema.simpleString() == frame.schema.simpleString()
    assert sorted(loaded.collect(), key=lambda row: row.offset) == rows


def test_a_preset_is_the_whole_value(broker: LeveretProcess, name: str) -> None:
    assert AmqpDataSource({"columns": "minimal"}).schema().names == ["offset", "append_time", "routing_key", "body"]
    with pytest.raises(OptionError, match="option columns: 'kafka' is a preset; expected it alone"):
        AmqpDataSource({"columns": "kafka,body"}).schema()
