"""Plans tasks for ranges of offsets: a task is a list of slices, each a range of one stream with its segments.

Small batches are one task, whatever their streams. Large ones are cut into parts of about equal size, at boundaries of row
groups if possible, so that no row group is decoded twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from pyspark.sql.datasource import InputPartition

from leveret.segments.manifest import Segment
from leveret.spark.read_limits import default_tasks
from leveret.spark.source.file_pins import FilePin, PinnedRange

# A cut is moved to a boundary of row groups within this share of a task.
CUT_TOLERANCE: Final = 0.2


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of one stream.

    Attributes:
        stream, partition, id: Name, partition number and id of the stream.
        topic: Its super stream if that is read, otherwise the stream.
        first, stop: Offsets; `stop` is exclusive.
        segments: Segments that contain part of the range, in order.
    """

    stream: str
    partition: int
    topic: str
    id: str
    first: int
    stop: int
    segments: tuple[Segment, ...] = ()

    @property
    def count(self) -> int:
        return self.stop - self.first

    def part(self, first: int, stop: int) -> Slice:
        return replace(
            self,
            first=first,
            stop=stop,
            segments=tuple(segment for segment in self.segments if segment.first < stop and segment.last >= first),
        )

    def row_group_starts(self) -> Iterator[int]:
        """Yield the known offsets at which row groups of its segments begin."""
        for segment in self.segments:
            yield segment.first
            if segment.count == segment.last - segment.first + 1:
                yield from list(accumulate(segment.groups, initial=segment.first))[1:]


class StreamPartition(InputPartition):
    """The slices that one task reads, in order. `file_pin` is that of the whole batch."""

    def __init__(self, slices: tuple[Slice, ...], file_pin: FilePin | None = None) -> None:
        super().__init__(None)
        self.slices = slices
        self.file_pin = file_pin

    def __repr__(self) -> str:
        ranges = ", ".join(f"{part.stream}[{part.first}:{part.stop}]" for part in self.slices)
        return f"StreamPartition({ranges})"


def plan(
    slices: Iterable[Slice], min_partitions: int | None, max_records: int | None, file_pin: FilePin | None = None
) -> list[StreamPartition]:
    """Plan tasks of at most `max_records` messages for slices, whose segments are pinned; none if the slices are empty."""
    pieces = [part for part in slices if part.count > 0]
    total = sum(part.count for part in pieces)
    if not total:
        return []
    wanted = min_partitions or default_tasks(total, sum(part.topic != part.stream for part in pieces))
    wanted = min(max(wanted, 1 if max_records is None else -(-total // max_records)), total)
    share = -(-total // wanted)
    slack = total if max_records is None else max_records - share
    tasks: list[list[Slice]] = [[]]
    room = share
    for part in pieces:
        rest = part
        while rest.count > room:
            cut = rest.first + room
            if min_partitions is None:
                cut = _align_cut(rest, cut, int(share * CUT_TOLERANCE), slack)
            tasks[-1].append(rest.part(rest.first, cut))
            tasks.append([])
            rest = rest.part(cut, rest.stop)
            room = share
        tasks[-1].append(rest)
        room -= rest.count
        if room <= 0:
            tasks.append([])
            room = share
    if file_pin is not None:
        file_pin = replace(
            file_pin, ranges=tuple(PinnedRange(part.stream, part.first, part.stop - 1) for part in pieces if part.segments)
        )
    return [StreamPartition(tuple(task), file_pin) for task in tasks if task]


def _align_cut(part: Slice, cut: int, distance: int, slack: int) -> int:
    """Return the row group start nearest to a cut, at most `distance` before and `slack` after it; the cut if none is."""
    first, last = max(part.first + 1, cut - distance), min(part.stop - 1, cut + min(distance, slack))
    near = [start for start in part.row_group_starts() if first <= start <= last]
    return min(near, key=lambda start: abs(start - cut)) if near else cut
