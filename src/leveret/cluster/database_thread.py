"""A thread that runs statements in the database of the nodes, over a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import psycopg

from leveret.broker.errors import StorageFailed
from leveret.storage.cluster import ClusterSettings
from leveret.storage.postgres_probe import Probe
from leveret.storage.postgres_session import Session, StoreLost, Unfit, unopened
from leveret.storage.worker import StoreBroken, StoreFull

Result = TypeVar("Result")


class DatabaseThread:
    """One thread. It connects when it needs to, and leaves a server that hangs when a standby was promoted.

    The end of the process does not wait for it: it may be connecting to a host that does not answer.

    Args:
        name: The name of the thread.
        settings: The place of the database.
        connect: Returns a new connection. Called in the thread.
        may_use: Returns whether a connection can still be used. Called in the thread.
    """

    def __init__(
        self, name: str, settings: ClusterSettings, connect: Callable[[], Session], may_use: Callable[[Session], bool]
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._may_use = may_use
        # Starts with the first work, since the process may still fork.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        # The work and the future of its result; None ends the thread.
        self._work: queue.SimpleQueue[tuple[Callable[[Session], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._session: Session | None = None
        # When the thread has begun what it does; None if it does nothing.
        self._begun: float | None = None
        self._probe: Probe | None = None
        self._is_closed = False

    async def run(self, work: Callable[[Session], Result]) -> Result:
        """Run work in the thread, however long the server takes. Raises `StorageFailed`."""
        if self._is_closed:
            raise StorageFailed("this process stops")
        if self._probe is None:
            self._probe = Probe(self._settings, lambda: self._session, self._silence)
            self._thread.start()
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._work.put((work, result))
        return await result

    def check(self) -> None:
        """Have the statement under way fail if its connection can no longer be used. May be called from any thread."""
        session = self._session
        if session is not None and not self._may_use(session):
            session.abort()

    def close(self) -> None:
        """Close the connection. A statement that the server has not answered fails."""
        if self._probe is not None:
            self._probe.stop()
        self._is_closed = True
        self._work.put(None)
        # It may wait for a standby.
        session = self._session
        if session is not None:
            session.abort()

    def _silence(self) -> float:
        """Return the seconds for which the server has not answered."""
        begun = self._begun
        return 0.0 if begun is None else time.monotonic() - begun

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            work, result = item
            answer: Callable[[], None]
            try:
                answer = partial(_resolve, result, self._run(work))
            except BaseException as error:
                answer = partial(_fail, result, error)
            # Nothing waits for the answer when the process ends.
            with contextlib.suppress(RuntimeError):
                result.get_loop().call_soon_threadsafe(answer)
        self._disconnect()

    def _run(self, work: Callable[[Session], Result]) -> Result:
        self._begun = time.monotonic()
        try:
            session = self._session
            if session is not None and (session.has_ended() or not self._may_use(session)):
                self._disconnect()
            if self._session is None:
                self._session = self._connect()
            if self._is_closed:
                raise StoreLost("this process stops")
            return work(self._session)
        except (psycopg.Error, Unfit, StoreLost, StoreFull, StoreBroken) as error:
            self._disconnect()
            raise unopened(error) from None
        finally:
            self._begun = None

    def _disconnect(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _resolve(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
