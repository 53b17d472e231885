"""A source of several streams, super streams and chosen partitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import pyspark_amqp
from leveret import sync
from leveret.spark.data_source import AmqpDataSource
from leveret.spark.errors import OffsetError, OptionError
from leveret.spark.options import read_options
from leveret.spark.source.stream_reader import StreamReader
from tests.spark.source.test_history import seal
from tests.spark.support import declare_stream, declare_super_stream, publish, read, run, written
from tests.support.broker import LeveretProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "queue,partition,offset"


@pytest.fixture
def streams(broker: LeveretProcess, connection: sync.Connection, name: str) -> str:
    """Streams NAME-a, NAME-b and NAME-c, and NAME, a super stream of three; each stream has three messages."""
    declare_super_stream(connection, name, 3)
    for suffix in "abc":
        declare_stream(connection, f"{name}-{suffix}")
    publish(connection, f"{name}-a", ["a0", "a1"])
    seal(broker, connection, f"{name}-a", 2)
    publish(connection, f"{name}-a", ["a2"])
    for suffix in "bc012":
        publish(connection, f"{name}-{suffix}", [f"{suffix}{number}" for number in range(3)])
    return name


def source(broker: LeveretProcess, **options: str) -> AmqpDataSource:
    return AmqpDataSource({"url": broker.url(), "columns": COLUMNS, "startingoffsets": "earliest", **options})


def stream_reader(broker: LeveretProcess, **options: str) -> StreamReader:
    made = source(broker, **options)
    reader = made._open_stream(made.schema())
    assert isinstance(reader, StreamReader)
    return reader


def selected(broker: LeveretProcess, name: str, **options: str) -> list[tuple[str, int, int]]:
    """Return the rows of a batch read: the end of the stream's name, the partition and the offset."""
    made = source(broker, **options)
    reader = made.reader(made.schema())
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]  # type: ignore[union-attr]
    return sorted((row["queue"].removeprefix(f"{name}-"), row["partition"], row["offset"]) for row in rows)


def three(suffix: str, partition: int = 0) -> list[tuple[str, int, int]]:
    return [(suffix, partition, offset) for offset in range(3)]


def test_streams_and_super_streams(broker: LeveretProcess, streams: str) -> None:
    name = streams
    names = f"{name}-b, {name}-a"
    assert selected(broker, name, streams=names) == three("a") + three("b")
    everything = three("0") + three("1", 1) + three("2", 2)
    assert selected(broker, name, streams=f"{name},{name}-c") == everything + three("c")
    ends = {f"{name}-a": 3, f"{name}-b": 1}
    found = selected(
        broker, name, streams=names, startingoffsets=json.dumps(dict.fromkeys(ends, 1)), endingoffsets=json.dumps(ends)
    )
    assert found == three("a")[1:]


def test_chosen_partitions(broker: LeveretProcess, streams: str) -> None:
    name = streams
    chosen = three("0") + three("2", 2)
    assert selected(broker, name, superstream=name, partitions="2, 0") == chosen
    assert selected(broker, name, superstream=name, partitions=f'{{"{name}": [0, 2]}}') == chosen
    lists = f'{{"{name}": [1]}}'
    assert selected(broker, name, streams=f"{name},{name}-a", partitions=lists) == three("1", 1) + three("a")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"streams": "{0}-a,{0}-x"}, "option streams: no queue '{0}-x'"),
        ({"streams": "{0}-a,{0}-q"}, "option streams: '{0}-q' is a classic queue, not a stream"),
        ({"streams": "{0},{0}-1"}, "option streams: stream '{0}-1' is selected twice"),
        ({"superstream": "{0}", "partitions": "0,3"}, "super stream '{0}' has partitions 0 to 2, but not 3"),
        ({"stream": "{0}-a", "partitions": "0"}, "numbers are not valid with option stream; expected option superStream"),
        ({"streams": "{0}", "partitions": "0"}, "numbers are not valid with option streams; expected"),
        (
            {"streams": "{0},{0}-a", "partitions": '{{"{0}-a": [0]}}'},
            "option partitions: '{0}-a' is not a super stream that is read; expected some of {0}",
        ),
    ],
)
def test_refusals(
    broker: LeveretProcess, connection: sync.Connection, streams: str, options: dict[str, str], said: str
) -> None:
    with connection.channel() as channel:
        channel.declare_queue(f"{streams}-q")
    with pytest.raises(OptionError) as raised:
        selected(broker, streams, **{key: value.format(streams) for key, value in options.items()})
    assert said.format(streams) in str(raised.value)


def test_a_name_of_a_stream_and_a_super_stream(broker: LeveretProcess, connection: sync.Connection, streams: str) -> None:
    declare_stream(connection, streams)
    with pytest.raises(OptionError, match="is a super stream and a stream; use option superStream or stream"):
        selected(broker, streams, streams=streams)


@pytest.mark.parametrize("value", ["", "0,x", "-1", "[0]", "{}", '{"s": []}', '{"s": [true]}', '{"s": 0}'])
def test_invalid_partitions(value: str) -> None:
    with pytest.raises(OptionError, match=r"option partitions: .* expected numbers of partitions such as 0,2"):
        read_options({"partitions": value})


