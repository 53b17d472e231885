"""Batch reads from and to a time."""

from __future__ import annotations

import json

import pytest

from leveret import sync
from leveret.spark.errors import OffsetError, OptionError
from leveret.spark.options import STREAM, read_options
from leveret.spark.source.batch_reader import StreamBatchReader
from leveret.spark.source.target import Target
from tests.spark.source.test_history import seal
from tests.spark.support import declare_stream, declare_super_stream, publish
from tests.support.broker import LeveretProcess


def rows(broker: LeveretProcess, **options: str) -> list[tuple[int, int]]:
    """Return offsets and append times in milliseconds."""
    settings = read_options({"url": broker.url(), "columns": "offset,append_time", **options})
    reader = StreamBatchReader(settings, Target(STREAM, *settings.source()))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [(row["offset"], round(row["append_time"].timestamp() * 1000)) for batch in batches for row in batch.to_pylist()]


def fill(broker: LeveretProcess, connection: sync.Connection, name: str) -> list[tuple[int, int]]:
    """Publish messages until they have four append times, most of which have several messages."""
    found: list[tuple[int, int]] = []
    while len({time for _, time in found}) < 4:
        publish(connection, name, ["a", "b", "c"])
        found = rows(broker, stream=name)
    return found


@pytest.mark.parametrize("sealed", [False, True])
def test_times_select_messages_exactly(
    broker: LeveretProcess, connection: sync.Connection, name: str, sealed: bool
) -> None:
    declare_stream(connection, name)
    everything = fill(broker, connection, name)
    if sealed:
        seal(broker, connection, name, len(everything))
    times = sorted({time for _, time in everything})
    for time in (times[0] - 1, *times, times[-1] + 1):
        later = [row for row in everything if row[1] >= time]
        assert rows(broker, stream=name, startingTimestamp=str(time)) == later
        earlier = [row for row in everything if row[1] < time]
        assert rows(broker, stream=name, endingTimestamp=str(time)) == earlier
    between = rows(broker, stream=name, startingTimestamp=str(times[1]), endingTimestamp=str(times[3]))
    assert {time for _, time in between} == {times[1], times[2]}


def test_times_by_stream(broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    declare_super_stream(connection, name, 2)
    one, other = (fill(broker, connection, f"{name}-{number}") for number in range(2))
    starts = json.dumps({f"{name}-0": one[-1][1], f"{name}-1": other[0][1]})
    expected = [row for row in one if row[1] >= one[-1][1]] + other
    assert rows(broker, superStream=name, startingTimestamp=starts) == expected
    with pytest.raises(OptionError, match=f"option endingTimestamp: no time for stream '{name}-1'"):
        rows(broker, superStream=name, endingTimestamp=json.dumps({f"{name}-0": 0}))
    with pytest.raises(OptionError, match="option startingTimestamp: stream 'other' is not read"):
        rows(broker, superStream=name, startingTimestamp=json.dumps({"other": 0}))


def test_a_time_after_the_last_message(broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    declare_stream(connection, name)
    late = str(fill(broker, connection, name)[-1][1] + 1)
    assert rows(broker, stream=name, startingTimestamp=late) == []
    with pytest.raises(OffsetError, match=r"was appended at .* or later; set startingOffsetsByTimestamp"):
        rows(broker, stream=name, startingTimestamp=late, startingOffsetsByTimestampStrategy="error")


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "-5", "1969-12-31T23:59:59.999"])
def test_times_before_1970(broker: LeveretProcess, connection: sync.Connection, name: str, time: str) -> None:
    declare_stream(connection, name)
    everything = fill(broker, connection, name)
    assert rows(broker, stream=name, startingTimestamp=time) == everything
    assert rows(broker, stream=name, endingTimestamp=time) == []


def test_an_end_before_the_start_is_refused(broker: LeveretProcess, connection: sync.Connection, name: str) -> None:
    declare_stream(connection, name)
    times = sorted({time for _, time in fill(broker, connection, name)})
    with pytest.raises(OffsetError, match="option endingTimestamp: the end of stream"):
        rows(broker, stream=name, startingTimestamp=str(times[1]), endingTimestamp=str(times[0]))
    with pytest.raises(OptionError, match="options endingOffsets and endingTimestamp: set only one of them"):
        rows(broker, stream=name, endingOffsets="latest", endingTimestamp=str(times[0]))
