"""Limits on what the process does at a time, of which one user and one address have a share.

Without shares, one client could occupy a limit that is meant for all. IPv6 addresses of the same /64 network count as one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from leveret.management.http.control import Row
from leveret.management.http.errors import HttpError
from leveret.management.json_values import Json
from leveret.security.addresses import network_of

# The part of a limit that one user has, and that one address has, which may be a proxy.
_USER_SHARE: Final = 4
_ADDRESS_SHARE: Final = 2


@dataclass(frozen=True, slots=True)
class Kind:
    """Something that the process does for clients.

    Attributes:
        name: Its name in messages, in the plural.
        total: The maximum number at a time.
        waits: Whether further requests wait; otherwise they are refused.
    """

    name: str
    total: int
    waits: bool = False

    @property
    def of_user(self) -> int:
        """The maximum number of one user."""
        return max(1, self.total // _USER_SHARE)

    @property
    def of_address(self) -> int:
        """The maximum number of one address."""
        return max(1, self.total // _ADDRESS_SHARE)


REQUESTS: Final = Kind("requests", 1000)
SCRAPES: Final = Kind("scrapes", 16)
# Files that are received as a whole. Each may have `management.max_body_size`.
FILES: Final = Kind("files", 4, waits=True)
UPLOADS: Final = Kind("uploads", 8)
TAILS: Final = Kind("live tails", 32)
LOGS: Final = Kind("streams of the log", 32)
EVENTS: Final = Kind("streams of events", 500)
# The broker executes two searches at a time, and the process decodes two payloads at a time.
SEARCHES: Final = Kind("searches", 16, waits=True)
DECODED: Final = Kind("payloads", 16, waits=True)
# One at a time, so that parallel requests cannot exceed the number of objects that may be stored.
STORED: Final = Kind("changes of alert rules and payload schemas", 1, waits=True)


def user_of(item: Row) -> str | None:
    """Return the user who has added the object in a global parameter; None if it has none."""
    value: Json = item["value"]
    user = value.get("user") if isinstance(value, dict) else None
    return user if isinstance(user, str) else None


class Places:
    """The places that are taken."""

    def __init__(self) -> None:
        self._taken: Counter[tuple[Kind, str, str]] = Counter()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def take(self, kind: Kind, user: str, address: str) -> AsyncIterator[None]:
        """Occupy a place.

        Args:
            kind: What for.
            user: The name of the user; "" if it is unknown.
            address: The IP address of the client.

        Raises:
            HttpError: The share of the user or of the address is used up (429), or all places are taken (503).
        """
        limits = {(kind, "user", user): kind.of_user} if user else {}
        limits |= {(kind, "address", network_of(address)): kind.of_address, (kind, "", ""): kind.total}
        while full := next((key for key, limit in limits.items() if self._taken[key] >= limit), None):
            if not kind.waits:
                raise _refusal(*full, limits[full])
            await self._freed.wait()
        self._taken.update(limits.keys())
        try:
            yield
        finally:
            self._taken.subtract(limits.keys())
            for key in limits:
                if not self._taken[key]:
                    del self._taken[key]
            freed, self._freed = self._freed, asyncio.Event()
            freed.set()


def _refusal(kind: Kind, scope: str, name: str, limit: int) -> HttpError:
    if not scope:
        return HttpError(503, "service_unavailable", f"{limit} {kind.name} are in progress, the maximum")
    reason = f"{limit} {kind.name} of the {scope} '{name}' are in progress, the maximum"
    return HttpError(429, "too_many_requests", reason, (("retry-after", "1"),))
