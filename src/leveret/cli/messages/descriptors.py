"""Reads and writes of file descriptors that do not block the event loop, without making them non-blocking.

Non-blocking mode would affect every process that shares standard input or output, including the shell. These functions
check instead whether the descriptor is ready.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
from collections.abc import Awaitable, Callable
from typing import Final

READ_SIZE: Final = 1 << 18
# Bytes that a ready pipe accepts without blocking (POSIX).
_PIPE_BUF: Final = 4096
# Seconds to finish a partially written item after a cancellation.
_LAST_WRITE_TIMEOUT: Final = 1.0


def _is_ready(fd: int, event: int) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(0))


async def read_some(fd: int, before_waiting: Callable[[], Awaitable[object]]) -> bytes:
    """Return the available data, or b"" at the end of the file. Await `before_waiting` before waiting for data."""
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
    """Writer to a descriptor. Raises `BrokenPipeError` when the reading end is closed.

    Attributes:
        written: The number of bytes that the last `write` wrote, even if it was cancelled or failed.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        mode = os.fstat(fd).st_mode
        self._at_once = stat.S_ISREG(mode) or stat.S_ISBLK(mode)
        self._is_pipe = stat.S_ISFIFO(mode)
        self.written = 0

    async def write(self, data: bytes, end: Callable[[int], int]) -> None:
        """Write all data. A cancelled write finishes the current item unless the reader stalls.

        Args:
            data: One or more items.
            end: Returns the end of the item that contains a position.
        """
        self.written = 0
        view = memoryview(data)
        try:
            await self._write(view, len(data))
        except asyncio.CancelledError:
            try:
                async with asyncio.timeout(_LAST_WRITE_TIMEOUT):
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
                await self._wait_ready()
            try:
                self.written += os.write(self._fd, data[self.written : min(end, self.written + _PIPE_BUF)])
            except BlockingIOError:
                await self._wait_ready()

    async def _wait_ready(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_writer(self._fd, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_writer(self._fd)

    def on_closed(self, callback: Callable[[], object]) -> None:
        """Call `callback` once when the reading end of the pipe is closed, even if there is nothing to write."""
        if not self._is_pipe:
            return
        loop = asyncio.get_running_loop()

        def closed() -> None:
            loop.remove_reader(self._fd)
            callback()

        # The writing end of a pipe is never readable, but an error on it calls the reader callback.
        loop.add_reader(self._fd, closed)
