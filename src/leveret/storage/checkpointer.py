"""Checkpoints beside commits: a second connection brings pages of the write-ahead log into the file while the first one
goes on writing.

The log can begin anew only when all of it is in the file, and new commits keep adding to it. So rounds are made in the
background until little is left, and that little in the foreground.

Up to version 3.51.2 (but for 3.44.6 and 3.50.7) SQLite has a bug that can corrupt a database: after a checkpoint that
brought all of the log into the file, another checkpoint must not begin at the moment at which a commit resets the log; it
would note pages of the new log as checkpointed that are not (https://sqlite.org/wal.html, "The WAL-reset bug"). A commit
resets the log only if all of it is in the file. So a round begins only if there has been a whole commit since the round
before it ended: then the log has pages that are not in the file, nothing but this very round brings them there, and no
commit resets the log before the round is done. The foreground's checkpoints wait for the round, and there is no other
writer. This costs nothing, so it holds for all versions.
"""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
from typing import Final

# With so few pages left the foreground takes over, and also after so many rounds.
FEW_PAGES: Final = 256
MAX_ROUNDS: Final = 4


class Checkpointer:
    """Makes rounds in a thread of its own. All methods are called from the worker's thread.

    connection  its own, used by nobody else once the first round began
    busy        whether a round is under way
    rounds      since the log began anew
    may_begin   whether a whole commit came after the last round
    error       what went wrong in a round
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.busy = False
        self.rounds = 0
        self.may_begin = True
        self.error: sqlite3.Error | None = None
        self._pages_at_start = 0
        self._jobs: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._done = threading.Event()
        self._runner: threading.Thread | None = None

    def committing(self) -> None:
        """A commit is about to begin."""
        self.may_begin = not self.busy

    def advance(self, pages: int) -> bool:
        """A commit is done, and the log has so many pages. Begins a round if that is safe; True when the foreground is to
        finish."""
        if self.busy or not self.may_begin:
            return False
        if self.rounds and (pages - self._pages_at_start <= FEW_PAGES or self.rounds >= MAX_ROUNDS):
            return True
        if self._runner is None:
            self._runner = threading.Thread(target=self._run, name="leveret-checkpoint", daemon=True)
            self._runner.start()
        self.busy = True
        self.may_begin = False
        self.rounds += 1
        self._pages_at_start = pages
        self._done.clear()
        self._jobs.put(True)
        return False

    def wait(self) -> None:
        """Wait for the end of the round that is under way."""
        if self.busy:
            self._done.wait()

    def restart(self) -> None:
        """All of the log is in the file."""
        self.rounds = 0

    def close(self) -> None:
        self.wait()
        if self._runner is not None:
            self._jobs.put(False)
            self._runner.join()
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()

    def _run(self) -> None:
        while self._jobs.get():
            try:
                self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            except sqlite3.Error as error:
                self.error = error
            except Exception as error:
                self.error = sqlite3.OperationalError(f"{type(error).__name__}: {error}")
            finally:
                self.busy = False
                self._done.set()
