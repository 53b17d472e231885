"""Work that the event loop repeats: no exception ends it, and each task is watched by the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from leveret.broker.failures import Failures

log = logging.getLogger("leveret.server")

# A task that is later than this many seconds has lost its timer.
OVERDUE = 5.0


class Task:
    """An action that is repeated.

    action    returns the seconds until it is to be called again
    fallback  the seconds until the next call when it raised an exception
    due       when it is to be called, by the loop's clock
    """

    def __init__(self, tasks: Tasks, name: str, action: Callable[[], float], fallback: float) -> None:
        self.name = name
        self.action = action
        self.fallback = fallback
        self.due = tasks.loop.time()
        self.failures = Failures(log, name, tasks.loop.time)
        self._tasks = tasks
        self._handle: asyncio.TimerHandle | None = None

    def run(self) -> None:
        """Do it, and set the timer for the next time, whatever happens."""
        wait = self.fallback
        late = self._tasks.loop.time() - self.due
        try:
            wait = self.action()
        except Exception as error:
            self.failures.report(error)
        finally:
            self.schedule(wait)
        # When all of them are late, the process was stopped for a while.
        if late < OVERDUE:
            self._tasks.look_for_overdue()

    def schedule(self, wait: float) -> None:
        """Set the timer."""
        self.cancel()
        loop = self._tasks.loop
        self.due = loop.time() + wait
        self._handle = loop.call_later(wait, self.run)

    def cancel(self) -> None:
        """Take the timer away."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class Tasks:
    """The periodic tasks of a server."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._tasks: list[Task] = []

    def start(self, name: str, action: Callable[[], float], fallback: float) -> None:
        """Call an action now, and again after as many seconds as it returns (`fallback` if it raises)."""
        task = Task(self, name, action, fallback)
        self._tasks.append(task)
        task.run()

    def stop(self) -> None:
        """End all of them."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def look_for_overdue(self) -> None:
        """Set the timer of a task again that was not called when it was due."""
        now = self.loop.time()
        for task in self._tasks:
            if task.due + OVERDUE < now:
                log.error("%s was due %.1f seconds ago and is started again", task.name, now - task.due)
                task.schedule(0.0)
