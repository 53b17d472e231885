"""Streaming reads of streams of RabbitMQ through a spool: each message once, by the offsets of the stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from leveret import sync
from leveret.spark.connection import ControlClient, endpoint_of
from leveret.spark.errors import DataLoss, OffsetError, OptionError
from leveret.spark.source.target import find_target
from leveret.spark.spool import stream_consumer
from leveret.spark.spool.reader import SpoolReader
from tests.docs.pages import DOCS, blocks
from tests.spark.sinks import settings_of
from tests.spark.support import numbers, publish, run, written
from tests.support.rabbitmq import RabbitProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def connection(rabbit: RabbitProcess) -> Iterator[sync.Connection]:
    with sync.connect(rabbit.url()) as opened:
        yield opened


@pytest.fixture
def stream(connection: sync.Connection, name: str) -> str:
    declare(connection, name)
    publish(connection, name, numbers(0, 200), persistent=True)
    return name


def declare(connection: sync.Connection, name: str, **arguments: Any) -> None:
    with connection.channel() as channel:
        channel.declare_queue(
            name,
            durable=True,
            arguments={"x-queue-type": "stream", **{f"x-{key.replace('_', '-')}": arguments[key] for key in arguments}},
        )


class Run:
    """A run of a query over the available messages, without Spark. A run that is `killed` ends without its `commit`."""

    def __init__(self, rabbit: RabbitProcess, stream: str, directory: Path, limit: int = 1000) -> None:
        settings = settings_of(
            rabbit.url(), stream=stream, mode="spool", spoolDir=directory, maxMessagesPerTrigger=limit, prefetch=50
        )
        self.reader = SpoolReader(settings, stream, "stream")

    def read(self, start: dict[str, Any] | None = None) -> tuple[list[str], dict[str, Any]]:
        """Return the bodies after an offset, and the offset of the end."""
        reader = self.reader
        start = reader.initialOffset() if start is None else start
        reader.prepareForTriggerAvailableNow()
        found: list[str] = []
        while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
            for part in reader.partitions(start, end):
                for batch in reader.read(part):
                    found += [body.decode() for body in batch.column("body").to_pylist()]
            start = end
        return found, start


def test_messages_of_a_stream_are_rows_once(
    spark: SparkSession, rabbit: RabbitProcess, connection: sync.Connection, stream: str, tmp_path: Path
) -> None:
    options = {"stream": stream, "spoolDir": str(tmp_path / "spool")}
    for stop in (200, 250):
        run(spark, rabbit.url(), tmp_path, maxMessagesPerTrigger="90", **options)
        assert written(spark, tmp_path) == numbers(0, stop)
        publish(connection, stream, numbers(stop, stop + 50))
    # The example of the guide.
    example = blocks(DOCS / "spark-queues.md", "python")[-1].text.replace(
        "amqp://guest:guest@localhost:5672/", rabbit.url()
    )
    for name in ("spool/events", "tables/events", "checkpoints/events"):
        example = example.replace(f'"{name}"', repr(str(tmp_path / name)))
    exec(example.replace('"events"', repr(stream)), {})
    assert written(spark, tmp_path / "tables", "events") == numbers(0, 300)


def test_a_driver_killed_after_a_file_was_written_reads_nothing_twice(
    rabbit: RabbitProcess, connection: sync.Connection, stream: str, tmp_path: Path
) -> None:
    first = Run(rabbit, stream, tmp_path, limit=70)
    start = first.reader.initialOffset()
    first.reader.prepareForTriggerAvailableNow()
    first.reader.latestOffset(start, first.reader.getDefaultReadLimit())
    # Spark has not stored the end of the batch, and the messages were not acknowledged.
    first.reader.stop()
    again = Run(rabbit, stream, tmp_path)
    found, end = again.read(start)
    assert found == numbers(0, 200)
    again.reader.commit(end)
    again.reader.stop()
    # No file is left to resume from: the position is in the spool's state.
    assert not list(tmp_path.glob("*.parquet"))
    publish(connection, stream, numbers(200, 230))
    last = Run(rabbit, stream, tmp_path)
    assert last.read(end)[0] == numbers(200, 230)
    last.reader.stop()


def test_a_lost_connection_repeats_nothing(rabbit: RabbitProcess, stream: str, tmp_path: Path) -> None:
    reader = Run(rabbit, stream, tmp_path, limit=60).reader
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end["next"] == 60
    consumer = reader._open_consumer()
    assert consumer._connection is not None
    consumer._connection.close()
    end = reader.latestOffset(end, reader.getDefaultReadLimit())
    rows = [
        int(body)
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for body in batch.column("body").to_pylist()
    ]
    assert len(rows) > 60
    assert rows == list(range(len(rows)))
    reader.stop()


@pytest.mark.parametrize("missing", [60, 90])
def test_a_message_that_is_missing_is_read_again(
    rabbit: RabbitProcess, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    """A broker that cannot keep up with retention skips messages; here the client does, once."""
    first = Run(rabbit, stream, tmp_path, limit=60)
    reader = first.reader
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    following = reader._open_consumer()._consumer.next
    skipped = []

    def skip(timeout: float) -> Any:
        message = following(timeout)
        if message.headers["x-stream-offset"] == missing:
            skipped.append(message)
            message = following(timeout)
        return message

    monkeypatch.setattr(reader._open_consumer()._consumer, "next", skip, raising=False)
    found = []
    while (stop := reader.latestOffset(end, reader.getDefaultReadLimit())) != end:
        for part in reader.partitions(end, stop):
            for batch in reader.read(part):
                found += [int(body) for body in batch.column("body").to_pylist()]
        end = stop
    assert found == list(range(60, 200))
    assert skipped
    reader.stop()


def test_a_stream_that_was_declared_again_is_refused(
    rabbit: RabbitProcess, connection: sync.Connection, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Run(rabbit, stream, tmp_path)
    _, end = first.read()
    first.reader.stop()
    with connection.channel() as channel:
        channel.delete_queue(stream)
    declare(connection, stream)
    monkeypatch.setattr(stream_consumer, "EXPECTED_MESSAGE_TIMEOUT", 0.5)
    for count, expected in (
        (10, "ends before offset 199, which the spool has"),
        (300, "has another message at offset 199"),
    ):
        publish(connection, stream, [f"new {number}" for number in range(count)])
        again = Run(rabbit, stream, tmp_path)
        with pytest.raises(OffsetError, match=expected):
            again.read(end)
        again.reader.stop()


def test_messages_that_retention_has_removed_are_reported(
    rabbit: RabbitProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare(connection, name, max_length_bytes=20_000, stream_max_segment_size_bytes=10_000)
    publish(connection, name, ["0", "1"])
    first = Run(rabbit, name, tmp_path)
    found, end = first.read()
    assert found == ["0", "1"]
    first.reader.stop()
    for _ in range(20):
        publish(connection, name, ["x" * 1000] * 10)
    again = Run(rabbit, name, tmp_path)
    with pytest.raises(DataLoss, match=r"the spool ends at offset 1, and the stream begins at \d+"):
        again.read(end)
    again.reader.stop()


def test_queues_and_streams_are_not_confused(
    rabbit: RabbitProcess, connection: sync.Connection, stream: str, tmp_path: Path
) -> None:
    queue = f"{stream}-queue"
    with connection.channel() as channel:
        channel.declare_queue(queue, durable=True)
    publish(connection, queue, ["1"])
    with pytest.raises(OptionError, match=r"option stream: .*rabbit_classic_queue"):
        Run(rabbit, queue, tmp_path / "stream").read()
    reader = SpoolReader(settings_of(rabbit.url(), queue=stream, mode="spool", spoolDir=tmp_path / "queue"), stream)
    start = reader.initialOffset()
    consumer = reader._open_consumer()
    consumer.pending()  # opens it
    publish(connection, stream, ["1"])
    with pytest.raises(OptionError, match=f"option queue: '{stream}' is a stream; use option stream"):
        consumer.take(1, 1, wait=True)
    reader.stop()
    # The directory of one is refused for the other.
    other = SpoolReader(
        settings_of(rabbit.url(), stream=stream, mode="spool", spoolDir=tmp_path / "queue"), stream, "stream"
    )
    with pytest.raises(OptionError, match=f"is the spool of queue '{stream}' .*, not of stream '{stream}'"):
        other.latestOffset(start, other.getDefaultReadLimit())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"stream": "s", "protocol": "1.0"}, "option protocol: 1.0 reads streams of Leveret only"),
        ({"stream": "s", "mode": "stream"}, "option mode: stream needs Leveret"),
        ({"superStream": "s"}, "option superStream: needs Leveret, .*; use option queue or stream"),
        ({"queue": "s", "mode": "lease"}, "option mode: lease needs Leveret, .*; expected spool"),
    ],
)
def test_what_needs_leveret(rabbit: RabbitProcess, options: dict[str, str], expected: str) -> None:
    settings = settings_of(rabbit.url(), **options)
    control = ControlClient(endpoint_of(settings_of(rabbit.url())))
    with pytest.raises(OptionError, match=expected):
        find_target(settings, control, True)
    control.close()
