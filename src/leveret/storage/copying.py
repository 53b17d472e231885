"""A copy of the database for a backup, which the worker thread writes in slices between commits.

SQLite's backup of a connection includes the commits that this connection makes meanwhile: it writes each changed page to
the copy, too, if the page is already there. A commit of another connection would restart it. SQLite does not sync the copy.
Another thread does after every MiB, and the next slice waits for that while commits continue: otherwise, the pages would
pile up in memory until a sync of the log had to wait for all of them.

After a large commit, the copy continues for as many bytes, up to a maximum, and is synced at that distance. Otherwise,
publishers of large messages could extend the log faster than it is copied, one slice for each commit.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from leveret.broker.log import LogCopy
from leveret.storage import disk
from leveret.storage.worker import Abandoned, Interleave

# Pages of a slice, which takes about half a millisecond.
SLICE_PAGES: Final = 64
SYNCED_BYTES: Final = 1 << 20
# Maximum bytes between two commits, which take about 20 milliseconds.
MAX_TURN: Final = 4 << 20
# Maximum seconds between looks whether a sync has ended, if there are no commits.
_LOOK_INTERVAL: Final = 0.005


class DatabaseCopy(LogCopy):
    """A copy in a new file, which is removed if the copy does not become complete.

    path       the file
    keep_free  bytes to leave free on its disk
    """

    def __init__(self, path: Path, keep_free: int) -> None:
        super().__init__()
        self._path = path
        self._keep_free = keep_free
        self._is_cancelled = False
        self._is_created = False
        self._page_bytes = 0
        # Bytes to copy before the next commit, and how many of them are left.
        self._turn = 0
        self._left = 0
        self._synced = 0
        self._sync: Future[None] | None = None
        self._syncing = ThreadPoolExecutor(1, thread_name_prefix="leveret-copy")

    def cancel(self) -> None:
        self._is_cancelled = True

    def write(self, source: sqlite3.Connection, interleave: Interleave) -> None:
        """Write the copy. Runs in the worker thread. Raises only errors of the log; `problem` has those of the copy."""

        def between(status: int, remaining: int, pages: int) -> None:
            self._note(remaining, pages)
            self._left -= SLICE_PAGES * self._page_bytes
            if self._left <= 0 or self._sync is not None:
                largest = interleave()
                while self._sync is not None and not self._sync.done():
                    largest = max(largest, interleave(_LOOK_INTERVAL))
                self._left = self._turn = min(largest, MAX_TURN)
            self._check()

        try:
            with contextlib.closing(self._create()) as target:
                self._page_bytes = source.execute("PRAGMA page_size").fetchone()[0]
                source.backup(target, pages=SLICE_PAGES, progress=between, sleep=0.001)
            self._syncing.submit(self._finish)
        except (sqlite3.Error, OSError, Abandoned) as error:
            self._syncing.submit(self._give_up, _reason(error))
        except BaseException:
            self._syncing.submit(self._give_up, "the log has failed")
            raise
        finally:
            self._syncing.shutdown(wait=False)

    def _create(self) -> sqlite3.Connection:
        self._check()
        if not disk.create_file(self._path):
            raise FileExistsError(0, "the file exists", str(self._path))
        self._is_created = True
        target = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        target.execute("PRAGMA journal_mode = OFF")
        target.execute("PRAGMA synchronous = OFF")
        target.execute("PRAGMA cache_size = -1024")
        return target

    def _note(self, remaining: int, pages: int) -> None:
        self.total = pages * self._page_bytes
        self.copied = (pages - remaining) * self._page_bytes
        # SQLite starts again if a commit was rolled back that had written pages already.
        self._synced = min(self._synced, self.copied)
        if self.copied - self._synced >= max(SYNCED_BYTES, self._turn):
            self._synced = self.copied
            self._sync = self._syncing.submit(self._sync_part)

    def _check(self) -> None:
        """Raise the error of a sync, or `Abandoned` if the copy was cancelled."""
        if self._is_cancelled:
            raise Abandoned("it was cancelled")
        sync, self._sync = self._sync, None
        if sync is not None:
            sync.result()

    # In the thread that syncs

    def _sync_part(self) -> None:
        check_free(self._path.parent, self._keep_free)
        disk.sync_file(self._path)

    def _finish(self) -> None:
        try:
            disk.sync_file(self._path)
            disk.sync_directory(self._path.parent)
        except OSError as error:
            self._give_up(_reason(error))
        else:
            self.is_complete = True

    def _give_up(self, problem: str) -> None:
        if self._is_created:
            with contextlib.suppress(OSError):
                disk.remove_file(self._path)
        self.problem = problem


def check_free(directory: Path, keep_free: int) -> None:
    """Raise `OSError` if less than this number of bytes is free on the disk of a directory."""
    free = shutil.disk_usage(directory).free
    if free < keep_free:
        raise OSError(
            0,
            f"{free} bytes are free on the disk of the broker, which needs {keep_free} (limits.disk_free, storage.reserve)",
            str(directory),
        )


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
