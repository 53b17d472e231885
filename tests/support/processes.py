"""Processes of a broker, from /proc."""

from __future__ import annotations

from pathlib import Path


def family(pid: int) -> list[int]:
    """Return a process and all its descendants, parents first."""
    found = [pid]
    for parent in found:
        try:
            tasks = list(Path(f"/proc/{parent}/task").iterdir())
            children = [child for task in tasks for child in (task / "children").read_text().split()]
        except FileNotFoundError:
            continue  # it has ended
        found.extend(map(int, children))
    return found
