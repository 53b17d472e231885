"""Idle time-out, both ways (transport section 2.4.5)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from leveret.broker.timers import Timed
from leveret.wire.amqp1 import constants

if TYPE_CHECKING:
    from leveret.protocols.v1_0.connection import Connection

log = logging.getLogger("leveret.connection")

# Milliseconds. A client that asks for less is told that this is too little.
SHORTEST: Final = 100


class Listening(Timed):
    """Ends the connection when nothing came for the whole of `timeout` milliseconds."""

    def __init__(self, connection: Connection, timeout: int) -> None:
        super().__init__()
        self.connection: Connection | None = connection
        self.part = max(timeout // 4, 1)
        self.silent = 0

    def fire(self, now: int) -> None:
        connection = self.connection
        if connection is None or connection.lost:
            return
        if connection.heard or connection.is_spared():
            connection.heard = False
            self.silent = 0
        else:
            self.silent += 1
            if self.silent >= 4:
                log.warning("%s: no frame for %d ms, closing", connection.peer.name, self.part * 4)
                if connection.closing:
                    connection.peer.abort()
                    return
                connection.close(constants.RESOURCE_LIMIT_EXCEEDED,
                                 f"nothing came for {self.part * 4} ms; the setting is amqp10.idle_timeout")
                connection.broker.end_turn()
                return
        connection.broker.timers.at(now + self.part, self)


class Speaking(Timed):
    """Sends an empty frame for every half of the client's idle-time-out, which is `timeout` milliseconds, in which nothing
    was sent.

    It looks four times an idle-time-out. `quiet` counts the looks since something was sent, at the least: what was sent
    since the last look may be as old as that.
    """

    def __init__(self, connection: Connection, timeout: int) -> None:
        super().__init__()
        self.connection: Connection | None = connection
        self.part = max(timeout // 4, 1)
        self.quiet = 0

    def fire(self, now: int) -> None:
        connection = self.connection
        if connection is None or connection.lost or connection.closing:
            return
        self.quiet = 1 if connection.spoke else self.quiet + 1
        connection.spoke = False
        connection.broker.timers.at(now + self.part, self)
        if self.quiet >= 2:
            self.quiet = 0
            connection.send_empty()
            connection.broker.end_turn()
            # The empty frame itself is no traffic that would make the next one needless.
            connection.spoke = False
