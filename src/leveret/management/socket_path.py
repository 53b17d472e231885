"""The control socket: its name, the maximum size of requests, and paths that the operating system limits to 100 bytes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONTROL_SOCKET = "control.sock"
# Maximum bytes of a request.
MAX_REQUEST_SIZE = 1 << 20
# Maximum bytes of an answer with all its parts.
MAX_ANSWER = 256 << 20
_MAX_PATH = 103


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a socket name for `bind` and `connect`. Shortens a path that is too long through `/proc/self/fd`.

    Raises:
        OSError: The directory cannot be opened, or the system has no `/proc`.
    """
    if len(os.fsencode(path)) <= _MAX_PATH:
        yield str(path)
        return
    if not sys.platform.startswith("linux"):
        raise OSError(f"{path} is longer than {_MAX_PATH} bytes, the maximum for a Unix socket on this system")
    directory = os.open(path.parent, os.O_PATH)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
