"""The pace of consumers that wait for credit: whether the clients or the broker is the slower side.

A client with a small credit or prefetch gets no more messages until the broker has read its acks. While publishers keep the
broker busy, these acks lie in the socket, and the queue grows although the client could take more. That looks like a slow
client, so it takes a trial to tell them apart: the publishers of the queue are slowed down for a few milliseconds. If the
consumers then take more messages per second than before, the broker was the slower side.
"""

from __future__ import annotations

from typing import Final

# Seconds of a trial, and of each later check while it lasts.
TRIAL: Final = 0.004
# Seconds at the publishers' full speed before a trial: at least, and at most after trials that failed.
MIN_INTERVAL: Final = 0.01
MAX_INTERVAL: Final = 1.0
# Seconds after which the pace at full speed is measured again.
RECHECK: Final = 1.0
# A phase is restarted if the queue was not checked for so many seconds.
GAP: Final = 0.05
# Minimum number of deliveries, and of checks, in a phase.
MIN_DELIVERED: Final = 8
MIN_CHECKS: Final = 8
# Factors by which consumers must be faster: in a trial, and afterwards.
FASTER: Final = 1.5
STILL_FASTER: Final = 1.1


class Pace:
    """Compares the deliveries of a queue per second with and without its publishers at full speed.

    Attributes:
        slowing: Whether its publishers are slowed down, because of a trial or after it.
        interval: Seconds until the next trial, from the beginning of a phase at full speed.
        rate: Deliveries per second at full speed.
    """

    __slots__ = ("_began", "_checked", "_checks", "_delivered", "_since", "_tried", "interval", "rate", "slowing")

    def __init__(self) -> None:
        self.slowing = False
        self.interval = MIN_INTERVAL
        self.rate = 0.0
        # Time of the beginning of the phase, the deliveries before it, and the number and time of its checks.
        self._began = 0.0
        self._delivered = 0
        self._checks = 0
        self._checked = 0.0
        # Time of the trial that succeeded, and whether one did.
        self._since = 0.0
        self._tried = False

    def is_behind(self, now: float, delivered: int) -> bool:
        """Return whether publishers are to be slowed down. Called while messages are ready and no consumer has credit.

        Args:
            now: The monotonic time in seconds.
            delivered: The number of deliveries of the queue so far.
        """
        gap = now - self._checked
        self._checked = now
        self._checks += 1
        if gap > GAP:
            self._stop(now, delivered)
            return False
        elapsed = now - self._began
        count = delivered - self._delivered
        if not self.slowing:
            if elapsed < self.interval or self._checks < MIN_CHECKS:
                return False
            if count < MIN_DELIVERED:
                self._stop(now, delivered)
                return False
            self.rate = count / elapsed
            self.slowing = True
            self._tried = False
            self._begin(now, delivered)
            return True
        if elapsed < TRIAL:
            return True
        if count <= (STILL_FASTER if self._tried else FASTER) * self.rate * elapsed:
            self.interval = MIN_INTERVAL if self._tried else min(2 * self.interval, MAX_INTERVAL)
            self._stop(now, delivered)
            return False
        if not self._tried:
            self._tried = True
            self._since = now
            self.interval = MIN_INTERVAL
        elif now - self._since > RECHECK:
            self._stop(now, delivered)
            return False
        self._begin(now, delivered)
        return True

    def _stop(self, now: float, delivered: int) -> None:
        self.slowing = False
        self._begin(now, delivered)

    def _begin(self, now: float, delivered: int) -> None:
        self._began = now
        self._delivered = delivered
        self._checks = 0
