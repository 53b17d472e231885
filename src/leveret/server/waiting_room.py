"""Accepted sockets that wait until fewer clients are in the handshake."""

from __future__ import annotations

import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from leveret.server.admission import Admission, network_of
from leveret.server.listener import highest_descriptor

# Maximum number of waiting sockets. They take at most half of the file descriptors.
MAX_WAITING: Final = 4096
# Maximum number of networks to examine in one turn.
MAX_EXAMINED: Final = 64


class _Guest:
    """A waiting socket.

    Attributes:
        accepted: The socket.
        host: The address of its client.
        serve: Serves the socket.
        since: The time of its arrival.
    """

    __slots__ = ("accepted", "host", "serve", "since")

    def __init__(self, accepted: socket.socket, host: str, serve: Callable[[], None], since: float) -> None:
        self.accepted = accepted
        self.host = host
        self.serve = serve
        self.since = since


class WaitingRoom:
    """Sockets that exceed a limit on those in the handshake.

    Nothing is read from them, and their time for the handshake has not begun. A burst of clients is thus served one after
    another, whereas refused clients would reconnect and prolong the burst. The networks take turns.

    Args:
        admission: The limits.
        timeout: Seconds after which a waiting socket is closed.
    """

    def __init__(self, admission: Admission, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._admission = admission
        self._timeout = timeout
        self._clock = clock
        self._count = 0
        # By network. The first one is next.
        self._guests: OrderedDict[bytes, deque[_Guest]] = OrderedDict()

    def __len__(self) -> int:
        return self._count

    def take(self, accepted: socket.socket, host: str, serve: Callable[[], None]) -> bool:
        """Let a socket wait. Return False if it cannot.

        Args:
            accepted: The socket. The room closes it if it has waited too long.
            host: The address of its client.
            serve: Called when the socket is admitted.
        """
        if self._count >= MAX_WAITING or accepted.fileno() >= highest_descriptor() // 2:
            return False
        self._guests.setdefault(network_of(host), deque()).append(_Guest(accepted, host, serve, self._clock()))
        self._count += 1
        return True

    def has(self, host: str) -> bool:
        """Return whether sockets of the same network wait, which a new one must not overtake."""
        return network_of(host) in self._guests

    def admit(self) -> bool:
        """Admit the sockets that there is room for. Return whether to call this again, in the next turn."""
        has_admitted = False
        for _ in range(min(len(self._guests), MAX_EXAMINED)):
            network, guests = next(iter(self._guests.items()))
            if self._admission.admit(guests[0].host, may_wait=True):
                has_admitted = True
                self._leave(network).serve()
            else:
                self._guests.move_to_end(network)
        return has_admitted and bool(self._guests)

    def expire(self) -> None:
        """Close the sockets that have waited too long."""
        deadline = self._clock() - self._timeout
        for network, guests in list(self._guests.items()):
            while guests and guests[0].since <= deadline:
                self._leave(network).accepted.close()

    def _leave(self, network: bytes) -> _Guest:
        """Remove and return the oldest socket of a network, whose next turn is the last one."""
        guests = self._guests[network]
        guest = guests.popleft()
        self._count -= 1
        if guests:
            self._guests.move_to_end(network)
        else:
            del self._guests[network]
        return guest

    def close(self) -> None:
        """Close all sockets."""
        for guests in self._guests.values():
            for guest in guests:
                guest.accepted.close()
        self._guests.clear()
        self._count = 0
