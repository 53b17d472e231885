"""Sealed messages are read from segment files and others over AMQP, without gaps or duplicates in between."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import fsspec
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from pyspark.sql.datasource import InputPartition

from leveret import sync
from leveret.management.control_client import call
from leveret.spark.errors import OptionError, ReadFailed
from leveret.spark.options import read_options
from leveret.spark.source.batch_reader import StreamBatchReader
from leveret.spark.source.fetch import StreamFetch
from leveret.spark.source.partitions import StreamPartition
from leveret.spark.source.target import Target
from tests.spark.support import bodies, declare_stream, numbers, publish, read, run, written
from tests.support.broker import LeveretProcess
from tests.support.polling import wait_until
from tests.support.requests import ask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEALED = 9000
TOTAL = 10_000


@pytest.fixture
def stream(broker: LeveretProcess, connection: sync.Connection, name: str) -> str:
    """A stream with two sealed segments and an unsealed tail."""
    declare_stream(connection, name)
    headers = {"number": 7, "text": "grün"}
    for first, stop in ((0, 4000), (4000, SEALED)):
        publish(connection, name, numbers(first, stop), headers=headers, message_id="m", content_type="text/plain")
        seal(broker, connection, name, stop)
    publish(connection, name, numbers(SEALED, TOTAL), headers=headers, message_id="m", content_type="text/plain")
    return name


def seal(broker: LeveretProcess, connection: sync.Connection, name: str, stop: int) -> None:
    """Seal all messages up to an offset."""
    call(broker.data_dir, "streams.seal", {"vhost": "/", "name": name})
    with connection.channel() as channel:
        wait_until(lambda: segments(channel, name) and segments(channel, name)[-1]["last"] == stop - 1)


def segments(channel: sync.Channel, name: str) -> list[dict[str, Any]]:
    return list(ask(channel, "stream.describe", stream=name, segments=True)["segments"])


def run_command(broker: LeveretProcess, *words: str) -> None:
    import subprocess
    import sys

    subprocess.run(
        [sys.executable, "-m", "leveret", *words, "--data-dir", str(broker.data_dir)],
        check=True,
        timeout=180,
        env=os.environ | {"PYTHONPATH": "src"},
        capture_output=True,
    )


def reader(broker: LeveretProcess, name: str, **options: str) -> StreamBatchReader:
    return StreamBatchReader(
        read_options({"url": broker.url(), "stream": name, **options}), Target("stream", "stream", name)
    )


def table(made: StreamBatchReader, planned: list[InputPartition]) -> pa.Table:
    return pa.Table.from_batches([batch for part in planned for batch in made.read(part)])


class OverAmqp:
    """Records the ranges that are read over AMQP."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranges: list[tuple[int, int]] = []
        real = StreamFetch.read

        def watched(fetch: StreamFetch, first: int, stop: int) -> Iterator[object]:
            self.ranges.append((first, stop))
            return real(fetch, first, stop)

        monkeypatch.setattr(StreamFetch, "read", watched)


@pytest.fixture
def over_amqp(monkeypatch: pytest.MonkeyPatch) -> OverAmqp:
    return OverAmqp(monkeypatch)


def file_of(channel: sync.Channel, name: str, number: int) -> Path:
    path = str(segments(channel, name)[number]["path"])
    return Path(urlsplit(path).path)


def test_files_and_tail_are_one_table(broker: LeveretProcess, stream: str, over_amqp: OverAmqp) -> None:
    made = reader(broker, stream, minPartitions="3")
    planned = list(made.partitions())
    assert len(planned) == 3
    found = table(made, planned)
    assert over_amqp.ranges == [(SEALED, TOTAL)]
    assert found.column("offset").to_pylist() == list(range(TOTAL))
    # The rows are the same as over AMQP alone.
    alone = reader(broker, stream, history="amqp")
    other = table(alone, list(alone.partitions()))
    assert over_amqp.ranges[1:] == [(0, TOTAL)]
    for name in found.schema.names:
        assert found.column(name).combine_chunks() == other.column(name).combine_chunks(), name


def test_a_part_of_a_file(broker: LeveretProcess, stream: str, over_amqp: OverAmqp) -> None:
    made = reader(
        broker, stream, startingOffsets=f'{{"{stream}": 3990}}', endingOffsets=f'{{"{stream}": 4010}}', columns="body"
    )
    found = table(made, list(made.partitions()))
    assert found.schema.names == ["body"]
    assert [body.decode() for body in found.column("body").to_pylist()] == numbers(3990, 4010)
    assert not over_amqp.ranges


@pytest.mark.parametrize("fault", ["missing", "damaged", "another"])
def test_a_file_that_cannot_be_read(
    broker: LeveretProcess, connection: sync.Connection, stream: str, over_amqp: OverAmqp, fault: str, tmp_path: Path
) -> None:
    """Only tasks cannot read it; the broker can."""
    with connection.channel() as channel:
        content = file_of(channel, stream, 1).read_bytes()
        other = file_of(channel, stream, 0).read_bytes()
    copy = tmp_path / "copy.parquet"
    if fault == "damaged":
        at = middle_of_bodies(content)
        copy.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    elif fault == "another":
        copy.write_bytes(other)
    strict = reader(broker, stream, history="segments")
    with pytest.raises(ReadFailed, match=r"(?s)segment .*option history to auto"):
        table(strict, elsewhere(strict, 1, copy))
    over_amqp.ranges.clear()
    made = reader(broker, stream)
    found = table(made, elsewhere(made, 1, copy))
    assert found.column("offset").to_pylist() == list(range(TOTAL))
    assert over_amqp.ranges[-2:] == [(4000, SEALED), (SEALED, TOTAL)]


