"""Streaming reads are exactly once despite kills of the query, a worker and the broker, and with retention."""

from __future__ import annotations

import copy
import os
import pickle
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from leveret import sync
from leveret.spark.connection import ControlClient, endpoint_of
from leveret.spark.errors import DataLoss, OffsetError
from leveret.spark.options import read_options
from leveret.spark.source.fetch import StreamFetch
from leveret.spark.source.offsets import from_json
from leveret.spark.source.stream_reader import StreamReader
from leveret.spark.source.target import Target
from leveret.spark.source.topology import describe
from tests.spark.support import (
    TIMEOUT,
    declare_stream,
    numbers,
    publish,
    run,
    start,
    written,
)
from tests.support.broker import LeveretProcess
from tests.support.polling import wait_until
from tests.support.proxy import Proxy
from tests.support.requests import ask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_lost_commit_file(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    """Spark repeats batches without a commit in the checkpoint identically."""
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 30))
    run(spark, broker.url(), tmp_path, stream=name, startingOffsets="earliest", maxMessagesPerTrigger="10")
    publish(connection, name, numbers(30, 45))
    for kept in ("1", ""):
        for commit in list((tmp_path / "checkpoint" / "commits").iterdir()):
            if commit.name.removeprefix(".").removesuffix(".crc") > kept:
                commit.unlink()
        run(spark, broker.url(), tmp_path, stream=name, startingOffsets="earliest", maxMessagesPerTrigger="10")
        assert written(spark, tmp_path) == numbers(0, 45)


def test_a_first_batch_with_latest_loses_nothing(broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 10))
    options = {"startingOffsets": "latest", "consumerName": "c"}
    _reader(broker, name, **options).initialOffset()
    # The query dies before its first checkpoint, but the broker has stored its start.
    publish(connection, name, numbers(10, 20))
    first = _reader(broker, name, **options)
    end = first.latestOffset(first.initialOffset(), _all())
    assert _offsets(first, first.partitions(first.initialOffset(), end)) == list(range(10, 20))
    # It dies again with a batch that is planned but not committed: Spark asks for the initial offset again.
    publish(connection, name, numbers(20, 25))
    again = _reader(broker, name, **options)
    assert _offsets(again, again.partitions(again.initialOffset(), end)) == list(range(10, 20))
    assert _offsets(again, again.partitions(end, again.latestOffset(end, _all()))) == list(range(20, 25))


def test_a_first_batch_is_planned_again_identically(broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    """Also if only the batch itself records where it began."""
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 10))
    first = _reader(broker, name, startingOffsets=f'{{"{name}": 3}}')
    end = first.latestOffset(first.initialOffset(), _all())
    again = _reader(broker, name)
    assert again.initialOffset() != first.initialOffset()
    assert _offsets(again, again.partitions(again.initialOffset(), end)) == list(range(3, 10))


def test_the_offset_of_a_query_is_committed_at_the_broker(
    broker: LeveretProcess, connection: sync.Connection, name: str
) -> None:
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 30))
    reader = _reader(broker, name, consumerName="c")
    end = reader.latestOffset(reader.initialOffset(), _all())
    publish(connection, name, numbers(30, 35))
    reader.commit(end)
    with connection.channel() as channel:
        reply = ask(channel, "stream.lag", stream=name, consumer="c")
    assert (reply["next_offset"], reply["lag"]) == (30, 5)


def test_an_available_now_run_ends_with_the_messages_at_its_start(
    broker: LeveretProcess, connection: sync.Connection, name: str
) -> None:
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 10))
    reader = _reader(broker, name, maxMessagesPerTrigger="6")
    reader.prepareForTriggerAvailableNow()
    publish(connection, name, numbers(10, 20))
    at = reader.initialOffset()
    ends = []
    for _ in range(3):
        at = reader.latestOffset(at, reader.getDefaultReadLimit())
        ends.append(at["streams"][name]["next"])
    assert ends == [6, 10, 10]


