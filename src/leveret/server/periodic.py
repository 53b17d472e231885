"""Periodic tasks on the event loop. Exceptions do not stop them, and each task monitors the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from leveret.broker.failures import Failures

logger = logging.getLogger("leveret.server")

# A task that is overdue by more than this many seconds has lost its timer.
OVERDUE = 5.0


class Task:
    """A periodic action.

    Attributes:
        name: The name in log messages.
        action: Returns the seconds until the next call.
        fallback: The seconds until the next call after an exception.
        due: The time of the next call, by the loop's clock.
    """

    def __init__(self, tasks: Tasks, name: str, action: Callable[[], float], fallback: float) -> None:
        self.name = name
        self.action = action
        self.fallback = fallback
        self.due = tasks.loop.time()
        self.failures = Failures(logger, name, tasks.loop.time)
        self._tasks = tasks
        self._handle: asyncio.TimerHandle | None = None

    def run(self) -> None:
        """Run the action and schedule the next call, even after an exception."""
        wait = self.fallback
        late = self._tasks.loop.time() - self.due
        try:
            wait = self.action()
        except Exception as error:
            self.failures.report(error)
        finally:
            self.schedule(wait)
        # If all tasks are late, the process was suspended.
        if late < OVERDUE:
            self._tasks.restart_overdue()

    def schedule(self, wait: float) -> None:
        """Set the timer."""
        self.cancel()
        loop = self._tasks.loop
        self.due = loop.time() + wait
        self._handle = loop.call_later(wait, self.run)

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class Tasks:
    """The periodic tasks of a server."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._tasks: list[Task] = []

    def start(self, name: str, action: Callable[[], float], fallback: float) -> None:
        """Call an action now, and again after the number of seconds that it returns (`fallback` if it raises)."""
        task = Task(self, name, action, fallback)
        self._tasks.append(task)
        task.run()

    def stop(self) -> None:
        """Stop all tasks."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def restart_overdue(self) -> None:
        """Reschedule tasks that were not called when they were due."""
        now = self.loop.time()
        for task in self._tasks:
            if task.due + OVERDUE < now:
                logger.error("%s is %.1f seconds overdue: restarting it", task.name, now - task.due)
                task.schedule(0.0)
