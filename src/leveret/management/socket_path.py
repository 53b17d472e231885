"""Paths of Unix sockets, which the operating system limits to about a hundred octets."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONTROL_SOCKET = "control.sock"
_LONGEST = 103


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name for a socket's path that `bind` and `connect` take: where the path is too long, by way of its directory.

    OSError where the directory cannot be opened, or where the system offers no such way.
    """
    if len(os.fsencode(path)) <= _LONGEST:
        yield str(path)
        return
    if not sys.platform.startswith("linux"):
        raise OSError(f"{path} is longer than the {_LONGEST} octets that a Unix socket's path may have here")
    directory = os.open(path.parent, os.O_PATH)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