@pytest.mark.timeout(600)
def test_the_broker_is_killed_while_a_query_runs(
    spark: SparkSession, own_broker: LeveretProcess, name: str, tmp_path: Path
) -> None:
    url = own_broker.url()
    with sync.connect(url) as connection:
        declare_stream(connection, name)
        publish(connection, name, numbers(0, 1000))
        query = start(
            spark,
            url,
            tmp_path,
            available_now=False,
            stream=name,
            startingOffsets="earliest",
            consumerName="c",
            maxMessagesPerTrigger="300",
        )
        try:
            wait_until(lambda: query.lastProgress)
            own_broker.kill()
            own_broker.start()
            publish(connection, name, numbers(1000, 2000))
            wait_until(lambda: sum(progress["numInputRows"] for progress in query.recentProgress) >= 2000)
        finally:
            query.stop()
    assert written(spark, tmp_path) == numbers(0, 2000)


@contextmanager
def _starting(broker: LeveretProcess) -> Iterator[None]:
    """Start the broker in another thread, and wait for it at the end."""
    starting = threading.Thread(target=broker.start)
    starting.start()
    try:
        yield
    finally:
        starting.join()


def test_the_broker_is_killed_between_planning_and_reading(own_broker: LeveretProcess, name: str) -> None:
    with sync.connect(own_broker.url()) as connection:
        declare_stream(connection, name)
        # More than what is in transit between broker and task.
        publish(connection, name, [os.urandom(4_000) for _ in range(10_000)])
    reader = _reader(own_broker, name)
    planned = reader.partitions(reader.initialOffset(), reader.latestOffset(reader.initialOffset(), _all()))
    own_broker.kill()
    with _starting(own_broker):
        assert _offsets(reader, planned) == list(range(10_000))
    # And while a task is reading.
    batches = reader.read(planned[0])
    first = next(batches)
    own_broker.kill()
    with _starting(own_broker):
        assert first.num_rows + sum(batch.num_rows for batch in batches) == 10_000


