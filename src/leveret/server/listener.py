"""A listening socket that stops accepting while the process is short of file descriptors."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import time
from collections.abc import Callable

log = logging.getLogger("leveret.server")

# Descriptors that sockets leave to files, the control socket and child processes; a quarter of all if those are few.
RESERVED = 64
# Sockets that are accepted in one turn.
MOST_A_TURN = 64
# Seconds between two entries in the log.
REPORT_INTERVAL = 60.0


def highest_descriptor() -> int:
    """The first file descriptor that is reserved. As the system gives the lowest number that is free, a socket with this
    number or a higher one shows that all below are in use."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return 1 << 31
    return limit - min(RESERVED, limit // 4)


class Listener:
    """Accepts sockets and passes them on.

    take    gets each socket that was accepted, and the host of its client
    paused  no socket is accepted: there are no descriptors left but the reserved ones
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, listening: socket.socket,
                 take: Callable[[socket.socket, str], None]) -> None:
        self.address: tuple[str, int] = listening.getsockname()[:2]
        self.paused = False
        self._loop = loop
        self._socket = listening
        self._take = take
        self._report_due = 0.0

    def start(self, backlog: int) -> None:
        """Begin to listen. OSError if that fails."""
        self._socket.setblocking(False)
        self._socket.listen(backlog)
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Stop listening."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def look(self) -> None:
        """Called now and then: accept again if descriptors have become free."""
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
            log.info("sockets are accepted again on %s:%d", *self.address)

    def _accept(self) -> None:
        for _ in range(MOST_A_TURN):
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(str(error))
                return
            if accepted.fileno() >= highest_descriptor():
                self._pause("all file descriptors but the reserved ones are in use")
            self._take(accepted, str(address[0]))
            if self.paused:
                return

    def _pause(self, reason: str) -> None:
        """Accept nothing until `look` finds a descriptor that is free: clients wait in the system's queue."""
        self.paused = True
        self._loop.remove_reader(self._socket.fileno())
        now = time.monotonic()
        if now >= self._report_due:
            self._report_due = now + REPORT_INTERVAL
            log.warning("no sockets are accepted on %s:%d: %s; the limit on open files (ulimit -n, LimitNOFILE) is %d, of"
                        " which %d are reserved", *self.address, reason, resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                        resource.getrlimit(resource.RLIMIT_NOFILE)[0] - highest_descriptor())
