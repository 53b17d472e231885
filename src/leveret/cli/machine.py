"""This process: how many files, and so sockets, it may have, and how long it has been running."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

MOST_FILES = 1 << 20


def raise_file_limit() -> int:
    """Allow this process as many open files, and so connections, as the system lets it. Returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # No limit at all is more than Linux grants a process.
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    except (OSError, ValueError):
        return soft


def running_for() -> float:
    """Seconds since this process was started, the interpreter's own start included."""
    # The name of the program stands in brackets and may hold anything; the start is the 20th field behind it, in ticks.
    fields = Path("/proc/self/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
