"""Work that is too much for one turn: it is done a step at a time, and between two steps everybody else has a turn.

Only one job makes a step in a pass of the event loop, however many there are.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

logger = logging.getLogger("leveret.broker")


@mypyc_attr(allow_interpreted_subclasses=True)
class Job(Timed):
    """Work in steps. `listed`: it waits for its next step; otherwise it sleeps until somebody resumes it, or `due`."""

    def __init__(self, jobs: Jobs) -> None:
        super().__init__()
        self.jobs = jobs
        self.listed = False

    def step(self) -> bool:
        """Do a few milliseconds of work; False where there is nothing to do until `resume` is called."""
        raise NotImplementedError

    def resume(self) -> None:
        """Have `step` called, in a turn to come."""
        self.jobs.add(self)

    def resume_in(self, milliseconds: int) -> None:
        timers = self.jobs.broker.timers
        timers.at(timers.now() + milliseconds, self)

    def fire(self, now: int) -> None:
        self.jobs.add(self)


class Jobs:
    """The jobs of a broker. `call_soon` runs something in a pass of the event loop of its own; the server sets it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.waiting: deque[Job] = deque()
        self.scheduled = False
        self.call_soon: Callable[[Callable[[], None]], object] | None = None

    def add(self, job: Job) -> None:
        if not job.listed:
            job.listed = True
            self.waiting.append(job)
            self.schedule()

    def schedule(self) -> None:
        if not self.scheduled and self.waiting and self.call_soon is not None:
            self.scheduled = True
            self.call_soon(self.run)

    def run(self) -> None:
        """One step of the job that has waited for longest."""
        self.scheduled = False
        if not self.waiting:
            return
        job = self.waiting.popleft()
        job.listed = False
        try:
            if job.step():
                self.add(job)
        except Exception:  # a mistake in here concerns one job
            logger.exception("a job of the broker failed")
        self.broker.end_turn()
        self.schedule()
