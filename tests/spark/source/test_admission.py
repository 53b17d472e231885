"""Admission control: how many of the available messages a batch reads."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        (Backlog("s", 0, 1, 100.0), 1, 1),
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


EMPTY, MANY, LARGE = Backlog("e", 5, 5, 10.0), Backlog("m", 0, 1000, 1.0), Backlog("l", 0, 10, 900.0)
HOT, SMALL = Backlog("h", 0, 1_000_000, 100.0), Backlog("s", 7, 10, 100.0)


@pytest.mark.parametrize(
    ("backlogs", "max_messages", "max_bytes", "turn", "counts"),
    [
        ([EMPTY, MANY, LARGE], 5000, None, 0, [0, 1000, 10]),
        ([EMPTY, MANY, LARGE], None, 5000, 0, [0, 451, 5]),
        ([EMPTY, MANY, LARGE], 101, 5000, 0, [0, 99, 2]),
        # Every stream with a backlog gets a message, whatever the others have.
        ([HOT, SMALL], 1000, None, 0, [999, 1]),
        ([SMALL, HOT], None, 100_000, 0, [1, 998]),
        ([HOT, EMPTY, SMALL], 2, None, 0, [1, 0, 1]),
        # Streams take turns if the limit is smaller than their number.
        ([HOT, EMPTY, SMALL], 1, None, 0, [1, 0, 0]),
        ([HOT, EMPTY, SMALL], 1, None, 1, [0, 0, 1]),
        ([HOT, EMPTY, SMALL], 1, None, 2, [0, 0, 1]),
        ([EMPTY, LARGE, LARGE], None, 1, 0, [0, 1, 0]),
        ([EMPTY, LARGE, LARGE], None, 1, 2, [0, 0, 1]),
        ([EMPTY, LARGE, LARGE], 5, 1000, 2, [0, 0, 1]),
    ],
)
def test_limits_of_several_streams(
    backlogs: list[Backlog], max_messages: int | None, max_bytes: int | None, turn: int, counts: list[int]
) -> None:
    cut = apply_limits(backlogs, max_messages, max_bytes, turn)
    assert [backlog.count for backlog in cut] == counts
    assert [backlog.first for backlog in cut] == [backlog.first for backlog in backlogs]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from((0.0, 1.0, 50.0))), min_size=1, max_size=6),
    st.one_of(st.none(), st.integers(1, 8)),
    st.one_of(st.none(), st.integers(1, 200)),
)
def test_every_backlog_is_read_while_another_stream_grows(
    streams: list[tuple[int, float]], max_messages: int | None, max_bytes: int | None
) -> None:
    """Each batch respects the limits, and each stream gets a message within as many batches as there are streams."""
    places = [0] * (len(streams) + 1)
    ends = [count for count, _ in streams]
    sizes = [*(size for _, size in streams), 1.0]
    read_at = list(places)
    for number in range(1, 4 * len(places)):
        # The last stream always has more messages than a batch can read.
        backlogs = [
            Backlog(str(index), place, stop, size)
            for index, (place, stop, size) in enumerate(zip(places, [*ends, places[-1] + 1000], sizes, strict=True))
        ]
        cut = apply_limits(backlogs, max_messages, max_bytes, turn=sum(places))
        counts = [backlog.count for backlog in cut]
        assert sum(counts) == 1 or max_messages is None or sum(counts) <= max_messages
        assert sum(counts) == 1 or max_bytes is None or sum(backlog.n_bytes for backlog in cut) <= max_bytes + 1e-6
        for index, (backlog, count) in enumerate(zip(backlogs, counts, strict=True)):
            if count or not backlog.count:
                read_at[index] = number
            assert number - read_at[index] <= len(places)
            places[index] += count
    assert places[:-1] == ends or max_messages is not None or max_bytes is not None


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
