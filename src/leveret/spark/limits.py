"""Admission control: how much of what is there goes into one batch."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a stream has for a batch: offsets from `first` to before `stop`, of so many octets each on average (0: not
    known)."""

    name: str
    first: int
    stop: int
    size: float = 0.0

    @property
    def count(self) -> int:
        return max(self.stop - self.first, 0)


def share_out(backlogs: list[Backlog], messages: int | None, octets: int | None) -> list[Backlog]:
    """The same, cut to so many messages and octets in all; each stream gets its share by what it has, and one message at
    least where there is any room."""
    total = sum(backlog.count for backlog in backlogs)
    allowed = total
    if messages is not None:
        allowed = min(allowed, messages)
    if octets is not None:
        size = sum(backlog.count * backlog.size for backlog in backlogs)
        if size > octets:
            allowed = min(allowed, max(int(total * octets / size), 1))
    if allowed >= total:
        return backlogs
    # The remainders go to those with the largest, so that the sum is exactly what is allowed.
    shares = [backlog.count * allowed / total for backlog in backlogs]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(len(backlogs)), key=lambda index: counts[index] - shares[index])
    for index in by_remainder[: allowed - sum(counts)]:
        counts[index] += 1
    return [replace(backlog, stop=backlog.first + count) for backlog, count in zip(backlogs, counts, strict=True)]
