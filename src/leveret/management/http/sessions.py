"""Sessions of users who have signed in to the console, by the value of a cookie.

A session has no password. For a user of the broker, it has an identifier of the password, so that the session ends when the
password changes or the user is deleted; for a user of a provider, the token.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

# Maximum number of sessions, and of those of one user. Another one ends the session that was not used for longest.
MAX_SESSIONS: Final = 1000
MAX_PER_USER: Final = 20


class Session:
    """One session.

    Attributes:
        name: The name of the user.
        credential: The identifier of the user's password, or "".
        token: The token of the user, or "".
        expires_at: The time of its end, on the clock of the sessions.
        used_at: The time of the last request.
    """

    __slots__ = ("credential", "expires_at", "name", "token", "used_at")

    def __init__(self, name: str, credential: str, token: str, expires_at: float, used_at: float) -> None:
        self.name = name
        self.credential = credential
        self.token = token
        self.expires_at = expires_at
        self.used_at = used_at


class Sessions:
    """All sessions.

    Args:
        lifetime: Seconds after which a session ends.
        idle_timeout: Seconds without a request after which a session ends.
        clock: The clock.
    """

    def __init__(self, lifetime: float, idle_timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lifetime = lifetime
        self._idle_timeout = idle_timeout
        self._clock = clock
        # By the digest of the cookie, the least recently used first.
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, name: str, *, credential: str = "", token: str = "", lifetime: float | None = None) -> str:
        """Open a session, and return the value of its cookie. `lifetime` may shorten that of the settings."""
        now = self._clock()
        self._drop_expired(now)
        own = [key for key, session in self._sessions.items() if session.name == name]
        if len(own) >= MAX_PER_USER:
            del self._sessions[own[0]]
        elif len(self._sessions) >= MAX_SESSIONS:
            self._sessions.popitem(last=False)
        value = secrets.token_urlsafe(32)
        until = now + (self._lifetime if lifetime is None else min(lifetime, self._lifetime))
        self._sessions[_digest(value)] = Session(name, credential, token, until, now)
        return value

    def find(self, value: str) -> Session | None:
        """Return the session of a cookie, which is used from now on; None if there is none."""
        key = _digest(value)
        session = self._sessions.get(key)
        if session is None:
            return None
        now = self._clock()
        if self._has_expired(session, now):
            del self._sessions[key]
            return None
        session.used_at = now
        self._sessions.move_to_end(key)
        return session

    def close(self, value: str) -> None:
        """End the session of a cookie, if there is one."""
        self._sessions.pop(_digest(value), None)

    def _has_expired(self, session: Session, now: float) -> bool:
        return now >= session.expires_at or now - session.used_at >= self._idle_timeout

    def _drop_expired(self, now: float) -> None:
        for key in [key for key, session in self._sessions.items() if self._has_expired(session, now)]:
            del self._sessions[key]


def _digest(value: str) -> bytes:
    # Lookups by a digest take the same time whichever part of a guessed value is right.
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).digest()
