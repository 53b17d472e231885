"""Heartbeats of one connection (0-9-1 section 4.2.7)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leveret.broker.timers import PeriodicCheck

if TYPE_CHECKING:
    from leveret.protocols.amqp091.connection.base import BaseConnection

logger = logging.getLogger("leveret.connection")


class Heartbeat(PeriodicCheck):
    """Check that sends heartbeats, and closes a connection that sends nothing for two intervals (0-9-1 section 4.2.7).

    A heartbeat is sent after half an interval without output. The check runs four times per interval. `quiet_checks`
    counts the checks since the last output. Output since the previous check may be as old as that check.
    """

    def __init__(self, connection: BaseConnection, interval: int) -> None:
        super().__init__(interval * 250)
        self.connection: BaseConnection | None = connection
        self.silent = 0
        self.quiet_checks = 0

    def detach(self) -> None:
        """Drop the connection, because it is lost. The timers keep a reference to the heartbeat until its next check."""
        self.connection = None

    def check(self, now: int) -> bool:
        connection = self.connection
        if connection is None or connection.lost:
            return False
        if connection.engine.take_received() or connection.ingress.heartbeat_exempt():
            self.silent = 0
        else:
            self.silent += 1
            if self.silent >= 8:
                logger.warning("%s: connection aborted, no heartbeat for %d s", connection.peer.subject, self.period // 125)
                connection.peer.abort()
                return False
        self.quiet_checks = 1 if connection.output.take_sent() else self.quiet_checks + 1
        if self.quiet_checks >= 2:
            # The heartbeat is output, so the next check counts as the first one again.
            self.quiet_checks = 0
            connection.engine.send_heartbeat()
            connection.mark()
        return True
