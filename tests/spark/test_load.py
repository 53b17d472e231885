"""`pyspark_amqp.load` returns the same rows as the data source, but Spark itself reads the sealed part."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pyspark_amqp
from leveret import sync
from leveret.spark.errors import OffsetError, OptionError, ReadFailed, SparkError
from tests.spark.source.test_history import file_of, middle_of_bodies, run_command, seal
from tests.spark.support import bodies, declare_stream, numbers, publish, read
from tests.support.broker import LeveretProcess
from tests.support.polling import wait_until
from tests.support.requests import ask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEALED = 200
TOTAL = 250


@pytest.fixture
def stream(broker: LeveretProcess, connection: sync.Connection, name: str) -> str:
    """A stream with two sealed segments and an unsealed tail."""
    return make(broker, connection, name)


@pytest.fixture(scope="module")
def unchanged(shared_broker: LeveretProcess) -> str:
    """Return a stream for tests that only read it."""
    with sync.connect(shared_broker.url()) as connection:
        return make(shared_broker, connection, "unchanged")


def make(broker: LeveretProcess, connection: sync.Connection, name: str, first: int = 0, **properties: Any) -> str:
    declare_stream(connection, name)
    properties = {"headers": {"number": 7, "text": "grün"}, "message_id": "m", "priority": 3, **properties}
    for begin, stop in ((0, 80), (80, SEALED)):
        publish(connection, name, numbers(first + begin, first + stop), **properties)
        seal(broker, connection, name, stop)
    publish(connection, name, numbers(first + SEALED, first + TOTAL), **properties)
    return name


def load(spark: SparkSession, broker: LeveretProcess, **options: Any) -> DataFrame:
    return pyspark_amqp.load(spark, url=broker.url(), **options)


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def rows(frame: DataFrame) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: (row.queue, row.offset))


def test_the_rows_equal_those_of_the_data_source(spark: SparkSession, broker: LeveretProcess, unchanged: str) -> None:
    found, expected = load(spark, broker, stream=unchanged), read(spark, broker.url(), stream=unchanged)
    assert found.schema == expected.schema
    assert rows(found) == rows(expected)
    assert found.count() == TOTAL
    # Also if everything is sealed and the data source has nothing to read.
    sealed = load(spark, broker, stream=unchanged, endingOffsets=json.dumps({unchanged: SEALED}))
    assert "BatchScan" in plan_of(found) and "BatchScan" not in plan_of(sealed)
    assert sealed.schema == expected.schema
    assert rows(sealed) == rows(expected)[:SEALED]


def test_spark_reads_the_files_and_only_the_required_columns(
    spark: SparkSession, broker: LeveretProcess, unchanged: str
) -> None:
    frame = load(spark, broker, stream=unchanged).where("offset >= 90 and offset < 120").select("body")
    plan = plan_of(frame)
    assert "PushedFilters: [IsNotNull(offset), GreaterThanOrEqual(offset,90), LessThan(offset,120)]" in plan
    assert "ReadSchema: struct<offset:bigint,body:binary>" in plan
    assert sorted(int(row.body) for row in frame.collect()) == list(range(90, 120))


@pytest.mark.parametrize(
    ("condition", "first"), [("offset >= 240", 240), ("offset < 10", 0), ("partition = 1 AND offset >= 0", None)]
)
def test_filters_are_pushed_to_the_data_source(
    spark: SparkSession, broker: LeveretProcess, unchanged: str, condition: str, first: int | None
) -> None:
    pyspark_amqp.register(spark)
    frame = load(spark, broker, stream=unchanged).where(condition)
    scan = plan_of(frame).rsplit("BatchScan", 1)[0].rsplit("\n", 2)[-2:]
    assert not re.search("[<>=]", "".join(scan))
    assert bodies(frame) == ([] if first is None else numbers(first, min(first + 10, TOTAL)))


@pytest.mark.parametrize(
    ("first", "stop"), [(0, SEALED), (70, 90), (79, 80), (150, 220), (SEALED, TOTAL), (230, 231), (9, 9)]
)
def test_a_range_of_offsets(spark: SparkSession, broker: LeveretProcess, unchanged: str, first: int, stop: int) -> None:
    frame = load(
        spark,
        broker,
        stream=unchanged,
        startingOffsets=json.dumps({unchanged: first}),
        endingOffsets=json.dumps({unchanged: stop}),
        columns="offset,body",
    )
    assert frame.columns == ["offset", "body"]
    assert bodies(frame) == numbers(first, stop)


def test_later_messages_are_not_included(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, stream: str
) -> None:
    """The call determines the range, however much is sealed."""
    frame = load(spark, broker, stream=stream)
    publish(connection, stream, numbers(TOTAL, 300))
    seal(broker, connection, stream, 300)
    assert bodies(frame) == numbers(0, TOTAL)


def test_partitions_of_a_super_stream(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str
) -> None:
    with connection.channel() as channel:
        channel.declare_exchange(name, "x-consistent-hash", durable=True)
        for number in range(2):
            make(broker, connection, f"{name}-{number}", 1000 * number)
            channel.bind_queue(f"{name}-{number}", name, "1")
        frame = load(spark, broker, superStream=name)
        # A partition that is added later is not read.
        declare_stream(connection, f"{name}-2")
        channel.bind_queue(f"{name}-2", name, "1")
    found = rows(frame)
    assert [(row.queue, row.partition, row.offset) for row in found] == [
        (f"{name}-{number}", number, offset) for number in range(2) for offset in range(TOTAL)
    ]
    assert [row.body.decode() for row in found] == numbers(0, TOTAL) + numbers(1000, 1000 + TOTAL)


def test_routing_keys_and_headers(spark: SparkSession, broker: LeveretProcess, unchanged: str) -> None:
    other = load(spark, broker, stream=unchanged, routingKeyFilter="no.#", headersFormat="map")
    assert other.count() == 0
    found = load(spark, broker, stream=unchanged, routingKeyFilter=f"#.{unchanged}", headersFormat="map")
    assert found.count() == TOTAL
    assert {(row.headers["text"], row.headers_json) for row in found.collect()} == {("grün", None)}


def test_erased_messages(spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, stream: str) -> None:
    run_command(broker, "streams", "erase", stream, "--where", "body:$=70", "--remove")
    assert bodies(load(spark, broker, stream=stream)) == [*numbers(0, 70), *numbers(71, TOTAL)]


@pytest.mark.parametrize("fault", ["missing", "truncated", "another"])
def test_a_file_that_does_not_match_the_manifest(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, stream: str, fault: str
) -> None:
    """The driver detects it; with `auto` the data source reads the rest, once the broker has the file again."""
    with connection.channel() as channel:
        file, other = file_of(channel, stream, 1), file_of(channel, stream, 0)
    kept = file.read_bytes()
    frame = load(spark, broker, stream=stream)
    if fault == "missing":
        file.unlink()
    else:
        file.write_bytes(other.read_bytes() if fault == "another" else kept[:-100])
    try:
        with pytest.raises(ReadFailed, match=f"segment .*{file.name}.*history to auto"):
            load(spark, broker, stream=stream, history="segments")
        auto = load(spark, broker, stream=stream)
        assert plan_of(auto).count(file.name) == 0
        if fault != "another":
            # A DataFrame created before the file was removed fails instead of skipping it.
            with pytest.raises(Exception, match=file.name):
                frame.select("body").collect()
    finally:
        file.write_bytes(kept)
    assert bodies(auto) == numbers(0, TOTAL)


def test_a_file_with_a_damaged_page(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, stream: str
) -> None:
    """Only the page's checksum detects it, which Spark verifies; for a small file, the driver verifies it, too."""
    with connection.channel() as channel:
        file = file_of(channel, stream, 1)
    kept = file.read_bytes()
    at = middle_of_bodies(kept)
    planned = load(spark, broker, stream=stream)
    file.write_bytes(kept[:at] + bytes([kept[at] ^ 1]) + kept[at + 1 :])
    try:
        with pytest.raises(Exception, match=file.name):
            planned.select("body").collect()
        with pytest.raises(ReadFailed, match=f"segment .*{file.name}.*checksum"):
            load(spark, broker, stream=stream, history="segments")
    finally:
        file.write_bytes(kept)


