"""A progress line on standard error, if it is a terminal."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from leveret.cli.client_command import event_text, say
from leveret.cli.output import text

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from leveret.client.events import Event

_UPDATE_INTERVAL = 0.2


def rate(count: float, seconds: float) -> str:
    """Format a rate."""
    return f"{count / seconds:,.0f}/s" if seconds > 0 else "-"


class Progress:
    """Context manager that shows progress.

    Args:
        doing: The label, such as "publishing".
        shown: Whether to show progress on a terminal; False if the user types into it.
        state: Returns the number of messages, and the completed share from 0 to 1, or None if it is unknown.
    """

    def __init__(self, doing: str, shown: bool, state: Callable[[], tuple[int, float | None]]) -> None:
        self._doing = doing
        self._state = state
        self._begun = time.monotonic()
        self._task: asyncio.Task[None] | None = None
        self._rich: RichProgress | None = None
        if shown and _is_terminal():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as RichProgress

            self._rich = RichProgress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                console=Console(stderr=True),
                transient=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def say(self, message: str) -> None:
        """Print a line above the progress line."""
        if self._rich is None:
            say(message)
        else:
            self._rich.console.print(text(message), markup=False, highlight=False, soft_wrap=True)

    def on_event(self, event: Event) -> None:
        """Print a connection event."""
        message = event_text(event)
        if message:
            self.say(message)

    def __enter__(self) -> Progress:
        self._begun = time.monotonic()
        if self._rich is not None:
            self._rich.start()
            self._task = asyncio.get_running_loop().create_task(self._show(self._rich))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._rich is not None:
            self._rich.stop()
            self._rich = None

    async def _show(self, progress: RichProgress) -> None:
        shown = progress.add_task("", total=None)
        before, at = 0, self._begun
        while True:
            await asyncio.sleep(_UPDATE_INTERVAL)
            count, done = self._state()
            now = time.monotonic()
            progress.update(
                shown,
                description=f"{self._doing} {count:,}  {rate(count - before, now - at)}",
                total=None if done is None else 1.0,
                completed=done or 0.0,
            )
            progress.refresh()
            before, at = count, now


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False
