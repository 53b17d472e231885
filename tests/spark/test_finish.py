"""`pyspark_amqp.finish` commits the last batch of a query that has ended."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import pyspark_amqp
from leveret import sync
from leveret.spark.connection import ControlClient, endpoint_of
from leveret.spark.errors import SparkError
from tests.spark.sinks import settings_of
from tests.spark.support import TIMEOUT, declare_stream, publish, run, start
from tests.support.broker import LeveretProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_consumer_offset_advances_to_the_last_commit(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name)
    publish(connection, name, [str(number) for number in range(10)])
    control = ControlClient(endpoint_of(settings_of(broker.url())))

    def lag() -> int:
        return int(control.request("stream.lag", stream=name, consumer=name)["lag"])

    options = {"stream": name, "startingOffsets": "earliest", "consumerName": name}
    query = run(spark, broker.url(), tmp_path, **options)
    assert lag() == 10
    assert pyspark_amqp.finish(query) == 1
    assert lag() == 0
    publish(connection, name, ["10"])
    assert pyspark_amqp.finish(query) == 1
    assert lag() == 1
    running = start(spark, broker.url(), tmp_path, available_now=False, **options)
    try:
        with pytest.raises(SparkError, match="is running; stop it or wait for its end"):
            pyspark_amqp.finish(running)
    finally:
        running.stop()
        running.awaitTermination(TIMEOUT)


def test_the_source_is_a_table(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    """One of `create_tables`, and one of `CREATE TABLE`, whose options Spark does not pass to reads."""
    declare_stream(connection, name)
    publish(connection, name, [str(number) for number in range(10)])
    password = tmp_path / "password"
    password.write_text(broker.password)
    address = broker.url().replace(f":{broker.password}@", "@")
    database = name.replace("-", "_")
    pyspark_amqp.create_tables(spark, url=broker.url(), database=database, streamPattern=name)
    options = f"url '{address}', stream '{name}', passwordFile '{password}', columns 'body,offset'"
    spark.sql(f"CREATE TABLE {database}.chosen USING amqp OPTIONS ({options})")
    control = ControlClient(endpoint_of(settings_of(broker.url())))
    try:
        for table in (database, "chosen"):
            stream = spark.readStream.options(startingOffsets="earliest", consumerName=table).table(f"{database}.{table}")
            query = (
                stream.writeStream.format("noop")
                .option("checkpointLocation", str(tmp_path / table))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(TIMEOUT)
            assert control.request("stream.lag", stream=name, consumer=table)["lag"] == 10
            assert pyspark_amqp.finish(query) == 1
            assert control.request("stream.lag", stream=name, consumer=table)["lag"] == 0
    finally:
        control.close()
        spark.sql(f"DROP DATABASE {database} CASCADE")


def test_a_query_of_spark_connect() -> None:
    """Its class has no `_jsq`."""
    query: Any = SimpleNamespace(isActive=False, name="orders", id="1")
    with pytest.raises(SparkError, match="query orders runs in Spark Connect, which does not expose its plan"):
        pyspark_amqp.finish(query)


def test_a_query_without_an_amqp_source_has_nothing_to_commit(spark: SparkSession, tmp_path: Path) -> None:
    query = (
        spark.readStream.format("rate")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT)
    assert pyspark_amqp.finish(query) == 0
