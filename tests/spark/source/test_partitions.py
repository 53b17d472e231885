"""Planning of tasks."""

from __future__ import annotations

import pytest

from leveret import sync
from leveret.segments.manifest import Segment
from leveret.spark.options import read_options
from leveret.spark.source.partitions import Slice, plan
from leveret.spark.source.stream_reader import StreamReader
from leveret.spark.source.target import Target
from tests.spark.support import declare_stream, numbers, publish
from tests.support.broker import LeveretProcess


def part(stream: str, first: int, stop: int, group: int = 0) -> Slice:
    """Return a slice, in one segment with row groups of that size if it is not 0."""
    if not group:
        return Slice(stream, 0, stream, "id", first, stop)
    count = stop - first
    segment = Segment(
        id="1",
        path="/s",
        first=first,
        last=stop - 1,
        count=count,
        bytes=1,
        body_bytes=1,
        first_time=0,
        last_time=0,
        schema_version=1,
        crc32=0,
        groups=tuple(min(group, count - start) for start in range(0, count, group)),
    )
    return Slice(stream, 0, stream, "id", first, stop, (segment,))


def ranges(slices: list[Slice], min_partitions: int | None, max_records: int | None) -> list[list[tuple[str, int, int]]]:
    tasks = plan(slices, min_partitions, max_records)
    return [[(piece.stream, piece.first, piece.stop) for piece in task.slices] for task in tasks]


def test_a_maximum_of_messages_per_task() -> None:
    slices = [part("a", 5, 30), part("b", 0, 3)]
    assert ranges(slices, None, 28) == [[("a", 5, 30), ("b", 0, 3)]]
    assert ranges(slices, None, 10) == [[("a", 5, 15)], [("a", 15, 25)], [("a", 25, 30), ("b", 0, 3)]]
    assert len(ranges(slices, 7, 10)) == 7
    assert len(ranges(slices, 2, 1)) == 28
    assert ranges([part("a", 0, 0)], None, 1) == []


@pytest.mark.parametrize(
    ("counts", "parallelism", "tasks"),
    [
        ([50_000], "64", 1),
        ([50_001], "64", 2),
        ([1_000_000], "64", 20),
        ([1_000_000], "8", 8),
        ([500_000, 500_000], "8", 8),
        # A task for each partition of a super stream, unless the batch is small.
        ([1000] * 40, "8", 1),
        ([2000] * 40, "8", 40),
    ],
)
def test_the_default_number_of_tasks(
    counts: list[int], parallelism: str, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEVERET_SPARK_PARALLELISM", parallelism)
    partitions = len(counts) > 2
    slices = [
        Slice(f"s-{number}", number, "s" if partitions else f"s-{number}", "id", 0, count)
        for number, count in enumerate(counts)
    ]
    assert len(plan(slices, None, None)) == tasks


@pytest.mark.parametrize(
    ("count", "group", "maximum", "stops"),
    [(1000, 270, 500, [500, 1000]), (1000, 270, 540, [540, 1000]), (2000, 460, 1000, [920, 1840, 2000])],
)
def test_row_groups_do_not_exceed_the_maximum(count: int, group: int, maximum: int, stops: list[int]) -> None:
    """A cut at the boundary of a row group makes a task larger or smaller than its share."""
    tasks = ranges([part("a", 0, count, group)], None, maximum)
    assert [stop for ((_, _, stop),) in tasks] == stops


def test_a_batch_waits_for_its_minimum_until_the_delay_is_over(
    broker: LeveretProcess, connection: sync.Connection, name: str
) -> None:
    declare_stream(connection, name)
    publish(connection, name, numbers(0, 3))

    def end(delay: str) -> int:
        options = {"stream": name, "minMessagesPerTrigger": "10", "maxTriggerDelay": delay, "startingOffsets": "earliest"}
        reader = StreamReader(read_options({"url": broker.url(), **options}), Target("stream", "stream", name))
        found = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())["streams"][name]["next"]
        reader.stop()
        return int(found)

    assert end("1h") == 0
    assert end("0ms") == 3
