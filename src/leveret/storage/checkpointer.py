"""Background checkpoints: a second connection copies pages of the write-ahead log into the database during commits.

The log can restart only when all of it is in the database, and new commits keep appending to it. So the checkpointer runs
rounds in the background until few pages are left, and the foreground copies those.

SQLite up to 3.51.2, except 3.44.6 and 3.50.7, has a bug that can corrupt a database: if a checkpoint has copied all of the
log and another one begins while a commit resets the log, the second records pages of the new log as checkpointed that are
not (https://sqlite.org/wal.html, "The WAL-reset bug"). A commit resets the log only if all of it is in the database. So a
round begins only after a complete commit since the previous round: the log then has pages that are not in the database,
only this round copies them, and no commit resets the log before the round ends. Checkpoints in the foreground wait for the
round, and there is no other writer. The rule costs nothing, so it applies to all versions.
"""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
from typing import Final

# The foreground takes over when this few pages are left, or after this many rounds.
FEW_PAGES: Final = 256
MAX_ROUNDS: Final = 4


class Checkpointer:
    """Runs checkpoint rounds in a thread of its own. All methods are called from the worker thread.

    connection  used by this thread alone after the first round begins
    rounds      rounds since the log restarted
    may_begin   whether a complete commit followed the last round
    error       the error of a failed round
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.rounds = 0
        self.may_begin = True
        self.error: sqlite3.Error | None = None
        self._pages_at_start = 0
        self._jobs: queue.SimpleQueue[bool] = queue.SimpleQueue()
        # Set while no round is in progress.
        self._idle = threading.Event()
        self._idle.set()
        self._runner: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a round is in progress."""
        return not self._idle.is_set()

    def committing(self) -> None:
        """Note that a commit is about to begin."""
        self.may_begin = not self.busy

    def advance(self, pages: int) -> bool:
        """Note a completed commit, after which the log has `pages` pages, and begin a round if that is safe.

        Returns whether the foreground has to finish the checkpoint.
        """
        if self.busy or not self.may_begin:
            return False
        if self.rounds and (pages - self._pages_at_start <= FEW_PAGES or self.rounds >= MAX_ROUNDS):
            return True
        if self._runner is None:
            self._runner = threading.Thread(target=self._run, name="leveret-checkpoint", daemon=True)
            self._runner.start()
        self._idle.clear()
        self.may_begin = False
        self.rounds += 1
        self._pages_at_start = pages
        self._jobs.put(True)
        return False

    def wait(self) -> None:
        """Wait for the round in progress."""
        self._idle.wait()

    def restart(self) -> None:
        """Note that all of the log is in the database."""
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
                self._idle.set()
