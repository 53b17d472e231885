"""A broker that reports the cost of its turns: `python bench/turn_clock.py FILE serve ...` runs `leveret serve ...`.

Both sides map FILE, which contains two floats: the longest turn since the last reset to 0, as processor time of the event
loop's thread in seconds, and the number of turns.
"""

from __future__ import annotations

import mmap
import selectors
import struct
import sys
import time

from leveret.server.watchdog import Watchdog

LAYOUT = struct.Struct("=dd")


class TurnClock:
    """Wraps `Watchdog.select`, which the loop calls between two turns."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self.shared = mmap.mmap(file.fileno(), LAYOUT.size)
        self.began = 0.0
        self.select = Watchdog.select

    def install(self) -> None:
        clock = self

        def select(self: Watchdog, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            clock.end()
            ready = clock.select(self, timeout)
            clock.began = time.thread_time()
            return ready

        Watchdog.select = select  # type: ignore[method-assign]

    def end(self) -> None:
        if not self.began:
            return
        spent = time.thread_time() - self.began
        longest, turns = LAYOUT.unpack_from(self.shared)
        LAYOUT.pack_into(self.shared, 0, max(longest, spent), turns + 1)


if __name__ == "__main__":
    TurnClock(sys.argv[1]).install()
    sys.argv[:] = ["leveret", *sys.argv[2:]]
    from leveret.cli import main

    main()
