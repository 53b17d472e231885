"""Ingress flow control: when the broker stops reading the socket of a client, and when it resumes."""

from __future__ import annotations

import logging
from typing import Final

from leveret.broker.log import CommitWaiter, Log
from leveret.protocols.session import Session

log = logging.getLogger("leveret.connection")

# Reasons not to read: the rest of the input awaits the next turn; the disk lags behind; the client leaves replies unread;
# a channel queues commands behind a slow one; a password is being checked; memory or disk space is low.
TURN: Final = "turn"
COMMIT: Final = "commit"
OUTPUT: Final = "output"
BACKLOG: Final = "backlog"
LOGIN: Final = "login"
ALARM: Final = "alarm"

# Bytes waiting for the disk above which the broker stops reading publishers.
MAX_UNCOMMITTED: Final = 64 << 20
# Seconds between checks whether a throttled client may resume with data that was read already.
THROTTLE_RETRY_INTERVAL: Final = 0.02


class IngressThrottle(CommitWaiter):
    """Pauses and resumes reading for one connection.

    A connection that is closing is always read, because its last frame is the client's reply to the close.

    Attributes:
        session: the session of the connection; None once the connection is lost.
        reasons: why the socket is not read; it is read when none is left.
        paused: whether the socket is not read.
    """

    def __init__(self, session: Session) -> None:
        self.session: Session | None = session
        self.reasons: set[str] = set()
        self.paused = False

    def pause(self, reason: str) -> None:
        """Stop reading until every reason is released."""
        self.reasons.add(reason)
        session = self.session
        if session is not None and not self.paused and not session.closing:
            self.paused = True
            session.peer.pause_reading()

    def release(self, reason: str) -> None:
        """Withdraw a reason. Reading resumes after the last one."""
        self.reasons.discard(reason)
        if not self.reasons:
            self.resume()

    def resume(self) -> None:
        """Resume reading, whatever the reasons are."""
        session = self.session
        if self.paused and session is not None:
            self.paused = False
            session.peer.resume_reading()

    def detach(self) -> None:
        """Forget the session: its connection is lost."""
        self.session = None

    def pause_for_turn(self) -> None:
        """Stop reading until the session has performed the rest of its input, from the next turn on."""
        session = self.session
        if session is not None:
            self.pause(TURN)
            session.peer.call_soon(self._perform_rest)

    def _perform_rest(self) -> None:
        session = self.session
        if session is None:
            return
        if len(self.reasons) > 1:
            session.peer.call_later(THROTTLE_RETRY_INTERVAL, self._perform_rest)
        else:
            session.perform_rest()

    def pause_for_commit(self, store: Log, spooled: bool) -> None:
        """Stop reading a publisher if too many bytes wait for the disk, until they are committed.

        Large bodies in the spool count only if the publisher has sent such a body (`spooled`).
        """
        if (
            store.pending_bytes > MAX_UNCOMMITTED
            and COMMIT not in self.reasons
            and (spooled or store.pending_bytes - store.pending_spooled > MAX_UNCOMMITTED)
        ):
            self.pause(COMMIT)
            store.wait(self)

    def committed(self, batch: int) -> None:
        self.release(COMMIT)

    def heartbeat_exempt(self) -> bool:
        """Return whether the client is silent because the broker does not read its socket."""
        return self.paused and OUTPUT not in self.reasons

    def check_peer(self) -> None:
        """Abort the connection if the client has disconnected unnoticed, because its socket is not read."""
        session = self.session
        if session is not None and self.paused and session.peer.hung_up():
            log.warning("%s: the client disconnected while it was throttled", session.peer.name)
            session.peer.abort()
