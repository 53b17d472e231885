"""Heartbeats of one connection (0-9-1 section 4.2.7)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leveret.broker.timers import Timed

if TYPE_CHECKING:
    from leveret.protocols.v0_9_1.connection import Connection

log = logging.getLogger("leveret.connection")


class Heartbeat(Timed):
    """Sends heartbeats when nothing else was sent, closes when nothing came for two intervals (0-9-1 section 4.2.7)."""

    def __init__(self, connection: Connection, interval: int) -> None:
        super().__init__()
        self.connection: Connection | None = connection
        self.half = interval * 500
        self.silent = 0

    def fire(self, now: int) -> None:
        connection = self.connection
        if connection is None or connection.lost:
            return
        if connection.engine.received_any or connection.is_spared():
            connection.engine.received_any = False
            self.silent = 0
        else:
            self.silent += 1
            if self.silent >= 4:
                log.warning("%s: no heartbeat for %d seconds, closing", connection.peer.name, self.half // 250)
                connection.peer.abort()
                return
        if not connection.sent_any:
            connection.engine.send_heartbeat()
            connection.mark()
        connection.sent_any = False
        connection.broker.timers.at(now + self.half, self)
        connection.broker.end_turn()
