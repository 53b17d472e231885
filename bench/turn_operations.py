"""The operations whose turns are measured, by name. Each prepares a broker and returns what is measured."""

from __future__ import annotations

from collections.abc import Callable

from bench.turn_lab import Lab

Operation = Callable[[Lab, int], Callable[[], None]]
OPERATIONS: dict[str, Operation] = {}
# The operations on deep queues and many bindings, whose bound is lower.
DEEP: set[str] = set()


def operation(function: Operation) -> Operation:
    OPERATIONS[function.__name__] = function
    return function


def deep_operation(function: Operation) -> Operation:
    DEEP.add(function.__name__)
    return operation(function)
