"""Keeps a task from waiting for its input for 40 ms."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any, Final

_FILES: Final = Path("/proc/self/fd")
# Only Linux has it.
_QUICK_ACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)


class InTask:
    """A reader or writer that Spark pickles into its tasks.

    Spark sends a task to its Python worker in two small writes over TCP, the pickled object and then its input, without
    TCP_NODELAY: it keeps the second one until the worker acknowledges the first one. The worker has nothing to send, so its
    system delays this for 40 ms. Unpickling the object, which is between the two, sends the acknowledgement.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        acknowledge()


def acknowledge() -> None:
    """Send the acknowledgements that are delayed on TCP connections of this process."""
    if _QUICK_ACK is None or not _FILES.exists():
        return
    for entry in os.listdir(_FILES):
        _acknowledge(int(entry), _QUICK_ACK)


def _acknowledge(number: int, option: int) -> None:
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return
        with socket.socket(fileno=os.dup(number)) as found:
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                found.setsockopt(socket.IPPROTO_TCP, option, 1)
    except OSError:
        pass  # another thread has closed it
