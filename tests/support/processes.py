"""Processes of a broker, from /proc."""

from __future__ import annotations

import contextlib
from pathlib import Path


def family(pid: int) -> list[int]:
    """Return a process and all its descendants, parents first."""
    found = [pid]
    for parent in found:
        # Processes and their threads may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in list(Path(f"/proc/{parent}/task").iterdir()):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    found.extend(map(int, (task / "children").read_text().split()))
    return found
