"""Functions in threads, whose results are passed to callbacks on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from leveret.protocols.peer import Result


def run_in(executor: Executor, function: Callable[[], Result], done: Callable[[Result], None]) -> None:
    """Run a function in a thread, then call `done` on the event loop with its result or exception."""
    future = asyncio.get_running_loop().run_in_executor(executor, function)
    future.add_done_callback(partial(_report, done))


def answer(answered: asyncio.Future[Result], result: Result) -> None:
    """Set the result of a future, unless its caller was cancelled."""
    if not answered.done():
        answered.set_result(result)


def _report(done: Callable[[Result], None], future: asyncio.Future[Result]) -> None:
    if not future.cancelled():
        error = future.exception()
        done(error if error is not None else future.result())
