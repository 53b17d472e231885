"""Streaming reads of any broker's queue through a spool."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from leveret import sync
from leveret.client._sync import driver
from leveret.spark.connection import endpoint_of
from leveret.spark.errors import OffsetError, OptionError
from leveret.spark.spool import directory
from leveret.spark.spool.consumer import SpoolConsumer
from leveret.spark.spool.directory import Spool
from leveret.spark.spool.reader import SpoolReader
from tests.spark.sinks import batch_of, settings_of
from tests.spark.support import TIMEOUT, numbers, publish, run, start, written
from tests.support.broker import Broker, LeveretProcess
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SOURCE = {"queue": "q", "vhost": "/", "broker": "localhost:5672"}


def messages(first: int, count: int) -> Any:
    numbers = range(first, first + count)
    return batch_of(offset=list(numbers), body=[b"%d" % number for number in numbers])


# The directory


def test_a_spool_resumes(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"), SOURCE)
    spool.append(messages(0, 3))
    spool.append(messages(3, 2))
    spool.remove_before(3)
    spool.close()
    again = Spool(str(tmp_path / "spool"), SOURCE)
    assert (again.id, again.first, again.next) == (spool.id, 3, 5)
    assert [(file.first, file.stop) for file in again.files_between(3, 5)] == [(3, 5)]
    again.remove_before(5)
    again.close()
    # The offsets continue even without any file.
    assert Spool(str(tmp_path / "spool"), SOURCE).next == 5


def test_an_unfinished_file_is_ignored(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), SOURCE)
    spool.append(messages(0, 3))
    spool.close()
    (tmp_path / f"{3:020}-{9:020}.parquet.part").write_bytes(b"half")
    assert Spool(str(tmp_path), SOURCE).next == 3
    assert not list(tmp_path.glob("*.part"))


def test_only_the_owner_can_read_files_of_a_spool(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"), SOURCE)
    spool.append(messages(0, 3))
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "spool").iterdir()} == {0}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"queue": "r"}, "is the spool of queue 'q' of vhost '/' at localhost:5672, not of queue 'r'"),
        ({"vhost": "v"}, "not of queue 'q' of vhost 'v'"),
        ({"broker": "elsewhere:5672"}, "at elsewhere:5672"),
    ],
)
def test_the_spool_of_another_queue_is_rejected(tmp_path: Path, other: dict[str, str], words: str) -> None:
    Spool(str(tmp_path), SOURCE).close()
    with pytest.raises(OptionError, match="option spoolDir: ") as raised:
        Spool(str(tmp_path), {**SOURCE, **other})
    assert words in str(raised.value)


def test_a_spool_in_use_is_rejected(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), SOURCE)
    with pytest.raises(OptionError, match="in use by another query"):
        Spool(str(tmp_path), SOURCE, lock_timeout=0)
    spool.close()


def test_a_spool_waits_for_the_process_of_a_query_that_has_just_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Spool(str(tmp_path), SOURCE)
    before.append(messages(0, 3))
    # The other process ends while this one waits. Other threads sleep as usual.
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: before.close())
    monkeypatch.setattr(directory, "time", clock)
    after = Spool(str(tmp_path), SOURCE)
    assert after.next == 3
    after.close()


def test_a_directory_that_is_not_a_spool_is_rejected(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), SOURCE)
    spool.append(messages(0, 1))
    spool.close()
    (tmp_path / "spool.json").write_text("{")
    with pytest.raises(OptionError, match="is damaged"):
        Spool(str(tmp_path), SOURCE)
    (tmp_path / "spool.json").unlink()
    with pytest.raises(OptionError, match=r"has messages, but no spool\.json"):
        Spool(str(tmp_path), SOURCE)
    with pytest.raises(OptionError, match="cannot be used"):
        Spool("/proc/nowhere", SOURCE)


def test_missing_files_and_removed_offsets(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), SOURCE)
    for first in (0, 2, 4):
        spool.append(messages(first, 2))
    Path(spool.files_between(2, 3)[0].path).unlink()
    with pytest.raises(OffsetError, match="has no messages from offset 2: a file is missing"):
        spool.files_between(0, 6)
    with pytest.raises(OffsetError, match="ends at offset 6, but the checkpoint has read up to 7"):
        spool.files_between(4, 7)
    spool.remove_before(4)
    with pytest.raises(OffsetError, match="begins at offset 4, but the checkpoint begins at 1"):
        spool.files_between(1, 5)


# The source


@pytest.fixture(params=["leveret 0-9-1", "leveret 1.0", "rabbitmq"])
def options(request: pytest.FixtureRequest, shared_broker: LeveretProcess, name: str, tmp_path: Path) -> dict[str, str]:
    broker: Broker = request.getfixturevalue("rabbit") if request.param == "rabbitmq" else shared_broker
    with sync.connect(broker.url()) as connection, connection.channel() as channel:
        channel.declare_queue(name, durable=True)
    return {
        "url": broker.url(),
        "protocol": "1.0" if request.param.endswith("1.0") else "0-9-1",
        "queue": name,
        "mode": "spool",
        "spoolDir": str(tmp_path / "spool"),
    }


def count(url: str, queue: str) -> int:
    with sync.connect(url) as connection, connection.channel() as channel:
        return channel.declare_queue(queue, passive=True).message_count


def test_messages_of_any_broker_are_rows_and_are_acknowledged(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    with sync.connect(options["url"]) as connection:
        publish(
            connection,
            options["queue"],
            [f"{number}" for number in range(250)],
            persistent=True,
            message_id="m",
            headers={"x": 1},
        )
        query = run(spark, directory=tmp_path, maxMessagesPerTrigger="100", **options)
        assert written(spark, tmp_path) == [f"{number}" for number in range(250)]
        reports = [progress for progress in query.recentProgress if progress.numInputRows]
        assert [progress.numInputRows for progress in reports] == [100, 100, 50]
        assert [json.loads(progress.sources[0].latestOffset)["lag"] for progress in reports] == [150, 50, 0]
        assert count(options["url"], options["queue"]) == 0
        row = spark.read.parquet(str(tmp_path / "out")).where("offset = 249").first()
        assert row is not None
        assert (row.queue, row.message_id, row.durable, row.headers_json, row.routing_key) == (
            options["queue"],
            "m",
            True,
            '{"x":1}',
            options["queue"],
        )
        # The next run resumes, and committed files are removed.
        publish(connection, options["queue"], ["250"])
        run(spark, directory=tmp_path, **options)
    assert written(spark, tmp_path) == [f"{number}" for number in range(251)]
    left = [path.name for path in (tmp_path / "spool").glob("*.parquet")]
    assert left == [f"{250:020}-{250:020}.parquet"]


def _has_read(query: StreamingQuery, rows: int) -> bool:
    return sum(progress.numInputRows for progress in query.recentProgress) == rows


@pytest.mark.parametrize("options", ["leveret 0-9-1"], indirect=True)
def test_a_running_query_reads_new_messages(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> None:
    query = start(spark, directory=tmp_path, available_now=False, **options)
    try:
        with sync.connect(options["url"]) as connection:
            for number in range(3):
                publish(connection, options["queue"], [f"{number}"])
                wait_until(partial(_has_read, query, number + 1), "the row")
    finally:
        query.stop()
        query.awaitTermination(TIMEOUT)
    assert written(spark, tmp_path) == ["0", "1", "2"]


@pytest.mark.slow
def test_messages_are_counted_before_the_connection_reads_by_itself(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of an idle connection reads once a second, so the count must not depend on it."""
    with sync.connect(options["url"]) as connection:
        publish(connection, options["queue"], numbers(0, 20))
    monkeypatch.setattr(driver, "BUSY_INTERVAL", TIMEOUT)
    monkeypatch.setattr(driver, "IDLE_INTERVAL", TIMEOUT)
    endpoint = endpoint_of(settings_of(**options))
    consumer = SpoolConsumer(endpoint, options["queue"], 8)
    try:
        assert consumer.pending() == 20
        taken = consumer.take(5, 1 << 20, wait=True)
        assert taken is not None
        taken.acknowledge()
        assert consumer.pending() == 15
    finally:
        consumer.close()


