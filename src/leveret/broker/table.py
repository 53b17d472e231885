"""A mapping that grows in small steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

# Entries above which a table has PARTS dictionaries.
SPLIT_ABOVE: Final = 2048
PARTS: Final = 64
# Entries at which one of these dictionaries releases the memory of those that were removed. It does not wait until it is
# empty, because all of them become empty within a few hundred removals.
SHRINK_AT: Final = 256
# Values that are released in one step (a power of two), and that are released in 1 µs (as a power of two).
RELEASED: Final = 512
RELEASE_SHIFT: Final = 1
# A dictionary places its entries by the low bits of their hashes, so the part depends on others: all bits of the hash of a
# string are random, those of an object are from its address.
_ADDRESS_SHIFT: Final = 12
_RANDOM_SHIFT: Final = 24


class Table(Generic[Key, Value]):
    """A mapping that grows in small steps.

    A dictionary moves all its entries when it grows, which takes 3 ms for 100,000 of them, and 10 times as long for a
    million. Above SPLIT_ABOVE entries, a table consists of several dictionaries, which grow at different times.
    """

    __slots__ = ("_count", "_parts", "_whole")

    def __init__(self) -> None:
        self._whole: dict[Key, Value] = {}
        self._parts: list[dict[Key, Value]] | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, key: Key) -> Value | None:
        """Return the value of a key, None if it is not there."""
        return self._part(key).get(key)

    def put(self, key: Key, value: Value) -> None:
        """Set the value of a key."""
        part = self._part(key)
        before = len(part)
        part[key] = value
        if len(part) > before:
            self._count += 1
            if self._parts is None and before >= SPLIT_ABOVE:
                self._split()

    def pop(self, key: Key) -> Value | None:
        """Remove a key and return its value, None if it is not there."""
        part = self._part(key)
        before = len(part)
        value = part.pop(key, None)
        self._count -= before - len(part)
        if before == SHRINK_AT and len(part) < before and self._parts is not None:
            rest = part.copy()
            part.clear()
            part.update(rest)
        return value

    def values(self) -> list[Value]:
        """Return all values, in no particular order."""
        parts = self._parts
        if parts is None:
            return list(self._whole.values())
        found: list[Value] = []
        for part in parts:
            found.extend(part.values())
        return found

    def pieces(self) -> Iterator[list[Value]]:
        """Yield the values in pieces, between which others may be put and removed."""
        parts = self._parts
        for part in [self._whole] if parts is None else parts:
            yield list(part.values())

    def drain(self) -> Iterator[Value]:
        """Remove the values one by one, and yield each."""
        parts = self._parts
        for part in [self._whole] if parts is None else parts:
            while part:
                value = part.popitem()[1]
                self._count -= 1
                yield value
            part.clear()  # an empty dictionary keeps the memory of all entries that it had

    def releasing(self) -> Iterator[int]:
        """Remove all values in steps. Yield the units of work of each."""
        for count, _ in enumerate(self.drain(), 1):
            if not count & (RELEASED - 1):
                yield RELEASED >> RELEASE_SHIFT

    def _part(self, key: Key) -> dict[Key, Value]:
        parts = self._parts
        if parts is None:
            return self._whole
        hashed = hash(key)
        return parts[(hashed >> _ADDRESS_SHIFT ^ hashed >> _RANDOM_SHIFT) & (PARTS - 1)]

    def _split(self) -> None:
        parts: list[dict[Key, Value]] = [{} for _ in range(PARTS)]
        self._parts = parts
        whole = self._whole
        self._whole = {}
        for key, value in whole.items():
            self._part(key)[key] = value
