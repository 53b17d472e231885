"""Destinations of one routing key or pattern, counted: several bindings may lead to the same one."""

from __future__ import annotations

from typing import Any


def add(counts: dict[Any, int], destination: Any) -> None:
    """One binding more leads to this destination."""
    counts[destination] = counts.get(destination, 0) + 1


def discard(counts: dict[Any, int], destination: Any) -> None:
    """One binding less leads to this destination."""
    left = counts[destination] - 1
    if left:
        counts[destination] = left
    else:
        del counts[destination]