def test_a_task_may_lose_its_connection_repeatedly(broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    """The broker counts as unreachable only since the last record batch."""
    declare_stream(connection, name)
    publish(connection, name, [b"x" * 300_000] * 30)
    with Proxy(broker) as proxy:
        endpoint = endpoint_of(read_options({"url": proxy.url()}))
        control = ControlClient(endpoint)
        fetch = StreamFetch(endpoint, name, describe(control, name).id, prefetch=1, reconnect_timeout=0.0)
        control.close()
        offsets: list[int] = []
        for batch in fetch.read(0, 30):
            offsets += batch.rows.offsets
            proxy.cut()
        assert proxy.accepted > 3
    assert offsets == list(range(30))


@pytest.mark.timeout(600)
def test_a_worker_is_killed_while_it_reads(
    spark: SparkSession, own_broker: LeveretProcess, name: str, tmp_path: Path
) -> None:
    url = own_broker.url()
    total = 60_000
    with sync.connect(url) as connection:
        declare_stream(connection, name)
        publish(connection, name, numbers(0, total))
    with Proxy(own_broker) as proxy:
        # Only a worker receives this much, and the rest of its messages never arrives.
        proxy.stall_after = 100_000
        query = start(
            spark, proxy.url(), tmp_path, stream=name, startingOffsets="earliest", prefetch="1", minPartitions="1"
        )
        wait_until(lambda: proxy.stalled or not query.isActive, "a worker has read 100 KB")
        _kill_process_at(proxy.stalled[0].client.getpeername()[1], proxy.port)
        with pytest.raises(Exception, match=r"(?s)worker|Job aborted"):
            query.awaitTermination(TIMEOUT)
    run(spark, url, tmp_path, stream=name, startingOffsets="earliest")
    assert sorted(map(int, written(spark, tmp_path))) == list(range(total))


def _kill_process_at(port: int, remote: int) -> None:
    """Kill the process whose end of a TCP connection has these ports. Others may have the same local port."""
    connections = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {
        fields[9] for fields in connections if [int(end.rsplit(":", 1)[1], 16) for end in fields[1:3]] == [port, remote]
    }
    for process in Path("/proc").glob("[0-9]*"):
        try:
            sockets = {re.sub(r"\D", "", os.readlink(link)) for link in (process / "fd").iterdir()}
        except OSError:
            continue
        if sockets & inodes:
            os.kill(int(process.name), signal.SIGKILL)
            return
    pytest.fail(f"no process has a connection from port {port}")


def _reader(broker: LeveretProcess, name: str, **options: str) -> StreamReader:
    return StreamReader(
        read_options({"url": broker.url(), "stream": name, "startingOffsets": "earliest", **options}),
        Target("stream", "stream", name),
    )


def _offsets(reader: StreamReader, planned: Sequence[InputPartition]) -> list[int]:
    return [offset for part in planned for batch in reader.read(part) for offset in batch.column("offset").to_pylist()]


def _all() -> ReadLimit:
    return ReadAllAvailable()


def _wait_removed(connection: sync.Connection, name: str) -> None:
    """Wait until retention has removed the sealed messages."""
    with connection.channel() as channel:
        wait_until(lambda: ask(channel, "stream.describe", stream=name)["first_offset"] > 1)


def test_retention_removes_messages_before_they_are_planned(
    broker: LeveretProcess, connection: sync.Connection, name: str
) -> None:
    declare_stream(connection, name, x_max_length_bytes=1 << 20)
    publish(connection, name, ["first"])
    strict, lenient = _reader(broker, name), _reader(broker, name, failOnDataLoss="false")
    reached = strict.latestOffset(strict.initialOffset(), _all())
    publish(connection, name, [b"x" * (400 << 10) for _ in range(12)])
    _wait_removed(connection, name)
    end = strict.latestOffset(reached, _all())
    with pytest.raises(DataLoss, match=r"messages, from offset 1 to \d+, were removed .*failOnDataLoss to false"):
        strict.partitions(reached, end)
    planned = lenient.partitions(reached, lenient.latestOffset(reached, _all()))
    read = _offsets(lenient, planned)
    assert read == list(range(read[0], 13))
    assert read[0] > 1
    report = lenient.reportLatestOffset()
    assert report is not None
    assert (report["lost"], report["lag"]) == (read[0] - 1, 0)


def test_the_limit_of_a_batch_excludes_removed_messages(
    broker: LeveretProcess, connection: sync.Connection, name: str
) -> None:
    declare_stream(connection, name, x_max_length_bytes=1 << 20)
    publish(connection, name, ["first"])
    reader = _reader(broker, name, failOnDataLoss="false", maxMessagesPerTrigger="1")
    begin = reader.initialOffset()
    publish(connection, name, [b"x" * (400 << 10) for _ in range(12)])
    _wait_removed(connection, name)
    with connection.channel() as channel:
        first = ask(channel, "stream.describe", stream=name)["first_offset"]
    end = from_json(reader.latestOffset(begin, reader.getDefaultReadLimit()))
    assert end.streams[name].next > first


def test_retention_removes_messages_before_a_task_reads_them(
    broker: LeveretProcess, connection: sync.Connection, name: str
) -> None:
    declare_stream(connection, name, x_max_length_bytes=1 << 20)
    publish(connection, name, ["first"])
    strict, lenient = _reader(broker, name), _reader(broker, name, failOnDataLoss="false")
    begin = strict.initialOffset()
    end = strict.latestOffset(begin, _all())
    planned, leniently = strict.partitions(begin, end), lenient.partitions(begin, end)
    publish(connection, name, [b"x" * (400 << 10) for _ in range(12)])
    _wait_removed(connection, name)
    with pytest.raises(DataLoss, match="1 messages, from offset 0 to 0, were removed"):
        list(strict.read(planned[0]))
    # The task, a separate process that is retried, reports the loss; the query counts it once, with the next batch.
    task = pickle.loads(pickle.dumps(lenient))
    for _ in range(2):
        assert list(task.read(leniently[0])) == []
    with connection.channel() as channel:
        removed = ask(channel, "stream.describe", stream=name)["first_offset"]
    for _ in range(2):
        assert lenient.latestOffset(end, _all())["lost"] == {name: removed}
        report = lenient.reportLatestOffset()
        assert report is not None and report["lost"] == removed


def test_losses_are_in_the_checkpoint_after_a_restart(
    broker: LeveretProcess, connection: sync.Connection, name: str
) -> None:
    """Those that a task reports, and those found while a batch is planned, are counted once each."""
    declare_stream(connection, name, x_max_length_bytes=1 << 20)
    publish(connection, name, ["first", "second"])
    options = {"failOnDataLoss": "false", "maxMessagesPerTrigger": "1"}
    died = _reader(broker, name, **options)
    begin = died.initialOffset()
    end = died.latestOffset(begin, died.getDefaultReadLimit())
    planned = died.partitions(begin, end)
    publish(connection, name, [b"x" * (400 << 10) for _ in range(12)])
    _wait_removed(connection, name)
    with connection.channel() as channel:
        removed = int(ask(channel, "stream.describe", stream=name)["first_offset"])
    assert _offsets(died, planned) == []  # message 0 is lost to this task
    died.stop()
    for _ in range(2):  # a driver that dies before the next offset is in the checkpoint
        found = _reader(broker, name, **options)
        later = found.latestOffset(end, found.getDefaultReadLimit())
        assert later["lost"] == {name: removed}
        found.stop()
    last = _reader(broker, name, **options)
    assert _offsets(last, last.partitions(end, later)) == [removed]
    assert last.latestOffset(later, last.getDefaultReadLimit())["lost"] == {name: removed}
    # Between the end of a batch and its plan, which is planned twice.
    behind = copy.deepcopy(later)
    behind["holder"] = "another"
    behind["streams"][name] |= {"next": 1}
    del behind["streams"][name]["first"]
    for _ in range(2):
        assert _offsets(last, last.partitions(begin, behind)) == []
    report = last.latestOffset(behind, last.getDefaultReadLimit())
    assert report["lost"] == {name: removed + 1 + removed - 1}
    # A query that fails on losses from now on keeps the count.
    strict = _reader(broker, name).latestOffset(later, _all())
    assert strict["lost"] == {name: removed} and "holder" not in strict


def test_an_offset_without_news_stays_the_same(broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    """Otherwise Spark would run empty batches."""
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 3))
    reader = _reader(broker, name, failOnDataLoss="false")
    end = reader.latestOffset(reader.initialOffset(), _all())
    assert end["holder"]
    assert reader.latestOffset(end, _all()) == end
    end["streams"][name]["first"] = 1
    assert _reader(broker, name, failOnDataLoss="false").latestOffset(end, _all()) == end


def test_a_stream_of_which_all_messages_are_lost(broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    """The loss is recorded at once, not with the next message."""
    declare_stream(connection, name, x_max_length_bytes=1 << 20)
    publish(connection, name, ["first"])
    reader = _reader(broker, name, failOnDataLoss="false")
    begin = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    publish(connection, name, [b"x" * (400 << 10) for _ in range(12)])
    _wait_removed(connection, name)
    end = reader.latestOffset(begin, _all())
    assert (end["streams"][name]["next"], end["lost"]) == (1, {name: 1})
    assert reader.partitions(begin, end) == []


def test_a_stream_that_is_replaced_under_a_task(broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 10))
    reader = _reader(broker, name)
    begin = reader.initialOffset()
    planned = reader.partitions(begin, reader.latestOffset(begin, _all()))
    with connection.channel() as channel:
        channel.delete_queue(name)
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 20))
    with pytest.raises(OffsetError, match="was deleted and declared again while it was read"):
        list(reader.read(planned[0]))
