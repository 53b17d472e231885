"""What the processes of a broker have in common in PostgreSQL: the number of shards, and the shared records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import psycopg

from leveret.broker.errors import StorageFailed
from leveret.node.part import Record
from leveret.storage.cluster import ClusterSettings
from leveret.storage.postgres_joining import check_shards, join
from leveret.storage.postgres_session import Session, StoreLost, Unfit, unopened
from leveret.storage.worker import StoreBroken, StoreFull

logger = logging.getLogger("leveret.cluster")

Result = TypeVar("Result")

# Pauses between attempts to connect again.
_FIRST_DELAY: Final = 0.05
_MAX_DELAY: Final = 1.0
_SCHEMA: Final = "leveret"

# The version belongs to the change that raised it: the row stays locked until its records are committed.
_PUT: Final = (
    "WITH raised AS (UPDATE leveret.cluster SET version = version + 1 RETURNING version)"
    " INSERT INTO leveret.shared SELECT r.kind, r.key, r.value, raised.version"
    " FROM raised, unnest(?::text[], ?::bytea[], ?::bytea[]) r(kind, key, value)"
    " ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value, version = excluded.version"
)


class Directory:
    """The tables that all processes share. Its statements run in a thread of its own.

    Args:
        settings: The place of the database. The number of its shards must be that of the database.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="leveret-directory")
        self._session: Session | None = None
        self._facts = ""

    def describe(self) -> str:
        """Return what the database is, for operators."""
        return self._facts

    async def join(self) -> list[Record] | None:
        """Create the schema unless it exists. Return the shared records; None if the database has none yet.

        Raises:
            StorageFailed: The database cannot be used, or has another number of shards.
        """
        return await self._once(self._join)

    async def begin(self, records: Iterable[Record]) -> list[Record]:
        """Set the number of shards, and the first shared records. Return those in effect. Raises as `join`."""
        first = list(records)
        return await self._once(lambda: self._begin(first))

    async def put(self, records: Iterable[Record]) -> None:
        """Store changes of shared records, on all disks that they must be on, however long that takes."""
        changed = list(records)
        await self._always(lambda: self._put(changed))

    def close(self) -> None:
        """Close the connection. Does not wait for a statement that the server does not answer."""
        self._thread.submit(self._disconnect)
        self._thread.shutdown(wait=False)

    # On the event loop

    async def _once(self, work: Callable[[], Result]) -> Result:
        """Run work in the thread. Raises `StorageFailed`."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (psycopg.Error, Unfit, StoreLost, StoreFull, StoreBroken) as error:
            self._thread.submit(self._disconnect)
            raise unopened(error) from None

    async def _always(self, work: Callable[[], Result]) -> Result:
        """Run work in the thread until it succeeds."""
        delay = _FIRST_DELAY
        reason = ""
        while True:
            try:
                return await self._once(work)
            except StorageFailed as error:
                if str(error) != reason:
                    reason = str(error)
                    logger.error("shared records cannot be stored yet: %s", reason)
            await asyncio.sleep(delay)
            delay = min(delay * 2, _MAX_DELAY)

    # In the thread

    def _connected(self) -> Session:
        if self._session is None:
            session = self._session = Session(self._settings, _SCHEMA)
            standbys = session.facts.standbys
            where = f"synchronous standbys: {standbys}" if standbys else "one disk (no synchronous standby)"
            self._facts = f"PostgreSQL {session.facts.version}, {self._settings.shards} shards, {where}"
        return self._session

    def _disconnect(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _join(self) -> list[Record] | None:
        session = self._connected()
        join(session)
        return self._records() if check_shards(session, self._settings.shards) else None

    def _records(self) -> list[Record]:
        rows = self._connected().execute("SELECT kind, key, value FROM leveret.shared WHERE value IS NOT NULL")
        return [(kind, key.decode("utf-8", "surrogateescape"), value) for kind, key, value in rows]

    def _begin(self, records: list[Record]) -> list[Record]:
        session = self._connected()
        with session.transaction():
            # The first node waits here for the transaction of another first node, and finds that it is none.
            changed = session.execute(
                "UPDATE leveret.cluster SET shards = ? WHERE shards IS NULL RETURNING shards", (self._settings.shards,)
            )
            if changed.fetchone() is not None:
                self._put(records)
        check_shards(session, self._settings.shards)
        return self._records()

    def _put(self, records: list[Record]) -> None:
        kinds = [kind for kind, _, _ in records]
        keys = [key.encode("utf-8", "surrogateescape") for _, key, _ in records]
        session = self._connected()
        while True:
            session.warned = False
            session.execute(_PUT, (kinds, keys, [value for _, _, value in records]))
            if not session.warned:
                return
