"""Batch reads in a registered session open only the segments and row groups that a query's filter needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

import pyspark_amqp
from leveret import sync
from leveret.segments.manifest import Segment
from leveret.segments.reader import SegmentReader, open_segment
from leveret.spark.options import STREAM, read_options
from leveret.spark.source.batch_reader import FilteringBatchReader
from leveret.spark.source.target import Target
from tests.spark.source.test_history import OverAmqp, file_of, over_amqp, seal, segments
from tests.spark.support import declare_stream, declare_super_stream, numbers, publish, read
from tests.support.broker import LeveretProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["over_amqp"]


class Opened:
    """Records the segments that are opened, by first offset, and the row groups that are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.segments: list[int] = []
        self.rows = 0
        real_read = SegmentReader.read

        def opened(url: str, options: object, expected: Segment) -> SegmentReader:
            self.segments.append(expected.first)
            return open_segment(url, None, expected)

        def watched(reader: SegmentReader, *arguments: Any) -> Iterator[pa.RecordBatch]:
            for batch in real_read(reader, *arguments):
                self.rows += batch.num_rows
                yield batch

        monkeypatch.setattr("leveret.spark.source.slice_reader.open_segment", opened)
        monkeypatch.setattr(SegmentReader, "read", watched)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    return Opened(monkeypatch)


@pytest.fixture(scope="module")
def stream(shared_broker: LeveretProcess) -> str:
    """A stream with three sealed segments of 10 messages with routing keys of their own, and a tail of 5."""
    name = "pushdown"
    with sync.connect(shared_broker.url()) as connection:
        declare_stream(connection, name)
        with connection.channel() as channel:
            channel.bind_queue(name, "amq.topic", f"{name}.#")
            for first in (0, 10, 20, 30):
                for number in range(first, min(first + 10, 35)):
                    channel.publish(str(number), f"{name}.{'abcd'[first // 10]}", "amq.topic")
                if first < 30:
                    seal(shared_broker, connection, name, first + 10)
    return name


def offsets(broker: LeveretProcess, options: dict[str, str], filters: list[Filter]) -> tuple[list[int], list[Filter]]:
    """Return the offsets that the source reads with these filters, and the filters that Spark has to apply."""
    settings = read_options({"url": broker.url(), **options})
    reader = FilteringBatchReader(settings, Target(STREAM, *settings.source()))
    remaining = list(reader.pushFilters(filters))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()], remaining


def times_of(connection: sync.Connection, name: str) -> list[tuple[datetime, datetime]]:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    with connection.channel() as channel:
        return [
            (epoch + timedelta(milliseconds=one["first_time"]), epoch + timedelta(milliseconds=one["last_time"]))
            for one in segments(channel, name)
        ]


@pytest.mark.parametrize(
    ("filters", "first", "stop", "files"),
    [
        ([EqualTo(("offset",), 15)], 15, 16, [10]),
        ([GreaterThan(("offset",), 8), LessThan(("offset",), 11)], 9, 11, [0, 10]),
        ([GreaterThanOrEqual(("offset",), 20), LessThanOrEqual(("offset",), 29)], 20, 30, [20]),
        ([GreaterThan(("offset",), 29)], 30, 35, []),
        ([LessThan(("offset",), 0)], 0, 0, []),
        ([EqualTo(("partition",), 1)], 0, 0, []),
    ],
)
def test_offsets_and_partitions_are_exact(
    broker: LeveretProcess,
    stream: str,
    opened: Opened,
    over_amqp: OverAmqp,
    filters: list[Filter],
    first: int,
    stop: int,
    files: list[int],
) -> None:
    found, remaining = offsets(broker, {"stream": stream}, filters)
    assert found == list(range(first, stop))
    assert opened.segments == files
    assert over_amqp.ranges == ([(30, 35)] if stop > 30 else [])
    assert not remaining


def test_some_offsets_remain_with_spark(broker: LeveretProcess, stream: str, opened: Opened) -> None:
    filters: list[Filter] = [In(("offset",), (12, 17)), IsNotNull(("offset",)), EqualTo(("message_id",), "m")]
    found, remaining = offsets(broker, {"stream": stream}, filters)
    assert found == list(range(12, 18))
    assert opened.segments == [10]
    assert remaining == filters


