"""A listening socket that pauses while the process runs out of file descriptors."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import time
from collections.abc import Callable

logger = logging.getLogger("leveret.server")

# File descriptors reserved for files, the control socket and child processes; at most a quarter of the limit.
RESERVED = 64
# Maximum number of sockets to accept per turn.
MAX_PER_TURN = 64
# Seconds between log entries.
REPORT_INTERVAL = 60.0


def highest_descriptor() -> int:
    """Return the first reserved file descriptor.

    The system assigns the lowest free number, so all lower descriptors are in use if a socket has this or a higher number.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return 1 << 31
    return limit - min(RESERVED, limit // 4)


class Listener:
    """A listening socket.

    Args:
        loop: The event loop.
        listening: The bound socket.
        take: Called with each accepted socket and the host of its client.

    Attributes:
        address: The bound address.
        paused: Whether the listener is paused because only reserved descriptors are free.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, listening: socket.socket, take: Callable[[socket.socket, str], None]
    ) -> None:
        self.address: tuple[str, int] = listening.getsockname()[:2]
        self.paused = False
        self._loop = loop
        self._socket = listening
        self._take = take
        self._report_due = 0.0

    def start(self, backlog: int) -> None:
        """Start listening. Raises `OSError`."""
        self._socket.setblocking(False)
        self._socket.listen(backlog)
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Stop listening."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def check(self) -> None:
        """Resume accepting if descriptors are free again. Called periodically."""
        if not self.paused or self._socket.fileno() < 0:
            return
        try:
            free = os.dup(self._socket.fileno())
        except OSError:
            return
        os.close(free)
        if free < highest_descriptor():
            self.paused = False
            self._loop.add_reader(self._socket.fileno(), self._accept)
            logger.info("resumed accepting sockets on %s:%d", *self.address)

    def _accept(self) -> None:
        for _ in range(MAX_PER_TURN):
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(str(error))
                return
            if accepted.fileno() >= highest_descriptor():
                self._pause("all file descriptors except the reserved ones are in use")
            self._take(accepted, str(address[0]))
            if self.paused:
                return

    def _pause(self, reason: str) -> None:
        """Stop accepting until `check` finds a free descriptor. Clients wait in the kernel's accept queue."""
        self.paused = True
        self._loop.remove_reader(self._socket.fileno())
        now = time.monotonic()
        if now >= self._report_due:
            self._report_due = now + REPORT_INTERVAL
            logger.warning(
                "paused accepting sockets on %s:%d: %s; raise the limit on open files (ulimit -n, LimitNOFILE), which"
                " is %d with %d reserved",
                *self.address,
                reason,
                resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                resource.getrlimit(resource.RLIMIT_NOFILE)[0] - highest_descriptor(),
            )
