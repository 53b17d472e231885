"""The operations whose turns are measured, by name. Each prepares a broker and returns what is measured."""

from __future__ import annotations

from collections.abc import Callable

from bench.turn_lab import Lab

Operation = Callable[[Lab, int], Callable[[], None]]
OPERATIONS: dict[str, Operation] = {}


def operation(function: Operation) -> Operation:
    OPERATIONS[function.__name__] = function
    return function
