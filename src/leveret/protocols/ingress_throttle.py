"""Ingress flow control: when the broker stops reading a client's socket, and when it resumes."""

from __future__ import annotations

import logging
import time
from typing import Final

from leveret.broker.log import CommitWaiter, Log
from leveret.protocols.session import Session

logger = logging.getLogger("leveret.connection")

# Reasons to stop reading.
TURN: Final = "turn"  # the rest of the input waits for the next turn
COMMIT: Final = "commit"  # the disk lags behind
OUTPUT: Final = "output"  # the client does not read its replies
BACKLOG: Final = "backlog"  # a channel queues commands behind a slow one
LOGIN: Final = "login"  # a password is being checked
ALARM: Final = "alarm"  # memory or disk space is low
# Reason to read less, or to withhold link credit: messages wait for the broker, not for their consumers.
BEHIND: Final = "behind"

# Uncommitted bytes above which the broker stops reading publishers.
MAX_UNCOMMITTED: Final = 64 << 20
# Bytes that the broker reads from a client per turn, powers of two: at most, at most if other clients or several queues
# share the turn, at first, and at least. The number of commands in a read decides, so that small messages take no longer
# turns than large ones.
MAX_READ: Final = 512 << 10
SHARED_READ: Final = 256 << 10
FIRST_READ: Final = 16 << 10
MIN_READ: Final = 4 << 10
# Clients that are read in a turn, or queues of a message, above which reads are limited to SHARED_READ.
FEW: Final = 4
# Commands in a read above which the next one is smaller.
MAX_COMMANDS: Final = 512
# Seconds between reads from a client while the messages of its queues are read from disk.
SLOW_READ_INTERVAL: Final = 0.002
# Seconds for which a client that was slowed down is shown as such.
SLOWED_FOR: Final = 5.0
# Retry interval in seconds for input that was read before its client was throttled.
THROTTLE_RETRY_INTERVAL: Final = 0.02


class IngressThrottle(CommitWaiter):
    """Pauses and resumes reading for one connection.

    A connection that is closing is always read, because its last frame is the client's reply to the close.

    Attributes:
        session: the session of the connection; None once the connection is lost.
        reasons: reasons to pause; the socket is read if there are none.
        paused: whether the socket is not read.
        limit: bytes that are read per turn.
        behind: whether the broker was behind after the last read.
        slowed_at: monotonic time of the last read after which the broker was behind.
        withheld: number of links whose credit is withheld, because the broker is behind.
    """

    def __init__(self, session: Session) -> None:
        self.session: Session | None = session
        self.reasons: tuple[str, ...] = ()
        self.paused = False
        self.limit = FIRST_READ
        self.behind = False
        self.slowed_at = -SLOWED_FOR
        self.withheld = 0

    def adapt(self, behind: bool, commands: int, size: int, shared: bool) -> None:
        """Choose the size of the next read after one of `size` bytes with a number of commands.

        It is smaller while the broker is `behind` with the messages that it has, and if one read keeps the broker busy.
        `shared`: many other clients or queues share the turn.
        """
        limit = self.limit
        if behind:
            self.slowed_at = time.monotonic()
            limit = max(limit >> 1, MIN_READ)
        elif commands > MAX_COMMANDS:
            limit = max(limit >> 1, MIN_READ)
        elif size >= limit and commands <= MAX_COMMANDS >> 1:
            limit = min(limit << 1, MAX_READ)
        if shared:
            limit = min(limit, SHARED_READ)
        session = self.session
        if (limit != self.limit or behind != self.behind) and session is not None:
            self.limit = limit
            self.behind = behind
            session.peer.limit_reads(limit, behind)

    def pause_briefly(self) -> None:
        """Stop reading for some milliseconds, because the broker is behind and busy with reading messages from disk."""
        session = self.session
        if session is not None and not self.reasons:
            self.pause(BEHIND)
            session.peer.call_later(SLOW_READ_INTERVAL, self._end_brief_pause)

    def _end_brief_pause(self) -> None:
        self.release(BEHIND)

    def withhold_credit(self) -> None:
        """Note that a link gets no more credit (1.0), because the broker is behind."""
        self.withheld += 1

    def restore_credit(self) -> None:
        """Note that a link may get credit again."""
        self.withheld -= 1

    def is_slowed(self) -> bool:
        """Return whether the client publishes less, or did in the last seconds, because the broker is behind."""
        return self.withheld > 0 or time.monotonic() - self.slowed_at < SLOWED_FOR

    def reasons_shown(self) -> list[str]:
        """Return why the client is paused or slowed down, sorted."""
        return sorted({*self.reasons, BEHIND} if self.is_slowed() else self.reasons)

    def pause(self, reason: str) -> None:
        """Stop reading until every reason is released."""
        if reason not in self.reasons:
            self.reasons = (*self.reasons, reason)
        session = self.session
        if session is not None and not self.paused and not session.closing:
            self.paused = True
            session.peer.pause_reading()

    def release(self, reason: str) -> None:
        """Release a reason. Reading resumes after the last one."""
        self.reasons = tuple(other for other in self.reasons if other != reason)
        if not self.reasons:
            self.resume()

    def resume(self) -> None:
        """Resume reading, regardless of the reasons to pause."""
        session = self.session
        if self.paused and session is not None:
            self.paused = False
            session.peer.resume_reading()

    def detach(self) -> None:
        """Drop the session, because its connection is lost."""
        self.session = None

    def pause_for_turn(self) -> None:
        """Stop reading until the session has performed the rest of its input in later turns."""
        session = self.session
        if session is not None:
            self.pause(TURN)
            session.peer.call_soon(self._perform_pending)

    def _perform_pending(self) -> None:
        session = self.session
        if session is None:
            return
        if len(self.reasons) > 1:
            session.peer.call_later(THROTTLE_RETRY_INTERVAL, self._perform_pending)
        else:
            session.perform_pending()

    def pause_for_commit(self, store: Log, spooled: bool) -> None:
        """Stop reading a publisher while the log has too many uncommitted bytes.

        Spooled bodies count only if the publisher has sent one (`spooled`).
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
        """Abort the connection if the client disconnected while its socket was not being read."""
        session = self.session
        if session is not None and self.paused and session.peer.hung_up():
            logger.warning("%s: the client disconnected while it was throttled", session.peer.subject)
            session.peer.abort()
