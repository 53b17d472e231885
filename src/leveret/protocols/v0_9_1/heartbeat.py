"""Heartbeats of one connection (0-9-1 section 4.2.7)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.protocols.v0_9_1.connection import Connection

log = logging.getLogger("leveret.connection")


class Heartbeat(Timed):
    """Sends a heartbeat for every half interval in which nothing was sent, closes when nothing came for two intervals
    (0-9-1 section 4.2.7).

    It looks four times an interval. `quiet` counts the looks since something was sent, at the least: what was sent since
    the last look may be as old as that.
    """

    def __init__(self, connection: Connection, interval: int) -> None:
        super().__init__()
        self.connection: Connection | None = connection
        self.quarter = interval * 250
        self.silent = 0
        self.quiet = 0

    def fire(self, now: int) -> None:
        connection = self.connection
        if connection is None or connection.lost:
            return
        if connection.engine.received_any or connection.heartbeat_exempt():
            connection.engine.received_any = False
            self.silent = 0
        else:
            self.silent += 1
            if self.silent >= 8:
                log.warning("%s: no heartbeat for %d seconds, closing", connection.peer.name, self.quarter // 125)
                connection.peer.abort()
                return
        self.quiet = 1 if connection.sent_any else self.quiet + 1
        connection.sent_any = False
        connection.broker.timers.at(now + self.quarter, self)
        if self.quiet >= 2:
            self.quiet = 0
            connection.engine.send_heartbeat()
            connection.mark()
            connection.broker.end_turn()
            # The heartbeat itself is no traffic that would make the next one needless.
            connection.sent_any = False
