"""Admission control: how many of the available messages a batch reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf


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

    @property
    def first_size(self) -> float:
        """The size of the first message in bytes, 0 if unknown."""
        return next((size for _, size in self._parts()), 0.0)

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


def apply_limits(backlogs: list[Backlog], max_messages: int | None, max_bytes: int | None, turn: int = 0) -> list[Backlog]:
    """Cut backlogs to limits in total.

    Each stream with a backlog gets one message, and a share of the rest in proportion to its backlog, so that streams with
    different rates reach the same append time together. If the limits admit fewer messages than there are streams, the
    streams take turns. At least one message is admitted, however large it is.

    Args:
        backlogs: One for each stream, always in the same order.
        max_messages: Maximum number of messages, None for no limit.
        max_bytes: Maximum bytes of bodies, None for no limit.
        turn: The number of messages in earlier batches, which determines the stream whose turn it is.
    """
    counts = [0] * len(backlogs)
    messages_left = sum(backlog.count for backlog in backlogs) if max_messages is None else max_messages
    bytes_left = inf if max_bytes is None else float(max_bytes)
    for number in range(len(backlogs)):
        index = (turn + number) % len(backlogs)
        if backlogs[index].count:
            size = backlogs[index].first_size
            if not messages_left or (size > bytes_left and any(counts)):
                break
            counts[index] = 1
            messages_left -= 1
            bytes_left -= size
    else:
        rests = [replace(backlog, first=backlog.first + count) for backlog, count in zip(backlogs, counts, strict=True)]
        shares = _share_messages(_share_bytes(rests, max(bytes_left, 0.0)), messages_left)
        counts = [count + share for count, share in zip(counts, shares, strict=True)]
    return [replace(backlog, stop=backlog.first + count) for backlog, count in zip(backlogs, counts, strict=True)]


def _share_bytes(backlogs: list[Backlog], max_bytes: float) -> list[int]:
    """Return the number of messages of each backlog that fit into its share of `max_bytes`."""
    whole = sum(backlog.n_bytes for backlog in backlogs)
    if whole <= max_bytes:
        return [backlog.count for backlog in backlogs]
    return [backlog.count_within(backlog.n_bytes * max_bytes / whole) for backlog in backlogs]


def _share_messages(counts: list[int], max_messages: int) -> list[int]:
    """Return shares of `max_messages`, by the largest remainder method, so that they add up to the limit."""
    total = sum(counts)
    if total <= max_messages:
        return counts
    quotas = [count * max_messages / total for count in counts]
    shares = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(counts)), key=lambda index: shares[index] - quotas[index])
    for index in by_remainder[: max_messages - sum(shares)]:
        shares[index] += 1
    return shares
