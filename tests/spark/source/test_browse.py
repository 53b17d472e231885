"""Batch reads of classic queues by browsing, which does not remove messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leveret import sync
from leveret.client.errors import ChannelClosed
from leveret.spark.options import read_options
from leveret.spark.source.browse_reader import BrowseReader
from tests.spark.support import numbers, publish, read
from tests.support.broker import LeveretProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def browse(broker: LeveretProcess, name: str, **options: str) -> list[dict[str, object]]:
    made = BrowseReader(read_options({"url": broker.url(), "queue": name, **options}), name)
    (part,) = made.partitions()
    return [row for batch in made.read(part) for row in batch.to_pylist()]


def test_through_spark(spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name, durable=True)
        publish(connection, name, numbers(0, 6000), headers={"a": 1})
        frame = read(spark, broker.url(), queue=name)
        rows = frame.selectExpr("CAST(body AS STRING) AS body", "offset", "headers").collect()
        assert [row.body for row in rows] == numbers(0, 6000)
        assert [row.offset for row in rows] == list(range(6000))
        assert rows[0].headers == {"a": "1"}
        assert channel.declare_queue(name, passive=True).message_count == 6000


@pytest.mark.parametrize("protocol", ["0-9-1", "1.0"])
def test_a_browse_removes_nothing(broker: LeveretProcess, connection: sync.Connection, name: str, protocol: str) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name, durable=True)
        assert browse(broker, name, protocol=protocol) == []
        publish(connection, name, numbers(0, 10))
        other = connection.channel()
        consumer = other.consume(name, prefetch=2)
        for _ in range(2):
            consumer.next(10)
        rows = browse(broker, name, protocol=protocol, columns="offset,body,append_time,redelivered")
        # Unacked messages of other consumers are not shown.
        assert rows == [
            {"offset": at, "body": str(at).encode(), "append_time": None, "redelivered": False} for at in range(2, 10)
        ]
        other.close()
        rows = browse(broker, name, protocol=protocol, columns="offset,redelivered")
        assert [row["offset"] for row in rows] == list(range(10))
        assert [row["redelivered"] for row in rows][:3] == [True, True, False]
        left = [channel.queue(name).get() for _ in range(10)]
        assert [message.body.decode() for message in left if message is not None] == numbers(0, 10)


def test_a_deep_queue_with_priorities(broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name, durable=True, arguments={"x-max-priority": 3})
        publish(connection, name, [bytes(1000) for _ in range(5000)])
        publish(connection, name, [b"first"], priority=3)
        publish(connection, name, [bytes(600_000), bytes(600_000)])
        rows = browse(broker, name, columns="body,priority")
        assert len(rows) == 5003
        assert rows[0] == {"body": b"first", "priority": 3}
        assert sum(len(row["body"]) for row in rows if isinstance(row["body"], bytes)) == 5 + 5_000_000 + 1_200_000


def test_invalid_arguments(connection: sync.Connection, name: str) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name, durable=True)
    for no_ack, exclusive in ((False, False), (True, True)):
        with connection.channel() as channel, pytest.raises(ChannelClosed, match="x-browse"):
            channel.consume(name, no_ack=no_ack, exclusive=exclusive, arguments={"x-browse": True}).start()


def test_any_client_can_browse(connection: sync.Connection, name: str) -> None:
    with connection.channel() as channel:
        channel.declare_queue(name, durable=True)
        publish(connection, name, ["a", "b"])
        with channel.consume(name, no_ack=True, arguments={"x-browse": True}) as consumer:
            assert [consumer.next(10).text() for _ in range(2)] == ["a", "b"]
            publish(connection, name, ["c"])
            assert consumer.next(10).text() == "c"
        assert channel.declare_queue(name, passive=True).message_count == 3
