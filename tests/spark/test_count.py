"""`pyspark_amqp.count` returns the number of rows of a read, from offsets and the manifest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import pyspark_amqp
from leveret import sync
from leveret.spark.errors import OffsetError, OptionError
from leveret.spark.source.slice_reader import SliceReader
from tests.spark.source.test_history import run_command, seal
from tests.spark.support import declare_stream, declare_super_stream, numbers, publish, read
from tests.support.broker import LeveretProcess
from tests.support.polling import wait_until
from tests.support.requests import ask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEALED = 200
TOTAL = 250


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Record the ranges of which something is read."""
    found: list[tuple[int, int]] = []
    real = SliceReader.batches

    def watched(slice_reader: SliceReader) -> object:
        found.append((slice_reader.part.first, slice_reader.part.stop))
        return real(slice_reader)

    monkeypatch.setattr(SliceReader, "batches", watched)
    return found


def make(broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    """Declare a stream with two sealed segments and an unsealed tail."""
    declare_stream(connection, name)
    for begin, stop in ((0, 80), (80, SEALED)):
        publish(connection, name, numbers(begin, stop))
        seal(broker, connection, name, stop)
    publish(connection, name, numbers(SEALED, TOTAL))


def test_nothing_is_read(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, slices: list[tuple[int, int]]
) -> None:
    make(broker, connection, name)
    count = pyspark_amqp.count(spark, url=broker.url(), stream=name)
    assert count == TOTAL == read(spark, broker.url(), stream=name).count()
    for first, stop in ((0, 0), (79, 81), (150, 230), (240, TOTAL)):
        ends = {"startingOffsets": json.dumps({name: first}), "endingOffsets": json.dumps({name: stop})}
        assert pyspark_amqp.count(spark, url=broker.url(), stream=name, **ends) == stop - first
    assert not slices
    # Only the filter needs Spark, which reads the routing keys.
    for pattern, matching in ((f"#.{name}", TOTAL), ("no.#", 0)):
        found = pyspark_amqp.count(spark, url=broker.url(), stream=name, routingKeyFilter=pattern, columns="body")
        assert found == matching


def test_erased_messages_are_not_counted(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, slices: list[tuple[int, int]]
) -> None:
    make(broker, connection, name)
    run_command(broker, "streams", "erase", name, "--where", "body:$=70", "--remove")
    assert pyspark_amqp.count(spark, url=broker.url(), stream=name) == TOTAL - 1
    assert not slices
    # The manifest does not say at which offset of the segment.
    for first, erased in ((70, 1), (71, 0)):
        start = json.dumps({name: first})
        assert pyspark_amqp.count(spark, url=broker.url(), stream=name, startingOffsets=start) == TOTAL - first - erased
    assert slices == [(70, 80), (71, 80)]


def test_messages_that_retention_removed_are_not_counted(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str
) -> None:
    declare_stream(connection, name, x_max_length_bytes=1 << 20)
    publish(connection, name, [b"x" * (400 << 10) for _ in range(12)])
    with connection.channel() as channel:
        wait_until(lambda: ask(channel, "stream.describe", stream=name)["first_offset"] > 1)
    start = json.dumps({name: 0})
    with pytest.raises(OffsetError, match="offset 0 is out of range"):
        pyspark_amqp.count(spark, url=broker.url(), stream=name, startingOffsets=start)
    found = pyspark_amqp.count(
        spark, url=broker.url(), stream=name, startingOffsets=start, failOnDataLoss=False, lossDirectory="/nowhere"
    )
    assert found == pyspark_amqp.count(spark, url=broker.url(), stream=name) < 12


def test_the_partitions_of_a_super_stream_are_added(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str
) -> None:
    declare_super_stream(connection, name, 2)
    for partition in range(2):
        publish(connection, f"{name}-{partition}", numbers(0, 5 + partition))
    assert pyspark_amqp.count(spark, url=broker.url(), superStream=name) == 11


def test_a_queue_is_refused(spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name)
    with pytest.raises(OptionError, match=r'is not a stream; use spark\.read\.format\("amqp"\) and count\(\)'):
        pyspark_amqp.count(spark, url=broker.url(), queue=name)
