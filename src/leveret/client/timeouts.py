"""Timeouts of calls: seconds, None for no limit, or the connection's option `timeout`."""

from __future__ import annotations

from typing import Final


class Default:
    """Marker for the connection's timeout."""

    def __repr__(self) -> str:
        return "the connection's timeout"


DEFAULT: Final = Default()
Limit = float | Default | None


def blocked_limit(blocked_timeout: float | None, limit: Limit) -> float | None:
    """Return the timeout of a publish while publishers are blocked: the smaller one of the option and the call."""
    if limit is None or isinstance(limit, Default):
        return blocked_timeout
    return limit if blocked_timeout is None else min(limit, blocked_timeout)


class Deadlines:
    """Deadlines of a waiting publish: one while there is no connection, one while the server blocks publishers.

    Each deadline starts with the first wait of its kind. A reconnect does not extend it.
    """

    __slots__ = ("_ends", "_limits")

    def __init__(self, timeout: float | None, blocked_timeout: float | None, limit: Limit) -> None:
        self._limits = (timeout if isinstance(limit, Default) else limit, blocked_limit(blocked_timeout, limit))
        self._ends: list[float | None] = [None, None]

    def remaining(self, opened: bool, now: float) -> tuple[float | None, float]:
        """Return the timeout and its remaining seconds; None and 0 without a limit.

        Args:
            opened: Whether the connection is open, so that the server must be blocking publishers.
            now: Current time of the monotonic clock.
        """
        seconds = self._limits[opened]
        if seconds is None:
            return None, 0.0
        end = self._ends[opened]
        if end is None:
            end = self._ends[opened] = now + seconds
        return seconds, max(0.0, end - now)
