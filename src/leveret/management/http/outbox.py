"""Deliveries of alerts that wait, in a database, so that they survive a restart of the process."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from leveret.management.http.databases import open_database

logger = logging.getLogger("leveret.http")

T = TypeVar("T")

_VERSION: Final = 1
# `url` is the receiver: the URL of a webhook, or the address of a mail.
_SCHEMA: Final = "CREATE TABLE deliveries (id INTEGER PRIMARY KEY, url TEXT NOT NULL, body BLOB NOT NULL);"


class Delivery(NamedTuple):
    """A delivery. Those that were put later have larger numbers."""

    number: int
    receiver: str
    body: bytes


class Outbox:
    """The database. A thread writes it; a change is on disk some milliseconds later.

    Args:
        path: The file; None keeps nothing over a restart.
        content: What it keeps, for messages.
    """

    def __init__(self, path: Path | None, content: str) -> None:
        self._path = path
        self._content = content
        self._thread = ThreadPoolExecutor(1, "outbox")
        self._connection: sqlite3.Connection | None = None
        self._last = 0
        # Deliveries to write by their numbers, and the numbers of those to delete afterwards.
        self._added: dict[int, Delivery] = {}
        self._removed: list[tuple[int]] = []
        self._changed = asyncio.Event()

    async def open(self) -> list[Delivery]:
        """Open the database and return the deliveries that wait, the oldest first."""
        path = self._path
        if path is None:
            return []
        try:
            self._connection, found = await self._run(lambda: _read(path, self._content))
        except (OSError, sqlite3.Error) as error:
            logger.warning("%s do not survive a restart: cannot use %s: %s", self._content, path, error)
            return []
        self._last = found[-1].number if found else 0
        return found

    def add(self, receiver: str, body: bytes) -> Delivery:
        """Add a delivery."""
        self._last += 1
        delivery = Delivery(self._last, receiver, body)
        if self._connection is not None:
            self._added[delivery.number] = delivery
            self._changed.set()
        return delivery

    def remove(self, delivery: Delivery) -> None:
        """Remove a delivery."""
        if self._connection is not None:
            self._added.pop(delivery.number, None)
            self._removed.append((delivery.number,))
            self._changed.set()

    async def run(self) -> None:
        """Write changes until the task is cancelled."""
        while True:
            await self._changed.wait()
            await self._write()

    async def close(self) -> None:
        """Write the last changes and close the database, after `run` has ended."""
        if self._connection is not None:
            await self._write()
            await self._run(self._connection.close)
        self._thread.shutdown()

    async def _write(self) -> None:
        connection = self._connection
        assert connection is not None
        self._changed.clear()
        added, removed = list(self._added.values()), list(self._removed)
        try:
            await self._run(lambda: _apply(connection, added, removed))
        except sqlite3.Error as error:
            logger.warning("cannot write %s to %s: %s", self._content, self._path, error)
        # Not before: a write that is cancelled is repeated by `close`.
        for delivery in added:
            self._added.pop(delivery.number, None)
        del self._removed[: len(removed)]

    async def _run(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


def _read(path: Path, content: str) -> tuple[sqlite3.Connection, list[Delivery]]:
    connection = open_database(path, _SCHEMA, _VERSION, content)
    rows = connection.execute("SELECT id, url, body FROM deliveries ORDER BY id")
    return connection, [Delivery(*row) for row in rows]


def _apply(connection: sqlite3.Connection, added: list[Delivery], removed: list[tuple[int]]) -> None:
    with connection:
        connection.execute("BEGIN")
        connection.executemany("INSERT OR IGNORE INTO deliveries VALUES (?, ?, ?)", added)
        connection.executemany("DELETE FROM deliveries WHERE id = ?", removed)
