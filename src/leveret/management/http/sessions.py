"""Sessions of users who have signed in to the console, by the value of a cookie.

A session has no password. For a user of the broker, it has an identifier of the password, so that the session ends when the
password changes or the user is deleted; for a user of a provider, the token, and the refresh token that renews it.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from math import inf
from typing import Final

# Maximum number of sessions, and of those of one user. Another one ends the session that was not used for longest.
MAX_SESSIONS: Final = 1000
MAX_PER_USER: Final = 20
# Seconds before the end of a token when it is renewed, unless it is valid for less than twice as long.
_RENEWAL: Final = 60.0
_MAX_AGENT: Final = 200


class Session:
    """One session. Times are on the clock of the sessions.

    Attributes:
        id: Names the session to its user.
        name: The name of the user.
        credential: The identifier of the user's password, or "".
        token: The token of the user, or "".
        refresh_token: What renews the token, or "".
        issuer: The provider that renews it, or "".
        address: The IP address of the client that opened it.
        agent: The name of this client.
        opened_at: The time of its beginning.
        expires_at: The time of its end at the latest.
        token_expires_at: The time when the token expires.
        renew_at: The time from which the token is renewed.
        used_at: The time of the last request.
    """

    __slots__ = (
        "address",
        "agent",
        "credential",
        "expires_at",
        "id",
        "issuer",
        "name",
        "opened_at",
        "refresh_token",
        "renew_at",
        "token",
        "token_expires_at",
        "used_at",
    )

    def __init__(self, name: str, credential: str, expires_at: float, now: float, address: str, agent: str) -> None:
        self.id = secrets.token_urlsafe(12)
        self.name = name
        self.credential = credential
        self.address = address
        self.agent = agent[:_MAX_AGENT]
        self.opened_at = self.used_at = now
        self.expires_at = expires_at
        self.token = self.refresh_token = self.issuer = ""
        self.token_expires_at = self.renew_at = inf

    def set_token(self, token: str, lifetime: float, refresh_token: str, now: float) -> None:
        """Set the token, which is valid for `lifetime` seconds, and what renews it."""
        self.token = token
        self.refresh_token = refresh_token
        self.token_expires_at = now + lifetime
        self.renew_at = now + max(lifetime - _RENEWAL, lifetime / 2) if refresh_token else inf

    @property
    def ends_at(self) -> float:
        """The time of its end, unless it is idle."""
        return self.expires_at if self.refresh_token else min(self.expires_at, self.token_expires_at)


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

    def open(
        self,
        name: str,
        *,
        credential: str = "",
        token: str = "",
        lifetime: float = inf,
        refresh_token: str = "",
        issuer: str = "",
        address: str = "",
        agent: str = "",
    ) -> str:
        """Open a session, and return the value of its cookie.

        Args:
            name: The name of the user.
            credential: The identifier of the user's password.
            token: The token of the user.
            lifetime: The seconds for which the token is valid.
            refresh_token: What renews the token. Without it, the session ends with the token.
            issuer: The provider that renews the token.
            address: The IP address of the client.
            agent: The name of the client.
        """
        now = self._clock()
        self._drop_expired(now)
        own = [key for key, session in self._sessions.items() if session.name == name]
        if len(own) >= MAX_PER_USER:
            del self._sessions[own[0]]
        elif len(self._sessions) >= MAX_SESSIONS:
            self._sessions.popitem(last=False)
        value = secrets.token_urlsafe(32)
        session = Session(name, credential, now + self._lifetime, now, address, agent)
        if token:
            session.set_token(token, lifetime, refresh_token, now)
            session.issuer = issuer
        self._sessions[_digest(value)] = session
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

    def close(self, value: str) -> Session | None:
        """End the session of a cookie and return it; None if there is none."""
        return self._sessions.pop(_digest(value), None)

    def is_due(self, session: Session) -> bool:
        """Return whether the token of a session must be renewed."""
        return self._clock() >= session.renew_at

    def renewed(self, session: Session, token: str, lifetime: float, refresh_token: str) -> None:
        """Replace the token of a session."""
        session.set_token(token, lifetime, refresh_token, self._clock())

    def postpone(self, session: Session, seconds: float) -> None:
        """Do not renew the token of a session for some seconds."""
        session.renew_at = self._clock() + seconds

    def of_user(self, name: str | None) -> list[tuple[Session, float, float, float]]:
        """Return the sessions of a user, or of all users if it is None.

        With each are the seconds since its beginning and last use, and until its end.
        """
        now = self._clock()
        self._drop_expired(now)
        return [
            (session, now - session.opened_at, now - session.used_at, session.ends_at - now)
            for session in self._sessions.values()
            if name in (None, session.name)
        ]

    def end(self, name: str, ids: Collection[str]) -> list[Session]:
        """End sessions of a user, and return them."""
        found = [key for key, session in self._sessions.items() if session.name == name and session.id in ids]
        return [self._sessions.pop(key) for key in found]

    def _has_expired(self, session: Session, now: float) -> bool:
        return now >= session.ends_at or now - session.used_at >= self._idle_timeout

    def _drop_expired(self, now: float) -> None:
        for key in [key for key, session in self._sessions.items() if self._has_expired(session, now)]:
            del self._sessions[key]


def _digest(value: str) -> bytes:
    # Lookups by a digest take the same time whichever part of a guessed value is right.
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).digest()
