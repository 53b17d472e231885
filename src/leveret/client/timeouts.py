"""Timeouts of calls: seconds, None for no limit, or the connection's option `timeout`."""

from __future__ import annotations

from typing import Final


class Default:
    """Marker for the connection's own timeout."""

    def __repr__(self) -> str:
        return "the connection's timeout"


DEFAULT: Final = Default()
Limit = float | Default | None


def blocked_limit(blocked_timeout: float | None, limit: Limit) -> float | None:
    """Return the timeout of a publish while the server blocks publishers: the smaller of the option and the call's."""
    if limit is None or isinstance(limit, Default):
        return blocked_timeout
    return limit if blocked_timeout is None else min(limit, blocked_timeout)


class Deadlines:
    """Deadlines of a publish that waits to be sent: one for a connection, one for a server that blocks publishers.

    Each deadline starts with the first wait of its kind, and is not extended by a reconnect.
    """

    __slots__ = ("_ends", "_limits")

    def __init__(self, timeout: float | None, blocked_timeout: float | None, limit: Limit) -> None:
        self._limits = (timeout if isinstance(limit, Default) else limit, blocked_limit(blocked_timeout, limit))
        self._ends: list[float | None] = [None, None]

    def remaining(self, opened: bool, now: float) -> tuple[float | None, float]:
        """Return the timeout and the seconds left of it; None and 0 without a limit.

        Args:
            opened: Whether there is a connection, so that the server blocks publishers.
            now: Current time of the monotonic clock.
        """
        seconds = self._limits[opened]
        if seconds is None:
            return None, 0.0
        end = self._ends[opened]
        if end is None:
            end = self._ends[opened] = now + seconds
        return seconds, max(0.0, end - now)
