"""The names by which clients reach the HTTP API, and refusals of requests for others.

A page can give its own name an address of this machine or network (DNS rebinding). The browser then takes the broker for
the page's own server, and lets the page read answers and send changes. Such a request has the name of the page as `Host`.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

logger = logging.getLogger("leveret.http")

ANY_HOST: Final = "*"
_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]*))(?::[0-9]*)?")
_LOOPBACK: Final = "localhost"
# Characters of a client's text in a message.
_MAX_SHOWN: Final = 100
# Seconds between log entries of a kind.
REPORT_INTERVAL: Final = 10.0


class Refusals:
    """The log of refused requests: an entry for the first one, then one per interval with the number since the last one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = 0.0
        self._unreported = 0

    def note(self, client: tuple[str, int] | None, reason: str) -> None:
        """Count a refused request, and log it if an entry is due."""
        self._unreported += 1
        now = self._clock()
        if now < self._due:
            return
        self._due = now + REPORT_INTERVAL
        address = f" from {client[0]}" if client else ""
        logger.warning("refused requests: %s%s, %d times since the last report", reason, address, self._unreported)
        self._unreported = 0


def is_own_host(header: str, names: frozenset[str]) -> bool:
    """Return whether a header `Host` has one of some names in lower case, a loopback name, or an IP address.

    It is "" in a request without the header, which no browser sends.
    """
    found = _HOST.fullmatch(header.lower())
    if found is None:
        return ANY_HOST in names
    host = found[1] or found[2].removesuffix(".")
    if not host or ANY_HOST in names or host in names or host == _LOOPBACK or host.endswith(f".{_LOOPBACK}"):
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class HostCheck:
    """An application that answers only requests for the names of the broker.

    Args:
        application: The application that answers them.
        names: The names; "*" allows every name.
    """

    def __init__(self, application: ASGIApp, names: Iterable[str]) -> None:
        self._application = application
        self._names = frozenset(name.lower() for name in names)
        self._refusals = Refusals()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"host"]
        refused = next((host for host in hosts if not is_own_host(host, self._names)), None)
        if refused is None:
            await self._application(scope, receive, send)
            return
        reason = (
            f"the host {refused[:_MAX_SHOWN]!r} is not a known name of this broker; expected localhost, an IP address, the"
            " name of the machine, or one of management.hosts"
        )
        self._refusals.note(scope["client"], reason)
        content = msgspec.json.encode({"error": "misdirected_request", "reason": reason})
        await Response(content, 421, media_type="application/json")(scope, receive, send)
