"""Admission control: how much of what is there goes into one batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Run:
    """Messages up to before the offset `stop`, and octets of one of them on average."""

    stop: int
    size: float


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a stream has for a batch: offsets from `first` to before `stop`.

    size  octets of one on average, where nothing better is known (0: nor this)
    runs  the beginning, as far as sizes of its parts are known, in order and without gaps
    """

    name: str
    first: int
    stop: int
    size: float = 0.0
    runs: tuple[Run, ...] = ()

    @property
    def count(self) -> int:
        return max(self.stop - self.first, 0)

    @property
    def octets(self) -> float:
        return sum(count * size for count, size in self._parts())

    def within(self, octets: float) -> int:
        """How many messages from the first one on have so many octets."""
        found = 0.0
        for count, size in self._parts():
            if count * size > octets:
                return int(found + octets / size)
            octets -= count * size
            found += count
        return self.count

    def _parts(self) -> Iterator[tuple[int, float]]:
        """Counts, and octets of each message."""
        position = self.first
        for run in self.runs:
            stop = min(run.stop, self.stop)
            if stop > position:
                yield stop - position, run.size
                position = stop
        if self.stop > position:
            yield self.stop - position, self.size


def share_out(backlogs: list[Backlog], messages: int | None, octets: int | None) -> list[Backlog]:
    """The same, cut to so many messages and octets in all; each stream gets its share by what it has, and one message at
    least where there is any room."""
    if octets is not None:
        whole = sum(backlog.octets for backlog in backlogs)
        if whole > octets:
            cut = [replace(backlog, stop=backlog.first + backlog.within(backlog.octets * octets / whole))
                   for backlog in backlogs]
            if not any(backlog.count for backlog in cut):
                # The first message goes, however large it is.
                index = next(index for index, backlog in enumerate(backlogs) if backlog.count)
                cut[index] = replace(cut[index], stop=cut[index].first + 1)
            backlogs = cut
    total = sum(backlog.count for backlog in backlogs)
    if messages is None or messages >= total:
        return backlogs
    # The remainders go to those with the largest, so that the sum is exactly what is allowed.
    shares = [backlog.count * messages / total for backlog in backlogs]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(len(backlogs)), key=lambda index: counts[index] - shares[index])
    for index in by_remainder[: messages - sum(counts)]:
        counts[index] += 1
    return [replace(backlog, stop=backlog.first + count) for backlog, count in zip(backlogs, counts, strict=True)]
