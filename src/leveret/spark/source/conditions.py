"""Filters of a query that a batch read of streams applies: to offsets, segments and row groups.

Spark pushes the conjuncts of a query's filter down. Bounds of the offset and of the partition select ranges of offsets
exactly. Bounds of the append time exclude segments by the manifest; these bounds and routing keys exclude row groups by
their statistics. Spark applies filters that are not exact again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from leveret.spark.source.partitions import Slice

if TYPE_CHECKING:
    from leveret.segments.reader import RowGroup

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MIN: Final = -(2**63)
_MAX: Final = 2**63 - 1
# Characters with a meaning in a topic pattern.
_PATTERN_CHARACTERS: Final = "*#"
_MAX_KEY: Final = 255


class Interval(NamedTuple):
    """Numbers from `low` to `high`, both inclusive."""

    low: int = _MIN
    high: int = _MAX

    def intersect(self, other: Interval) -> Interval:
        return Interval(max(self.low, other.low), min(self.high, other.high))

    def overlaps(self, low: int, high: int) -> bool:
        return low <= self.high and high >= self.low


_ALL: Final = Interval()


@dataclass(frozen=True, slots=True)
class Conditions:
    """Necessary conditions of the rows that a query needs.

    Attributes:
        offset, partition: Their values.
        append_time: Its values in microseconds since 1970.
        keys: Routing keys in UTF-8, None for all.
        key_prefix: The beginning of routing keys in UTF-8.
    """

    offset: Interval = _ALL
    partition: Interval = _ALL
    append_time: Interval = _ALL
    keys: frozenset[bytes] | None = None
    key_prefix: bytes = b""

    def add(self, pushed: Filter, sources: Mapping[str, str]) -> tuple[Conditions, bool]:
        """Add a filter.

        Args:
            pushed: The filter, which is ignored if it is of no use.
            sources: Columns of the table schema by the names of the DataFrame's columns, if their types are equal.

        Returns:
            The conditions, and whether Spark need not apply the filter.
        """
        match pushed:
            case EqualTo((name,), value) | EqualNullSafe((name,), value):
                return self._equal(sources.get(name), [value])
            case In((name,), values):
                return self._equal(sources.get(name), [value for value in values if value is not None])
            case GreaterThan((name,), value):
                return self._between(sources.get(name), value, None, 1)
            case GreaterThanOrEqual((name,), value):
                return self._between(sources.get(name), value, None)
            case LessThan((name,), value):
                return self._between(sources.get(name), None, value, -1)
            case LessThanOrEqual((name,), value):
                return self._between(sources.get(name), None, value)
            case StringStartsWith((name,), str(value)) if sources.get(name) == "routing_key":
                prefix = value.encode()
                return replace(self, key_prefix=max(prefix, self.key_prefix, key=len)), False
        return self, False

    def _equal(self, column: str | None, values: list[object]) -> tuple[Conditions, bool]:
        if column == "routing_key":
            keys = frozenset(value.encode() for value in values if isinstance(value, str))
            return replace(self, keys=keys if self.keys is None else self.keys & keys), False
        numbers = [_number(value) for value in values]
        known = [number for number in numbers if number is not None]
        if not known or len(known) < len(numbers):
            return self, False
        found, exact = self._between(column, min(known), max(known))
        return found, exact and len(set(known)) == 1

    def _between(self, column: str | None, low: object, high: object, shift: int = 0) -> tuple[Conditions, bool]:
        first, last = _number(low), _number(high)
        if first is None and last is None:
            return self, False
        interval = Interval(_MIN if first is None else first + shift, _MAX if last is None else last + shift)
        if column == "offset":
            return replace(self, offset=self.offset.intersect(interval)), True
        if column == "partition":
            return replace(self, partition=self.partition.intersect(interval)), True
        if column == "append_time":
            return replace(self, append_time=self.append_time.intersect(interval)), False
        return self, False

    @property
    def routing_key_filter(self) -> str | None:
        """The pattern that matches exactly the one required routing key; None if there are others, or no such pattern."""
        if self.keys is None or len(self.keys) != 1:
            return None
        (key,) = self.keys
        text = key.decode()
        return text if 0 < len(key) <= _MAX_KEY and not set(_PATTERN_CHARACTERS) & set(text) else None

    @property
    def need_statistics(self) -> bool:
        """Whether row groups can be excluded."""
        return self.append_time != _ALL or self.keys is not None or self.key_prefix != b""

    def narrow(self, part: Slice) -> Slice:
        """Return the part of a slice that meets the conditions on offset and partition."""
        if not self.partition.overlaps(part.partition, part.partition):
            return part.part(part.first, part.first)
        first = min(max(part.first, self.offset.low), part.stop)
        return part.part(first, max(min(part.stop, self.offset.high + 1), first))

    def narrow_by_time(self, part: Slice) -> Slice:
        """Return the part of a slice that can meet the condition on the append time, which never decreases in a stream."""
        if self.append_time == _ALL:
            return part
        first, stop = part.first, part.stop
        for segment in part.segments:
            if segment.last_time * 1000 < self.append_time.low:
                first = max(first, min(segment.last + 1, stop))
            if segment.first_time * 1000 > self.append_time.high:
                stop = max(min(stop, segment.first), first)
            elif segment.last_time * 1000 > self.append_time.high:
                stop = max(min(stop, segment.last + 1), first)
        return part.part(first, stop)

    def candidates(self, groups: Iterable[RowGroup]) -> Iterator[tuple[int, int]]:
        """Yield the first and last offsets of the row groups that can have rows which meet the conditions."""
        for group in groups:
            times, keys = group.append_times, group.routing_keys
            if times is not None and not self.append_time.overlaps(*times):
                continue
            if keys is not None and not self._may_have_key(*keys):
                continue
            yield group.first, group.last

    def _may_have_key(self, low: bytes, high: bytes) -> bool:
        size = len(self.key_prefix)
        if not low[:size] <= self.key_prefix <= high[:size]:
            return False
        return self.keys is None or any(low <= key <= high for key in self.keys)


NO_CONDITIONS: Final = Conditions()


def _number(value: object) -> int | None:
    """Return an integer, or a time in microseconds since 1970; None for other values."""
    if isinstance(value, datetime):
        return None if value.tzinfo is None else (value - _EPOCH) // timedelta(microseconds=1)
    return value if isinstance(value, int) else None
