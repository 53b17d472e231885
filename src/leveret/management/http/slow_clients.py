"""Clients that keep connections without using them: they send no request, send it slowly, or do not read the answer."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Protocol

from leveret.security.addresses import network_of

# Seconds for the first request of a connection to arrive, and for the next one after an answer.
FIRST_TIMEOUT: Final = 20.0
NEXT_TIMEOUT: Final = 90.0
# Seconds for which a client may read nothing of an answer.
READ_TIMEOUT: Final = 60.0


class Exchange(Protocol):
    """A request and its answer."""

    response_complete: bool


class Connection(Protocol):
    """The part of uvicorn's connections that is used here. `cycle` is the last request."""

    @property
    def transport(self) -> asyncio.Transport: ...

    @property
    def cycle(self) -> Exchange | None: ...

    @property
    def client(self) -> tuple[str, int] | None: ...


@dataclass(slots=True)
class _Seen:
    """The last state of a connection.

    Attributes:
        request: The last request.
        is_waiting: Whether it waits for the next request.
        unsent: Bytes that the client has not read.
        since: When one of them changed.
    """

    request: object
    is_waiting: bool
    unsent: int
    since: float


class SlowClients:
    """Closes connections of slow clients.

    Args:
        max_waiting: Maximum number of connections, beyond which those are closed that wait for a request the longest, at
            first those of the address or /64 network with the most of them, and none of an address with less than half as
            many. A connection that was not there at the last look is not among them: its request may be about to arrive.
        clock: Returns the time in seconds.
    """

    def __init__(self, max_waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max = max_waiting
        self._clock = clock
        # By the connections themselves, because the id of a closed one may be that of a new one.
        self._seen: dict[Connection, _Seen] = {}

    def close(self, connections: Collection[Connection]) -> None:
        """Close the connections among these that are slow. Call this often."""
        now = self._clock()
        seen: dict[Connection, _Seen] = {}
        waiting: list[Connection] = []
        for connection in connections:
            state = seen[connection] = self._look(connection, now)
            if now - state.since >= _limit(state):
                connection.transport.abort()
            elif state.is_waiting:
                waiting.append(connection)
        known, self._seen = self._seen, seen
        excess = len(connections) - self._max
        if excess > 0 and waiting:
            counts = Counter(map(_network, waiting))
            # A burst of one address, whose connections are new, closes none of others.
            least = max(counts.values()) / 2
            found = [connection for connection in waiting if connection in known and counts[_network(connection)] >= least]
            found.sort(key=lambda connection: (-counts[_network(connection)], seen[connection].since))
            for connection in found[:excess]:
                connection.transport.abort()

    def _look(self, connection: Connection, now: float) -> _Seen:
        request = connection.cycle
        state = _Seen(
            request, request is None or request.response_complete, connection.transport.get_write_buffer_size(), now
        )
        before = self._seen.get(connection)
        if before is not None and (before.request, before.is_waiting, before.unsent) == (
            state.request,
            state.is_waiting,
            state.unsent,
        ):
            state.since = before.since
        return state


def _network(connection: Connection) -> str:
    return network_of(connection.client[0]) if connection.client else ""


def _limit(state: _Seen) -> float:
    if state.unsent:
        return READ_TIMEOUT
    if not state.is_waiting:
        return float("inf")  # the request has timeouts of its own
    return FIRST_TIMEOUT if state.request is None else NEXT_TIMEOUT
