"""The watch of a shard over the front of its node, without which no client reaches the shard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

# Beats of the front in a lease, and looks of the shard at them.
BEATS: Final = 6


class FrontWatch:
    """Notices that the front does not answer.

    It counts its own looks, so that a process that was frozen together with the front waits for the whole lease.

    Args:
        lease: Seconds without a beat after which the front does not answer.
        silent: Called once if the front does not answer and other nodes take shards.
    """

    def __init__(self, lease: float, silent: Callable[[], None]) -> None:
        self._interval = lease / BEATS
        self._silent = silent
        self._has_others = False
        self._looks = 0
        self._timer: asyncio.TimerHandle | None = None

    def note_beat(self, *, has_others: bool) -> None:
        """Note that the front lives.

        Args:
            has_others: Whether other nodes take shards.
        """
        self._has_others = has_others
        self._looks = 0
        if self._timer is None:
            self._wait()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)

    def _look(self) -> None:
        self._looks += 1
        if self._looks > BEATS and self._has_others:
            self._silent()
        else:
            self._wait()
