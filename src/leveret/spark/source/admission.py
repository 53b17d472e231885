"""Admission control: how many of the available messages a batch reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Run:
    """Messages up to before the offset `stop`, with their average size in bytes."""

    stop: int
    size: float


@dataclass(frozen=True, slots=True)
class Backlog:
    """Messages available for a batch in one stream: offsets from `first` to before `stop`.

    Attributes:
        size: Average size in bytes of messages that no run covers, 0 if unknown.
        runs: Leading parts whose sizes are known, in order and without gaps.
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
    def n_bytes(self) -> float:
        return sum(count * size for count, size in self._parts())

    def count_within(self, n_bytes: float) -> int:
        """Return how many messages, starting with the first, fit into `n_bytes`."""
        found = 0.0
        for count, size in self._parts():
            if count * size > n_bytes:
                return int(found + n_bytes / size)
            n_bytes -= count * size
            found += count
        return self.count

    def _parts(self) -> Iterator[tuple[int, float]]:
        """Yield (number of messages, average size)."""
        position = self.first
        for run in self.runs:
            stop = min(run.stop, self.stop)
            if stop > position:
                yield stop - position, run.size
                position = stop
        if self.stop > position:
            yield self.stop - position, self.size


def apply_limits(backlogs: list[Backlog], max_messages: int | None, max_bytes: int | None) -> list[Backlog]:
    """Cut backlogs to at most `max_messages` and `max_bytes` in total.

    Each stream gets a share in proportion to its backlog. At least one message remains, however large it is.
    """
    if max_bytes is not None:
        whole = sum(backlog.n_bytes for backlog in backlogs)
        if whole > max_bytes:
            cut = [
                replace(backlog, stop=backlog.first + backlog.count_within(backlog.n_bytes * max_bytes / whole))
                for backlog in backlogs
            ]
            if not any(backlog.count for backlog in cut):
                # Always admit one message.
                index = next(index for index, backlog in enumerate(backlogs) if backlog.count)
                cut[index] = replace(cut[index], stop=cut[index].first + 1)
            backlogs = cut
    total = sum(backlog.count for backlog in backlogs)
    if max_messages is None or max_messages >= total:
        return backlogs
    # Largest remainder method, so that the shares add up to the limit.
    shares = [backlog.count * max_messages / total for backlog in backlogs]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(len(backlogs)), key=lambda index: counts[index] - shares[index])
    for index in by_remainder[: max_messages - sum(counts)]:
        counts[index] += 1
    return [replace(backlog, stop=backlog.first + count) for backlog, count in zip(backlogs, counts, strict=True)]
