"""A sorted list of entries in blocks: an insertion or removal anywhere takes O(log n) and moves at most one block."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, chain
from typing import Any, Final, TypeAlias, Union

from leveret.broker.message import Entry

# Entries of a block from which on it is split.
MAX_BLOCK: Final = 1024


class Blocks:
    """Entries in the ascending order of a key, with the methods of a deque that a backlog uses.

    Attributes:
        key: Returns the key of an entry.
        blocks: Lists of entries, none of which is empty.
        length: The number of entries.
    """

    def __init__(self, key: Callable[[Entry], Any]) -> None:
        self.key = key
        self.blocks: list[list[Entry]] = []
        self.length = 0
        # The index of the first entry of each block, and the length; empty if it has changed.
        self._starts: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Entry]:
        return chain.from_iterable(self.blocks)

    def __reversed__(self) -> Iterator[Entry]:
        return chain.from_iterable(map(reversed, reversed(self.blocks)))

    def __getitem__(self, index: int) -> Entry:
        block, at = self._locate(index)
        return self.blocks[block][at]

    def __delitem__(self, index: int) -> None:
        block, at = self._locate(index)
        self._remove(block, at)

    def _locate(self, index: int) -> tuple[int, int]:
        """Return the number of the block with this index, and the index in it."""
        if index < 0:
            index += self.length
        if not 0 <= index < self.length:
            raise IndexError("index out of range")
        if index < len(self.blocks[0]):
            return 0, index
        if index == self.length - 1:
            return len(self.blocks) - 1, len(self.blocks[-1]) - 1
        if not self._starts:
            self._starts = list(accumulate(map(len, self.blocks), initial=0))
        number = bisect_right(self._starts, index) - 1
        return number, index - self._starts[number]

    def _block_of(self, key: Any) -> int:
        """Return the number of the last block whose first entry is not behind a key, 0 if there is none."""
        return max(0, bisect_right(self.blocks, key, key=self._first_key) - 1)

    def _first_key(self, block: list[Entry]) -> Any:
        return self.key(block[0])

    def _remove(self, number: int, at: int) -> Entry:
        block = self.blocks[number]
        entry = block.pop(at)
        if not block:
            del self.blocks[number]
        self.length -= 1
        if self._starts:
            self._starts = []
        return entry

    def add(self, entry: Entry) -> None:
        """Insert an entry in its place."""
        self.length += 1
        if self._starts:
            self._starts = []
        blocks = self.blocks
        if not blocks:
            blocks.append([entry])
            return
        key = self.key(entry)
        number = self._block_of(key)
        block = blocks[number]
        if number == len(blocks) - 1 and len(block) >= MAX_BLOCK and self.key(block[-1]) < key:
            blocks.append([entry])
            return
        block.insert(bisect_right(block, key, key=self.key), entry)
        if len(block) > MAX_BLOCK:
            half = len(block) // 2
            blocks.insert(number + 1, block[half:])
            del block[half:]

    def discard(self, entry: Entry) -> bool:
        """Remove an entry; return False if it is not there."""
        key = self.key(entry)
        number, at = self._place_of(key)
        if at < 0 or self.blocks[number][at] is not entry:
            return False
        self._remove(number, at)
        return True

    def find(self, key: Any) -> Entry | None:
        """Return the entry with a key, None if there is none."""
        number, at = self._place_of(key)
        return None if at < 0 else self.blocks[number][at]

    def _place_of(self, key: Any) -> tuple[int, int]:
        """Return the number of the block with a key and the index in it, -1 if it is not there."""
        if not self.blocks:
            return 0, -1
        number = self._block_of(key)
        block = self.blocks[number]
        at = bisect_left(block, key, key=self.key)
        return number, at if at < len(block) and self.key(block[at]) == key else -1

    def first(self) -> Entry | None:
        """Return the first entry, None if there is none."""
        return self.blocks[0][0] if self.blocks else None

    def after(self, key: Any) -> Entry | None:
        """Return the first entry whose key is above a key, None if there is none."""
        if not self.blocks:
            return None
        number = self._block_of(key)
        block = self.blocks[number]
        at = bisect_right(block, key, key=self.key)
        if at < len(block):
            return block[at]
        return self.blocks[number + 1][0] if number + 1 < len(self.blocks) else None

    # The methods of a deque: an entry always gets its place by its key

    def append(self, entry: Entry) -> None:
        self.add(entry)

    def appendleft(self, entry: Entry) -> None:
        self.add(entry)

    def insert(self, index: int, entry: Entry) -> None:
        self.add(entry)

    def extend(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.add(entry)

    def popleft(self) -> Entry:
        if not self.length:
            raise IndexError("pop from an empty list")
        return self._remove(0, 0)

    def pop(self) -> Entry:
        if not self.length:
            raise IndexError("pop from an empty list")
        return self._remove(len(self.blocks) - 1, len(self.blocks[-1]) - 1)

    def remove(self, entry: Entry) -> None:
        if not self.discard(entry):
            raise ValueError("the entry is not in the list")

    def clear(self) -> None:
        self.blocks = []
        self.length = 0
        self._starts = []


# The entries of a backlog in memory, in the order of their sequence numbers.
Entries: TypeAlias = Union[deque[Entry], Blocks]
