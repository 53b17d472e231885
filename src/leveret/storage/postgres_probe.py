"""A server of PostgreSQL that hangs: it is left when a standby was promoted in its place.

A server whose disk hangs answers nothing, but its machine keeps the connections open, so that a statement would wait
forever. A statement that waits for a standby looks the same, and has to wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Final

import psycopg

from leveret.storage.cluster import ClusterSettings, Server
from leveret.storage.postgres_session import Session, Unfit

logger = logging.getLogger("leveret.storage")

# Seconds without an answer after which another server is looked for, and between two attempts.
SILENCE: Final = 5.0
INTERVAL: Final = 2.0


class Probe:
    """Looks for another server in a thread, while one does not answer.

    Args:
        settings: The addresses of the servers.
        session: Returns the connection; None if there is none.
        silence: Returns the seconds for which the server has not answered.
    """

    def __init__(
        self, settings: ClusterSettings, session: Callable[[], Session | None], silence: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._session = session
        self._silence = silence
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leveret-probe", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, without waiting for an attempt under way."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL):
            session = self._session()
            if session is not None and self._silence() > SILENCE and self._is_replaced(session.facts.server):
                logger.error("PostgreSQL does not answer, and a standby was promoted: leaving the old primary")
                session.abort()

    def _is_replaced(self, server: Server) -> bool:
        """Return whether there is a server on a later timeline."""
        try:
            with closing(Session(self._settings, "leveret", server)) as found:
                return found.facts.server.timeline > server.timeline
        except (psycopg.Error, Unfit):
            return False
