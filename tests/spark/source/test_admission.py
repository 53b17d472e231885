"""Admission control: how many of the available messages a batch reads."""

from __future__ import annotations

import os

import pytest

from leveret import sync
from leveret.spark.options import read_options
from leveret.spark.source.admission import Backlog, Run, apply_limits
from leveret.spark.source.stream_reader import StreamReader
from leveret.spark.source.target import Target
from tests.spark.source.test_history import seal
from tests.spark.support import declare_stream, publish
from tests.support.broker import LeveretProcess

SMALL_THEN_LARGE = (Run(100, 10.0), Run(200, 1000.0))


@pytest.mark.parametrize(
    ("backlog", "max_bytes", "count"),
    [
        (Backlog("s", 0, 300, 100.0), 5000, 50),
        (Backlog("s", 0, 300, 0.0), 1, 300),
        (Backlog("s", 0, 300, 100.0), 30_000, 300),
        (Backlog("s", 0, 300, 100.0), 1, 1),
        (Backlog("s", 0, 200, 0.0, SMALL_THEN_LARGE), 500, 50),
        (Backlog("s", 0, 200, 0.0, SMALL_THEN_LARGE), 3000, 102),
        (Backlog("s", 150, 200, 0.0, SMALL_THEN_LARGE), 3000, 3),
        (Backlog("s", 50, 120, 0.0, SMALL_THEN_LARGE), 3500, 53),
        (Backlog("s", 0, 300, 50.0, SMALL_THEN_LARGE), 102_000, 220),
        (Backlog("s", 100, 200, 0.0, SMALL_THEN_LARGE), 10, 1),
    ],
)
def test_max_bytes_of_one_stream(backlog: Backlog, max_bytes: int, count: int) -> None:
    (cut,) = apply_limits([backlog], None, max_bytes)
    assert (cut.first, cut.count) == (backlog.first, count)


def test_max_bytes_and_messages_of_several_streams() -> None:
    empty, many, large = Backlog("e", 5, 5, 10.0), Backlog("m", 0, 1000, 1.0), Backlog("l", 0, 10, 900.0)
    cut = apply_limits([empty, many, large], None, 5000)
    assert [backlog.count for backlog in cut] == [0, 500, 5]
    assert [backlog.count for backlog in apply_limits([empty, many, large], 101, 5000)] == [0, 100, 1]
    assert [backlog.count for backlog in apply_limits([empty, large, large], None, 1)] == [0, 1, 0]
    assert apply_limits([empty, many, large], 5000, None) == [empty, many, large]


def test_the_manifest_knows_sizes(broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    """The sizes of small messages are not estimated from those of large ones."""
    declare_stream(connection, name)
    publish(connection, name, [os.urandom(10) for _ in range(100)])
    seal(broker, connection, name, 100)
    publish(connection, name, [os.urandom(10_000) for _ in range(50)])
    seal(broker, connection, name, 150)
    options = {"url": broker.url(), "stream": name, "startingOffsets": "earliest", "maxBytesPerTrigger": "21000"}
    reader = StreamReader(read_options(options), Target("stream", "stream", name))
    at, ends = reader.initialOffset(), []
    for _ in range(3):
        at = reader.latestOffset(at, reader.getDefaultReadLimit())
        ends.append(at["streams"][name]["next"])
    reader.stop()
    assert ends == [102, 104, 106]
