"""Idle time-outs in both directions (transport section 2.4.5)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from leveret.broker.timers import PeriodicCheck
from leveret.protocols.amqp10.errors import ConnectionRefused
from leveret.wire.amqp10 import constants

if TYPE_CHECKING:
    from leveret.protocols.amqp10.connection.connection import Connection

logger = logging.getLogger("leveret.connection")

# Minimum idle-time-out of a client, in milliseconds.
MIN_IDLE_TIMEOUT: Final = 100


class QuarterCheck(PeriodicCheck):
    """A check of a connection four times per idle-time-out.

    Attributes:
        connection: The connection; None after `stop`.
    """

    def __init__(self, connection: Connection, timeout: int) -> None:
        super().__init__(max(timeout // 4, 1))
        self.connection: Connection | None = connection

    def start(self) -> None:
        """Schedule the first check."""
        assert self.connection is not None
        self.connection.broker.timers.check_periodically(self)

    def stop(self) -> None:
        """Check no more. The timers keep a reference until the next check."""
        self.connection = None


class IdleTimeout(QuarterCheck):
    """Check that closes the connection when the client sends nothing for `timeout` milliseconds."""

    def __init__(self, connection: Connection, timeout: int) -> None:
        super().__init__(connection, timeout)
        self.silent = 0
        # Whether the client has sent anything since the last check.
        self.heard = True

    def received(self) -> None:
        """Note input of the client."""
        self.heard = True

    def check(self, now: int) -> bool:
        connection = self.connection
        if connection is None or connection.lost:
            return False
        if self.heard or connection.ingress.heartbeat_exempt():
            self.heard = False
            self.silent = 0
        else:
            self.silent += 1
            if self.silent >= 4:
                logger.warning("%s: no frame for %d ms, closing", connection.peer.subject, self.period * 4)
                if connection.closing:
                    connection.peer.abort()
                else:
                    connection.close(
                        constants.RESOURCE_LIMIT_EXCEEDED,
                        f"no frame for {self.period * 4} ms; the setting is amqp10.idle_timeout",
                    )
                return False
        return True


class Keepalive(QuarterCheck):
    """Check that sends an empty frame when nothing was sent for half of the client's idle-time-out.

    `quiet_checks` is 1 at the first check after output, because the output may be as old as the previous check.
    """

    def __init__(self, connection: Connection, timeout: int) -> None:
        super().__init__(connection, timeout)
        self.quiet_checks = 0
        # Whether anything was sent since the last check.
        self.spoke = True

    def sent(self) -> None:
        """Note output to the client."""
        self.spoke = True

    def check(self, now: int) -> bool:
        connection = self.connection
        if connection is None or connection.lost or connection.closing:
            return False
        self.quiet_checks = 1 if self.spoke else self.quiet_checks + 1
        self.spoke = False
        if self.quiet_checks >= 2:
            # The empty frame is output, so the next check counts as the first one again.
            self.quiet_checks = 0
            connection.send_empty()
        return True


class IdleTimers:
    """The idle timers of one connection: `idle` closes it, and `keepalive` keeps the client from closing it."""

    def __init__(self) -> None:
        self.idle: IdleTimeout | None = None
        self.keepalive: Keepalive | None = None

    def start(self, connection: Connection, timeout: int, client_timeout: int) -> None:
        """Start the timers, each unless its time-out is 0. The times are in milliseconds.

        Raises:
            ConnectionRefused: the client's time-out is too short.
        """
        if 0 < client_timeout < MIN_IDLE_TIMEOUT:
            raise ConnectionRefused(
                constants.NOT_ALLOWED, f"idle-time-out is {client_timeout} ms; expected at least {MIN_IDLE_TIMEOUT} ms"
            )
        if timeout:
            self.idle = IdleTimeout(connection, timeout)
            self.idle.start()
        if client_timeout:
            self.keepalive = Keepalive(connection, client_timeout)
            self.keepalive.start()

    def stop(self) -> None:
        idle = self.idle
        if idle is not None:
            self.idle = None
            idle.stop()
        keepalive = self.keepalive
        if keepalive is not None:
            self.keepalive = None
            keepalive.stop()

    def received(self) -> None:
        """Note input of the client."""
        idle = self.idle
        if idle is not None:
            idle.received()

    def sent(self) -> None:
        """Note output to the client."""
        keepalive = self.keepalive
        if keepalive is not None:
            keepalive.sent()
