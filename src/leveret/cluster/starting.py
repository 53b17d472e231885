"""The wait of a start for PostgreSQL, and for a standby that confirms commits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from leveret.cluster.database_thread import DatabaseThread
from leveret.storage.cluster import ClusterSettings, ServerAway
from leveret.storage.postgres_session import Session

logger = logging.getLogger("leveret.serve")

Result = TypeVar("Result")

# Seconds between two attempts, and after which the wait for an answer is reported.
RETRY_INTERVAL: Final = 0.5
_PATIENCE: Final = 1.0
# Seconds between two reports of the same reason.
REPORT_INTERVAL: Final = 1.0
# Writes to the log of the server, but changes nothing: its commit waits for the standbys.
_COMMIT: Final = "SELECT pg_logical_emit_message(true, 'leveret', '')"


class Start:
    """A start that waits for as long as the server takes.

    Args:
        settings: The place of the database.
        report: Called with what the start waits for: when that changes, and then once a second.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, settings: ClusterSettings, report: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._report = report
        self._clock = clock
        self._reason = ""
        self._due = 0.0
        # The connection of the commit under way.
        self._session: Session | None = None
        self._is_ended = False

    async def reach(self) -> None:
        """Wait until the server can be used, and a commit is on all disks that it must be on. Raises `StorageFailed`."""
        began = self._clock()
        thread = DatabaseThread("leveret-start", self._settings, self._connect, lambda session: True)
        try:
            await self.repeat(lambda: self._commit(thread))
        finally:
            self._is_ended = True
            if self._session is not None:
                # Otherwise, it would wait for the standby, and use a connection, after the end of this process.
                self._session.cancel()
            thread.close()
        if self._reason:
            logger.info("PostgreSQL confirms commits after %.1f seconds: the start continues", self._clock() - began)

    async def repeat(self, step: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Return the result of a step of the start, which is repeated while the server is away. Raises `StorageFailed`."""
        while True:
            try:
                return await step()
            except ServerAway as error:
                self.note_away(error)
            await asyncio.sleep(RETRY_INTERVAL)

    def note_away(self, error: ServerAway) -> None:
        """Note why the server cannot be used yet."""
        self._note(f"{error}; start the server, or correct its address ('storage.dsn')")

    def _note(self, reason: str) -> None:
        now = self._clock()
        if reason != self._reason or now >= self._due:
            self._reason, self._due = reason, now + REPORT_INTERVAL
            self._report(reason)

    async def _commit(self, thread: DatabaseThread) -> None:
        self._session = None
        commit = asyncio.create_task(thread.run(self._commit_in))
        while not (await asyncio.wait([commit], timeout=_PATIENCE))[0]:
            session = self._session
            if session is not None:
                self._note(
                    f"PostgreSQL at {session.address()} has not confirmed a commit: no standby of"
                    f" '{session.facts.standbys}' (synchronous_standby_names) has answered; start one whose"
                    " application_name (primary_conninfo) is in it"
                )
        commit.result()
        self._session = None

    def _connect(self) -> Session:
        self._session = session = Session(self._settings, "leveret")
        return session

    def _commit_in(self, session: Session) -> None:
        session.warned = bool(session.facts.standbys)
        while session.warned and not self._is_ended:
            session.warned = False
            session.execute(_COMMIT)
