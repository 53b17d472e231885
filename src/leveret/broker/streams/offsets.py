"""Parsers for `x-stream-offset` (the start of a reader) and `x-max-age` (retention)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from leveret.broker.errors import PreconditionFailed
from leveret.broker.values import FieldValue, interval_of

FIRST: Final = "first"
LAST: Final = "last"
NEXT: Final = "next"
EXPECTED: Final = "first, last, next, an offset, a timestamp, or an interval such as 1h"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class StartingPoint:
    """The start of a reader.

    It is the message at `offset` unless that is negative; else the first message appended at or after `time` (milliseconds
    of Unix time) unless that is negative; else FIRST, LAST or NEXT in `name`.
    """

    __slots__ = ("name", "offset", "time")

    def __init__(self, name: str = NEXT, offset: int = -1, time: int = -1) -> None:
        self.name = name
        self.offset = offset
        self.time = time


def starting_point(value: FieldValue, now: int) -> StartingPoint:
    """Parse a consumer's `x-stream-offset`. Raises PreconditionFailed. `now` is in milliseconds."""
    if value is None:
        return StartingPoint()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, bool):
        pass
    elif isinstance(value, int):
        if value >= 0:
            return StartingPoint(offset=value)
    elif isinstance(value, datetime):
        return StartingPoint(time=(value - _EPOCH) // _MILLISECOND)
    elif isinstance(value, str):
        if value in (FIRST, LAST, NEXT):
            return StartingPoint(value)
        span = interval_of(value)
        if span is not None:
            return StartingPoint(time=max(now - span, 0))
    shown = str(value)[:60]
    raise PreconditionFailed(f"invalid arg 'x-stream-offset': received '{shown}', expected {EXPECTED}")