def test_append_times_exclude_segments(
    broker: LeveretProcess, connection: sync.Connection, stream: str, opened: Opened, over_amqp: OverAmqp
) -> None:
    times = times_of(connection, stream)
    filters: list[Filter] = [
        GreaterThanOrEqual(("append_time",), times[1][0]),
        LessThanOrEqual(("append_time",), times[1][1]),
    ]
    found, remaining = offsets(broker, {"stream": stream}, filters)
    assert set(found) >= set(range(10, 20))
    assert opened.segments == [10]
    assert not over_amqp.ranges
    assert remaining == filters
    # A time after the last segment leaves only the messages that are not sealed.
    opened.segments.clear()
    found, _ = offsets(broker, {"stream": stream}, [GreaterThan(("append_time",), times[2][1])])
    assert (found, opened.segments) == (list(range(30, 35)), [])


@pytest.mark.parametrize(
    ("pushed", "first", "rows"),
    [
        (EqualTo(("routing_key",), "pushdown.b"), 10, 10),
        (In(("routing_key",), ("pushdown.b", "pushdown.z")), 10, 10),
        (StringStartsWith(("routing_key",), "pushdown.b"), 10, 10),
        (StringStartsWith(("routing_key",), "pushdown"), 0, 30),
        (EqualTo(("routing_key",), "pushdown.z"), 0, 0),
    ],
)
def test_routing_keys_exclude_row_groups(
    broker: LeveretProcess, stream: str, opened: Opened, pushed: Filter, first: int, rows: int
) -> None:
    found, remaining = offsets(broker, {"stream": stream}, [pushed])
    assert [offset for offset in found if offset < 30] == list(range(first, first + rows))
    assert opened.rows == rows
    assert remaining == [pushed]


def test_a_single_routing_key_also_filters_the_unsealed_messages(broker: LeveretProcess, stream: str) -> None:
    assert offsets(broker, {"stream": stream}, [EqualTo(("routing_key",), "pushdown.b")])[0] == list(range(10, 20))
    assert offsets(broker, {"stream": stream}, [EqualTo(("routing_key",), "pushdown.#")])[0] == list(range(30, 35))


def test_partitions_of_other_numbers_are_not_read(
    broker: LeveretProcess, connection: sync.Connection, name: str, over_amqp: OverAmqp
) -> None:
    declare_super_stream(connection, name, 3)
    for number in range(3):
        publish(connection, f"{name}-{number}", numbers(0, 2 + number))
    found, _ = offsets(broker, {"superStream": name}, [GreaterThan(("partition",), 1)])
    assert found == [0, 1, 2, 3]
    assert over_amqp.ranges == [(0, 4)]


def test_spark_pushes_filters_down(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    """Files that the filters exclude are missing, and the read does not notice."""
    pyspark_amqp.register(spark)
    declare_stream(connection, name)
    for first in (0, 10, 20):
        publish(connection, name, numbers(first, first + 10))
        seal(broker, connection, name, first + 10)
    with connection.channel() as channel:
        kept = [file_of(channel, name, number) for number in (0, 2)]
    first_time = times_of(connection, name)[1][0]
    away = [file.rename(tmp_path / file.name) for file in kept]
    try:
        frame = read(spark, broker.url(), stream=name, history="segments")
        assert [row.offset for row in frame.where("offset BETWEEN 12 AND 14").select("offset").collect()] == [12, 13, 14]
        assert frame.where(frame["append_time"] >= first_time).where("offset < 20").count() == 10
        kafka = read(spark, broker.url(), stream=name, history="segments", columns="kafka")
        assert kafka.where("offset = 15 AND value = X'3135'").count() == 1
        with pytest.raises(Exception, match=r"set option history to auto"):
            frame.where("length(body) > 1").count()
    finally:
        for file, moved in zip(kept, away, strict=True):
            moved.rename(file)
    assert json.dumps(read(spark, broker.url(), stream=name).where("routing_key = 'no'").count()) == "0"
