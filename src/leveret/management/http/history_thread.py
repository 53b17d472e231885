"""The history database of the process, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from leveret.management.http.cache import Cache
from leveret.management.http.errors import HttpError
from leveret.management.http.history_store import MINUTE, HistoryDatabase, Subject, minute_of
from leveret.management.http.measured import LENGTHS, MESSAGES, Window
from leveret.management.http.samples import OlderSamples, oldest_tick

logger = logging.getLogger("leveret.http")

T = TypeVar("T")

# Maximum number of queues in an answer whose samples are read from the database.
MAX_OLDER: Final = 500


class History:
    """The database of the process, in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, "history")
        self._database: HistoryDatabase | None = None
        self._reason = ""
        self._opened = asyncio.Event()
        self._minute = -1
        # Times of deletions that the database does not have yet, until they are written.
        self._deleted: dict[Subject, int] = {}
        self._writing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the database. If that fails, there is no history."""
        try:
            self._database = await self._run(lambda: HistoryDatabase(self._path))
        except (OSError, sqlite3.Error) as error:
            self._reason = str(error)
            logger.warning("no history of statistics: cannot use %s: %s", self._path, error)
        finally:
            self._opened.set()

    async def close(self) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if self._database is not None:
            await self._run(self._database.close)
        self._thread.shutdown()

    def ticked(self, cache: Cache) -> None:
        """Add the last minute if it has ended, and the queues that were deleted."""
        minute = cache.tick // MINUTE
        known, self._minute = self._minute, minute
        self._take_deleted(cache)
        database = self._database
        if database is None:
            self._deleted = {}
            return
        if self._writing is not None and not self._writing.done():
            return
        # The first minute, and one after a pause, are not complete.
        if minute == known + 1:
            begin = known * MINUTE
            samples = minute_of(cache, begin)
            self._writing = asyncio.create_task(self._write(lambda: database.add_minute(begin, samples)))
        elif self._deleted:
            self._writing = asyncio.create_task(self._note_deleted(database))

    def _take_deleted(self, cache: Cache) -> None:
        self._deleted |= {Subject(*key): time for key, time in cache.take_deleted().items()}

    async def _note_deleted(self, database: HistoryDatabase) -> None:
        deleted = self._deleted.copy()
        await self._write(lambda: database.note_deleted(deleted))
        for subject in deleted:
            del self._deleted[subject]

    async def _write(self, add: Callable[[], None]) -> None:
        try:
            await self._run(add)
        except sqlite3.Error as error:
            logger.warning("cannot write the history of statistics %s: %s", self._path, error)

    async def read(self, subject: Subject, step: int, first: int, last: int) -> list[tuple[int, tuple[int, ...]]]:
        """Return the samples of a subject. Raises `HttpError` (503) if there is no history."""
        database = await self._checked()
        return await self._run(lambda: database.read(subject, step, first, last))

    async def of_name(self, vhost: str, queue: str, cache: Cache) -> tuple[Subject, list[int]]:
        """Return the last queue with a name, and the times at which queues with the name were deleted.

        Raises `HttpError` (503) if there is no history.
        """
        database = await self._checked()
        found = cache.queue(vhost, queue)
        id = None if found is None else found.id
        self._take_deleted(cache)
        deleted = self._deleted
        return await self._run(lambda: database.of_name(vhost, queue, id, deleted))

    async def older(
        self, subjects: Sequence[Subject], windows: Mapping[str, Window], cache: Cache
    ) -> dict[Subject, OlderSamples]:
        """Return the samples of subjects from before those in memory, if windows go back further and there is a history."""
        age = max((windows[name].age for name in (LENGTHS, MESSAGES) if name in windows), default=0)
        first, until = cache.tick - age, max(oldest_tick(cache.tick), cache.started)
        database = self._database
        if database is None or first >= until or len(subjects) > MAX_OLDER:
            return {}
        # The period that contains the first sample, too.
        return await self._run(lambda: database.older(subjects, first - MINUTE, until))

    async def subjects(self) -> list[Subject]:
        """Return everything that has samples. Raises `HttpError` (503) if there is no history."""
        return await self._run((await self._checked()).subjects)

    async def clear(self) -> None:
        """Delete all samples, if there is a history."""
        await self._opened.wait()
        if self._database is not None:
            await self._run(self._database.clear)

    async def _checked(self) -> HistoryDatabase:
        await self._opened.wait()
        if self._database is None:
            raise HttpError(503, "service_unavailable", f"no history of statistics: {self._reason}")
        return self._database

    async def _run(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)