def test_messages_on_disk_are_read_once_after_a_kill_of_the_driver(
    shared_broker: LeveretProcess, name: str, tmp_path: Path
) -> None:
    """The driver was killed between writing a file and acknowledging: the broker redelivers."""
    settings = settings_of(shared_broker.url(), queue=name, mode="spool", spoolDir=tmp_path)
    with sync.connect(shared_broker.url()) as connection:
        with connection.channel() as channel:
            channel.declare_queue(name, durable=True)
        publish(connection, name, ["1", "2", "3"])
        reader = SpoolReader(settings, name)
        start = reader.initialOffset()
        taken = wait_until(lambda: reader._open_consumer().take(10, 1 << 20, True), "messages")
        reader._open().append(taken.batch(0, name))
        reader.stop()
        again = SpoolReader(settings, name)
        assert again.initialOffset() == start
        again.prepareForTriggerAvailableNow()
        end = again.latestOffset(start, again.getDefaultReadLimit())
        # At least once from the broker: the three redelivered messages are in the spool twice.
        assert end["next"] == 6
        rows = [
            body
            for part in again.partitions(start, end)
            for batch in again.read(part)
            for body in batch.column("body").to_pylist()
        ]
        assert rows == [b"1", b"2", b"3"] * 2
        # Exactly once from then on: the same offsets give the same rows.
        assert [
            body
            for part in again.partitions(start, end)
            for batch in again.read(part)
            for body in batch.column("body").to_pylist()
        ] == rows
        again.stop()


def test_invalid_input_of_a_spool(shared_broker: LeveretProcess, name: str, tmp_path: Path) -> None:
    url = shared_broker.url()
    with pytest.raises(OptionError, match="option spoolDir: missing"):
        SpoolReader(settings_of(url, queue=name, mode="spool"), name)
    reader = SpoolReader(settings_of(url, queue=name, mode="spool", spoolDir=tmp_path), name)
    with pytest.raises(OptionError, match=f"option queue: .*no queue '{name}'"):
        reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    other = {**reader.initialOffset(), "spool": "another"}
    with pytest.raises(OffsetError, match="the checkpoint is of another spool"):
        reader.latestOffset(other, reader.getDefaultReadLimit())
    with pytest.raises(OffsetError, match="are not those of a spool"):
        reader.partitions({"version": 1, "streams": {}}, other)
    reader.stop()
    state = json.loads((tmp_path / "spool.json").read_text())
    assert state["source"]["queue"] == name
    assert "guest" not in json.dumps(state)