def test_files_are_pinned(spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    declare_stream(connection, name, x_max_length_bytes=2 << 20)
    publish(connection, name, [b"x" * (200 << 10) for _ in range(5)])
    seal(broker, connection, name, 5)
    frame = load(spark, broker, stream=name, pin_for="10m")
    with connection.channel() as channel:
        segments = ask(channel, "stream.describe", stream=name, segments=True)["segments"]
        publish(connection, name, [b"y" * (200 << 10) for _ in range(20)])
        wait_until(lambda: ask(channel, "stream.describe", stream=name)["first_offset"] >= 5)
    assert segments
    assert [row.offset for row in rows(frame)] == list(range(5))


def test_a_stream_that_was_declared_again(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, stream: str
) -> None:
    frame = load(spark, broker, stream=stream)
    with connection.channel() as channel:
        channel.delete_queue(stream)
    declare_stream(connection, stream)
    publish(connection, stream, numbers(0, TOTAL))
    with pytest.raises(Exception, match="deleted and declared again"):
        frame.collect()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"queue": "q"}, OptionError, "option queue: 'q' is not a stream"),
        (
            {"stream": "s", "maxMessagesPerTrigger": 5},
            OptionError,
            "maxMessagesPerTrigger: not valid in read, only in readStream",
        ),
        ({"stream": "s", "pin_for": "long"}, OptionError, "pin_for: 'long' is invalid; expected a time"),
        ({"stream": "s", "pin_for": "2d"}, OptionError, "at most 1d"),
        ({"stream": "s", "colums": "body"}, OptionError, "did you mean columns"),
        ({"stream": "s", "columns": "bod"}, OptionError, "expected body"),
        ({"stream": "s", "endingOffsets": '{"s": 5}'}, OffsetError, "out of range"),
        ({"stream": "s", "storageOptionsFile": "/nowhere.toml"}, OptionError, "option storageOptionsFile: '/nowhere.toml'"),
    ],
    ids=lambda value: next(reversed(value)) if isinstance(value, dict) else None,
)
def test_invalid_options(
    spark: SparkSession,
    broker: LeveretProcess,
    connection: sync.Connection,
    name: str,
    options: dict[str, Any],
    error: type[SparkError],
    text: str,
) -> None:
    """The error is raised before data is read."""
    kind = "queue" if "queue" in options else "stream"
    if kind == "stream":
        declare_stream(connection, name)
    else:
        with connection.channel() as channel:
            channel.declare_queue(name, durable=True)
    options = {key: str(value).replace('"s"', f'"{name}"') for key, value in options.items()}
    with pytest.raises(error, match=text.replace("'q'", f"'{name}'").replace("(", r"\(")):
        load(spark, broker, **{**options, kind: name})


def test_no_plan_contains_the_password(
    spark: SparkSession, own_password: LeveretProcess, name: str, tmp_path: Path
) -> None:
    with sync.connect(own_password.url()) as connection:
        declare_stream(connection, name)
        publish(connection, name, ["1"])
    frame = pyspark_amqp.load(spark, url=own_password.url(), stream=name)
    assert bodies(frame) == ["1"]
    assert "pa55word" not in str(frame._jdf.queryExecution().toString())
