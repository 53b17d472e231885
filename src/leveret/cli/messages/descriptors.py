"""Reading and writing file descriptors without holding up the loop, and without changing how others see them.

Making standard input or output non-blocking would make them so for every process that shares them, the shell included.
Instead the descriptor is asked first whether it is ready.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
from collections.abc import Awaitable, Callable
from typing import Final

READ_SIZE: Final = 1 << 18
# What a pipe that is ready takes without blocking (POSIX, PIPE_BUF).
_ATOMIC: Final = 4096
# Seconds for the rest of an item whose beginning is written, when everything is to end.
_LAST_WRITE: Final = 1.0


def _is_ready(fd: int, event: int) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(0))


async def read_some(fd: int, before_waiting: Callable[[], Awaitable[object]]) -> bytes:
    """What is there, b"" at the end. `before_waiting` is awaited when nothing is there yet."""
    if not _is_ready(fd, select.POLLIN):
        await before_waiting()
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(fd, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(fd)
    return os.read(fd, READ_SIZE)


class Writer:
    """Writes to a descriptor. `BrokenPipeError` when nobody reads it any more.

    written  how many octets of the last `write` were taken, also when it was cancelled or failed
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        mode = os.fstat(fd).st_mode
        self._at_once = stat.S_ISREG(mode) or stat.S_ISBLK(mode)
        self._is_pipe = stat.S_ISFIFO(mode)
        self.written = 0

    async def write(self, data: bytes, end: Callable[[int], int]) -> None:
        """Write all of it. When it is cancelled, what was begun is finished, where the reader still reads: `end` says
        where the item that an octet is in ends."""
        self.written = 0
        view = memoryview(data)
        try:
            await self._write(view, len(data))
        except asyncio.CancelledError:
            try:
                async with asyncio.timeout(_LAST_WRITE):
                    await self._write(view, end(self.written))
            except (OSError, TimeoutError):
                pass
            raise

    async def _write(self, data: memoryview, end: int) -> None:
        while self.written < end:
            if self._at_once:
                self.written += os.write(self._fd, data[self.written : end])
                continue
            if not _is_ready(self._fd, select.POLLOUT):
                await self._until_ready()
            try:
                self.written += os.write(self._fd, data[self.written : min(end, self.written + _ATOMIC)])
            except BlockingIOError:
                await self._until_ready()

    async def _until_ready(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_writer(self._fd, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_writer(self._fd)

    def on_closed(self, callback: Callable[[], object]) -> None:
        """Call it once when nobody reads the pipe any more, also while there is nothing to write."""
        if not self._is_pipe:
            return
        loop = asyncio.get_running_loop()

        def closed() -> None:
            loop.remove_reader(self._fd)
            callback()

        # Nothing can be read from a pipe's writing end; an error there wakes readers, too.
        loop.add_reader(self._fd, closed)
