"""Lost messages: a batch read records them in files, and a query in its offsets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leveret import sync
from leveret.spark.errors import DataLoss, OptionError, ReadFailed
from leveret.spark.options import STREAM, read_options
from leveret.spark.source.batch_reader import StreamBatchReader
from leveret.spark.source.fetch import record_loss
from leveret.spark.source.target import Target
from tests.spark.support import declare_stream, publish, run
from tests.support.broker import LeveretProcess
from tests.support.polling import wait_until
from tests.support.requests import ask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def reader(broker: LeveretProcess, name: str, **options: str) -> StreamBatchReader:
    return StreamBatchReader(read_options({"url": broker.url(), "stream": name, **options}), Target(STREAM, "stream", name))


def offsets(made: StreamBatchReader) -> list[int]:
    return [
        offset for part in made.partitions() for batch in made.read(part) for offset in batch.column("offset").to_pylist()
    ]


def test_skipped_messages_are_recorded(
    broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name, x_max_length_bytes=1 << 20)
    publish(connection, name, ["first"])
    losses = tmp_path / "losses"
    strict = reader(broker, name)
    lenient = reader(broker, name, failOnDataLoss="false", lossDirectory=str(losses))
    planned, leniently = strict.partitions(), lenient.partitions()
    publish(connection, name, [b"x" * (400 << 10) for _ in range(12)])
    with connection.channel() as channel:
        wait_until(lambda: ask(channel, "stream.describe", stream=name)["first_offset"] > 1)
    with pytest.raises(DataLoss, match="1 messages, from offset 0 to 0, were removed"):
        list(strict.read(planned[0]))
    assert not losses.exists()
    for _ in range(2):  # a repeated task records the loss once
        assert list(lenient.read(leniently[0])) == []
    (file,) = losses.iterdir()
    record = json.loads(file.read_text())
    assert {key: record[key] for key in ("stream", "first_offset", "last_offset", "messages")} == {
        "stream": name,
        "first_offset": 0,
        "last_offset": 0,
        "messages": 1,
    }
    # Messages removed before the read was planned count, too.
    found = offsets(
        reader(broker, name, failOnDataLoss="false", lossDirectory=str(losses), startingOffsets=json.dumps({name: 0}))
    )
    lost = sum(json.loads(path.read_text())["messages"] for path in losses.iterdir() if path != file)
    assert found == list(range(lost, 13)) and lost > 1


def test_the_progress_of_a_query_has_its_losses(
    spark: SparkSession, broker: LeveretProcess, connection: sync.Connection, name: str, tmp_path: Path
) -> None:
    declare_stream(connection, name, x_max_length_bytes=1 << 20)
    options = {"stream": name, "startingOffsets": f'{{"{name}": 0}}', "failOnDataLoss": "false", "columns": "offset"}
    for end in (12, 24):
        publish(connection, name, [b"x" * (400 << 10) for _ in range(12)])
        with connection.channel() as channel:
            wait_until(lambda: ask(channel, "stream.describe", stream=name)["first_offset"] > end - 12)  # noqa: B023
        query = run(spark, broker.url(), tmp_path, **options)
        offset = json.loads(query.recentProgress[-1]["sources"][0]["endOffset"])
        read = spark.read.parquet(str(tmp_path / "out")).count()
        assert offset["streams"][name]["next"] == end
        assert offset["lost"] == {name: end - read}


def test_losses_need_a_directory(broker: LeveretProcess, name: str) -> None:
    with pytest.raises(OptionError, match="option failOnDataLoss: in read, false needs lossDirectory"):
        reader(broker, name, failOnDataLoss="false")


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReadFailed, match=r"option lossDirectory: .* cannot be written .* from offset 3 to 4 are lost"):
        record_loss(str(tmp_path / "file" / "losses"), "orders", 3, 5)
