"""Invalid input fails with a clear error before data is read."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from leveret import sync
from leveret.spark.data_source import AmqpDataSource
from leveret.spark.errors import OffsetError, OptionError, SparkError
from leveret.spark.options import read_options
from leveret.spark.source.stream_reader import StreamReader
from leveret.spark.source.target import Target
from tests.spark.support import TIMEOUT, declare_stream, numbers, publish, read, start
from tests.support.broker import LeveretProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def refusal(url: str, **options: str) -> str:
    """Return the error of a batch read when Spark plans it."""
    with pytest.raises(SparkError) as raised:
        source = AmqpDataSource({name.lower(): value for name, value in options.items()} | {"url": url})
        source.reader(source.schema()).partitions()
    return str(raised.value)


def test_spark_shows_the_error(spark: SparkSession, broker: LeveretProcess) -> None:
    with pytest.raises(Exception, match=r"OptionError: unknown option 'streem'; did you mean stream"):
        read(spark, broker.url(), streem="s")
    with pytest.raises(Exception, match=r"OptionError: option stream: no queue 'nowhere'"):
        read(spark, broker.url(), stream="nowhere").collect()


@pytest.mark.parametrize("available_now", [True, False])
def test_a_query_shows_only_the_error(
    spark: SparkSession, broker: LeveretProcess, tmp_path: Path, available_now: bool
) -> None:
    query = start(spark, broker.url(), tmp_path, available_now=available_now, stream="nowhere", startingOffsets="earliest")
    with pytest.raises(Exception, match=r"OptionError: option stream: no queue 'nowhere'") as raised:
        query.awaitTermination(TIMEOUT)
    assert "UnboundLocalError" not in str(raised.value)


def test_options(broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    url = broker.url()
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 10))
    with connection.channel() as channel:
        channel.declare_queue(f"{name}-q")
    for options, expected in (
        ({"stream": name, "startingOffset": "latest"}, "unknown option 'startingoffset'; did you mean startingOffsets"),
        ({}, "expected exactly one of the options queue, stream, superStream, streams, streamPattern"),
        ({"stream": "nowhere"}, "option stream: no queue 'nowhere'"),
        ({"queue": "nowhere"}, "option queue: no queue 'nowhere'"),
        ({"superStream": "nowhere"}, "option superStream: no super stream 'nowhere'"),
        ({"stream": f"{name}-q"}, "is a classic queue, not a stream; use option queue"),
        ({"queue": f"{name}-q", "mode": "stream"}, "does not support mode stream; expected browse"),
        ({"queue": name, "mode": "browse"}, "option mode: read of stream queue"),
        ({"stream": name, "mode": "lease"}, "option mode: lease is not valid with option stream"),
        ({"stream": name, "spoolDir": "/tmp"}, "option spoolDir: not valid in mode stream"),
        (
            {"stream": name, "maxMessagesPerTrigger": "5"},
            "option maxMessagesPerTrigger: not valid in read, only in readStream",
        ),
        ({"stream": name, "columns": "body,routingkey"}, "column 'routingkey' does not exist; expected routing_key"),
        ({"stream": name, "startingOffsets": f'{{"{name}": 11}}'}, "offset 11 is out of range"),
        ({"stream": name, "endingOffsets": f'{{"{name}": 99}}'}, "option endingOffsets: offset 99"),
        ({"stream": name, "startingOffsets": '{"other": 1}'}, "stream 'other' is not read"),
        (
            {"stream": name, "startingOffsets": f'{{"{name}": 5}}', "endingOffsets": f'{{"{name}": 4}}'},
            "offset 4, is before its start, offset 5",
        ),
        ({"stream": name, "startingOffsets": "earliest", "startingTimestamp": "0"}, "set only one of them"),
        ({"stream": name, "vhost": "nowhere"}, "refused the vhost 'nowhere'"),
        ({"stream": name, "passwordFile": "/nowhere"}, "option passwordFile: '/nowhere' cannot be read"),
    ):
        said = refusal(url, **options)
        assert expected in said, f"{options}: {said}"


def test_a_user_defined_schema(broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    declare_stream(connection, name)
    source = AmqpDataSource({"url": broker.url(), "stream": name})
    with pytest.raises(OptionError, match=r"has body string, but the source has queue string"):
        source.reader(StructType().add("body", "string"))


def test_latest_needs_a_consumer_name(broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    declare_stream(connection, name)

    def initial(**options: str) -> object:
        return StreamReader(
            read_options({"url": broker.url(), "stream": name, **options}), Target("stream", "stream", name)
        ).initialOffset()

    for options in ({"startingOffsets": "latest"}, {}):
        with pytest.raises(OptionError, match="option consumerName: required"):
            initial(**options)
    with pytest.raises(OptionError, match="option endingOffsets: not valid in readStream, only in read"):
        initial(consumerName="c", endingOffsets="latest")
    initial(consumerName="c", startingOffsets=f'{{"{name}": 0}}')
    publish(connection, name, numbers(0, 10))
    with pytest.raises(OffsetError, match="offset 0, at which consumer 'c' began; use another consumerName") as refusal:
        initial(consumerName="c", startingOffsets=f'{{"{name}": 5}}')
    # The command in the message works and helps.
    command = str(refusal.value).split("`")[1].split()
    subprocess.run([sys.executable, "-m", *command, "--data-dir", str(broker.data_dir)], check=True, timeout=180)
    assert initial(consumerName="c", startingOffsets=f'{{"{name}": 5}}')


def test_foreign_checkpoints(broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 10))
    reader = StreamReader(
        read_options({"url": broker.url(), "stream": name, "startingOffsets": "earliest"}), Target("stream", "stream", name)
    )
    begin = reader.initialOffset()
    reached = reader.latestOffset(begin, ReadAllAvailable())

    # The stream lost messages at its end, for example because the broker has an older copy of its data.
    ahead = copy.deepcopy(reached)
    ahead["streams"][name]["next"] = 20
    said = "lost messages at its end: the checkpoint has read up to offset 20, and the stream ends at 10"
    with pytest.raises(OffsetError, match=said):
        reader.latestOffset(ahead, ReadAllAvailable())
    with pytest.raises(OffsetError, match=said):
        reader.partitions(begin, ahead)

    for other, said in (
        ({}, "not those of streams"),
        ({"version": 2}, "the checkpoint has offsets of version 2"),
        ({"batch": 7}, "not those of streams"),
        ({"version": 1, "streams": {name: 3}, "began": {}}, "not those of streams"),
    ):
        with pytest.raises(OffsetError, match=said):
            reader.latestOffset(other, ReadAllAvailable())
    elsewhere = copy.deepcopy(reached)
    elsewhere["streams"]["other"] = {"id": "x", "next": 1}
    with pytest.raises(OffsetError, match="the checkpoint is of stream 'other', which is no longer among the streams"):
        reader.latestOffset(elsewhere, ReadAllAvailable())

    # Another stream of the same name.
    with connection.channel() as channel:
        channel.delete_queue(name)
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 15))
    with pytest.raises(OffsetError, match="the checkpoint is of another stream"):
        reader.latestOffset(reached, ReadAllAvailable())
    with pytest.raises(OffsetError, match="the checkpoint is of another stream"):
        reader.partitions(begin, reached)
