"""How long a call may take: seconds, None for ever, or what the connection's option `timeout` says."""

from __future__ import annotations

from typing import Final


class Default:
    """Stands for the connection's own timeout."""

    def __repr__(self) -> str:
        return "the connection's timeout"


DEFAULT: Final = Default()
Limit = float | Default | None


def blocked_limit(blocked_timeout: float | None, limit: Limit) -> float | None:
    """How long a publish waits for a server that takes no messages: as the option says, or less where the call says so."""
    if limit is None or isinstance(limit, Default):
        return blocked_timeout
    return limit if blocked_timeout is None else min(limit, blocked_timeout)


class Deadlines:
    """How long a publish waits until it can be sent: for a connection, and for a server that takes no messages. Each of
    the two has a time of its own, which goes on while the connection comes and goes again."""

    __slots__ = ("_ends", "_limits")

    def __init__(self, timeout: float | None, blocked_timeout: float | None, limit: Limit) -> None:
        self._limits = (timeout if isinstance(limit, Default) else limit, blocked_limit(blocked_timeout, limit))
        self._ends: list[float | None] = [None, None]

    def remaining(self, opened: bool, now: float) -> tuple[float | None, float]:
        """Seconds, of which so many are left; None and 0 without a limit. `opened`: there is a connection."""
        seconds = self._limits[opened]
        if seconds is None:
            return None, 0.0
        end = self._ends[opened]
        if end is None:
            end = self._ends[opened] = now + seconds
        return seconds, max(0.0, end - now)
