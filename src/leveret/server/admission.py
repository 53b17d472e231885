"""Limits on sockets whose clients have not opened a connection, and the choice of sockets to close at a limit."""

from __future__ import annotations

import logging
import math
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Protocol

logger = logging.getLogger("leveret.server")

# Seconds before a new socket may replace a socket.
GRACE = 2.5
# The same while the password check of its client is pending. Longer, but bounded, because of login floods.
CHECK_GRACE = 5.0
# Number of sockets to examine, oldest first, for one that may be closed.
MAX_EXAMINED = 100
# Seconds between log entries.
REPORT_INTERVAL = 10.0
TOTAL = "limits.unauthenticated"
PER_ADDRESS = "limits.unauthenticated_per_address"


class Waiting(Protocol):
    """A socket whose client has not opened a connection."""

    def is_waiting_for_broker(self) -> bool:
        """Return whether the client waits for its password check."""

    def abort(self) -> None:
        """Close the socket at once."""


class Admission:
    """Registry of sockets whose clients have not opened a connection, oldest first.

    A new socket that exceeds a limit replaces the oldest socket that has waited for more than GRACE seconds (CHECK_GRACE
    if its password check is pending). A socket that may wait replaces none while clients before it open connections. For
    the limit per address, the replaced socket has the same address. If there is none, the new socket is closed. At the
    total limit, the oldest socket of the network with the most sockets is closed, regardless of its age, if that network
    has at least two more sockets than the network of the new one. Thus silent sockets do not lock out other clients for
    long, no network locks out others, and a burst of clients does not disturb pending logins.

    Attributes:
        total: The limit on all sockets; 0 is unlimited.
        per_address: The limit per IPv4 address, or per 64-bit prefix of IPv6 addresses; 0 is unlimited.
        refused: The number of new sockets closed at a limit.
        evicted: The number of old sockets closed at a limit.
        on_leave: Called when a socket is closed, or its client has opened a connection.
    """

    def __init__(self, total: int = 0, per_address: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self.per_address = per_address
        self.refused = 0
        self.evicted = 0
        self._clock = clock
        # When a client has last opened a connection: of each network with sockets, and of all.
        self._opened: dict[bytes, float] = {}
        self._last_opened = -math.inf
        # The start time of each socket.
        self._sockets: OrderedDict[Waiting, float] = OrderedDict()
        self._by_address: dict[bytes, OrderedDict[Waiting, float]] = {}
        self._addresses: dict[Waiting, bytes] = {}
        # Networks by their number of sockets, and the largest number.
        self._by_count: dict[int, OrderedDict[bytes, None]] = {}
        self._max_count = 0
        self._report_due = 0.0
        self._unreported = 0
        self.on_leave: Callable[[], None] = _ignore

    def __len__(self) -> int:
        return len(self._sockets)

    def admit(self, host: str, *, may_wait: bool = False) -> bool:
        """Return whether to serve a new socket from this address. May close an older socket.

        Args:
            host: The address.
            may_wait: Whether the socket waits if it cannot be served, so that it is not refused.
        """
        network = network_of(host)
        own: Mapping[Waiting, float] = self._by_address.get(network, {})
        if self.per_address and len(own) >= self.per_address:
            # The replacement does not change the total.
            if may_wait and self._is_recent(self._opened.get(network, -math.inf)):
                return False
            return self._evict(own, host, PER_ADDRESS, may_wait=may_wait)
        if not self.total or len(self._sockets) < self.total:
            return True
        if self._max_count > len(own) + 1:
            busiest = next(iter(self._by_count[self._max_count]))
            return self._evict(self._by_address[busiest], host, TOTAL, may_wait=may_wait, at_once=True)
        if may_wait and self._is_recent(self._last_opened):
            return False
        return self._evict(self._sockets, host, TOTAL, may_wait=may_wait)

    def _is_recent(self, time: float) -> bool:
        return self._clock() - time < GRACE

    def enter(self, waiting: Waiting, host: str) -> None:
        """Add a socket."""
        self._enter(waiting, network_of(host))

    def _enter(self, waiting: Waiting, network: bytes) -> None:
        now = self._clock()
        self._sockets[waiting] = now
        self._addresses[waiting] = network
        own = self._by_address.setdefault(network, OrderedDict())
        own[waiting] = now
        self._count(network, len(own) - 1, len(own))

    def move(self, waiting: Waiting, host: str) -> bool:
        """Count a socket for another address from now on: that of the client for which a proxy has opened it.

        Returns:
            False if this exceeds the limit of that address. The socket counts for the earlier one then. May close an older
            socket instead.
        """
        before = self._addresses.get(waiting)
        if before is None:
            return True  # it was closed at a limit
        self.leave(waiting)
        is_admitted = self.admit(host)
        self._enter(waiting, network_of(host) if is_admitted else before)
        return is_admitted

    def leave(self, waiting: Waiting, *, opened: bool = False) -> None:
        """Remove a socket that is closed, or whose client has opened a connection. May be called more than once."""
        if self._sockets.pop(waiting, None) is None:
            return
        network = self._addresses.pop(waiting)
        own = self._by_address[network]
        del own[waiting]
        self._count(network, len(own) + 1, len(own))
        if opened:
            self._opened[network] = self._last_opened = self._clock()
        if not own:
            del self._by_address[network]
            self._opened.pop(network, None)
        self.on_leave()

    def _count(self, network: bytes, before: int, after: int) -> None:
        """Update the number of sockets of a network."""
        if before:
            others = self._by_count[before]
            del others[network]
            if not others:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, OrderedDict())[network] = None
        if after > self._max_count or self._max_count not in self._by_count:
            self._max_count = after

    def _evict(
        self, candidates: Mapping[Waiting, float], host: str, setting: str, *, may_wait: bool, at_once: bool = False
    ) -> bool:
        """Close the oldest candidate that may be closed. Returns False if there is none.

        With `at_once`, all candidates may be closed, but those with a pending password check come last.
        """
        now = self._clock()
        chosen = next(iter(candidates)) if at_once else None
        for waiting, since in islice(candidates.items(), MAX_EXAMINED):
            if since > now - GRACE and not at_once:
                break
            if since <= now - CHECK_GRACE or not waiting.is_waiting_for_broker():
                chosen = waiting
                break
        if chosen is not None:
            self.evicted += 1
            self._report(host, setting, "closed the oldest one")
            self.leave(chosen)
            chosen.abort()
            return True
        if may_wait:
            return False
        self.refused += 1
        self._report(host, setting, "closed the new one")
        return False

    def _report(self, host: str, setting: str, action: str) -> None:
        self._unreported += 1
        now = self._clock()
        if now < self._report_due:
            return
        self._report_due = now + REPORT_INTERVAL
        origin, limit = (f" from {host}", self.per_address) if setting == PER_ADDRESS else ("", self.total)
        logger.warning(
            "%d sockets%s have not opened a connection ('%s'): %s, %d times since the last report",
            limit,
            origin,
            setting,
            action,
            self._unreported,
        )
        self._unreported = 0


def _ignore() -> None:
    """Do nothing when a socket leaves."""


def network_of(host: str) -> bytes:
    """Return the network that the limit per address counts: an IPv4 address, or the first 64 bits of an IPv6 address."""
    try:
        if ":" not in host:
            return socket.inet_pton(socket.AF_INET, host)
        packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except OSError:
        return host.encode()
    return packed[12:] if packed.startswith(bytes(10) + b"\xff\xff") else packed[:8]
