"""Work that is too much for one turn: it is done a step at a time, and between two steps everybody else has a turn.

Only one job makes a step in a pass of the event loop, however many there are.

`Jobs.run_steps` is for what one operation of a client does to any number of things: an iterator does the work and yields
how many units each piece of it was. What is small is done at once, as if it were not an iterator; the rest follows in steps
of a few milliseconds. Who asked for it, and everything that must come after it, waits for `done`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.queues.queue import Queue

logger = logging.getLogger("leveret.broker")


# Units of work of one step, about 1 µs each.
STEP_WORK: Final = 4000
# Units of work of a turn beyond which removals wait for the next one, however small they are.
MAX_AT_ONCE: Final = 2 * STEP_WORK


@mypyc_attr(allow_interpreted_subclasses=True)
class Job(Timed):
    """Work in steps. `listed`: it waits for its next step; otherwise it sleeps until somebody resumes it, or `due`."""

    def __init__(self, jobs: Jobs) -> None:
        super().__init__()
        self.jobs = jobs
        self.listed = False
        # Others wait for it: it makes each second step.
        self.urgent = False

    def step(self) -> bool:
        """Do a few milliseconds of work; return False if there is nothing to do until `resume`."""
        raise NotImplementedError

    def failed(self) -> None:
        """Notify the waiters that `step` raised an exception, which is logged."""

    def resume(self) -> None:
        """Have `step` called, in a turn to come."""
        self.jobs.add(self)

    def resume_in(self, milliseconds: int) -> None:
        timers = self.jobs.broker.timers
        timers.at(timers.now() + milliseconds, self)

    def fire(self, now: int) -> None:
        self.jobs.add(self)


class Sliced(Job):
    """The rest of a piece of work that was too large to be done at once. At its end `done` or `on_failure` is called."""

    def __init__(self, jobs: Jobs, pieces: Iterator[int], done: Callable[[], None] | None,
                 on_failure: Callable[[], None] | None) -> None:
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
    """A part of a piece of work whose failure is logged, and does not keep the rest from being done."""
    try:
        yield from pieces
    except Exception:
        logger.exception("a part of a job of the broker failed")


def advance(broker: Broker, pieces: Iterator[int]) -> bool:
    """Do one step of a piece of work; whether that was all of it."""
    begun = broker.work
    for work in pieces:
        broker.work += work
        if broker.work < begun:
            begun = 0  # a turn has ended in between
        if broker.work - begun >= STEP_WORK:
            return False
    return True


class Removals(Job):
    """What is gone for everybody, and has to be taken apart: entries of queues, bindings. In the order in which it went."""

    def __init__(self, jobs: Jobs) -> None:
        super().__init__(jobs)
        self.pending: deque[Iterator[int] | Callable[[], None]] = deque()
        self.busy = False

    def add(self, pieces: Iterator[int]) -> None:
        """Take something apart, at once if it is small, nothing else is waiting, and the turn has time left."""
        self.pending.append(pieces)
        if self.busy or self.listed:
            return
        if self.jobs.broker.work < MAX_AT_ONCE:
            self.step()
        if self.pending:
            self.resume()

    def after(self, done: Callable[[], None]) -> bool:
        """Call `done` once everything added so far is removed; return False if it is already."""
        if not self.pending:
            return False
        self.pending.append(done)
        return True

    def step(self) -> bool:
        self.busy = True
        try:
            left = STEP_WORK
            while self.pending and left > 0:
                first = self.pending[0]
                if callable(first):
                    self.pending.popleft()
                    try:
                        first()
                    except Exception:  # the others still wait for theirs
                        logger.exception("the end of a removal failed")
                    continue
                before = self.jobs.broker.work
                try:
                    if advance(self.jobs.broker, first):
                        self.pending.remove(first)
                except Exception:  # a mistake in here concerns one of them
                    logger.exception("a removal failed")
                    self.pending.remove(first)
                left -= self.jobs.broker.work - before
        finally:
            self.busy = False
        return bool(self.pending)


class Commits(Job):
    """Transactions that are too large for one turn, one after the other. What one of them writes in several turns is one
    commit of the log, which others wait for: so each second step is made here."""

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
        """Write the rest of the transaction that has begun, at once: the log is about to be closed."""
        try:
            while self.pending and self.pending[0].step():
                pass
        except Exception:
            logger.exception("a transaction failed")


class Again(Job):
    """Queues that have handed out, or offered, as much as one turn may, and go on in the next; each has a step of its own.
    A step ends the turn, also for queues and outputs that the turn before had to leave."""

    def __init__(self, jobs: Jobs) -> None:
        super().__init__(jobs)
        self.queues: dict[Queue, None] = {}

    def add(self, queue: Queue) -> None:
        self.queues[queue] = None
        self.resume()

    def step(self) -> bool:
        if self.queues:
            queue = next(iter(self.queues))
            del self.queues[queue]
            queue.activate()
        return bool(self.queues)


class Jobs:
    """The jobs of a broker. `call_soon` runs something in a pass of the event loop of its own; the server sets it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.waiting: deque[Job] = deque()
        self.scheduled = False
        # The kind of the job that has made the last step.
        self.ran = ""
        self.call_soon: Callable[[Callable[[], None]], object] | None = None
        self.removals = Removals(self)
        self.commits = Commits(self)
        self.again = Again(self)

    def run_steps(self, pieces: Iterator[int], done: Callable[[], None] | None = None,
                  failed: Callable[[], None] | None = None) -> bool:
        """Do a piece of work: at once if it is small, else in steps to come, after which `done` is called. Returns whether
        it was done at once, and then does not call `done`.

        What fails at once raises its exception here; what fails in a later step, `done` included, is logged, and `failed`
        is called in the place of `done`.
        """
        if advance(self.broker, pieces):
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
        """One step of the job that has waited for longest."""
        self.scheduled = False
        if not self.waiting:
            return
        job = self.waiting.popleft()
        job.listed = False
        self.ran = type(job).__name__
        try:
            if job.step():
                self.add(job)
        except Exception:  # a mistake in here concerns one job
            logger.exception("a job of the broker failed")
            try:
                job.failed()
            except Exception:
                logger.exception("the cleanup of a failed job failed, too")
        self.broker.end_turn()
        self.schedule()
