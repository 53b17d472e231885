"""Heartbeats of one connection (0-9-1 section 4.2.7)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.protocols.amqp091.connection.base import BaseConnection

logger = logging.getLogger("leveret.connection")


class Heartbeat(Timed):
    """Timer that sends heartbeats, and closes a connection that sends nothing for two intervals (0-9-1 section 4.2.7).

    A heartbeat is sent after half an interval without output. The timer checks four times per interval. `quiet_checks`
    counts the checks since the last output. Output since the previous check may be as old as that check.
    """

    def __init__(self, connection: BaseConnection, interval: int) -> None:
        super().__init__()
        self.connection: BaseConnection | None = connection
        self.quarter = interval * 250
        self.silent = 0
        self.quiet_checks = 0

    def detach(self) -> None:
        """Drop the connection, because it is lost. The timers may keep a reference to the heartbeat for a while."""
        self.connection = None

    def fire(self, now: int) -> None:
        connection = self.connection
        if connection is None or connection.lost:
            return
        if connection.engine.take_received() or connection.ingress.heartbeat_exempt():
            self.silent = 0
        else:
            self.silent += 1
            if self.silent >= 8:
                logger.warning(
                    "%s: connection aborted, no heartbeat for %d s", connection.peer.subject, self.quarter // 125
                )
                connection.peer.abort()
                return
        self.quiet_checks = 1 if connection.output.take_sent() else self.quiet_checks + 1
        connection.broker.timers.at(now + self.quarter, self)
        if self.quiet_checks >= 2:
            self.quiet_checks = 0
            connection.engine.send_heartbeat()
            connection.mark()
            connection.broker.end_turn()
            # The heartbeat does not count as output, so the next one stays due.
            connection.output.take_sent()
