"""The watch of a shard over the front of its node, without which no client reaches the shard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

# Beats of the front in a lease, and looks of the shard at them.
BEATS: Final = 6
# Looks without a beat after which the front does not answer.
_SILENT_LOOKS: Final = BEATS + 1


class FrontWatch:
    """Notices that the front does not answer.

    It counts its own looks, so that a process that was frozen together with the front waits for the whole lease.

    Args:
        lease: Seconds without a beat after which the front does not answer.
        find_takers: Finds out whether other nodes take shards, and calls its argument with the result. Called once in each
            lease in which the front does not answer: a node may have joined after the last beat.
        silent: Called if the front does not answer and other nodes take shards, once in each lease in which that is so.
    """

    def __init__(
        self, lease: float, find_takers: Callable[[Callable[[bool], None]], None], silent: Callable[[], None]
    ) -> None:
        self._interval = lease / BEATS
        self._find_takers = find_takers
        self._silent = silent
        self._looks = 0
        self._timer: asyncio.TimerHandle | None = None

    def note_beat(self) -> None:
        """Note that the front lives."""
        self._looks = 0
        if self._timer is None:
            self._wait()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)

    def _look(self) -> None:
        self._looks += 1
        if not self._looks % _SILENT_LOOKS:
            self._find_takers(self._found)
        self._wait()

    def _found(self, has_takers: bool) -> None:
        # A beat may have arrived meanwhile.
        if has_takers and self._looks >= _SILENT_LOOKS:
            self._silent()
