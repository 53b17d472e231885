"""The audit log of a broker: it notes changes on the event loop, and a thread writes them."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from leveret.broker.errors import ResourceError
from leveret.management.audit.records import AuditRecord
from leveret.management.audit.store import AuditStore, Filter

logger = logging.getLogger("leveret.audit")

T = TypeVar("T")

# Records in memory, for readers of events, and maximum number of those that are still to be written.
RECENT: Final = 1000
MAX_PENDING: Final = 50_000


class AuditLog:
    """The audit log of one broker, in memory without `open`.

    Attributes:
        recent: The latest records.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._store: AuditStore | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._pending: list[AuditRecord] = []
        self._writing: Future[None] | None = None
        self._next_id = 1
        self._dropped = 0
        self.recent: deque[AuditRecord] = deque(maxlen=RECENT)

    def open(self, path: Path, max_size: int, max_age: float) -> None:
        """Open the file, which may take some milliseconds. If that fails, changes are kept in memory only."""
        try:
            self._store = AuditStore(path, max_size, max_age)
        except (OSError, sqlite3.Error) as error:
            logger.error("no audit log: cannot use %s: %s", path, error)
            return
        self._next_id = self._store.last_id() + 1
        self._thread = ThreadPoolExecutor(1, "audit")

    def close(self) -> None:
        """Write the rest and close the file. Blocks."""
        thread, store = self._thread, self._store
        self._thread = self._store = None
        if thread is None or store is None:
            return
        if self._pending:
            thread.submit(self._write, store, self._take)
        thread.submit(store.close)
        thread.shutdown()

    def add(self, record: AuditRecord) -> None:
        """Add a record. Sets its id and time."""
        record.id = self._next_id
        record.time = int(self._clock() * 1000)
        self._next_id += 1
        self.recent.append(record)
        if self._store is None:
            return
        if len(self._pending) >= MAX_PENDING:
            self._dropped += 1
            return
        self._pending.append(record)
        if self._writing is None or self._writing.done():
            self._start()

    def _start(self) -> None:
        thread, store = self._thread, self._store
        if thread is not None and store is not None:
            self._writing = thread.submit(self._write, store, self._take)

    def _take(self) -> list[AuditRecord]:
        pending, self._pending = self._pending, []
        return pending

    def _write(self, store: AuditStore, take: Callable[[], list[AuditRecord]]) -> None:
        """Write pending records, in the thread."""
        while records := take():
            dropped, self._dropped = self._dropped, 0
            try:
                store.add(records)
            except sqlite3.Error as error:
                dropped += len(records)
                logger.error("cannot write the audit log: %s", error)
            if dropped:
                logger.error("%d changes are missing in the audit log", dropped)

    async def written(self) -> None:
        """Return when all records so far are written."""
        while self._pending or (self._writing is not None and not self._writing.done()):
            if self._writing is None or self._writing.done():
                self._start()
            if self._writing is None:
                return
            await asyncio.wrap_future(self._writing)

    async def search(self, wanted: Filter, offset: int, count: int) -> tuple[list[AuditRecord], int]:
        """Return the newest records that meet the conditions, after the first `offset` of them, and the number of all.

        Raises:
            ResourceError: There is no file.
        """
        store, thread = self._store, self._thread
        if store is None or thread is None:
            raise ResourceError("there is no audit log; the setting is management.audit")
        await self.written()
        return await asyncio.wrap_future(thread.submit(store.search, wanted, offset, count))
