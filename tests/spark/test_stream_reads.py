"""Streams as tables and as streaming sources, over AMQP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leveret import blocking
from tests.spark.support import bodies, declare_stream, publish, read, run, written
from tests.support.broker import LeveretProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def numbers(first: int, stop: int) -> list[str]:
    return [str(number) for number in range(first, stop)]


@pytest.mark.parametrize("protocol", ["0-9-1", "1.0"])
def test_a_batch_read_is_what_is_there(spark: SparkSession, broker: LeveretProcess, connection: blocking.Connection,
                                       name: str, protocol: str) -> None:
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 5000))
    frame = read(spark, broker.url(), stream=name, protocol=protocol)
    assert bodies(frame) == numbers(0, 5000)
    assert bodies(read(spark, broker.url(), stream=name, startingOffsets=f'{{"{name}": 10}}',
                       endingOffsets=f'{{"{name}": 20}}', protocol=protocol)) == numbers(10, 20)
    assert bodies(read(spark, broker.url(), stream=name, startingOffsets="latest")) == []


def test_a_query_goes_on_where_it_was(spark: SparkSession, broker: LeveretProcess, connection: blocking.Connection,
                                      name: str, tmp_path: Path) -> None:
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 100))
    run(spark, broker.url(), tmp_path, stream=name, startingOffsets="earliest", consumerName="c")
    assert written(spark, tmp_path) == numbers(0, 100)
    publish(connection, name, numbers(100, 150))
    run(spark, broker.url(), tmp_path, stream=name, startingOffsets="earliest", consumerName="c")
    assert written(spark, tmp_path) == numbers(0, 150)
