"""Serial numbers of 32 bits (RFC 1982), and how far they may run ahead."""

from __future__ import annotations

import heapq
from typing import Any, Final

MODULUS: Final = 1 << 32
HALF: Final = 1 << 31
# Transfer frames that either side of a session may send ahead.
WINDOW: Final = 4096


class Numbers:
    """Channel numbers or handles of ours: who wants a new one gets the lowest that is free. Which are taken is the
    caller's to say; finding one takes logarithmic time."""

    __slots__ = ("_freed", "_next")

    def __init__(self) -> None:
        self._next = 0
        self._freed: list[int] = []

    def lowest(self, taken: dict[int, Any]) -> int:
        """The lowest number that is not in `taken`, all of which were told by this and are not given back."""
        freed = self._freed
        while freed and freed[0] in taken:
            heapq.heappop(freed)
        if freed:
            return freed[0]
        while self._next in taken:
            self._next += 1
        return self._next

    def release(self, number: int) -> None:
        """A number is free again."""
        if number < self._next:
            heapq.heappush(self._freed, number)


def credit_left(credit: int, counted: int | None, sent: int) -> int:
    """What a sender may still send (transport 2.6.7) that has been given so much credit, up to 2^32 - 1, and has sent
    `sent` deliveries, of which the receiver has counted `counted` (None: those before it was attached, which is 0)."""
    in_flight = (sent - (counted or 0)) % MODULUS
    return max(credit - in_flight, 0) if in_flight < HALF else credit
