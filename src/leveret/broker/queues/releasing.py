"""The release of the memory of many objects in steps, after their queue has dropped them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from leveret.broker.table import RELEASE_SHIFT, RELEASED

if TYPE_CHECKING:
    from leveret.broker.message import Entry


def releasing(objects: deque[Any]) -> Iterator[int]:
    """Remove all objects in steps. Yield the units of work of each."""
    while objects:
        count = min(len(objects), RELEASED)
        for _ in range(count):
            objects.pop()
        yield 1 + (count >> RELEASE_SHIFT)


def releasing_blocks(blocks: list[list[Entry]]) -> Iterator[int]:
    """Remove all blocks in steps. Yield the units of work of each."""
    while blocks:
        yield len(blocks.pop()) >> RELEASE_SHIFT
