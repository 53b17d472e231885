"""Work that is too long for one turn: it runs in steps, and other clients are served in between.

Only one job takes a step in each pass of the event loop.

`Jobs.run_steps` is for operations of a client that affect any number of objects: an iterator does the work and yields the
units of work of each piece. Small work is done at once; the rest of larger work follows in steps of one or two
milliseconds. The client, and everything that must come after the operation, waits for `done`.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from leveret.broker.log import CommitWaiter
from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.queues.loading import Waiting
    from leveret.broker.queues.queue import Queue

logger = logging.getLogger("leveret.broker")


# Units of work of one step, about 1 µs each.
STEP_WORK: Final = 2000
# Units of work of a turn above which even small jobs and removals wait for the next turn.
MAX_AT_ONCE: Final = 2 * STEP_WORK


@mypyc_attr(allow_interpreted_subclasses=True)
class Job(Timed):
    """Work in steps. `listed`: whether it waits for its next step; otherwise it sleeps until `resume` or `due`."""

    def __init__(self, jobs: Jobs) -> None:
        super().__init__()
        self.jobs = jobs
        self.listed = False
        # Whether other work waits for it, so that it takes every second step.
        self.urgent = False
        # Whether its steps neither create nor replace objects, so that `Jobs.stepped` is not called.
        self.quiet = False

    @abstractmethod
    def step(self) -> bool:
        """Do one or two milliseconds of work; return False if there is nothing to do until `resume`."""

    def failed(self) -> None:
        """Notify the waiters that `step` raised an exception, which is logged."""

    def resume(self) -> None:
        """Schedule a call of `step` in a later turn."""
        self.jobs.add(self)

    def resume_in(self, milliseconds: int) -> None:
        timers = self.jobs.broker.timers
        timers.at(timers.now() + milliseconds, self)

    def fire(self, now: int) -> None:
        self.jobs.add(self)


class Sliced(Job):
    """The rest of work that was too large to be done at once. `done` or `on_failure` is called at its end."""

    def __init__(
        self, jobs: Jobs, pieces: Iterator[int], done: Callable[[], None] | None, on_failure: Callable[[], None] | None
    ) -> None:
        super().__init__(jobs)
        self.pieces = pieces
        self.done = done
        self.on_failure = on_failure

    def failed(self) -> None:
        on_failure = self.on_failure
        if on_failure is not None:
            on_failure()

    def step(self) -> bool:
        if not advance(self.jobs.broker, self.pieces):
            return True
        done = self.done
        self.done = None
        if done is not None:
            done()
        return False


def logged(pieces: Iterator[int]) -> Iterator[int]:
    """Run a part of some work; log an exception in it, so that the other parts are still done."""
    try:
        yield from pieces
    except Exception:
        logger.exception("a part of a job failed")


def advance(broker: Broker, pieces: Iterator[int]) -> bool:
    """Do one step of some work; return whether it is complete."""
    begun = broker.work
    for work in pieces:
        broker.work += work
        if broker.work < begun:
            begun = 0  # a turn ended before this step
        if broker.work - begun >= broker.jobs.step_work:
            return False
    return True


class CaughtUp(CommitWaiter):
    """Resumes the removals after a commit."""

    def __init__(self, removals: Removals) -> None:
        self.removals = removals

    def committed(self, batch: int) -> None:
        self.removals.caught_up()


class Removals(Job):
    """Clean-up of deleted objects: entries of queues, bindings. In the order of deletion.

    They wait while the log is behind: one commit of all changes would take too long to build.
    """

    def __init__(self, jobs: Jobs) -> None:
        super().__init__(jobs)
        self.pending: deque[Iterator[int] | Callable[[], None]] = deque()
        self.busy = False
        self.waiting = False

    def add(self, pieces: Iterator[int]) -> None:
        """Clean something up: at once if it is small, nothing else is waiting and the turn has time left."""
        self.pending.append(pieces)
        if self.busy or self.listed or self.waiting:
            return
        if self.jobs.broker.work < MAX_AT_ONCE:
            self.step()
        if self.pending and not self.waiting:
            self.resume()

    def caught_up(self) -> None:
        """Continue after the commit that the removals waited for."""
        self.waiting = False
        self.resume()

    def after(self, done: Callable[[], None]) -> bool:
        """Call `done` once everything added so far is removed; return False if that is already the case."""
        if not self.pending:
            return False
        self.pending.append(done)
        return True

    def step(self) -> bool:
        log = self.jobs.broker.log
        if log.is_behind():
            self.waiting = True
            log.wait(CaughtUp(self))
            return False
        self.busy = True
        try:
            left = self.jobs.step_work
            while self.pending and left > 0:
                first = self.pending[0]
                if callable(first):
                    self.pending.popleft()
                    try:
                        first()
                    except Exception:  # the other callbacks must still be called
                        logger.exception("a callback after a removal failed")
                    continue
                before = self.jobs.broker.work
                try:
                    if advance(self.jobs.broker, first):
                        self.pending.remove(first)
                except Exception:  # an error in one removal must not stop the others
                    logger.exception("a removal failed")
                    self.pending.remove(first)
                left -= self.jobs.broker.work - before
        finally:
            self.busy = False
        return bool(self.pending)


class Commits(Job):
    """Transactions that are too large for one turn, one after the other.

    One transaction is one log commit, even in several turns. Other clients wait for that commit, so this job takes
    every second step.
    """

    def __init__(self, jobs: Jobs) -> None:
        super().__init__(jobs)
        self.urgent = True
        self.pending: deque[Sliced] = deque()

    def add(self, pieces: Iterator[int], done: Callable[[], None], failed: Callable[[], None]) -> None:
        """Write a transaction, then call `done`, or `failed` if that raises an exception."""
        self.pending.append(Sliced(self.jobs, pieces, done, failed))
        self.resume()

    def step(self) -> bool:
        first = self.pending[0]
        try:
            ended = not first.step()
        except Exception:
            logger.exception("a transaction failed")
            ended = True
            first.failed()
        if ended:
            self.pending.popleft()
        return bool(self.pending)

    def complete(self) -> None:
        """Write the rest of the transaction in progress at once: the log is about to be closed."""
        try:
            while self.pending and self.pending[0].step():
                pass
        except Exception:
            logger.exception("a transaction failed")


class DeferredQueues(Job):
    """Queues that reached the delivery limit of a turn and continue in the next, each in its own step.

    A step ends the turn, also for queues and outputs that the previous turn had to skip.
    """

    def __init__(self, jobs: Jobs) -> None:
        super().__init__(jobs)
        self.quiet = True
        self.queues: dict[Queue, None] = {}
        self.waiting: dict[Queue, list[Waiting]] = {}

    def add(self, queue: Queue) -> None:
        self.queues[queue] = None
        self.resume()

    def wait(self, queue: Queue, waiting: Waiting) -> None:
        """Notify the caller when the queue has continued its deliveries, after `has` returned True."""
        self.waiting.setdefault(queue, []).append(waiting)

    def has(self, queue: Queue) -> bool:
        """Return whether deliveries of the queue continue in a later turn."""
        return queue in self.queues

    def step(self) -> bool:
        if self.queues:
            queue = next(iter(self.queues))
            del self.queues[queue]
            queue.activate()
            for waiting in self.waiting.pop(queue, ()):
                waiting.loaded()
        return bool(self.queues)


class Jobs:
    """The jobs of a broker.

    call_soon  runs a callback in a separate pass of the event loop; set by the server
    stepped    called after each step, except those of quiet jobs; set by the server
    step_work  units of work of one step
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.step_work = STEP_WORK
        self.waiting: deque[Job] = deque()
        self.scheduled = False
        # Kind of the job that took the last step.
        self.ran = ""
        self.call_soon: Callable[[Callable[[], None]], object] | None = None
        self.stepped: Callable[[], None] | None = None
        self.removals = Removals(self)
        self.commits = Commits(self)
        self.deferred = DeferredQueues(self)

    def run_steps(
        self, pieces: Iterator[int], done: Callable[[], None] | None = None, failed: Callable[[], None] | None = None
    ) -> bool:
        """Do some work: at once if it is small and the turn has time left, otherwise in later steps, followed by `done`.

        Returns whether it was done at once, in which case `done` is not called. An exception is raised if the work is done
        at once; in a later step, including `done`, it is logged, and `failed` is called instead of `done`.
        """
        if self.broker.work < MAX_AT_ONCE and advance(self.broker, pieces):
            return True
        self.add(Sliced(self, pieces, done, failed))
        return False

    def add(self, job: Job) -> None:
        if not job.listed:
            job.listed = True
            if job.urgent:
                self.waiting.insert(1, job)
            else:
                self.waiting.append(job)
            self.schedule()

    def schedule(self) -> None:
        if not self.scheduled and self.waiting and self.call_soon is not None:
            self.scheduled = True
            self.call_soon(self.run)

    def run(self) -> None:
        """Run one step of the job that has waited longest."""
        self.scheduled = False
        if not self.waiting:
            return
        job = self.waiting.popleft()
        job.listed = False
        self.ran = type(job).__name__
        try:
            if job.step():
                self.add(job)
        except Exception:  # an error in one job must not stop the others
            logger.exception("a job failed")
            try:
                job.failed()
            except Exception:
                logger.exception("the clean-up of a failed job failed, too")
        stepped = self.stepped
        if stepped is not None and not job.quiet:
            stepped()
        self.broker.end_turn()
        self.schedule()
