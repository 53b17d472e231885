"""Wait until a condition holds, instead of sleeping for a time that should be long enough."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

# Only a failing test waits that long, so a busy machine gets as much as pytest's own time limit allows.
DEADLINE = 120.0
INTERVAL = 0.005


def wait_until(
    condition: Callable[[], Result | None], what: str | Callable[[], object] = "the condition", within: float = DEADLINE
) -> Result:
    """Call `condition` until its result is true, and return that result.

    Args:
        condition: called every few milliseconds.
        what: names the condition in the failure; a callable is evaluated when the time is up.
        within: seconds.

    Raises:
        AssertionError: the time is up.
    """
    deadline = time.monotonic() + within
    while not (result := condition()):
        assert time.monotonic() < deadline, _failure(what, within)
        time.sleep(INTERVAL)
    return result


async def wait_until_async(
    condition: Callable[[], object], what: str | Callable[[], object] = "the condition", within: float = DEADLINE
) -> None:
    """Wait like `wait_until` without blocking the event loop; the condition may be a coroutine function."""
    deadline = time.monotonic() + within
    while True:
        result = condition()
        if await result if inspect.isawaitable(result) else result:
            return
        assert time.monotonic() < deadline, _failure(what, within)
        await asyncio.sleep(INTERVAL)


def _failure(what: str | Callable[[], object], within: float) -> str:
    return f"timed out after {within:g} s: {what if isinstance(what, str) else what()}"
