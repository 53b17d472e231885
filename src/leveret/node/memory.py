"""The memory of the machine that a broker runs on."""

from __future__ import annotations

import os
from pathlib import Path

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