def middle_of_bodies(content: bytes) -> int:
    """Return the position of a byte in compressed bodies; decompression alone may not detect a change there."""
    group = pq.ParquetFile(pa.BufferReader(content)).metadata.row_group(0)
    column = next(group.column(at) for at in range(group.num_columns) if group.column(at).path_in_schema == "body")
    return int(column.data_page_offset) + int(column.total_compressed_size) // 2


def elsewhere(made: StreamBatchReader, number: int, path: Path | str) -> list[InputPartition]:
    """Return the reader's plan as one task, with another path for one segment."""
    (part,) = made.partitions()
    assert isinstance(part, StreamPartition)
    (slice,) = part.slices
    changed = list(slice.segments)
    changed[number] = msgspec.structs.replace(changed[number], path=str(path))
    return [StreamPartition((replace(slice, segments=tuple(changed)),))]


def test_a_file_that_neither_task_nor_broker_can_read(
    broker: LeveretProcess, connection: sync.Connection, stream: str
) -> None:
    made = reader(broker, stream)
    planned = list(made.partitions())
    with connection.channel() as channel:
        file = file_of(channel, stream, 0)
    kept = file.read_bytes()
    file.unlink()
    try:
        with pytest.raises(ReadFailed, match="offset 0: the broker cannot read it"):
            table(made, planned)
    finally:
        file.write_bytes(kept)


def test_files_are_pinned_while_they_are_read(
    broker: LeveretProcess, connection: sync.Connection, name: str, over_amqp: OverAmqp
) -> None:
    """Retention removes the messages, but not the files of a planned batch."""
    declare_stream(connection, name, x_max_length_bytes=2 << 20)
    publish(connection, name, [b"x" * (200 << 10) for _ in range(5)])
    seal(broker, connection, name, 5)
    made = reader(broker, name)
    planned = list(made.partitions())
    publish(connection, name, [b"y" * (200 << 10) for _ in range(20)])
    with connection.channel() as channel:
        wait_until(lambda: ask(channel, "stream.describe", stream=name)["first_offset"] >= 5)
    assert table(made, planned).column("offset").to_pylist() == list(range(5))
    assert not over_amqp.ranges


@pytest.mark.parametrize("history", ["segments", "amqp"])
def test_gaps_of_erased_messages_are_accepted(
    broker: LeveretProcess, connection: sync.Connection, name: str, history: str, tmp_path: Path
) -> None:
    declare_stream(connection, name)
    for who, first, stop in (("a", 0, 100), ("b", 100, 120), ("a", 120, 200)):
        publish(connection, name, numbers(first, stop), headers={"who": who})
    seal(broker, connection, name, 200)
    before = reader(broker, name, history=history)
    planned = list(before.partitions())
    rules = tmp_path / "rules.json"
    rules.write_text('[{"action": "remove", "headers": {"who": "b"}}]')
    run_command(broker, "streams", "erase", name, "--rules", str(rules))
    kept = [*range(100), *range(120, 200)]
    made = reader(broker, name, history=history)
    assert table(made, list(made.partitions())).column("offset").to_pylist() == kept
    # Planned before the erasure and read after it: the old files are pinned; over AMQP the manifest accounts for the gap.
    late = table(before, planned).column("offset").to_pylist()
    assert late == (kept if history == "amqp" else list(range(200)))


class Locked(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Local files that need a key."""

    protocol = "locked"

    def __init__(self, key: str = "", **options: Any) -> None:
        super().__init__(**options)
        if key != "s3cret":
            raise PermissionError("wrong key")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix("locked://")


@pytest.mark.parametrize("name_of_file", ["storage.toml", "storage.json"])
def test_storage_options_reach_the_file_system(
    broker: LeveretProcess, connection: sync.Connection, stream: str, over_amqp: OverAmqp, tmp_path: Path, name_of_file: str
) -> None:
    fsspec.register_implementation("locked", Locked, clobber=True)
    with connection.channel() as channel:
        place = f"locked://{file_of(channel, stream, 1)}"
    file = tmp_path / name_of_file
    file.write_text('key = "s3cret"' if file.suffix == ".toml" else '{"key": "s3cret"}')
    made = reader(broker, stream, storageOptionsFile=str(file), history="segments")
    planned = elsewhere(made, 1, place)
    # Pickled tasks contain the path of the file, not the key.
    sent = pickle.dumps((made, planned))
    assert str(file).encode() in sent and b"s3cret" not in sent
    assert table(*pickle.loads(sent)).column("offset").to_pylist() == list(range(TOTAL))
    assert over_amqp.ranges == [(SEALED, TOTAL)]
    file.write_text('key = "other"' if file.suffix == ".toml" else '{"key": "other"}')
    with pytest.raises(ReadFailed, match="cannot be opened: wrong key"):
        table(*pickle.loads(sent))
    file.write_text("s3cret")
    with pytest.raises(OptionError, match=f"{name_of_file}' is not valid {file.suffix[1:].upper()}; expected") as caught:
        reader(broker, stream, storageOptionsFile=str(file))
    assert "s3cret" not in str(caught.value)


def test_sealed_messages_in_spark(spark: SparkSession, broker: LeveretProcess, stream: str, tmp_path: Path) -> None:
    assert bodies(read(spark, broker.url(), stream=stream, minPartitions="2")) == numbers(0, TOTAL)
    run(spark, broker.url(), tmp_path, stream=stream, startingOffsets="earliest", maxMessagesPerTrigger="4500")
    assert written(spark, tmp_path) == numbers(0, TOTAL)
