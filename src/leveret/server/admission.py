"""How many sockets may wait for their clients to open a connection, and which of them go when others need the place."""

from __future__ import annotations

import logging
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Protocol

log = logging.getLogger("leveret.server")

# Seconds for which nobody takes the place of a socket.
GRACE = 2.5
# The same while its client's password waits for its check: longer, yet a flood of logins must not keep its places.
CHECK_GRACE = 5.0
# How many of the oldest sockets are looked at to find one that may be closed.
MAX_LOOKED_AT = 100
# Seconds between two entries in the log.
REPORT_INTERVAL = 10.0
TOTAL = "limits.unauthenticated"
PER_ADDRESS = "limits.unauthenticated_per_address"


class Waiting(Protocol):
    """A socket whose client has not opened a connection."""

    def is_waiting_for_broker(self) -> bool:
        """Whether it is the broker that has to answer: a password waits for its check."""

    def abort(self) -> None:
        """Close it at once."""


class Admission:
    """The sockets whose clients have not opened a connection, oldest first.

    A socket that exceeds a limit takes the place of the oldest one that has waited for more than GRACE seconds (for
    more than CHECK_GRACE if its client's password waits for its check), of the same address if the limit is that of the
    address. If there is none, the new one is closed. At the total limit the oldest one of the network that has the most
    goes, however young, if that network has at least two more than the new one's: no network keeps the others out. So
    silent sockets keep nobody out for long, and a burst of clients does not disturb those that are logging in.

    total, per_address  the limits, 0 for none; addresses of IPv6 count by their first 64 bits
    refused, evicted    how many sockets were closed
    """

    def __init__(self, total: int = 0, per_address: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self.per_address = per_address
        self.refused = 0
        self.evicted = 0
        self._clock = clock
        # By socket, since when it waits.
        self._sockets: OrderedDict[Waiting, float] = OrderedDict()
        self._by_address: dict[bytes, OrderedDict[Waiting, float]] = {}
        self._addresses: dict[Waiting, bytes] = {}
        # Networks by how many sockets they have, and the most that one has.
        self._by_count: dict[int, OrderedDict[bytes, None]] = {}
        self._most = 0
        self._report_due = 0.0
        self._unreported = 0

    def __len__(self) -> int:
        return len(self._sockets)

    def admit(self, host: str) -> bool:
        """Whether one more socket of this address may wait."""
        network = network_of(host)
        own: Mapping[Waiting, float] = self._by_address.get(network, {})
        if self.per_address and len(own) >= self.per_address:
            # One for one: the total stays what it is.
            return self._evict(own, host, PER_ADDRESS)
        if not self.total or len(self._sockets) < self.total:
            return True
        if self._most > len(own) + 1:
            busiest = next(iter(self._by_count[self._most]))
            return self._evict(self._by_address[busiest], host, TOTAL, at_once=True)
        return self._evict(self._sockets, host, TOTAL)

    def enter(self, waiting: Waiting, host: str) -> None:
        """A socket begins to wait."""
        network = network_of(host)
        now = self._clock()
        self._sockets[waiting] = now
        self._addresses[waiting] = network
        own = self._by_address.setdefault(network, OrderedDict())
        own[waiting] = now
        self._count(network, len(own) - 1, len(own))

    def leave(self, waiting: Waiting) -> None:
        """Its client has opened a connection, or the socket is closed. May be called more than once."""
        if self._sockets.pop(waiting, None) is None:
            return
        network = self._addresses.pop(waiting)
        own = self._by_address[network]
        del own[waiting]
        self._count(network, len(own) + 1, len(own))
        if not own:
            del self._by_address[network]

    def _count(self, network: bytes, before: int, after: int) -> None:
        """The network has one socket more, or one less."""
        if before:
            others = self._by_count[before]
            del others[network]
            if not others:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, OrderedDict())[network] = None
        if after > self._most or self._most not in self._by_count:
            self._most = after

    def _evict(self, candidates: Mapping[Waiting, float], host: str, setting: str, at_once: bool = False) -> bool:
        """Close the oldest one that may be closed; False if there is none. With `at_once` all may be, but those whose
        passwords wait for their check come last."""
        now = self._clock()
        chosen = next(iter(candidates)) if at_once else None
        for waiting, since in islice(candidates.items(), MAX_LOOKED_AT):
            if since > now - GRACE and not at_once:
                break
            if since <= now - CHECK_GRACE or not waiting.is_waiting_for_broker():
                chosen = waiting
                break
        if chosen is not None:
            self.evicted += 1
            self._report(host, setting, "the oldest of them is closed")
            self.leave(chosen)
            chosen.abort()
            return True
        self.refused += 1
        self._report(host, setting, "the new one is closed")
        return False

    def _report(self, host: str, setting: str, what: str) -> None:
        self._unreported += 1
        now = self._clock()
        if now < self._report_due:
            return
        self._report_due = now + REPORT_INTERVAL
        whose, limit = (f" of {host}", self.per_address) if setting == PER_ADDRESS else ("", self.total)
        log.warning("%d sockets%s have not opened a connection: %s, %d so far; the setting is %s", limit, whose, what,
                    self._unreported, setting)
        self._unreported = 0


def network_of(host: str) -> bytes:
    """What the limit for an address counts: an address of IPv4, the first 64 bits of one of IPv6."""
    try:
        if ":" not in host:
            return socket.inet_pton(socket.AF_INET, host)
        packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except OSError:
        return host.encode()
    return packed[12:] if packed.startswith(bytes(10) + b"\xff\xff") else packed[:8]