def next_of(offset: dict[str, Any]) -> dict[str, int]:
    return {name: position["next"] for name, position in offset["streams"].items()}


def test_a_stream_that_is_added_to_a_query(broker: LeveretProcess, connection: sync.Connection, streams: str) -> None:
    """It begins at `startingOffsets`; partitions that were declared later begin with their first message."""
    a, b = f"{streams}-a", f"{streams}-b"
    first = stream_reader(broker, stream=a)
    reached = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    options = {"consumername": "c", "startingoffsets": "latest"}
    added = stream_reader(broker, streams=f"{a},{b},{streams}", **options)
    added.prepareForTriggerAvailableNow()
    end = added.latestOffset(reached, ReadAllAvailable())
    assert next_of(end) == {a: 3, b: 3, **{f"{streams}-{number}": 3 for number in range(3)}}
    # A restart before the next checkpoint begins at the same offsets.
    publish(connection, b, ["b3"])
    declare_super_stream(connection, streams, 4)
    publish(connection, f"{streams}-3", ["30"])
    again = stream_reader(broker, streams=f"{a},{b},{streams}", **options)
    ended = again.latestOffset(end, ReadAllAvailable())
    assert offsets_of(again, end, ended) == [(b, 3), (f"{streams}-3", 0)]
    restarted = again.latestOffset(reached, ReadAllAvailable())
    assert offsets_of(again, reached, restarted) == [(b, 3)]


def test_an_added_stream_waits_at_its_start(broker: LeveretProcess, connection: sync.Connection, streams: str) -> None:
    a, b = f"{streams}-a", f"{streams}-b"
    first = stream_reader(broker, stream=a)
    reached = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    with pytest.raises(OptionError, match="option consumerName: required if a query begins with the latest"):
        stream_reader(broker, streams=f"{a},{b}", startingoffsets="latest").latestOffset(reached, ReadAllAvailable())
    with pytest.raises(OptionError, match=f"option startingOffsets: no offset for stream '{b}'"):
        stream_reader(broker, streams=f"{a},{b}", startingoffsets=f'{{"{a}": 0}}').latestOffset(reached, ReadAllAvailable())
    waiting = stream_reader(
        broker, streams=f"{a},{b}", startingoffsets="latest", consumername="c", minmessagespertrigger="2"
    )
    limit = waiting.getDefaultReadLimit()
    assert waiting.latestOffset(reached, limit) == reached
    publish(connection, b, ["b3"])
    assert waiting.latestOffset(reached, limit) == reached
    publish(connection, b, ["b4"])
    assert offsets_of(waiting, reached, waiting.latestOffset(reached, limit)) == [(b, 3), (b, 4)]


def offsets_of(reader: StreamReader, begin: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int]]:
    rows = [row for part in reader.partitions(begin, end) for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(((row["queue"], row["offset"]) for row in rows), key=lambda row: (row[0][-1].isdecimal(), row))


def test_a_stream_that_is_removed_from_a_query(broker: LeveretProcess, connection: sync.Connection, streams: str) -> None:
    a, b = f"{streams}-a", f"{streams}-b"
    both = stream_reader(broker, streams=f"{a},{b}")
    begin = both.initialOffset()
    reached = both.latestOffset(begin, ReadAllAvailable())
    with pytest.raises(OffsetError, match=f"the checkpoint is of stream '{b}', .* or set failOnDataLoss to false"):
        stream_reader(broker, stream=a).latestOffset(reached, ReadAllAvailable())
    publish(connection, a, ["a3"])
    lenient = stream_reader(broker, stream=a, failondataloss="false")
    # A batch that was planned before is repeated as it was.
    assert len(offsets_of(lenient, begin, reached)) == 6
    end = lenient.latestOffset(reached, ReadAllAvailable())
    assert next_of(end) == {a: 4}
    assert offsets_of(lenient, reached, end) == [(a, 3)]


def test_a_query_and_history(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, streams: str, tmp_path: Path
) -> None:
    """A query of one stream continues with more of them, and `load` and the columns of Kafka name super streams."""
    a, name = f"{streams}-a", streams
    run(spark, broker.url(), tmp_path, stream=a, startingOffsets="earliest")
    publish(connection, a, ["a3"])
    several = {"streams": f"{a},{name}", "partitions": f'{{"{name}": [0, 1]}}'}
    run(spark, broker.url(), tmp_path, startingOffsets="earliest", **several)
    assert written(spark, tmp_path) == ["00", "01", "02", "10", "11", "12", "a0", "a1", "a2", "a3"]
    expected = sorted([(a, 0, offset) for offset in range(4)] + [(name, part, at) for part in (0, 1) for at in range(3)])
    for frame in (
        read(spark, broker.url(), columns="kafka", **several),
        pyspark_amqp.load(spark, url=broker.url(), columns="kafka", **several),
    ):
        assert sorted((row.topic, row.partition, row.offset) for row in frame.collect()) == expected
    assert pyspark_amqp.count(spark, url=broker.url(), **several) == 10
