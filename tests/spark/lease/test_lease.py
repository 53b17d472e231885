"""Streaming reads of classic queues with leases."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from leveret import sync
from leveret.spark.connection import ControlClient, endpoint_of
from leveret.spark.data_source import AmqpDataSource
from leveret.spark.errors import OffsetError, OptionError, ReadFailed
from leveret.spark.lease.reader import LeaseReader
from leveret.spark.schema import table_schema
from tests.spark.sinks import settings_of
from tests.spark.support import TIMEOUT, publish, run, start, written
from tests.support.broker import LeveretProcess
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def queue(connection: sync.Connection, name: str) -> str:
    with connection.channel() as channel:
        channel.declare_queue(name, durable=True)
    return name


def reader(broker: LeveretProcess, queue: str, **options: Any) -> LeaseReader:
    return LeaseReader(settings_of(broker.url(), queue=queue, **{"lease": "spark", **options}), queue)


def control(broker: LeveretProcess) -> ControlClient:
    return ControlClient(endpoint_of(settings_of(broker.url())))


def leases(broker: LeveretProcess, queue: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = control(broker).request("lease.list", queue=queue)["leases"]
    return found


def batch_of(source: LeaseReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    """Return the end of the next batch, and its bodies."""
    end = source.latestOffset(start, source.getDefaultReadLimit())
    return end, rows_of(source, start, end)


def rows_of(source: LeaseReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    return [
        body
        for part in source.partitions(start, end)
        for batch in source.read(part)
        for body in batch.column("body").to_pylist()
    ]


# The source, without Spark


@pytest.mark.parametrize("protocol", ["0-9-1", "1.0"])
def test_a_repeated_batch_has_the_same_messages(
    broker: LeveretProcess, queue: str, connection: sync.Connection, protocol: str
) -> None:
    source = reader(broker, queue, maxMessagesPerTrigger=3, minPartitions=2, maxRecordsPerPartition=1, protocol=protocol)
    publish(connection, queue, ["1", "2", "3", "4"], persistent=True)
    first = source.initialOffset()
    end, rows = batch_of(source, first)
    assert rows == [b"1", b"2", b"3"]
    assert len(source.partitions(first, end)) == 3
    publish(connection, queue, ["5"])
    assert rows_of(source, first, end) == rows
    last, rest = batch_of(source, end)
    assert rest == [b"4", b"5"]
    assert batch_of(source, last) == (last, [])
    source.commit(end)
    source.commit(last)
    source.stop()
    [lease] = leases(broker, queue)
    assert (lease["committed"], lease["messages"]) == (2, 0)


def test_a_restarted_driver_resumes_and_fences_the_old_one(
    broker: LeveretProcess, queue: str, connection: sync.Connection
) -> None:
    publish(connection, queue, ["1", "2"])
    old = reader(broker, queue)
    first = old.initialOffset()
    end, rows = batch_of(old, first)
    parts = old.partitions(first, end)
    new = reader(broker, queue)
    # The batch is not in the checkpoint yet: it is planned again unchanged.
    assert batch_of(new, new.initialOffset()) == (end, rows)
    with pytest.raises(ReadFailed, match="another query has"):
        list(old.read(parts[0]))
    with pytest.raises(Exception, match="epoch"):
        old.commit(end)
    new.commit(end)
    old.stop()
    new.stop()


def test_foreign_checkpoints_are_rejected(broker: LeveretProcess, queue: str, connection: sync.Connection) -> None:
    publish(connection, queue, ["1", "2"])
    source = reader(broker, queue, maxMessagesPerTrigger=1)
    first = source.initialOffset()
    one, _ = batch_of(source, first)
    two, _ = batch_of(source, one)
    source.commit(one)
    source.commit(two)
    source.stop()
    again = reader(broker, queue)
    limit = again.getDefaultReadLimit()
    with pytest.raises(OffsetError, match="the checkpoint is outdated: it ends with batch 1"):
        again.latestOffset(one, limit)
    with pytest.raises(OffsetError, match="is of lease 'other' of queue"):
        again.latestOffset({**two, "lease": "other"}, limit)
    with pytest.raises(OffsetError, match="are not those of a lease"):
        again.latestOffset({"version": 1, "streams": {}}, limit)
    control(broker).request("lease.release", queue=queue, lease="spark")
    released = reader(broker, queue)
    with pytest.raises(OffsetError, match="the lease was released"):
        released.latestOffset(two, limit)
    released.stop()
    again.stop()


def test_invalid_input_of_a_lease(broker: LeveretProcess, queue: str) -> None:
    with pytest.raises(OptionError, match="option lease: missing"):
        LeaseReader(settings_of(broker.url(), queue=queue), queue)
    options = {"url": broker.url(), "queue": queue, "lease": "l"}
    with pytest.raises(OptionError, match=f"no queue '{queue}-none'"):
        AmqpDataSource({**options, "queue": f"{queue}-none"}).streamReader(table_schema()).initialOffset()
    with pytest.raises(OptionError, match="consumerName: not valid in mode lease"):
        AmqpDataSource({**options, "consumerName": "c"}).streamReader(table_schema()).initialOffset()


def test_unread_batches_return_to_the_queue_after_the_lease_timeout(
    broker: LeveretProcess, queue: str, connection: sync.Connection
) -> None:
    publish(connection, queue, ["1", "2", "3"])
    abandoned = reader(broker, queue, leaseTimeout="100ms", maxMessagesPerTrigger=2)
    first = abandoned.initialOffset()
    end = abandoned.latestOffset(first, abandoned.getDefaultReadLimit())
    abandoned.stop()
    wait_until(lambda: not leases(broker, queue)[0]["messages"], "the batch returns")
    again = reader(broker, queue, maxMessagesPerTrigger=2)
    # The batch is in the checkpoint, so Spark replays it.
    assert rows_of(again, first, end) == [b"1", b"2"]
    again.stop()


# With Spark


@pytest.mark.slow
def test_a_queue_is_read_once_over_several_runs(
    spark: SparkSession, broker: LeveretProcess, queue: str, connection: sync.Connection, tmp_path: Path
) -> None:
    import pyspark_amqp

    publish(connection, queue, [f"{number}" for number in range(10)], persistent=True, headers={"a": 1})
    options = {"queue": queue, "lease": "spark", "maxMessagesPerTrigger": "4"}
    query = run(spark, broker.url(), tmp_path, **options)
    assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [4, 4, 2]
    assert [(lease["committed"], lease["messages"]) for lease in leases(broker, queue)] == [(2, 2)]
    pyspark_amqp.finish(query)
    assert [(lease["committed"], lease["messages"]) for lease in leases(broker, queue)] == [(3, 0)]
    publish(connection, queue, ["10"])
    run(spark, broker.url(), tmp_path, **options)
    assert written(spark, tmp_path) == [f"{number}" for number in range(11)]
    row = spark.read.parquet(str(tmp_path / "out")).where("body = '3'").first()
    assert row is not None
    assert (row.queue, row.routing_key, row.headers_json, row.append_time, row.durable) == (
        queue,
        queue,
        '{"a":1}',
        None,
        True,
    )


@pytest.mark.slow
def test_a_replayed_batch_is_the_same_one(
    spark: SparkSession, broker: LeveretProcess, queue: str, connection: sync.Connection, tmp_path: Path
) -> None:
    publish(connection, queue, [f"{number}" for number in range(5)])
    options = {"queue": queue, "lease": "spark"}
    run(spark, broker.url(), tmp_path, **options)
    before = written(spark, tmp_path)
    # As if the query had been killed before its commit; more messages have arrived since.
    commits = sorted((tmp_path / "checkpoint" / "commits").iterdir())
    for path in (tmp_path / "checkpoint" / "commits").iterdir():
        path.unlink()
    shutil.rmtree(tmp_path / "out")
    assert commits
    publish(connection, queue, ["5", "6"])
    run(spark, broker.url(), tmp_path, **options)
    assert before == ["0", "1", "2", "3", "4"]
    assert written(spark, tmp_path) == ["0", "1", "2", "3", "4", "5", "6"]


def test_a_running_query_reads_new_messages_and_survives_a_broker_restart(
    spark: SparkSession, own_broker: LeveretProcess, name: str, tmp_path: Path
) -> None:
    with sync.connect(own_broker.url()) as connection:
        with connection.channel() as channel:
            channel.declare_queue(name, durable=True)
        query = start(spark, own_broker.url(), tmp_path, available_now=False, queue=name, lease="spark")
        publish(connection, name, ["1", "2"], persistent=True)
        wait_until(lambda: sum(progress.numInputRows for progress in query.recentProgress) == 2, "two rows")
    own_broker.kill()
    own_broker.start()
    with sync.connect(own_broker.url()) as connection:
        publish(connection, name, ["3"], persistent=True)
    wait_until(lambda: sum(progress.numInputRows for progress in query.recentProgress) == 3, "the third row")
    query.stop()
    query.awaitTermination(TIMEOUT)
    assert written(spark, tmp_path) == ["1", "2", "3"]
