"""Sinks in Spark: all types round-trip, the documented examples run, and invalid input fails before a publish."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from pyspark.errors import AnalysisException

from leveret import sync
from leveret.client import amqp10
from leveret.spark.options import OPTIONS, SINK
from tests.docs.pages import DOCS
from tests.spark.sinks import bodies, drain
from tests.spark.support import TIMEOUT, declare_stream, publish, read
from tests.support.broker import LeveretProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

# Columns that the broker sets for each message.
NOT_COMPARED = ("queue", "offset", "append_time", "exchange", "routing_key", "protocol")


def rows_of(frame: DataFrame) -> list[Row]:
    return frame.drop(*NOT_COMPARED).collect()


def through(spark: SparkSession, url: str, source: str, target: str, protocol: str) -> tuple[list[Row], list[Row]]:
    """Copy a stream to another one. Returns the rows of both."""
    frame = read(spark, url, stream=source)
    (
        frame.write.format("amqp")
        .mode("append")
        .options(url=url, protocol=protocol, exchange="", routingKey=target, txnAppId=target, txnVersion="1")
        .save()
    )
    return rows_of(frame), rows_of(read(spark, url, stream=target))


def test_every_type_of_0_9_1_round_trips(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str
) -> None:
    for suffix in ("-in", "-out"):
        declare_stream(connection, name + suffix)
    headers = {
        "int": 5,
        "long": 1 << 40,
        "negative": -7,
        "float": 1.5,
        "decimal": Decimal("12.50"),
        "text": "naïve",
        "bytes": b"\x00\xff",
        "true": True,
        "none": None,
        "time": datetime(2026, 5, 1, tzinfo=UTC),
        "list": [1, "two", [None]],
        "table": {"x": {"y": 1}},
    }
    publish(
        connection,
        f"{name}-in",
        [b"\x00\xff", b""],
        headers=headers,
        content_type="text/plain",
        content_encoding="gzip",
        delivery_mode=2,
        priority=7,
        correlation_id="c",
        reply_to="answers",
        message_id="m",
        timestamp=datetime(2026, 5, 1, 12, tzinfo=UTC),
        type="kind",
        user_id="guest",
        app_id="app",
    )
    publish(connection, f"{name}-in", [b"bare"])
    before, after = through(spark, broker.url(), f"{name}-in", f"{name}-out", "0-9-1")
    assert after[:2] == before[:2]
    assert len(before) == len(after) == 3
    assert after[0].headers_json is not None
    # Messages without a delivery mode become persistent.
    assert (before[2].durable, after[2].durable) == (False, False)


MESSAGES: dict[str, Any] = {
    "everything": amqp10.Message(
        body=b"\x00\xff",
        durable=True,
        priority=7,
        message_id=UUID(int=7),
        user_id=b"guest",
        to="there",
        subject="subject",
        reply_to="/queues/answers",
        correlation_id=5,
        content_type="text/plain",
        content_encoding="gzip",
        absolute_expiry_time=1_800_000_000_000,
        creation_time=1_700_000_000_123,
        group_id="group",
        group_sequence=3,
        reply_to_group_id="other",
        annotations={"x-opt-a": amqp10.UInt(1), "x-opt-b": [1, "two"]},
        application_properties={
            "byte": amqp10.Byte(-1),
            "ubyte": amqp10.UByte(1),
            "short": amqp10.Short(-1),
            "ushort": amqp10.UShort(1),
            "int": amqp10.Int(-1),
            "uint": amqp10.UInt(1),
            "long": -1,
            "ulong": amqp10.ULong(1 << 63),
            "float": amqp10.Float(1.5),
            "double": 0.1,
            "text": "naïve",
            "symbol": amqp10.Symbol("s"),
            "char": amqp10.Char("ü"),
            "binary": b"\x00",
            "true": True,
            "null": None,
            "time": amqp10.Timestamp(1_700_000_000_123),
            "uuid": UUID(int=9),
            "decimal": amqp10.Decimal64.of("12.50"),
        },
        footer={"x-sum": b"\x01"},
    ),
    "binary id": amqp10.Message(body=b"x", message_id=b"\x00\x01", correlation_id=b""),
    "text": amqp10.Message(body=amqp10.Value("naïve")),
    "binary value": amqp10.Message(body=amqp10.Value(b"\xff\xfe")),
    "map": amqp10.Message(body=amqp10.Value({"a": amqp10.UInt(1), "b": [None, True]})),
    "sequence": amqp10.Message(body=amqp10.Sequence([1, "two"])),
}


def test_every_type_of_1_0_round_trips(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str
) -> None:
    for suffix in ("-in", "-out"):
        declare_stream(connection, name + suffix)
    with sync.connect(broker.url(), protocol="1.0") as opened, opened.sender(f"{name}-in") as sender:
        for message in MESSAGES.values():
            sender.send(message)
    before, after = through(spark, broker.url(), f"{name}-in", f"{name}-out", "1.0")
    assert len(before) == len(MESSAGES)
    for what, one, other in zip(MESSAGES, before, after, strict=True):
        assert other == one, what


def test_a_stream_of_1_0_is_converted_to_0_9_1(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str
) -> None:
    declare_stream(connection, f"{name}-in")
    with connection.channel() as channel:
        channel.declare_queue(f"{name}-out", durable=True)
    with sync.connect(broker.url(), protocol="1.0") as opened, opened.sender(f"{name}-in") as sender:
        sender.send(MESSAGES["everything"])
    (
        read(spark, broker.url(), stream=f"{name}-in")
        .write.format("amqp")
        .mode("append")
        .options(url=broker.url(), exchange="", routingKey=f"{name}-out")
        .save()
    )
    [message] = drain(connection, f"{name}-out")
    headers = message.headers
    assert message.body == b"\x00\xff"
    assert (message.properties.message_id, headers["x-opt-message-id-type"]) == (str(UUID(int=7)), "uuid")
    assert (headers["x-opt-to"], headers["x-opt-group-sequence"], message.properties.app_id) == ("there", 3, "group")
    assert (headers["x-opt-a"], headers["x-opt-b"], headers["uint"], headers["text"]) == (1, [1, "two"], 1, "naïve")


def test_a_replayed_batch_takes_effect_once(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    """Replay a batch as if the query was killed after committing it at the broker and before the checkpoint."""
    with connection.channel() as channel:
        channel.declare_queue(f"{name}-in", durable=True)
        channel.declare_queue(f"{name}-out", durable=True)
    publish(connection, f"{name}-in", ["1", "2", "3"])

    def run() -> None:
        rows = (
            spark.readStream.format("amqp")
            .options(url=broker.url(), queue=f"{name}-in", lease="l")
            .load()
            .select("body", "message_id")
        )
        query = (
            rows.writeStream.format("amqp")
            .queryName(name)
            .options(url=broker.url(), exchange="", routingKey=f"{name}-out", guarantee="exactly-once", sinkName="out")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(TIMEOUT)

    run()
    assert bodies(drain(connection, f"{name}-out")) == [b"1", b"2", b"3"]
    for path in (tmp_path / "commits").iterdir():
        path.unlink()
    publish(connection, f"{name}-in", ["4"])
    run()
    assert bodies(drain(connection, f"{name}-out")) == [b"4"]


def test_a_batch_write_within_a_query_is_not_attributed_to_the_query(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name, durable=True)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"body": "1"}\n')
    refused: list[str] = []

    def write(frame: DataFrame, batch: int) -> None:
        writer = frame.write.format("amqp").mode("append").options(url=broker.url(), routingKey=name)
        for _ in range(2):
            writer.save()
        try:
            writer.option("guarantee", "exactly-once").save()
        except AnalysisException as error:
            refused.append(str(error))

    query = (
        spark.readStream.schema("body string")
        .json(str(tmp_path / "in"))
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT)
    # At least once, because repeated writes cannot be identified.
    assert bodies(drain(connection, name)) == [b"1", b"1"]
    assert len(refused) == 1
    assert "exactly-once needs txnAppId and txnVersion" in refused[0]


def test_the_options_of_sinks_are_documented() -> None:
    page = (DOCS / "spark-options.md").read_text()
    for option in OPTIONS:
        if option.modes == (SINK,):
            default = f"`{option.default}`" if option.default is not None else ""
            assert f"| `{option.name}` | {option.type} | {default} | {option.meaning} |" in page


BAD: dict[str, tuple[str, dict[str, str], str]] = {
    "no body": ("'x' AS bodi", {"routingKey": "q"}, "needs a column body"),
    "type of body": (
        "1 AS body",
        {"routingKey": "q"},
        "column body is of type int; the sink amqp accepts binary or string",
    ),
    "type of a column": ("'x' AS body, 1 AS message_id", {"routingKey": "q"}, "column message_id is of type int"),
    "misspelt column": ("'x' AS body, 'k' AS routingkey", {"routingKey": "q"}, "did you mean routing_key?"),
    "unknown column": ("'x' AS body, 1 AS shoes", {"routingKey": "q"}, "does not accept the column shoes"),
    "nowhere to go": ("'x' AS body", {}, "needs an address"),
    "exactly once": ("'x' AS body", {"routingKey": "q", "guarantee": "exactly-once"}, "needs txnAppId and txnVersion"),
    "no dead letters": ("'x' AS body", {"routingKey": "q", "onError": "dead-letter"}, "needs deadLetterExchange"),
    "unknown option": ("'x' AS body", {"routingKey": "q", "garantee": "x"}, "did you mean guarantee"),
    "option of sources": ("'x' AS body", {"routingKey": "q", "maxInFlight": "0"}, "expected an integer from 1 to 1000000"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_invalid_input_fails_before_anything_is_published(spark: SparkSession, broker: LeveretProcess, case: str) -> None:
    columns, options, words = BAD[case]
    frame = spark.sql(f"SELECT {columns}")
    with pytest.raises(AnalysisException) as raised:
        frame.write.format("amqp").mode("append").options(url=broker.url(), **options).save()
    assert words in str(raised.value)


def test_published_messages_cannot_be_replaced(spark: SparkSession, broker: LeveretProcess, tmp_path: Path) -> None:
    frame = spark.sql("SELECT 'x' AS body")
    with pytest.raises(Exception, match="expected mode append"):
        frame.write.format("amqp").mode("overwrite").options(url=broker.url(), routingKey="q").save()
    rows = spark.readStream.format("rate").load().groupBy("value").count().selectExpr("cast(value AS string) AS body")
    query = (
        rows.writeStream.format("amqp")
        .options(url=broker.url(), routingKey="q")
        .outputMode("complete")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match="expected outputMode append or update"):
        query.awaitTermination(TIMEOUT)
