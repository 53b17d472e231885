"""Memory of the machine, and the memory limit."""

from __future__ import annotations

import os
from pathlib import Path

# The memory limits of control groups (containers), version 2 and version 1.
_GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_size(group_limits: tuple[Path, ...] = _GROUP_LIMITS) -> int:
    """Return the memory of the machine in bytes, or of the container if it has less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in group_limits:
        try:
            total = min(total, int(path.read_text()))
        except (OSError, ValueError):
            continue
    return total


def memory_limit(watermark: float) -> int:
    """Return `limits.memory_high_watermark` in bytes; up to 1, it is a fraction of the memory."""
    return int(watermark * memory_size()) if watermark <= 1 else int(watermark)
