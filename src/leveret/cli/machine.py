"""File limit and uptime of this process."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

MAX_FILES = 1 << 20


def raise_file_limit() -> int:
    """Raise the limit on open files, and thus on connections, to the system's maximum. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Linux refuses RLIM_INFINITY.
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    except (OSError, ValueError):
        return soft


def running_for() -> float:
    """Return the seconds since this process started, including the interpreter's startup."""
    # The program name is in parentheses and may contain any character. The start time is the 20th field after it, in ticks.
    fields = Path("/proc/self/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
