"""The part of a stream that a reader has not read."""

from __future__ import annotations


class Unread:
    """Messages from an offset on.

    count  the number of offsets, some of which an erasure may have left unused
    bytes  of the bodies
    since  append time of the oldest message, in milliseconds of Unix time; -1 if there is none
    """

    __slots__ = ("bytes", "count", "since")

    def __init__(self, count: int, bytes: int, since: int) -> None:
        self.count = count
        self.bytes = bytes
        self.since = since

    def age(self, now: int) -> int:
        """Return the age of the oldest message in milliseconds at a time; 0 if there is none."""
        return max(now - self.since, 0) if self.count else 0
