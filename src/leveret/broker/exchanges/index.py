"""Counted destinations of a routing key or pattern: several bindings may have the same destination."""

from __future__ import annotations

from typing import TypeVar

Counted = TypeVar("Counted")


def add(counts: dict[Counted, int], destination: Counted) -> None:
    """Count another binding to a destination."""
    counts[destination] = counts.get(destination, 0) + 1


def discard(counts: dict[Counted, int], destination: Counted) -> None:
    """Remove a binding to a destination from the count."""
    left = counts[destination] - 1
    if left:
        counts[destination] = left
    else:
        del counts[destination]
