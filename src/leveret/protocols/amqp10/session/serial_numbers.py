"""Serial numbers of 32 bits (RFC 1982), windows and free numbers."""

from __future__ import annotations

import heapq
from typing import Final, TypeVar

Used = TypeVar("Used")

# `number & MASK` is a serial number. A remainder would need a division for each frame.
MASK: Final = (1 << 32) - 1
HALF: Final = 1 << 31
# Maximum number of transfer frames that either side of a session may send ahead.
WINDOW: Final = 4096


class Numbers:
    """Channel numbers or handles of the broker. The caller tracks the numbers in use.

    Finding the lowest free number takes logarithmic time.
    """

    __slots__ = ("_freed", "_next")

    def __init__(self) -> None:
        self._next = 0
        self._freed: list[int] = []

    def lowest(self, taken: dict[int, Used]) -> int:
        """Return the lowest number that is not in `taken`, the numbers in use."""
        freed = self._freed
        while freed and freed[0] in taken:
            heapq.heappop(freed)
        if freed:
            return freed[0]
        while self._next in taken:
            self._next += 1
        return self._next

    def release(self, number: int) -> None:
        """Release a number."""
        if number < self._next:
            heapq.heappush(self._freed, number)


def credit_left(credit: int, counted: int | None, sent: int) -> int:
    """Return the remaining credit of a sender (transport 2.6.7).

    Args:
        credit: link-credit that the receiver has granted, up to 2^32 - 1.
        counted: delivery-count of the receiver; None, before the sender's attach, means 0.
        sent: delivery-count of the sender.
    """
    in_flight = (sent - (counted or 0)) & MASK
    return max(credit - in_flight, 0) if in_flight < HALF else credit
