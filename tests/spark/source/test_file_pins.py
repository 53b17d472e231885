"""File pins: the segment files of a batch stay until it is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from leveret import sync
from leveret.spark.options import read_options
from leveret.spark.source import batch_reader, stream_reader
from leveret.spark.source.batch_reader import StreamBatchReader
from leveret.spark.source.partitions import StreamPartition
from leveret.spark.source.stream_reader import StreamReader
from leveret.spark.source.target import Target
from tests.spark.source.test_history import OverAmqp, over_amqp, seal, segments
from tests.spark.support import declare_stream, publish
from tests.support.broker import LeveretProcess, leveret_only
from tests.support.polling import wait_until
from tests.support.requests import ask

__all__ = ["over_amqp"]

SIZE = 200 << 10


@pytest.fixture(scope="module")
def broker_without_grace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeveretProcess]:
    """A broker that removes files without a grace time, and merges none."""
    leveret_only("it has settings of its own")
    broker = LeveretProcess(tmp_path_factory.mktemp("hasty"))
    broker.config += "\n[streams]\ngrace = 0\nmerge_below = 0\n"
    with broker.start():
        yield broker


def path_of(segment: dict[str, Any]) -> Path:
    return Path(urlsplit(segment["path"]).path)


@pytest.fixture
def planned(
    broker_without_grace: LeveretProcess, name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[StreamBatchReader | StreamReader, StreamPartition]:
    """A reader and its task for offsets 0 to 9, whose files have no other offsets."""
    with sync.connect(broker_without_grace.url()) as connection:
        declare_stream(connection, name, x_max_length_bytes=20 * SIZE)
        for stop in (5, 10, 15):
            publish(connection, name, [os.urandom(SIZE) for _ in range(5)])
            seal(broker_without_grace, connection, name, stop)
    options = {"url": broker_without_grace.url(), "stream": name, "startingOffsets": "earliest", "arrowBatchRows": "5"}
    target = Target("stream", "stream", name)
    made: StreamBatchReader | StreamReader
    if request.param == "read":
        monkeypatch.setattr(batch_reader, "PIN_SECONDS", 1.5)
        made = StreamBatchReader(read_options({**options, "endingOffsets": f'{{"{name}": 10}}'}), target)
        (part,) = made.partitions()
    else:
        monkeypatch.setattr(stream_reader, "PIN_SECONDS", 1.5)
        made = StreamReader(read_options({**options, "maxMessagesPerTrigger": "10"}), target)
        begin = made.initialOffset()
        (part,) = made.partitions(begin, made.latestOffset(begin, made.getDefaultReadLimit()))
    assert isinstance(part, StreamPartition)
    return made, part


@pytest.mark.parametrize("planned", ["read", "readStream"], indirect=True)
def test_a_batch_that_is_read_for_longer_than_its_pin(
    broker_without_grace: LeveretProcess,
    planned: tuple[StreamBatchReader | StreamReader, StreamPartition],
    name: str,
    over_amqp: OverAmqp,
) -> None:
    made, part = planned
    with sync.connect(broker_without_grace.url()) as connection, connection.channel() as channel:
        # The broker may start sealing before all messages have arrived; then there are more, smaller files.
        sealed = segments(channel, name)
        read = [path_of(segment) for segment in sealed if segment["last"] <= 9]
        unread = [path_of(segment) for segment in sealed if segment["first"] >= 10]
        assert unread and len(read) + len(unread) == len(sealed)
        batches = made.read(part)
        found = next(batches).column("offset").to_pylist()
        assert found and found[-1] < 9
        # Pinned after the files of the batch and not renewed. When this pin has expired, theirs would have, too.
        ask(channel, "stream.hold", stream=name, holder="other", first=10, last=14, seconds=2)
        publish(connection, name, [os.urandom(SIZE) for _ in range(22)])
        wait_until(lambda: ask(channel, "stream.describe", stream=name)["first_offset"] >= 15)
        wait_until(lambda: not any(path.exists() for path in unread))
        assert all(path.exists() for path in read)
        found += [offset for batch in batches for offset in batch.column("offset").to_pylist()]
        assert found == list(range(10))
        assert not over_amqp.ranges
        wait_until(lambda: not any(path.exists() for path in read))
