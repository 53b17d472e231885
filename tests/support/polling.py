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
# A condition that takes longer is called less often, so that a test mostly waits: it may ask a browser, or run a command.
REST = 4
MAX_INTERVAL = 0.1


def wait_until(
    condition: Callable[[], Result | None], what: str | Callable[[], object] = "the condition", within: float = DEADLINE
) -> Result:
    """Call `condition` until its result is true, and return that result.

    Args:
        condition: called every few milliseconds, or less often if it takes long itself.
        what: names the condition in the failure; a callable is evaluated when the time is up.
        within: seconds.

    Raises:
        AssertionError: the time is up.
    """
    called = time.monotonic()
    deadline = called + within
    while not (result := condition()):
        ended = time.monotonic()
        assert ended < deadline, _failure(what, within)
        time.sleep(_pause(ended - called))
        called = time.monotonic()
    return result


async def wait_until_async(
    condition: Callable[[], object], what: str | Callable[[], object] = "the condition", within: float = DEADLINE
) -> None:
    """Wait like `wait_until` without blocking the event loop; the condition may be a coroutine function."""
    called = time.monotonic()
    deadline = called + within
    while True:
        result = condition()
        if await result if inspect.isawaitable(result) else result:
            return
        ended = time.monotonic()
        assert ended < deadline, _failure(what, within)
        await asyncio.sleep(_pause(ended - called))
        called = time.monotonic()


def _pause(duration: float) -> float:
    return min(max(INTERVAL, REST * duration), MAX_INTERVAL)


def _failure(what: str | Callable[[], object], within: float) -> str:
    return f"timed out after {within:g} s: {what if isinstance(what, str) else what()}"
