"""The worker thread of an engine: one commit at a time, and loads in between.

Commits have priority; loads proceed row by row, so a commit waits for one row at most. While the store is full, the worker
retries the failed commit and loads continue, since consumers that drain the queues free space.

A long job, such as a copy for a backup, lets the thread do a commit and a step of a load after each of its own steps.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from leveret.broker.bodies import Spool
from leveret.broker.durations import Durations
from leveret.broker.log import FAILED, FULL, OK
from leveret.storage.batch import BodyPart, ChunkPart, Commit, CopyPlan, RowImage, copy_rows
from leveret.storage.loading import ReadPlan, RowReader

if TYPE_CHECKING:
    from leveret.storage.rows import StoredRow

# Decoded rows cached during loads, and until the next ones: readers of a stream often continue in the same row.
_CACHED_READERS: Final = 8
_KEPT_READERS: Final = 2
_FIRST_DELAY: Final = 0.05
_MAX_DELAY: Final = 1.0
# Seconds without a job after which housekeeping begins, and the pause between its steps.
_IDLE: Final = 1.0
_PAUSE: Final = 0.01
# Free space is checked again after this many bytes or seconds.
_UNCHECKED_BYTES: Final = 2 << 20
_UNCHECKED_SECONDS: Final = 0.2


class StoreFull(Exception):
    """There is no space for a commit, and nothing of it was written."""


class StoreBroken(Exception):
    """The store can no longer be trusted, because of an I/O error or a damaged file."""


class StoreFenced(StoreBroken):
    """Another broker owns the store: this one can commit nothing any more."""


def chunk_bytes(parts: list[ChunkPart]) -> bytes:
    """Return the bytes of a chunk row. Raises `StoreBroken` if a body cannot be read."""
    try:
        return b"".join([part.read() if isinstance(part, BodyPart) else part for part in parts])
    except OSError as error:
        raise StoreBroken(f"a large body cannot be read back: {error}") from None


def copied_row(plan: CopyPlan, fetch: Callable[[int], tuple[bytes, bytes, bytes] | None]) -> RowImage:
    """Build the row of a plan; `fetch` returns the columns of a row. Raises `StoreBroken` if one is missing."""
    columns: list[tuple[bytes, bytes, bytes]] = []
    for source in plan.sources:
        row = fetch(source.id)
        if row is None:
            raise StoreBroken(f"row {source.id} of the log is missing")
        columns.append(row)
    return copy_rows(plan, columns)


class Abandoned(Exception):
    """The thread ends before a long job has ended."""


class Interleave(Protocol):
    """Does what waits for the thread during a long job: at most one commit and a step of a load."""

    def __call__(self, wait: float = 0.0) -> int:
        """Return soon, or wait up to some seconds for something to do.

        Returns:
            The size of the commit in bytes, 0 for none.

        Raises:
            Abandoned: The thread is to end.
        """


class Store(Protocol):
    """The file or database that a worker writes to. Called from the worker thread only."""

    def commit(self, commit: Commit) -> None:
        """Make a commit durable, atomically. Raises `StoreFull` or `StoreBroken`."""

    def read_row(self, row_id: int) -> tuple[bytes, bytes] | None:
        """Return index and data of a row, None if it does not exist. Raises `StoreBroken`."""

    def read_chunks(self, first: int, count: int) -> list[bytes]:
        """Return chunks of a body. Raises `StoreBroken`."""

    def tidy(self) -> None:
        """Do housekeeping that cannot wait for an idle moment; called after every commit. Raises like `commit`."""

    def maintain(self) -> bool:
        """Do a bounded step of housekeeping when idle. Returns whether there is more to do. Raises like `commit`."""

    def space(self, pending: int) -> str:
        """Return why there is too little space for `pending` bytes and the reserve, "" if there is enough."""

    def make_room(self) -> None:
        """Release the disk reserve after a commit that found the disk full. Raises `StoreBroken`."""

    def statistics(self) -> dict[str, int]:
        """Return statistics of the store. Called from any thread."""


class ServedLog(Protocol):
    """The log that a worker serves; its methods are called on the event loop."""

    shard: int
    pending_bytes: int
    spool: Spool | None

    def returned(self) -> None:
        """Process the results of finished jobs."""

    def changed(self, state: str, reason: str) -> None:
        """Handle a change of the state of the store."""

    def loaded(self, plan: ReadPlan) -> None:
        """Process the result of a load."""


class Worker:
    """Runs the commits and loads of one log in its own thread."""

    def __init__(self, log: ServedLog, store: Store, post: Callable[[Callable[[], None]], None]) -> None:
        self._log = log
        self._store = store
        self._post = post
        # Each adds a job for the thread, or runs in it.
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._commits: deque[Commit] = deque()
        self._loads: deque[ReadPlan] = deque()
        self._long_jobs: deque[Callable[[Interleave], None]] = deque()
        self._readers: OrderedDict[int, RowReader] = OrderedDict()
        self._closing = False
        self._state = OK
        self._reason = ""
        self._checked = 0.0
        self._unchecked = 0
        self.failure: Exception | None = None
        # The durations of commits, and the bytes of new records in them.
        self.commits = Durations()
        self._written = 0
        self._committer = threading.Thread(target=self._run, name=f"leveret-log-{log.shard}", daemon=True)
        self._committer.start()

    # Called on the event loop

    def submit(self, commit: Commit) -> None:
        self._jobs.put(partial(self._commits.append, commit))

    def read(self, plan: ReadPlan) -> None:
        self._jobs.put(partial(self._loads.append, plan))

    def run_long(self, job: Callable[[Interleave], None]) -> None:
        """Run a long job in the thread. It calls its argument after each step, and must end when that raises."""
        self._jobs.put(partial(self._long_jobs.append, job))

    def ask(self, question: Callable[[], bool], answer: Callable[[bool], None]) -> None:
        """Ask the store a question in the thread, and call `answer` on the event loop."""
        self._jobs.put(lambda: self._post(partial(answer, self._housekeep(question))))

    def close(self) -> None:
        """Complete submitted jobs, abandon long ones, and end the thread. Blocking.

        `failure` has the reason of a failure.
        """
        self._jobs.put(self._end)
        self._committer.join()

    def statistics(self) -> dict[str, int]:
        return {**self._store.statistics(), "written_bytes": self._written}

    # The thread

    def _end(self) -> None:
        self._closing = True

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # after any error, nothing may be confirmed
            self.failure = error
            self.set_state(FAILED, str(error) or type(error).__name__)

    def _work(self) -> None:
        pause: float | None = None
        while True:
            self._take(self._job_timeout(pause))
            if self._long_jobs:
                self._long_jobs.popleft()(self._interleave)
                pause = _IDLE
            elif self._commits:
                self._commit(self._commits[0])
                self._commits.popleft()
                pause = _IDLE
            elif self._loads:
                self._load_step()
                pause = _IDLE
            elif self._closing:
                return
            else:
                self._readers.clear()
                pause = _PAUSE if self._housekeep(self._store.maintain) else None
                if self._state != OK:
                    self._check_space()

    def _job_timeout(self, pause: float | None) -> float | None:
        """Return how long to wait for the next job, None for no limit."""
        if self._loads or self._commits or self._long_jobs or self._closing:
            return 0.0
        if pause is None and self._state != OK:
            return _MAX_DELAY
        return pause

    def _interleave(self, wait: float = 0.0) -> int:
        self._take(0.0 if self._loads or self._commits or self._closing else wait)
        committed = 0
        if self._commits:
            committed = self._commits[0].pending_bytes
            self._commit(self._commits[0])
            self._commits.popleft()
        if self._loads:
            self._load_step()
        if self._state != OK:
            self._check_space()
        if self._closing:
            raise Abandoned("the broker stops")
        return committed

    def _housekeep(self, work: Callable[[], bool | None]) -> bool:
        try:
            return bool(work())
        except StoreFull as error:
            self.set_state(FULL, str(error))
            return False

    def _take(self, timeout: float | None) -> None:
        """Wait for jobs and sort them."""
        try:
            job = self._jobs.get(timeout=timeout) if timeout != 0.0 else self._jobs.get_nowait()
            while True:
                job()
                job = self._jobs.get_nowait()
        except queue.Empty:
            pass

    def _commit(self, commit: Commit) -> None:
        delay = 0.0
        while True:
            began = time.monotonic()
            try:
                self._store.commit(commit)
                break
            except StoreFull as error:
                self.set_state(FULL, str(error))
                if not delay:
                    self._store.make_room()
                    delay = _FIRST_DELAY
                    continue
                if self._closing:
                    raise
            self._wait(delay)
            delay = min(delay * 2, _MAX_DELAY)
        self.commits.record(time.monotonic() - began)
        commit.finish()
        self._written += commit.pending_bytes
        self._post(self._log.returned)
        self._housekeep(self._store.tidy)
        self._unchecked += commit.pending_bytes
        now = time.monotonic()
        if self._unchecked > _UNCHECKED_BYTES or now - self._checked > _UNCHECKED_SECONDS:
            self._checked = now
            self._unchecked = 0
            self._check_space()

    def _wait(self, delay: float) -> None:
        """Wait before a commit is retried, running loads meanwhile."""
        until = time.monotonic() + delay
        while not self._closing:
            left = until - time.monotonic()
            if left <= 0:
                return
            if self._loads and self._load_step():
                self._take(0.0)
            else:
                self._take(left)

    def _check_space(self) -> None:
        reason = self._store.space(self._log.pending_bytes)
        self.set_state(FULL if reason else OK, reason)

    def set_state(self, state: str, reason: str) -> None:
        """Pass a change of the state on to the log."""
        if state == self._state and reason == self._reason:
            return
        self._state = state
        self._reason = reason
        log = self._log
        self._post(lambda: log.changed(state, reason))

    def _load_step(self) -> bool:
        """Do one step of the first load. Returns False if it waits for a commit that is being retried."""
        plan = self._loads[0]
        if plan.read < plan.steps:
            try:
                plan.read_next(self._reader)
            except KeyError:
                if self._commits:
                    return False
                raise StoreBroken("a row of the log is missing") from None
            except (ValueError, IndexError) as error:
                raise StoreBroken(f"the log is damaged: {error}") from None
            plan.read += 1
        if plan.read == plan.steps:
            self._loads.popleft()
            log = self._log
            self._post(lambda: log.loaded(plan))
            while len(self._readers) > _KEPT_READERS and not self._loads:
                self._readers.popitem(last=False)
        return True

    def _reader(self, row: StoredRow) -> RowReader:
        reader = self._readers.get(row.id)
        if reader is None:
            columns = self._store.read_row(row.id)
            if columns is None:
                raise KeyError(row.id)
            reader = RowReader(row, columns[0], columns[1], self._store.read_chunks, self._log.spool)
            self._readers[row.id] = reader
            if len(self._readers) > _CACHED_READERS:
                self._readers.popitem(last=False)
        else:
            self._readers.move_to_end(row.id)
        return reader
