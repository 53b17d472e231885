"""Limits on logins by address: on those at a time, and on refused ones.

The broker checks passwords of all addresses in turn. These limits keep the logins of one address from occupying the
connections to the broker, which other addresses need, too.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from leveret.management.http.errors import HttpError
from leveret.security.addresses import network_of

# Maximum number of pending logins of one address, and the seconds of the period in which refused ones are counted.
MAX_PENDING: Final = 8
PERIOD: Final = 60.0
# Maximum number of addresses with refused logins that are remembered.
MAX_ADDRESSES: Final = 4096


class _Refused:
    """Refused logins of an address since the start of its period."""

    __slots__ = ("count", "started")

    def __init__(self, started: float) -> None:
        self.started = started
        self.count = 0


class Attempts:
    """The pending and refused logins of all addresses. IPv6 addresses of the same /64 network count as one.

    Args:
        max_refused: Maximum number of refused logins of one address in a period; 0 for no limit.
        clock: The clock.
    """

    def __init__(self, max_refused: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_refused = max_refused
        self._clock = clock
        self._pending: dict[str, int] = {}
        self._refused: OrderedDict[str, _Refused] = OrderedDict()

    @contextmanager
    def attempt(self, address: str) -> Iterator[None]:
        """Count a login as pending. Raises `HttpError` (429) if the address has too many pending or refused ones."""
        network = network_of(address)
        self._check(network)
        self._pending[network] = self._pending.get(network, 0) + 1
        try:
            yield
        finally:
            self._pending[network] -= 1
            if not self._pending[network]:
                del self._pending[network]

    def refused(self, address: str) -> None:
        """Count a refused login."""
        network = network_of(address)
        found = self._current(network)
        if found is None:
            found = self._refused[network] = _Refused(self._clock())
        self._refused.move_to_end(network)
        found.count += 1
        if len(self._refused) > MAX_ADDRESSES:
            self._refused.popitem(last=False)

    def _check(self, network: str) -> None:
        found = self._current(network)
        if found is not None and 0 < self._max_refused <= found.count:
            rest = found.started + PERIOD - self._clock()
            raise _too_many(
                f"{found.count} logins from this address were refused within {PERIOD:g} seconds, the maximum; "
                "the setting is management.refused_logins",
                rest,
            )
        pending = self._pending.get(network, 0)
        if pending >= MAX_PENDING:
            raise _too_many(f"{pending} logins from this address are pending, the maximum", 1)

    def _current(self, network: str) -> _Refused | None:
        found = self._refused.get(network)
        if found is not None and self._clock() - found.started >= PERIOD:
            del self._refused[network]
            return None
        return found


def _too_many(reason: str, seconds: float) -> HttpError:
    return HttpError(429, "too_many_requests", reason, (("retry-after", str(max(1, math.ceil(seconds)))),))
