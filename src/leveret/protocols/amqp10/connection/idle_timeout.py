"""Idle time-outs in both directions (transport section 2.4.5)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from leveret.broker.timers import Timed
from leveret.wire.amqp10 import constants

if TYPE_CHECKING:
    from leveret.protocols.amqp10.connection.connection import Connection

logger = logging.getLogger("leveret.connection")

# Minimum idle-time-out of a client, in milliseconds.
MIN_IDLE_TIMEOUT: Final = 100


class IdleTimeout(Timed):
    """Timer that closes the connection when the client sends nothing for `timeout` milliseconds."""

    def __init__(self, connection: Connection, timeout: int) -> None:
        super().__init__()
        self.connection: Connection | None = connection
        self.part = max(timeout // 4, 1)
        self.silent = 0

    def fire(self, now: int) -> None:
        connection = self.connection
        if connection is None or connection.lost:
            return
        if connection.heard or connection.ingress.heartbeat_exempt():
            connection.heard = False
            self.silent = 0
        else:
            self.silent += 1
            if self.silent >= 4:
                logger.warning("%s: no frame for %d ms, closing", connection.peer.name, self.part * 4)
                if connection.closing:
                    connection.peer.abort()
                    return
                connection.close(
                    constants.RESOURCE_LIMIT_EXCEEDED,
                    f"no frame for {self.part * 4} ms; the setting is amqp10.idle_timeout",
                )
                connection.broker.end_turn()
                return
        connection.broker.timers.at(now + self.part, self)


class Keepalive(Timed):
    """Timer that sends an empty frame when nothing was sent for half of the client's idle-time-out.

    It checks four times per idle-time-out, `timeout` milliseconds. `quiet_checks` is 1 at the first check after output,
    because the output may be as old as the previous check.
    """

    def __init__(self, connection: Connection, timeout: int) -> None:
        super().__init__()
        self.connection: Connection | None = connection
        self.part = max(timeout // 4, 1)
        self.quiet_checks = 0

    def fire(self, now: int) -> None:
        connection = self.connection
        if connection is None or connection.lost or connection.closing:
            return
        self.quiet_checks = 1 if connection.spoke else self.quiet_checks + 1
        connection.spoke = False
        connection.broker.timers.at(now + self.part, self)
        if self.quiet_checks >= 2:
            self.quiet_checks = 0
            connection.send_empty()
            connection.broker.end_turn()
            # The empty frame does not count as output, so that the next one is sent in time.
            connection.spoke = False
