"""The machine that a broker runs on: its memory, and how many sockets a process may have."""

from __future__ import annotations

import os
import resource
from pathlib import Path

MOST_FILES = 1 << 20
# In a container the limit of its control group is the memory there is: version 2, then version 1.
_GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_octets(group_limits: tuple[Path, ...] = _GROUP_LIMITS) -> int:
    """The memory of the machine, or of the container if that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in group_limits:
        try:
            total = min(total, int(path.read_text()))
        except (OSError, ValueError):
            continue
    return total


def memory_limit(watermark: float) -> int:
    """The octets of `limits.memory_high_watermark`: up to 1 it is a share of the memory there is."""
    return int(watermark * memory_octets()) if watermark <= 1 else int(watermark)


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
