"""From ranges of offsets to tasks: a task is a list of slices, each a range of one stream with the segments that have it.

Planning a task costs Spark some 50 ms, so small batches are one task, whatever their streams. Large ones are cut into
pieces of about the same number of messages, at the seams of row groups where there are any: none is decoded twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from pyspark.sql.datasource import InputPartition

from leveret.segments.manifest import Segment
from leveret.spark.holding import Held, Holding

# Messages for which another task is worth its while.
WORTH_A_TASK: Final = 50_000
# A seam of row groups is taken for a cut where it is no farther away than this share of a task.
NEAR: Final = 0.2


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of one stream.

    stream, partition, id  its name, the number of its partition, and its own id
    first, stop   offsets, from the one to before the other
    segments      files with some of them, in order
    """

    stream: str
    partition: int
    id: str
    first: int
    stop: int
    segments: tuple[Segment, ...] = ()

    @property
    def count(self) -> int:
        return self.stop - self.first

    def part(self, first: int, stop: int) -> Slice:
        return replace(self, first=first, stop=stop, segments=tuple(
            segment for segment in self.segments if segment.first < stop and segment.last >= first))

    def seams(self) -> Iterator[int]:
        """Offsets at which row groups of its segments begin, as far as that is known."""
        for segment in self.segments:
            yield segment.first
            if segment.count == segment.last - segment.first + 1:
                yield from list(accumulate(segment.groups, initial=segment.first))[1:]


class StreamPartition(InputPartition):
    """What one task reads, in order. `holding` is that of the whole batch."""

    def __init__(self, slices: tuple[Slice, ...], holding: Holding | None = None) -> None:
        super().__init__(None)
        self.slices = slices
        self.holding = holding

    def __repr__(self) -> str:
        ranges = ", ".join(f"{part.stream}[{part.first}:{part.stop}]" for part in self.slices)
        return f"StreamPartition({ranges})"


def plan(slices: Iterable[Slice], min_partitions: int | None, holding: Holding | None = None) -> list[StreamPartition]:
    """Tasks for the slices, of which those with segments are held; none where they are empty."""
    pieces = [part for part in slices if part.count > 0]
    total = sum(part.count for part in pieces)
    if not total:
        return []
    wanted = min_partitions or min(os.cpu_count() or 1, -(-total // WORTH_A_TASK))
    wanted = min(max(wanted, 1), total)
    share = -(-total // wanted)
    tasks: list[list[Slice]] = [[]]
    room = share
    for part in pieces:
        rest = part
        while rest.count > room:
            cut = rest.first + room
            if min_partitions is None:
                cut = _near_seam(rest, cut, int(share * NEAR))
            tasks[-1].append(rest.part(rest.first, cut))
            tasks.append([])
            rest = rest.part(cut, rest.stop)
            room = share
        tasks[-1].append(rest)
        room -= rest.count
        if room <= 0:
            tasks.append([])
            room = share
    if holding is not None:
        holding = replace(holding, held=tuple(
            Held(part.stream, part.first, part.stop - 1) for part in pieces if part.segments))
    return [StreamPartition(tuple(task), holding) for task in tasks if task]


def _near_seam(part: Slice, cut: int, distance: int) -> int:
    near = [seam for seam in part.seams() if part.first < seam < part.stop and abs(seam - cut) <= distance]
    return min(near, key=lambda seam: abs(seam - cut)) if near else cut
